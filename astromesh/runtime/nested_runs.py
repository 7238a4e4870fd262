"""Nested runs: their rows and events in a durable run, and their text as the text of the outer run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from astromesh.durable.base import RunRow
from astromesh.durable.event_stream import DurableStream
from astromesh.durable.run_registry import row_of
from astromesh.durable.writer import SegmentWriter
from astromesh.graph.calls import ASSISTANT
from astromesh.graph.scope import Scope
from astromesh.runtime.agent import Agent
from astromesh.runtime.run import GatedEvents, Run
from astromesh.telemetry.events import MODEL_DELTA, TERMINAL_EVENTS, EventSink
from astromesh.tools.base import NestedRunOptions
from astromesh.types import Event

#: how deep agents may call agents, and how many such calls the whole tree of one run may make
MAX_DEPTH, MAX_NESTED_RUNS = 8, 256


class _NestedWriter:
    """The writer of the top run, whose segment continues after the last event of the nested run."""

    def __init__(self, writer: SegmentWriter) -> None:
        self._writer = writer

    @property
    def closed(self) -> bool:
        return self._writer.closed

    def event(self, event: Event, *, last: bool = False) -> None:
        self._writer.event(event)


async def begin_nested_run(
    run: Run, agent: Agent, own: Iterable[EventSink], again: Iterable[EventSink]
) -> None:
    """Makes the events of a run nested in a durable run go to disk from here on.

    Args:
        own: Listeners that receive new events only.
        again: Listeners that receive every event, those of an earlier segment included.
    """
    assert run.journal is not None
    step_log, log = run.journal.step_log, run.log
    past = await step_log.segment.past(run.id)
    run.use_stream(
        DurableStream(run.id, _NestedWriter(step_log.segment.writer), log, own, past, again), agent
    )
    step_log.segment.writer.nested(
        RunRow(
            log.run_id, log.tenant, log.owner, log.agent, log.session_id, log.trace_id, "running",
            run.scope.clock.now(), log.parent, worker=step_log.run_id,
        )
    )  # fmt: skip


def end_nested_run(run: Run) -> None:
    """Writes the row of a nested run that has ended, with its last event."""
    assert run.journal is not None
    if run.log.events and run.log.events[-1].type in TERMINAL_EVENTS:
        step_log = run.journal.step_log
        step_log.segment.writer.nested(replace(row_of(run.log), worker=step_log.run_id))


# -- the text of a nested run as the text of the outer one (swarm) -------------------------------------------
#
# Only text passes, through the output rules of the outer run. Model calls, tools and their cost stay events
# of the nested run, so that nothing is counted twice.

#: a text that begins with one of these may be data that callers should not see
_DATA_PREFIXES = ("{", "`")


def forward_events(outer: Scope, terms: NestedRunOptions) -> tuple[ForwardedEvents, ...]:
    """Returns the listeners of a nested run: one if its text is the outer run's and that one streams."""
    events = outer.events
    if not terms.streams_to_caller or not isinstance(events, GatedEvents) or not events.streaming:
        return ()
    return (ForwardedEvents(outer, events, terms.is_withheld),)


class ForwardedEvents:
    """A listener that emits the text of a nested run as that of the outer run.

    Args:
        outer: The scope of the outer run, which numbers the steps.
        events: The emitter of the outer run.
        withheld: Returns whether a whole step that looks like data does not leave.
    """

    wants_deltas = True

    def __init__(self, outer: Scope, events: GatedEvents, withheld: Callable[[str], bool] | None) -> None:
        self._outer, self._events, self._withheld = outer, events, withheld
        #: number of the step under way, in the outer run; 0 between steps
        self._step = 0
        #: text that may be data; None if all text passes
        self._held_text: list[str] | None = None

    def send(self, event: Event) -> None:
        data = event.data
        if event.type == MODEL_DELTA and data["role"] == ASSISTANT:
            self._add_text(data["content"])
        elif event.type == "model.started" and data["role"] == ASSISTANT:
            self._begin_step()
        elif event.type == "model.finished" and data["role"] == ASSISTANT:
            self._end_step(data["usage"]["output_tokens"])
        elif event.type == "run.completed":
            self._end_step(0)

    def _begin_step(self) -> None:
        self._events.begin()
        self._step = 0

    def _add_text(self, text: str) -> None:
        if not self._step:
            self._step = self._outer.next_step()
            self._held_text = None if self._withheld is None else []
        if self._held_text is None:
            self._emit_text(text)
            return
        self._held_text.append(text)
        begun = "".join(self._held_text).lstrip()
        if begun and not begun.startswith(_DATA_PREFIXES):
            self._release_text()

    def _release_text(self) -> None:
        held, self._held_text = self._held_text, None
        if held:
            self._emit_text("".join(held))

    def _emit_text(self, text: str) -> None:
        self._events.emit(MODEL_DELTA, step=self._step, role=ASSISTANT, content=text)

    def _end_step(self, output_tokens: int) -> None:
        if not self._step:
            return
        if self._held_text and not (self._withheld and self._withheld("".join(self._held_text))):
            self._release_text()
        self._events.end(self._step, output_tokens)
        self._step, self._held_text = 0, None
