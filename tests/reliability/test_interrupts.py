"""Mixed messages over two servers under `interrupt`: a short run of `scripts/interrupts.py`."""

from __future__ import annotations

import subprocess
import sys

from tests.platform.astromesh import ROOT


def test_of_mixed_messages_the_newest_is_answered() -> None:
    """Plain runs, streams, chat completions, WebSockets and durable runs of one session, over PostgreSQL."""
    command = [sys.executable, str(ROOT / "scripts" / "interrupts.py"), "--rounds", "16"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
