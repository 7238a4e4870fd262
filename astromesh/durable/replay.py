"""Runs again from their records: up to a step, or whole and compared. No replay makes a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NoReturn

import orjson
from msgspec.structs import replace

from astromesh.durable.approvals import UncountedWaits
from astromesh.durable.base import JournalStep, RunChange
from astromesh.durable.journal import NodeVisit, RunJournal
from astromesh.durable.recording import Redactor, message_json, redacted, redacted_arguments, requests_of
from astromesh.durable.step_log import NODE_PREFIX, SegmentRecord, StepLog
from astromesh.durable.step_view import kind_of, name_of
from astromesh.errors import Divergence
from astromesh.graph import call_record
from astromesh.graph.scope import AskModel, CallTool, NodeEffect, ReplayTool
from astromesh.tools.base import HumanQuestion, ToolPort
from astromesh.types import CompletionRequest, CompletionResult, Event, JsonObject, ToolCall, ToolResult


class ReplayJournal(RunJournal):
    """A journal that only reads: it leads a run to a step of its record, and makes no call.

    A visit, call or question that the record does not have never ends: whoever replays waits for the step
    that it wants, and cancels the rest. A node that has not finished executes only if something below it is
    recorded, and if it does nothing to the world by itself.

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


_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS
#: parts of the record of a node that are compared
_COMPARED = ("result", "writes", "edge", "stop")
#: parts of the result of a tool that are compared
_RESULT = ("content", "ok", "error")
#: numbers that differ each time
_TIMES = frozenset({"duration_ms", "latency_ms"})


class ReplayLog(StepLog):
    """The record of a run that is replayed: it answers every call, and names the first one that differs.

    A replay makes the run again: its prompts, the requests to models, the arguments of tools, its answer.
    Nothing is called and nothing is written. What the run makes is compared with what it made before. A step
    that the record does not have, or that differs, is the divergence, and ends the replay.

    A node is executed again if it may be repeated and has made recorded calls; else its record answers it.
    The record of a call answers a tool, too, but not one that runs an agent: that run is made again.

    Args:
        run_id, agent, manifest: of the run, or the id of the Task.
        steps: in the order of their paths and numbers.
        lists_tools: whether the tools that requests offer are compared. Those of servers are not listed.

    Attributes:
        divergence: `{"step", "path", "kind", "name", "at", "recorded", "replayed"}`, or None.
        compared: the number of requests, arguments, nodes, prompts and answers that were compared.
    """

    is_replay = True

    def __init__(  # noqa: PLR0913 (what a record is opened with)
        self,
        run_id: str,
        agent: str,
        manifest: JsonObject | None,
        steps: Sequence[JournalStep],
        accepted_at: float,
        inherited: int | None,
        *,
        lists_tools: bool,
    ) -> None:
        segment = SegmentRecord(_NoWrites(), _no_events, lambda: None)  # type: ignore[arg-type]
        super().__init__(
            run_id,
            agent,
            _NoWrites(),
            _ExpiredWaits(),
            steps,
            accepted_at=accepted_at,
            manifest=manifest,
            segment=segment,
            inherited=inherited,
        )
        self.writes_sessions = False
        self.divergence: JsonObject | None = None
        self.compared = 0
        self._requests, self._lists_tools = requests_of(steps), lists_tools

    def find(self, path: str, n: int, request_hash: str) -> JournalStep | None:
        if self.failure is not None:
            raise self.failure
        step = self._steps.get((path, n))
        if step is None or (step.state != "done" and step.kind != "wait"):
            self._differ(path, None, "step", None, f"step {n} of {path.removeprefix(NODE_PREFIX)!r}")
        return step

    def add(self, step: JournalStep) -> None:
        """Adds nothing: the record is as it was."""

    def check_reached(self, path: str) -> None:
        """Checks nothing: the record has the later visits of this node, too."""

    # -- what is compared ----------------------------------------------------------------------------------

    def check_request(self, path: str, n: int, request: CompletionRequest, redact: Redactor | None) -> None:
        recorded = self._requests.get((path, n))
        if recorded is None:
            return
        replayed: JsonObject = call_record.request_to_json(replace(request, messages=()))
        replayed["messages"] = [message_json(one, redact) for one in request.messages]
        if not self._lists_tools:
            recorded, replayed = ({**one, "tools": []} for one in (recorded, replayed))
        self._compare(path, n, recorded, replayed)

    def check_arguments(self, path: str, n: int, call: ToolCall, redact: Redactor | None) -> None:
        step = self._steps.get((path, n))
        if step is None or step.about is None:
            return
        arguments = call.arguments if redact is None else redacted_arguments(call.arguments, redact)
        about = {"name": step.about.get("name"), "arguments": step.about.get("in")}
        self._compare(path, n, about, {"name": call.name, "arguments": arguments})

    def check_result(self, path: str, n: int, result: ToolResult, redact: Redactor | None) -> None:
        step = self._steps[path, n]
        made = step._replace(output=call_record.result_to_json(result))
        output = (made if redact is None else redacted(made, redact)).output or {}
        recorded, replayed = ({key: one.get(key) for key in _RESULT} for one in (step.output or {}, output))
        self._compare(path, n, recorded, replayed)

    def check_value(self, path: str, output: JsonObject, redact: Redactor | None) -> None:
        step = self._steps.get((path, 1))
        if step is None or step.output is None:
            return
        recorded = step.output
        if redact is not None:  # the rules find nothing in texts that they have redacted
            recorded, output = ({**one, "actions": []} for one in (recorded, output))
        self._compare(path, 1, recorded, output)

    def check_node(self, step: JournalStep, redact: Redactor | None) -> None:
        """`step`: as the replay has made it."""
        found = self._steps[step.path, step.n]
        made = (step if redact is None else redacted(step, redact)).output or {}
        parts = ({key: one[key] for key in _COMPARED if key in one} for one in (found.output or {}, made))
        recorded, replayed = map(_without_times, map(_plain, parts))
        if self._ran_beside_others(found):
            _drop_unshared(recorded, replayed)
        self._compare(step.path, step.n, recorded, replayed)

    def _ran_beside_others(self, node: JournalStep) -> bool:
        """Whether another node has ended while this one ran, which is not in it."""
        start = (node.about or {}).get("after", node.ordinal)
        return any(
            step.kind == "node" and start < step.ordinal < node.ordinal
            and not step.path.startswith(f"{node.path}/")
            for step in self._steps.values()
        )  # fmt: skip

    def check_answer(self, recorded: JsonObject, replayed: JsonObject) -> None:
        """Compares how the run has ended, unless it has diverged before."""
        if self.divergence is None and (found := first_difference(_plain(recorded), _plain(replayed))):
            self._note("", None, *found)

    # -- divergences ---------------------------------------------------------------------------------------

    def _compare(self, path: str, n: int, recorded: Any, replayed: Any) -> None:
        self.compared += 1
        found = first_difference(_plain(recorded), _plain(replayed))
        if found is not None:
            self._differ(path, self._steps.get((path, n)), *found)

    def _differ(self, path: str, step: JournalStep | None, at: str, recorded: Any, replayed: Any) -> NoReturn:
        self._note(path, step, at, recorded, replayed)
        self.failure = self.failure or Divergence(f"The replay differs from the run at {path!r}: {at}.")
        raise self.failure

    def _note(self, path: str, step: JournalStep | None, at: str, recorded: Any, replayed: Any) -> None:
        self.divergence = self.divergence or {
            "step": step.ordinal if step is not None else None,
            "path": path.removeprefix(NODE_PREFIX),
            "kind": kind_of(step) if step is not None else None,
            "name": name_of(step) if step is not None else "",
            "at": at,
            "recorded": recorded,
            "replayed": replayed,
        }


