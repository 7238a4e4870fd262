"""`schedules` of agents and workflows, and the times of their cron expressions in the time of a place.

A local time that does not exist, because clocks go forward, is the instant at which they do. One that comes
twice counts once, the first time. An expression whose hour is `*` follows the hours as they pass instead.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import Field, model_validator

from astromesh.config.records import Record

_FIELDS = 5
_HOUR_SECONDS, _DAY_SECONDS = 3600.0, 86_400.0


class Cron:
    """A cron expression of five fields: minute, hour, day of the month, month, day of the week.

    Raises:
        ValueError: it is none, or never comes; or the time zone does not exist.
    """

    def __init__(self, expression: str, timezone: str = "UTC") -> None:
        self._expression, self._zone = expression, _zone_of(timezone)
        fields = expression.split()
        if len(fields) != _FIELDS:
            raise ValueError("cron: it has five fields: minute, hour, day, month, day of the week")
        self._follows_hours = fields[1] == "*"
        try:
            next(CronSim(expression, datetime(2000, 1, 1)))  # noqa: DTZ001 (a local time)
        except CronSimError as error:
            raise ValueError(f"cron: {expression!r} is not a cron expression: {error}") from None
        except StopIteration:
            raise ValueError(f"cron: {expression!r} never comes") from None

    def after(self, instant: float) -> float:
        """Returns the next time after another one, both in seconds since the epoch."""
        if self._follows_hours:
            local = datetime.fromtimestamp(instant, self._zone)
            return next(CronSim(self._expression, local)).timestamp()
        local = datetime.fromtimestamp(instant, self._zone).replace(tzinfo=None)
        times = CronSim(self._expression, local)
        while (found := self._instant_of(next(times))) <= instant:
            pass
        return found

    def last(self, since: float, until: float) -> float:
        """Returns the last time that is not after `until`. Args: since: a time of this expression."""
        if until <= since:
            return since
        for back in (_HOUR_SECONDS, _DAY_SECONDS, 32 * _DAY_SECONDS):  # so that a long pause has few steps
            if until - back > since and (found := self.after(until - back)) <= until:
                since = found
                break
        while (following := self.after(since)) <= until:
            since = following
        return since

    def _instant_of(self, local: datetime) -> float:
        """Returns the first instant of a local time; of one that does not exist, that of the change."""
        instant = local.replace(tzinfo=self._zone).timestamp()
        if datetime.fromtimestamp(instant, self._zone).replace(tzinfo=None) == local:
            return instant
        # `fold` 0 takes the offset before the change, and so names a time after it
        return _change_before(instant, self._zone)


def _change_before(instant: float, zone: tzinfo) -> float:
    """Returns the first instant with the offset that a zone has at another one, by halving one day."""
    offset = datetime.fromtimestamp(instant, zone).utcoffset()
    low, high = int(instant) - int(_DAY_SECONDS), int(instant)
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            high = middle
        else:
            low = middle
    return float(high)


def _zone_of(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"timezone: there is no time zone {name!r}; `Europe/Madrid` is one") from None


# -- keys ----------------------------------------------------------------------------------------------------

#: what happens to firings that no process was there for
OnMissed = Literal["skip", "once", "all"]
#: seconds that a firing may be later, at random
MAX_JITTER_SECONDS = 86_400.0


class ScheduleTimes(Record):
    """When something runs."""

    cron: str = Field(
        max_length=200, description="Five fields: minute, hour, day of the month, month, day of the week."
    )
    timezone: str = Field("UTC", max_length=64, description="Where the times of `cron` are local times.")
    jitter: Annotated[float, Field(ge=0, le=MAX_JITTER_SECONDS)] = Field(
        0.0, description="Seconds; each firing is later by a random part of them."
    )
    on_missed: OnMissed = Field(
        "once", description="Firings that no process was there for: skip them, run once, or run all."
    )

    @model_validator(mode="after")
    def _comes(self) -> Self:
        Cron(self.cron, self.timezone)
        return self


class AgentSchedule(ScheduleTimes):
    query: str = Field(min_length=1, description="The message.")
    session: str = Field("", max_length=256, description="Its session; empty: each firing has its own.")


class WorkflowSchedule(ScheduleTimes):
    input: Any = Field(None, description="The input of the Task.")
