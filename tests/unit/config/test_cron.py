"""Times of cron expressions: once a day also on the days on which clocks change."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from astromesh.config.schedules import Cron


def times(expression: str, timezone: str, since: str, count: int) -> list[str]:
    """Returns the next times in UTC, as day and time."""
    cron, at, found = Cron(expression, timezone), datetime.fromisoformat(since).timestamp(), []
    for _ in range(count):
        at = cron.after(at)
        found.append(f"{datetime.fromtimestamp(at, UTC):%d %H:%M}")
    return found


@pytest.mark.parametrize(
    ("expression", "timezone", "since", "expected"),
    [
        ("0 8 * * 1-5", "UTC", "2026-11-27T09:00Z", ["30 08:00", "01 08:00"]),
        ("0 8 * * *", "Europe/Madrid", "2026-07-01T00:00Z", ["01 06:00", "02 06:00"]),
        # 02:30 does not exist on the 8th: it fires when the clocks go forward, at 07:00 UTC
        ("30 2 * * *", "America/New_York", "2026-03-07T00:00Z", ["07 07:30", "08 07:00", "09 06:30"]),
        # neither do the four quarters: they are one instant
        ("*/15 2 * * *", "America/New_York", "2026-03-08T00:00Z", ["08 07:00", "09 06:00"]),
        ("0 */2 * * *", "America/New_York", "2026-03-08T04:30Z", ["08 05:00", "08 07:00", "08 08:00"]),
        ("0 0 * * *", "Africa/Cairo", "2026-04-22T00:00Z", ["22 22:00", "23 22:00", "24 21:00"]),
        # a day that an island has left out
        ("0 9 * * *", "Pacific/Apia", "2011-12-28T12:00Z", ["28 19:00", "29 19:00", "30 10:00", "30 19:00"]),
        # 01:30 comes twice on the 1st: it fires once, the first time
        ("30 1 * * *", "America/New_York", "2026-10-31T00:00Z", ["31 05:30", "01 05:30", "02 06:30"]),
        ("*/30 1 * * *", "America/New_York", "2026-11-01T00:00Z", ["01 05:00", "01 05:30", "02 06:00"]),
        # every hour stays every hour
        ("30 * * * *", "America/New_York", "2026-11-01T04:00Z", ["01 04:30", "01 05:30", "01 06:30"]),
        ("30 * * * *", "America/New_York", "2026-03-08T06:00Z", ["08 06:30", "08 07:30"]),
    ],
)  # fmt: skip
def test_each_local_time_fires_once(expression: str, timezone: str, since: str, expected: list[str]) -> None:
    assert times(expression, timezone, since, len(expected)) == expected


@pytest.mark.parametrize("expression", ["* * * * *", "0 * * * *", "30 2 * * *", "0 0 1 1 *"])
@pytest.mark.parametrize("days", [0, 1, 50, 900])
def test_the_last_time_before_an_instant_is_followed_by_one_after_it(expression: str, days: int) -> None:
    cron = Cron(expression, "Europe/Madrid")
    until = datetime(2026, 10, 25, 12, 0, tzinfo=UTC).timestamp()
    since = cron.after(until - days * 86_400.0 - 1.0)
    found = cron.last(since, until)
    assert found == since or since < found <= until
    assert cron.after(found) > until or found == since > until


@pytest.mark.parametrize(
    ("expression", "timezone", "says"),
    [
        ("* * * *", "UTC", "five fields"),
        ("* * * * * *", "UTC", "five fields"),
        ("@daily", "UTC", "five fields"),
        ("61 * * * *", "UTC", "minute"),
        ("0 0 30 2 *", "UTC", "day-of-month"),
        ("* * * * *", "Europe/Atlantis", "no time zone 'Europe/Atlantis'"),
        ("* * * * *", "../../etc/passwd", "no time zone"),
    ],
)
def test_what_is_none_says_why(expression: str, timezone: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Cron(expression, timezone)
