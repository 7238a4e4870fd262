"""The tables of docs/scale.md are what its script calculates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_are_those_of_the_script() -> None:
    done = subprocess.run([sys.executable, "scripts/scale.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run python scripts/scale.py"
