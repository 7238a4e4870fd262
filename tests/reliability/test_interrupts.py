"""Mixed messages over two servers under `interrupt`: a short run of `scripts/interrupts.py`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scripts.interrupts import StoredRun, came_late
from tests.platform.astromesh import ROOT


def test_of_mixed_messages_the_newest_is_answered() -> None:
    """Plain runs, streams, chat completions, WebSockets and durable runs of one session, over PostgreSQL."""
    command = [sys.executable, str(ROOT / "scripts" / "interrupts.py"), "--rounds", "16"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


FIRST, SECOND = StoredRun("10", "20", "completed"), StoredRun("30", "40", "completed")
REPLACED, REPLACED_LAST = StoredRun("05", "11", "failed"), StoredRun("31", "32", "failed")


@pytest.mark.parametrize(
    ("answered", "asked", "runs", "late"),
    [
        pytest.param(True, ["new", "old"], [SECOND, FIRST, REPLACED], True, id="it came after the answer"),
        pytest.param(False, ["old"], [SECOND, REPLACED], True, id="it replaced the newest"),
        pytest.param(
            True,
            ["new", "old"],
            [StoredRun("10", "40", "completed"), StoredRun("30", "35", "completed")],
            False,
            id="it was not replaced",
        ),
        pytest.param(False, ["old"], [REPLACED_LAST, SECOND], False, id="it replaced a newer one"),
        pytest.param(True, ["old"], [SECOND, REPLACED], False, id="the answer has no turn"),
        pytest.param(False, [], [REPLACED], False, id="no turns"),
    ],
)
def test_an_older_message_may_have_the_last_turn_only_where_it_came_last(
    answered: bool, asked: list[str], runs: list[StoredRun], late: bool
) -> None:
    assert came_late("new", answered, asked, runs, accepted_late=False) is late


def test_a_durable_run_came_last_that_was_accepted_after_the_newest_was_sent() -> None:
    assert came_late("new", False, ["old"], [REPLACED_LAST, SECOND], accepted_late=True)
