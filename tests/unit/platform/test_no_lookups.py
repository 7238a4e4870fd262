"""Programs that look up no name."""

from __future__ import annotations

import subprocess
import sys

from tests.platform import no_lookups

_TRIES = """
import socket
from pathlib import Path
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    for family in (socket.AF_INET, socket.AF_UNIX):
        try:
            socket.socket(family, kind).close()
            print("made")
        except PermissionError:
            print("refused")
status = Path("/proc/self/status")
print("Seccomp:\\t2" in status.read_text() if status.exists() else False)
"""


def test_a_program_without_lookups_has_streams_and_no_datagrams_over_ip() -> None:
    command = [sys.executable, no_lookups.__file__, sys.executable, "-c", _TRIES]
    *sockets, is_filtered = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert sockets == ["made", "made", "refused" if is_filtered == "True" else "made", "made"]
