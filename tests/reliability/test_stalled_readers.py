"""Readers who stop reading, over a server process: a short run of `scripts/stalled_readers.py`."""

from __future__ import annotations

import subprocess
import sys

from tests.platform.astromesh import ROOT


def test_readers_who_stop_reading_cost_little_and_their_memory_returns() -> None:
    """At most twice the bytes that they wait for, and a constant; no copy of their answers stays."""
    script = str(ROOT / "scripts" / "stalled_readers.py")
    command = [sys.executable, script, "--readers", "60", "--bytes", "1500000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
