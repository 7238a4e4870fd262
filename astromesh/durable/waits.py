"""Who asks people what a step needs to know, and how calls that are active meanwhile are counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from astromesh.durable.base import JournalStep
from astromesh.tools.base import HumanQuestion
from astromesh.types import JsonObject


class Waits(Protocol):
    """Asks people: `ApprovalWaits`, or one that counts no calls."""

    def begin(self) -> None:
        """Counts a call as active until `end`."""

    def end(self) -> None: ...

    def calling(self) -> AbstractContextManager[None]: ...

    def suspended_call(self) -> AbstractContextManager[None]: ...

    async def decision(
        self, step: JournalStep, human_question: HumanQuestion, found: JournalStep | None
    ) -> JsonObject: ...


class UncountedWaits:
    """Counts no calls: nothing ends while one is active. Subclasses say how a question is answered."""

    def begin(self) -> None:
        """Counts nothing."""

    def end(self) -> None:
        """Counts nothing."""

    @contextmanager
    def calling(self) -> Iterator[None]:
        yield

    suspended_call = calling
