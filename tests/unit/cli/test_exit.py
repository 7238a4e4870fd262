"""A process whose work is done ends, whatever still hangs in it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, threading
from astromesh.cli.shutdown import exit_within
from astromesh.logs import configure_logging

async def main():
    begun = threading.Event()
    def hang():
        begun.set()
        threading.Event().wait()
    tool = asyncio.ensure_future(asyncio.to_thread(hang))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    exit_within(SECONDS)

configure_logging()
print("served", flush=True)
asyncio.run(main())
"""


def test_a_thread_that_hangs_in_an_executor_does_not_keep_the_process() -> None:
    """What was written is not lost, and the log says what held it up."""
    program = PROGRAM.replace("SECONDS", "0.05")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.startswith("served\n")
    assert "ended_by_force" in done.stderr
    assert "asyncio_0" in done.stderr


def test_a_process_that_ends_by_itself_is_not_waited_for() -> None:
    program = "from astromesh.cli.shutdown import exit_within\nexit_within(3600)\nprint('over')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "over\n"
