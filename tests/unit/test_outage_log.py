"""What is away is told once for each reason and once a minute, and so is that it is back."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from astromesh.durable.writer import retry_while_unavailable
from astromesh.errors import StoreUnavailable
from astromesh.logs import RECOVERY_SECONDS, REPEAT_SECONDS, OutageLog
from astromesh.testing import ManualClock


def test_a_reason_is_told_when_it_is_new_and_once_a_minute() -> None:
    clock = ManualClock()
    outages = OutageLog(structlog.get_logger(), "away", "back", clock.monotonic)
    with capture_logs() as lines:
        for reason in ["locked", "locked", "gone", "locked"]:
            outages.failed(reason)
        clock.advance(REPEAT_SECONDS)
        outages.failed("locked")
    assert [line["error"] for line in lines] == ["locked", "gone", "locked"]


def test_that_it_is_back_is_told_once_and_the_next_outage_is_a_new_one() -> None:
    clock = ManualClock()
    outages = OutageLog(structlog.get_logger(), "away", "back", clock.monotonic)
    with capture_logs() as lines:
        outages.succeeded()
        outages.failed("locked")
        clock.advance(RECOVERY_SECONDS)
        outages.succeeded()
        outages.succeeded()
        outages.failed("locked")
    assert [line["event"] for line in lines] == ["away", "back", "away"]


def test_where_one_work_goes_on_and_another_does_not_the_log_stays_quiet() -> None:
    """A full disk: what reads succeeds between two failures of what writes."""
    clock = ManualClock()
    outages = OutageLog(structlog.get_logger(), "away", "back", clock.monotonic)
    with capture_logs() as lines:
        for _ in range(100):
            outages.failed("disk full")
            clock.advance(0.2)
            outages.succeeded()
    assert [line["event"] for line in lines] == ["away"]


def test_ever_new_reasons_are_not_kept_for_ever() -> None:
    outages = OutageLog(structlog.get_logger(), "away", "back")
    with capture_logs() as lines:
        for number in range(1000):
            outages.failed(f"try {number}")
    assert (len(lines), len(outages._reported) < 100) == (1000, True)


async def test_a_store_that_is_away_is_asked_again_and_told_once() -> None:
    away = StoreUnavailable("It is away in the test of surely.")
    answers: list[Exception | str] = [away, away, "row"]

    async def work() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with capture_logs() as lines:
        assert await retry_while_unavailable(work) == "row"
    assert [line["event"] for line in lines] == ["run_store_away"]
