"""A plain run takes a short way through the code: few modules, functions and frames."""

from __future__ import annotations

import subprocess
import sys

from tests.platform.astromesh import ROOT


def test_the_way_of_a_plain_run_and_of_a_token_is_within_its_limits() -> None:
    """docs/architecture.md tells the way; the script has the limits."""
    argv = [sys.executable, "scripts/trace_run.py", "--check"]
    done = subprocess.run(argv, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("a plain run: ")
