"""Traces: the events of the last runs, made into the span tree of document 001 when somebody reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Protocol

from astromesh.telemetry.logs import without_secrets
from astromesh.telemetry.runs import RunLog, RunLogs
from astromesh.telemetry.stream import MODEL_CONTENT, TERMINAL, TOOL_CONTENT
from astromesh.types import Event, JsonObject


class TraceStore:
    """The traces of the runs that are kept.

    Args:
        runs: their records.
    """

    def __init__(self, runs: RunLogs) -> None:
        self._runs = runs

    def runs(self, trace_id: str, *, tenant: str, owner: str | None) -> list[RunLog]:
        """The runs of a trace that this principal may see. `owner` None sees the tenant's."""
        return [run for run in self._runs.of_trace(trace_id) if run.visible(tenant, owner)]

    def list(
        self,
        *,
        tenant: str,
        owner: str | None,
        agent: str = "",
        session: str = "",
        status: str = "",
        limit: int = 50,
    ) -> list[JsonObject]:
        """The newest runs first, one line each."""
        found = (
            run
            for run in self._runs.newest()
            if run.events
            and run.visible(tenant, owner)
            and agent in ("", run.agent)
            and session in ("", run.session_id)
            and status in ("", run.status)
        )
        return [_line(run) for run in islice(found, limit)]


def _line(run: RunLog) -> JsonObject:
    first, last = run.events[0], run.events[-1]
    return {
        "trace_id": run.trace_id,
        "run_id": run.run_id,
        "agent": run.agent,
        "status": run.status,
        "start": first.ts,
        "duration_ms": round((last.ts - first.ts) * 1000, 3),
    }


# -- events to spans ---------------------------------------------------------------------------------------

#: events that carry the duration of the step that they end: type -> (span name, attributes)
_STEPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "guardrails.checked": ("guardrails", ("stage", "actions", "content")),
    "memory.loaded": ("memory_build", ("turns", "semantic", "episodic")),
    "prompt.rendered": ("prompt_render", ("characters",)),
    "model.finished": ("llm.complete", ("step", "role", "provider", "model", "usage", "attempts")),
    "model.failed": ("llm.complete", ("step", "role", "provider", "model", "error", "usage", "attempts")),
    "tool.finished": ("tool.call", ("id", "name", "ok", "error")),
    "memory.persisted": ("memory_persist", ("turns",)),
    "stage.finished": ("workflow.stage", ("node", "status", "error")),
}
#: spans that others stand under, by the `id` of their event
_NAMED = frozenset({"tool.call", "workflow.stage"})
#: events that give a trace its shape, and nothing else
_SHAPE = frozenset({"run.started", "tools.listed", *TERMINAL})
#: events that say what was said in the call that ended right before: type -> (key of the call, attributes)
_CONTENT: dict[str, tuple[str, tuple[str, ...]]] = {
    MODEL_CONTENT: ("step", ("input", "left_out", "output")),
    TOOL_CONTENT: ("id", ("arguments", "result")),
}
#: events that a trace holds whole
_WHOLE = frozenset({*_STEPS, *_CONTENT})
_INSIDE = frozenset({"llm.complete", "tool.call"})
#: how a run ends that failed, and a Task
_FAILED = frozenset({"failed", "failure"})


def outline(events: Iterable[Event]) -> list[Event]:
    """The events that a trace is made of, without what was said in them.

    Those of `_STEPS` hold counts, names and durations, and what was said where content is captured; of the
    others only that they happened is kept.
    """
    return [
        e if e.type in _WHOLE else Event(e.run_id, e.seq, e.ts, e.type, _why(e.data))
        for e in events
        if e.type in _WHOLE or e.type in _SHAPE
    ]


def _why(data: JsonObject) -> JsonObject:
    """Code and text of what ended a run."""
    return {"code": data["code"], "detail": data["detail"]} if "code" in data else {}


