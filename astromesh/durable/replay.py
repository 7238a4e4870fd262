"""A journal that only reads: it leads a run to a step of its record, and makes no call.

A visit, call or question that the record does not have never ends: whoever replays waits for the step that it
wants, and cancels the rest. A node that has not finished executes only if something below it is recorded, and
if it does nothing to the world by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

from astromesh.durable.base import JournalStep
from astromesh.durable.journal import NodeVisit, RunJournal
from astromesh.durable.step_log import NODE_PREFIX, StepLog
from astromesh.durable.waits import UncountedWaits
from astromesh.graph.scope import AskModel, CallTool, NodeEffect, ReplayTool
from astromesh.tools.base import HumanQuestion, ToolPort
from astromesh.types import CompletionRequest, CompletionResult, JsonObject, ToolCall, ToolResult


class ReplayJournal(RunJournal):
    """The record of a run up to a step.

    Args:
        steps: All of them are done.

    Attributes:
        stopped_at: The paths of what the record does not have, as it was reached.
        has_stopped: Set when something was reached that the record does not have.
    """

    def __init__(self, run_id: str, steps: Sequence[JournalStep]) -> None:
        log = StepLog(run_id, "", _NoWriter(), _NoWaits(), steps)
        super().__init__(log, "", run_id, NoReplays())
        self._paths = [step.path.removeprefix(NODE_PREFIX) for step in steps]
        self.stopped_at: list[str] = []
        self.has_stopped = asyncio.Event()

    @property
    def suspended(self) -> bool:
        """True: a run that is replayed concludes nothing."""
        return True

    async def visit(self, path: str, effect: NodeEffect, frame: str | None = None) -> NodeVisit:
        key = f"{NODE_PREFIX}{self.at(path)}"
        if not self.step_log.has_next(key) and not self._may_execute(self.at(path), effect):
            self.step_log.reach(key, None if frame is None else self.at(frame))  # another node may be there
            await self._stop(path)
        return await super().visit(path, effect, frame)

    async def call(
        self,
        path: str,
        request_hash: str,
        name: str,
        make: Callable[[], Awaitable[JsonObject]],
        *,
        once: bool,
        arguments: Any = None,
    ) -> JsonObject:
        if not self.step_log.has_next(self.at(path)):
            await self._stop(path)
        return await super().call(path, request_hash, name, make, once=once, arguments=arguments)

    async def model(
        self, scope: Any, step: int, request: CompletionRequest, role: str, ask: AskModel
    ) -> CompletionResult:
        if not self.step_log.has_next(self.at(scope.path) or "model"):
            await self._stop(scope.path)
        return await super().model(scope, step, request, role, ask)

    async def tool(
        self, scope: Any, tools: ToolPort, call: ToolCall, do: CallTool, retell: ReplayTool
    ) -> ToolResult:
        spec = next((s for s in tools.specs() if s.name == call.name), None)
        is_recorded = spec is None or spec.recorded
        if is_recorded and not self.step_log.has_next(f"{self.at(scope.path)}/tool:{call.id}"):
            await self._stop(scope.path)
        return await super().tool(scope, tools, call, do, retell)

    async def person(self, scope: Any, ticket: str, question: HumanQuestion) -> JsonObject:
        if not self.step_log.has_next(f"{self.at(scope.path)}/human:{ticket}".lstrip("/")):
            await self._stop(scope.path)
        return await super().person(scope, ticket, question)

    def _may_execute(self, path: str, effect: NodeEffect) -> bool:
        return effect in ("read", "idempotent") and any(one.startswith(f"{path}/") for one in self._paths)

    async def _stop(self, path: str) -> NoReturn:
        self.stopped_at.append(path)
        self.has_stopped.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a replay only ends by cancelling")


class NoReplays:
    """Keeps nothing of the answers that a record gives."""

    keeps_requests = False

    def record_replay(self, request: CompletionRequest, result: CompletionResult) -> None:
        """Keeps nothing."""


class _NoWriter:
    """Writes nothing."""

    def step(self, step: JournalStep) -> None:
        """Writes nothing."""

    async def flush(self) -> None:
        """Has nothing to write."""


class _NoWaits(UncountedWaits):
    """Asks nobody."""

    async def decision(
        self, step: JournalStep, human_question: HumanQuestion, found: JournalStep | None
    ) -> JsonObject:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a replay only ends by cancelling")
