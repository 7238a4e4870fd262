"""Traces: the events of runs as the span tree of document 001."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from astromesh.logs import redact_secrets
from astromesh.telemetry.events import MODEL_CONTENT, TERMINAL_EVENTS, TOOL_CONTENT
from astromesh.types import Event, JsonObject

#: events with the duration of the step that they end: type -> (span name, attributes)
_STEPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "guardrails.checked": ("guardrails", ("stage", "actions", "content")),
    "memory.loaded": ("memory_build", ("turns", "semantic", "episodic")),
    "prompt.rendered": ("prompt_render", ("characters",)),
    "model.finished": (
        "llm.complete",
        ("step", "role", "provider", "model", "response_model", "finish_reason", "usage", "attempts"),
    ),
    "model.failed": ("llm.complete", ("step", "role", "provider", "model", "error", "usage", "attempts")),
    "tool.finished": ("tool.call", ("id", "name", "ok", "error")),
    "memory.persisted": ("memory_persist", ("turns",)),
    "stage.finished": ("workflow.stage", ("node", "status", "error")),
}
#: events of the nodes of a graph, whose spans contain those of nested nodes and of calls with their `path`
_NODES = frozenset({"node.started", "node.finished", "node.failed"})
#: spans with children, which name them by the `id` of the event
_PARENT_SPANS = frozenset({"tool.call", "workflow.stage"})
#: events that only give a trace its shape
_SHAPE_EVENTS = frozenset({"run.started", "tools.listed", *TERMINAL_EVENTS})
#: events with the content of the call that ended directly before: type -> (key of the call, attributes)
_CONTENT: dict[str, tuple[str, tuple[str, ...]]] = {
    MODEL_CONTENT: ("step", ("input", "left_out", "output")),
    TOOL_CONTENT: ("id", ("arguments", "result")),
}
#: events that a trace contains completely
_WHOLE_EVENTS = frozenset({*_STEPS, *_CONTENT, *_NODES})
_ORCHESTRATION_SPANS = frozenset({"llm.complete", "tool.call"})
#: statuses of failed runs and Tasks
_FAILED = frozenset({"failed", "failure"})


def trace_events(events: Iterable[Event]) -> list[Event]:
    """Returns the events that make up a trace, without their content.

    The events of `_STEPS` and captured content stay complete. Of other events only the error of a failed run
    stays.
    """
    return [
        e if e.type in _WHOLE_EVENTS else Event(e.run_id, e.seq, e.ts, e.type, _failure_data(e.data))
        for e in events
        if e.type in _WHOLE_EVENTS or e.type in _SHAPE_EVENTS
    ]


def _failure_data(data: JsonObject) -> JsonObject:
    """Returns code and text of the error that ended a run."""
    return {"code": data["code"], "detail": data["detail"]} if "code" in data else {}


class TracedRun(Protocol):
    """A run with its events: of this process, or stored."""

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


class RequestSpan(NamedTuple):
    """A request to this server.

    Args:
        trace_id, span_id, parent_id: 32, 16 and 16 hex digits; no parent: empty.
        route: path with the names of its parameters; empty if no route has answered.
        start: seconds since the epoch.
        address: host and port that the client named.
    """

    trace_id: str
    span_id: str
    parent_id: str
    method: str
    route: str
    status: int
    start: float
    duration_ms: float
    address: str


class TraceExporter(Protocol):
    """Exports traces, off the hot path.

    Attributes:
        dropped: runs that were not exported because too many waited.
    """

    dropped: int

    def samples(self, trace_id: str) -> bool:
        """Whether a trace that starts here is exported."""

    def offer(self, run: TracedRun) -> None:
        """Accepts an ended run. Must not block or raise."""

    def offer_request(self, span: RequestSpan) -> None:
        """Accepts an answered request of a sampled trace. Must not block or raise."""

    async def close(self) -> None:
        """Sends the queued runs, within a time limit."""


def failure_text(run: TracedRun) -> str:
    """Returns the error that ended a failed run, for the operator; callers do not see every error."""
    failed = next((e.data for e in reversed(run.events) if e.type == "run.failed"), {})
    return redact_secrets(": ".join(failed[key] for key in ("code", "detail") if failed.get(key)))


def captured_content(events: Iterable[Event]) -> dict[str, str]:
    """Returns query (`input`) and answer (`output`) after the rules, if `capture_content` is set."""
    checked = (event.data for event in events if event.type == "guardrails.checked")
    return {data["stage"]: data["content"] for data in checked if "content" in data}


def build_spans(run: TracedRun) -> list[JsonObject]:
    """Returns the spans of one run (document 001): steps below agent.run, nodes below orchestration.

    A nested node is below the one that runs it, a call below the node that makes it.
    """
    if not run.events:
        return []
    first, last = run.events[0], run.events[-1]
    name = "workflow.run" if first.type == "task.started" else "agent.run"
    root = _span(run, run.run_id, run.parent, name, first.ts, (last.ts - first.ts) * 1000)
    root["status"] = "error" if run.status in _FAILED else "ok"
    root["attributes"] = {"agent": run.agent, "run_id": run.run_id, "status": run.status, **_labels(run)}
    found = [root]
    orchestration = _orchestration(run)
    calls: dict[Any, JsonObject] = {}
    nodes = _NodeSpans(run, last.ts, is_failed=run.status in _FAILED)
    for event in run.events:
        if event is orchestration[0]:
            start, end = orchestration[0].ts, orchestration[1].ts
            span = _span(run, f"{run.run_id}.o", run.run_id, "orchestration", start, (end - start) * 1000)
            found.append({**span, "status": "error" if orchestration[1].type == "run.failed" else "ok"})
        if event.type in _NODES:
            if (node := nodes.add(event)) is not None:
                found.append(node)
        elif event.type in _STEPS:
            found.append(_step(run, event, nodes.id_of(event.data.get("path", ""))))
            calls[event.data.get("id") or event.data.get("step")] = found[-1]
        elif event.type in _CONTENT:
            key, attributes = _CONTENT[event.type]
            if (call := calls.get(event.data[key])) is not None:
                call["attributes"].update({k: event.data[k] for k in attributes if k in event.data})
    return found


def _orchestration(run: TracedRun) -> tuple[Event, Event] | tuple[None, None]:
    start = next((e for e in run.events if e.type == "tools.listed"), None)
    if start is None:
        return None, None
    after = run.events[run.events.index(start) :]
    end = next((e for e in after if e.type == "guardrails.checked" or e.type in TERMINAL_EVENTS), after[-1])
    return start, end


class _NodeSpans:
    """The spans of the nodes of a run, by the paths of those that have not ended.

    Args:
        end: when the run ended: a node that was under way ends with it.
        is_failed: whether the run failed.
    """

    def __init__(self, run: TracedRun, end: float, *, is_failed: bool) -> None:
        self._run, self._end, self._is_failed = run, end, is_failed
        self._open: dict[str, JsonObject] = {}
        self._ended: dict[str, JsonObject] = {}

    def add(self, event: Event) -> JsonObject | None:
        """Returns the span of a node that starts. Other events complete the span of theirs."""
        run, path = self._run, event.data["node"]
        if event.type == "node.started":
            key, parent = f"{run.run_id}.{event.seq}", self.id_of(path.rpartition("/")[0])
            span = _span(run, key, parent, "graph.node", event.ts, (self._end - event.ts) * 1000)
            span["attributes"] = {"node": path}
            span["status"] = "error" if self._is_failed else "ok"
            self._open[path] = span
            return span
        if event.type == "node.finished" and path in self._open:
            span = self._ended[path] = self._open.pop(path)
            span["duration_ms"], span["status"] = round(event.data["duration_ms"], 3), "ok"
        elif event.type == "node.failed":
            failed = self._open.get(path) or self._ended.get(path, {"attributes": {}})
            failed["attributes"] |= {"error": event.data["type"], "message": event.data["message"]}
            if path not in self._open:  # else it was an attempt, and another one follows
                failed["status"] = "error"
        return None

    def id_of(self, path: str) -> str:
        """Returns the id of the innermost open node at or above a path, or that of the orchestration."""
        while path:
            span = self._open.get(path) or self._open.get(path.partition("#")[0])
            if span is not None:
                return str(span["span_id"])
            path = path.rpartition("/")[0]
        return f"{self._run.run_id}.o"


def _step(run: TracedRun, event: Event, calls_parent: str) -> JsonObject:
    name, attributes = _STEPS[event.type]
    data = event.data
    if name == "guardrails":
        name = f"guardrails.{data['stage']}"
    duration = float(data.get("duration_ms", 0.0))
    parent = calls_parent if name in _ORCHESTRATION_SPANS else run.run_id
    key = f"{run.run_id}.{data['id'] if name in _PARENT_SPANS else event.seq}"
    span = _span(run, key, parent, name, event.ts - duration / 1000, duration)
    span["attributes"] = {k: data[k] for k in attributes if k in data}
    span["status"] = "error" if data.get("ok") is False or event.type == "model.failed" else "ok"
    return span


def _labels(run: TracedRun) -> JsonObject:
    """Returns the metadata and tags of a run, without an empty one. A Task has neither."""
    labels = {"metadata": getattr(run, "metadata", None), "tags": getattr(run, "tags", None)}
    return {key: list(value) if key == "tags" else dict(value) for key, value in labels.items() if value}


def _span(run: TracedRun, span_id: str, parent: str, name: str, start: float, duration: float) -> JsonObject:
    return {
        "span_id": span_id,
        "parent_id": parent or None,
        "name": name,
        "start": start,
        "duration_ms": round(duration, 3),
        "status": "ok",
        "attributes": {},
    }
