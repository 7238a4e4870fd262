"""The steps of a run or Task by their keys: what the record has, and what is added to it.

Steps are keyed by (path, n): the branch of the run's tree that made them, and their number in that branch.
They are never keyed by time, so concurrent branches keep their own results. A finished step answers only the
same request. Another request in its place is a `Divergence` that ends the run.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import time
from typing import NamedTuple, NoReturn, Protocol

from astromesh.durable.approvals import Waits
from astromesh.durable.base import JournalStep
from astromesh.durable.fork import ForkEdits, is_effect, recalled, recorded_effect
from astromesh.durable.recording import (
    Redactor,
    RequestEncoder,
    has_said,
    is_redacted_at_end,
    redacted,
    redacted_arguments,
)
from astromesh.durable.writer import SegmentWriter
from astromesh.errors import Divergence, NondeterministicGraph
from astromesh.tools.base import HumanQuestion
from astromesh.types import CompletionRequest, Event, JsonObject, ToolCall, ToolResult

#: before the path of a node, in the path of its step; before the path of a graph that counts its visits
NODE_PREFIX, GRAPH_PREFIX = "node:", "graph:"
#: in a path, before the place of a nested run
NESTED_MARK = "/run:"


class SegmentRecord(NamedTuple):
    """What the segment of a durable run stores beside its steps.

    Args:
        past: loads the events that earlier segments wrote for a run of the tree.
        postpone: ends the segment, so that another one begins soon.
    """

    writer: SegmentWriter
    past: Callable[[str], Awaitable[Sequence[Event]]]
    postpone: Callable[[], None]


class StepWriter(Protocol):
    """Writes steps to disk, in order: a `SegmentWriter`, or the log of a Task."""

    def step(self, step: JournalStep) -> None:
        """Adds a step to the next transaction."""

    async def flush(self) -> None:
        """Returns when everything added so far is on disk."""


class WaitingFunction(Protocol):
    """The active visit of a function that must not be repeated."""

    def wait(self) -> None:
        """Notes that it waits for a person."""

    async def resume(self) -> None:
        """Goes on after the wait."""


class StepLog:
    """The record of a run or Task, and of the runs nested in it.

    Args:
        run_id, agent: of the run, or the id of the Task and its workflow.
        steps: the steps on disk.
        waiting: asks people.
        accepted_at: the time that the prompts of all its segments show, in seconds since the epoch.
        manifest: the manifest of the agent, with those of the agents that it may call.
        segment: of a durable run: what stores its rows and events. None for a Task, whose nested runs are
            plain.
        is_durable: False for the recording of a plain run, which no process continues.
        inherited: of a fork: the number of the last step of the run that it was forked from. Tools with an
            effect are not called behind it without a person's approval. None for other runs.

    Attributes:
        writes_sessions: whether the runs nested in this one write to their sessions.
        failure: the divergence that was found. The run fails, even if it handles the error.
        suspended: the segment ends, and no step begins any more.
    """

    #: whether the run is made again only to compare it (`durable.replay`)
    is_replay = False

    def __init__(  # noqa: PLR0913 (what a journal is opened with)
        self,
        run_id: str,
        agent: str,
        writer: StepWriter,
        waiting: Waits,
        steps: Iterable[JournalStep],
        *,
        accepted_at: float = 0.0,
        manifest: JsonObject | None = None,
        segment: SegmentRecord | None = None,
        inherited: int | None = None,
        is_durable: bool = True,
    ) -> None:
        self.is_durable = is_durable
        self.is_fork, self._inherited = inherited is not None, inherited or 0
        self.writes_sessions = True
        self.run_id, self.agent, self.accepted_at = run_id, agent, accepted_at
        self.manifest: JsonObject = manifest or {}
        self.waiting, self._writer, self._segment = waiting, writer, segment
        steps = tuple(steps)
        self.failure: Divergence | None = None
        self.suspended = False
        self._steps = {(step.path, step.n): step for step in steps}
        self._passed: dict[str, int] = {}
        self._last_ordinal = max((step.ordinal for step in steps), default=0)
        #: what the requests of models are written by
        self.requests = RequestEncoder()
        #: the rules of the agents of the runs in this record, by the place of the run
        self._redactors: dict[str, Redactor | None] = {}
        self._has_rules = False
        #: calls that this segment has finished, as they are stored when the run has ended
        self._redacted: list[JournalStep] = []
        #: the nodes of earlier segments: by graph and position, and those that this segment has not reached
        self._positions: dict[tuple[str, int], str] = {}
        self._unreached: set[tuple[str, int]] = set()
        for step in steps:
            if step.kind == "node" and step.output is not None:
                self._unreached.add((step.path, step.n))
                if step.output["position"]:
                    self._positions[step.output["graph"], step.output["position"]] = step.path
        #: active visits of functions that must not be repeated, by path
        self.functions: dict[str, WaitingFunction] = {}

    @property
    def segment(self) -> SegmentRecord:
        assert self._segment is not None, "a Task has no segments"
        return self._segment

    @property
    def is_of_run(self) -> bool:
        """Whether it is of a durable run, so that nested runs are stored with it."""
        return self._segment is not None

    def restart(self, path: str) -> None:
        """Begins the work below a path again: its steps are numbered from 1."""
        for known in [one for one in self._passed if is_below(one, path)]:
            del self._passed[known]

    def number(self, path: str) -> int:
        """Returns the number, in its path, of a step that begins now.

        Raises:
            asyncio.CancelledError: the segment ends.
        """
        if self.suspended:
            raise asyncio.CancelledError
        n = self._passed[path] = self._passed.get(path, 0) + 1
        return n

    def protect(self, place: str, redact: Redactor | None) -> None:
        """Sets the rules that the texts of a run pass once it has ended.

        Args:
            place: of the run in this record.
        """
        self._redactors[place] = redact
        self._has_rules = self._has_rules or redact is not None

    # what a replay compares; see `ReplayLog`

    def check_request(self, path: str, n: int, request: CompletionRequest, redact: Redactor | None) -> None:
        """Compares a request with the recorded one, in a replay."""

    def check_arguments(self, path: str, n: int, call: ToolCall, redact: Redactor | None) -> None: ...

    def check_result(self, path: str, n: int, result: ToolResult, redact: Redactor | None) -> None: ...

    def check_value(self, path: str, output: JsonObject, redact: Redactor | None) -> None: ...

    def check_node(self, step: JournalStep, redact: Redactor | None) -> None: ...

    def is_inherited(self, step: JournalStep) -> bool:
        """Whether a step was made, and paid for, by the run that this one was forked from."""
        return 0 < step.ordinal <= self._inherited

    def edits(self, place: str) -> ForkEdits:
        """Returns what the fork has edited for the run at a place."""
        return ForkEdits(self._steps, place)

    def effect(self, call: ToolCall, redact: Redactor | None) -> JsonObject | None:
        """Returns what a call has returned in the run that this one was forked from, if it was made there."""
        arguments = call.arguments if redact is None else redacted_arguments(call.arguments, redact)
        return recorded_effect(self._steps, call.name, arguments)

    def recalled(self, path: str) -> JsonObject | None:
        """Returns what the run that this one was forked from has found in memory at a path."""
        return recalled(self._steps, path) if self.is_fork else None

    @property
    def last_ordinal(self) -> int:
        """The number of the step that has ended last."""
        return self._last_ordinal

    def values(self, path: str) -> tuple[JsonObject, ...]:
        """Returns the recorded values at a path, in order."""
        found = itertools.takewhile(bool, (self._steps.get((path, n)) for n in itertools.count(1)))
        return tuple(step.output or {} for step in found if step is not None)

    def peek(self, path: str, n: int) -> JournalStep | None:
        """Returns the step of the record, whatever its request was."""
        return self._steps.get((path, n))

    def reach(self, path: str, graph: str | None) -> tuple[int, int]:
        """Returns the number of a visit that begins now, and its position in its graph, 0 for none.

        Raises:
            NondeterministicGraph: the record has another node at this position.
        """
        n, position = self.number(path), 0
        self._unreached.discard((path, n))
        if graph is not None:
            position = self.number(f"{GRAPH_PREFIX}{graph}")
            recorded = self._positions.get((graph, position), path)
            if recorded != path:
                self.diverge(
                    f"The run cannot be resumed: its graph was changed. It comes to the node {_name(path)!r} "
                    f"where the recorded run came to {_name(recorded)!r}. Start the run again."
                )
        return n, position

    def check_reached(self, path: str) -> None:
        """Raises NondeterministicGraph if the record has nodes below a path that did not run this time."""
        below = (p for p, _ in self._unreached if p.startswith(f"{path}/"))
        # nodes of a run behind a recorded tool call do not run again
        missing = next((p for p in below if NESTED_MARK not in p.removeprefix(path)), None)
        if missing is not None:
            self.diverge(
                f"The run cannot be resumed: its graph was changed. The node {_name(path)!r} has not run "
                f"{_name(missing)!r}, which is recorded. Start the run again."
            )

    def diverge(self, message: str) -> NoReturn:
        self.failure = self.failure or NondeterministicGraph(message)
        raise self.failure

    async def while_active(self) -> None:
        """Returns at once.

        Raises:
            asyncio.CancelledError: the segment ends, also where foreign code has caught its cancellation.
        """
        if self.suspended:
            raise asyncio.CancelledError

    async def decision(
        self, step: JournalStep, question: HumanQuestion, found: JournalStep | None, place: str
    ) -> JsonObject:
        """Returns a person's decision. A function that waits for it begins again when it is there.

        Args:
            place: the path of the node or call that asks.
        """
        if found is not None and found.state == "done":
            return found.output or {}
        around = [v for path, v in self.functions.items() if f"{place}/".startswith(f"{path}/")]
        for visit in around:
            visit.wait()
        answer = await self.waiting.decision(step, question, found)
        for visit in around:
            await visit.resume()
        return answer

    def next_number(self, path: str) -> int:
        """Returns the number of the step that begins next on this path."""
        return self._passed.get(path, 0) + 1

    def has_next(self, path: str) -> bool:
        """Whether the record has the step that begins next on this path."""
        return (path, self.next_number(path)) in self._steps

    def find(self, path: str, n: int, request_hash: str) -> JournalStep | None:
        """Returns the step of the record, or None. Raises: Divergence: it was another request."""
        if self.failure is not None:
            raise self.failure
        step = self._steps.get((path, n))
        if step is not None and step.request_hash not in ("", request_hash):
            self.failure = Divergence(
                f"The run cannot be resumed: step {n} of {path!r} makes a different request than the "
                "recorded one. Start the run again."
            )
            raise self.failure
        return step

    def add(self, step: JournalStep) -> None:
        """Adds a step to the next transaction. One that is done gets its number."""
        if step.state == "done" and not step.ordinal:
            self._last_ordinal += 1
            step = JournalStep(*step[:6], self._last_ordinal, step.started_at or time(), *step[8:])
        if self._has_rules and step.state == "done" and has_said(step):
            redact = self._redactors.get(self._place_of(step.path) or "")
            if redact is not None:
                self._redacted.append(redacted(step, redact))
        if self._segment is None and self.is_durable:  # a stage may run a second time in the same process
            self._steps[step.path, step.n] = step
        self._writer.step(step)

    async def write(self, step: JournalStep) -> None:
        """Adds a step and returns when it is on disk, with everything before it."""
        self.add(step)
        await self.flush()

    async def flush(self) -> None:
        """Returns when everything added so far is on disk."""
        await self._writer.flush()

    def below(self, path: str) -> list[JournalStep]:
        """Returns the steps whose work is below a path, and the effects that a fork does not repeat."""
        return [step for step in self._steps.values() if is_below(step.path, path) or is_effect(step)]

    def redact(self, others: Iterable[JournalStep] = ()) -> list[JournalStep]:
        """Replaces raw texts of models, tools and people by what the rules leave of them: the run has ended.

        Args:
            others: `of_unknown_runs`, redacted.

        Returns:
            The redacted steps.
        """
        found: list[JournalStep] = []
        for step in self._steps.values():
            place = self._place_of(step.path) if is_redacted_at_end(step) else None
            if place is not None and (rules := self._redactors.get(place)) is not None:
                found.append(redacted(step, rules))
        found += (*others, *self._redacted)
        for step in found:
            self._writer.step(step)
        return found

    def of_unknown_runs(self) -> list[JournalStep]:
        """Returns the calls of runs nested in an earlier segment, to which this one has not come."""
        calls = filter(is_redacted_at_end, self._steps.values())
        return [step for step in calls if self._place_of(step.path) is None]

    def _place_of(self, path: str) -> str | None:
        """Returns the place of the run that has made a step; None if that run is not known."""
        path = path.removeprefix(NODE_PREFIX)
        places = [place for place in self._redactors if path == place or path.startswith(f"{place}/")]
        place = max(places, key=len, default="")
        return None if NESTED_MARK in path[len(place) :] else place


def is_below(key: str, path: str) -> bool:
    """Whether a step, or the positions of a graph, belong to the work below a path.

    Runs in a stage of a Task itself have an `@` before the path of the stage.
    """
    return key.removeprefix(NODE_PREFIX).removeprefix(GRAPH_PREFIX).removeprefix("@").startswith(f"{path}/")


def _name(path: str) -> str:
    """Returns the node of a step as messages show it."""
    return path.removeprefix(NODE_PREFIX)
