"""What a server says its tools are, and whether it still says the same.

A server that changes a description after people have looked at it can lead a model astray ("rug pull"), so
that each definition is pinned by its hash, on disk, and a change is a warning.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import structlog

log = structlog.get_logger("astromesh.mcp")


class Definition(NamedTuple):
    """One tool as its server defines it. `schema` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 over all that a model sees of it."""
        return sha256(orjson.dumps([*self], option=orjson.OPT_SORT_KEYS)).hexdigest()


@dataclass(frozen=True, eq=False, slots=True)
class Definitions:
    """One list of tools; another list is another object, even where it says the same."""

    tools: tuple[Definition, ...] = ()


def changed(before: Definitions, after: Definitions) -> tuple[str, ...]:
    """Names of tools that are in both lists and are not the same."""
    was = {tool.name: tool for tool in before.tools}
    return tuple(tool.name for tool in after.tools if was.get(tool.name, tool) != tool)


class Pins:
    """The hashes that were seen first, in a file.

    Args:
        server: name in mcp.yaml.
        file: where they are kept; one that cannot be read counts as empty.
    """

    def __init__(self, server: str, file: Path) -> None:
        self._server, self._file = server, file
        self._digests: dict[str, str] = _read(file)

    def check(self, found: Definitions) -> tuple[str, ...]:
        """Names of tools whose definition is not what it was; each is reported once and pinned anew."""
        now = {tool.name: tool.digest for tool in found.tools}
        changed = tuple(name for name, digest in now.items() if self._digests.get(name, digest) != digest)
        for name in changed:
            log.warning("mcp_tool_changed", server=self._server, tool=name)
        if now.items() - self._digests.items():
            self._digests |= now
            self._write()
        return changed

    def _write(self) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            draft = self._file.with_name(f"{self._file.name}.{os.getpid()}")
            draft.write_bytes(orjson.dumps(self._digests, option=orjson.OPT_INDENT_2))
            draft.replace(self._file)
        except OSError as error:  # they are pinned for the life of this process at least
            log.warning("mcp_pins_not_kept", server=self._server, error=str(error))


def _read(file: Path) -> dict[str, str]:
    try:
        found = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