class Traced(Protocol):
    """A run that has events: one of this process, or one that was kept."""

    @property
    def run_id(self) -> str: ...
    @property
    def trace_id(self) -> str: ...
    @property
    def session_id(self) -> str: ...
    @property
    def parent(self) -> str: ...
    @property
    def agent(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def remote_span(self) -> str: ...
    @property
    def sampled(self) -> bool | None: ...
    @property
    def events(self) -> Sequence[Event]: ...


class TraceExporter(Protocol):
    """Sends traces elsewhere, off the hot path.

    Attributes:
        dropped: runs that were not exported because too many waited.
    """

    dropped: int

    def offer(self, run: Traced) -> None:
        """Takes a run that has ended. Must not block and must not raise."""

    async def close(self) -> None:
        """Sends what waits, within a bound."""


def failure(run: Traced) -> str:
    """What ended a run that failed, for its operator: callers are not told of every error what it was."""
    failed = next((e.data for e in reversed(run.events) if e.type == "run.failed"), {})
    return without_secrets(": ".join(failed[key] for key in ("code", "detail") if failed.get(key)))


def captured(events: Iterable[Event]) -> dict[str, str]:
    """Query (`input`) and answer (`output`) as the rules left them, where `capture_content` is set."""
    checked = (event.data for event in events if event.type == "guardrails.checked")
    return {data["stage"]: data["content"] for data in checked if "content" in data}


def spans(run: Traced) -> list[JsonObject]:
    """The spans of one run (document 001): agent.run over its steps, orchestration over models, tools."""
    if not run.events:
        return []
    first, last = run.events[0], run.events[-1]
    name = "workflow.run" if first.type == "task.started" else "agent.run"
    root = _span(run, run.run_id, run.parent, name, first.ts, (last.ts - first.ts) * 1000)
    root["status"] = "error" if run.status in _FAILED else "ok"
    root["attributes"] = {"agent": run.agent, "run_id": run.run_id, "status": run.status}
    found = [root]
    orchestration = _orchestration(run)
    calls: dict[Any, JsonObject] = {}
    for event in run.events:
        if event is orchestration[0]:
            start, end = orchestration[0].ts, orchestration[1].ts
            span = _span(run, f"{run.run_id}.o", run.run_id, "orchestration", start, (end - start) * 1000)
            found.append({**span, "status": "error" if orchestration[1].type == "run.failed" else "ok"})
        if event.type in _STEPS:
            found.append(_step(run, event))
            calls[event.data.get("id") or event.data.get("step")] = found[-1]
        elif event.type in _CONTENT:
            key, attributes = _CONTENT[event.type]
            if (call := calls.get(event.data[key])) is not None:
                call["attributes"].update({k: event.data[k] for k in attributes if k in event.data})
    return found


def _orchestration(run: Traced) -> tuple[Event, Event] | tuple[None, None]:
    start = next((e for e in run.events if e.type == "tools.listed"), None)
    if start is None:
        return None, None
    after = run.events[run.events.index(start) :]
    end = next((e for e in after if e.type == "guardrails.checked" or e.type in TERMINAL), after[-1])
    return start, end


def _step(run: Traced, event: Event) -> JsonObject:
    name, attributes = _STEPS[event.type]
    data = event.data
    if name == "guardrails":
        name = f"guardrails.{data['stage']}"
    duration = float(data.get("duration_ms", 0.0))
    parent = f"{run.run_id}.o" if name in _INSIDE else run.run_id
    key = f"{run.run_id}.{data['id'] if name in _NAMED else event.seq}"
    span = _span(run, key, parent, name, event.ts - duration / 1000, duration)
    span["attributes"] = {k: data[k] for k in attributes if k in data}
    span["status"] = "error" if data.get("ok") is False or event.type == "model.failed" else "ok"
    return span


def _span(run: Traced, span_id: str, parent: str, name: str, start: float, duration: float) -> JsonObject:
    return {
        "span_id": span_id,
        "parent_id": parent or None,
        "name": name,
        "start": start,
        "duration_ms": round(duration, 3),
        "status": "ok",
        "attributes": {},
    }
