"""`schedules` of agents and workflows."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from astromesh.config.records import Record
from astromesh.cron import Cron

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