def _drop_unshared(*records: JsonObject) -> None:
    """Drops the keys that only one of these records of a node has written to the context.

    Concurrent nodes may share a context: whoever ends later has the writes of the others among its own. The
    node around them has the writes of all.
    """
    written = [record.get("writes", {}).get("context", {}) for record in records]
    for one, other in (written, written[::-1]):
        for key in one.keys() - other.keys():
            del one[key]
    for record in records:
        if record.get("writes", {}).get("context") == {}:
            del record["writes"]["context"]


def _plain(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value, option=_OPTIONS, default=str))


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(inner) for key, inner in value.items() if key not in _TIMES}
    return [*map(_without_times, value)] if isinstance(value, list) else value


def first_difference(one: Any, other: Any, at: str = "") -> tuple[str, Any, Any] | None:
    """Returns where two JSON values differ first, and both values there. None: they are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        parts: Iterable[tuple[str, Any, Any]] = (
            (f"{at}.{key}".lstrip("."), one.get(key), other.get(key)) for key in sorted({*one, *other})
        )
    elif isinstance(one, list) and isinstance(other, list):
        length = max(len(one), len(other))
        pairs = ([*side, *[None] * (length - len(side))] for side in (one, other))
        parts = ((f"{at}[{n}]", left, right) for n, (left, right) in enumerate(zip(*pairs, strict=True)))
    else:
        return None if one == other and type(one) is type(other) else (at, one, other)
    return next(
        (found for place, left, right in parts if (found := first_difference(left, right, place))), None
    )


class _NoWrites:
    """Writes nothing: a `StepWriter`, and a `SegmentWriter` as far as a run uses it."""

    def step(self, step: JournalStep) -> None:
        """Writes nothing."""

    async def flush(self) -> None:
        """Has nothing to write."""

    def change(self, change: RunChange) -> None:
        """Changes nothing."""

    def scrub_soon(self) -> None:
        """Has nothing to erase."""


class _ExpiredWaits(UncountedWaits):
    """Asks nobody. A question without a decision has expired."""

    async def decision(
        self, step: JournalStep, human_question: HumanQuestion, found: JournalStep | None
    ) -> JsonObject:
        return {"decision": "expired"}


async def _no_events(_: str) -> Sequence[Event]:
    return ()
