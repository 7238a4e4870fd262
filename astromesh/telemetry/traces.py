"""Traces: the events of the last runs in a ring, made into spans only when somebody reads them.

A run costs its listener one list append per event; the span tree of document 001 is computed from the
events at reading time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from astromesh.types import Event, JsonObject


@dataclass(slots=True)
class RunTrace:
    """The events of one run; `send` makes it a listener."""

    wants_deltas = False

    run_id: str
    trace_id: str
    tenant: str
    owner: str
    agent: str
    parent: str = ""
    events: list[Event] = field(default_factory=list)

    def send(self, event: Event) -> None:
        self.events.append(event)

    @property
    def status(self) -> str:
        last = self.events[-1].type if self.events else ""
        return last.removeprefix("run.") if last in TERMINAL else "running"


TERMINAL = frozenset({"run.completed", "run.failed", "run.cancelled"})


class TraceStore:
    """The newest runs, bounded by count.

    Args:
        capacity: runs that are kept.
    """

    def __init__(self, capacity: int = 1000) -> None:
        self._runs: deque[RunTrace] = deque()
        self._by_trace: OrderedDict[str, list[RunTrace]] = OrderedDict()
        self._capacity = capacity

    def open(
        self, run_id: str, trace_id: str, *, tenant: str, owner: str, agent: str, parent: str = ""
    ) -> RunTrace:
        trace = RunTrace(run_id, trace_id, tenant, owner, agent, parent)
        self._runs.append(trace)
        self._by_trace.setdefault(trace_id, []).append(trace)
        if len(self._runs) > self._capacity:
            self._drop(self._runs.popleft())
        return trace

    def get(self, trace_id: str, *, tenant: str, owner: str | None) -> JsonObject | None:
        """`{"trace_id", "spans"}` of what this principal may see, or None. `owner` None sees the tenant's."""
        runs = [r for r in self._by_trace.get(trace_id, ()) if _visible(r, tenant, owner)]
        return {"trace_id": trace_id, "spans": [s for r in runs for s in spans(r)]} if runs else None

    def list(
        self, *, tenant: str, owner: str | None, agent: str = "", status: str = "", limit: int = 50
    ) -> list[JsonObject]:
        """The newest runs first, one line each."""
        found = (
            r
            for r in reversed(self._runs)
            if _visible(r, tenant, owner) and agent in ("", r.agent) and status in ("", r.status)
        )
        return [_line(r) for r, _ in zip(found, range(limit), strict=False)]

    def _drop(self, old: RunTrace) -> None:
        rest = [r for r in self._by_trace.get(old.trace_id, ()) if r is not old]
        if rest:
            self._by_trace[old.trace_id] = rest
        else:
            self._by_trace.pop(old.trace_id, None)


def _visible(run: RunTrace, tenant: str, owner: str | None) -> bool:
    return run.tenant == tenant and owner in (None, run.owner)


def _line(run: RunTrace) -> JsonObject:
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
    "guardrails.checked": ("guardrails", ("stage", "actions")),
    "memory.loaded": ("memory_build", ("turns", "semantic", "episodic")),
    "prompt.rendered": ("prompt_render", ("characters",)),
    "model.finished": ("llm.complete", ("step", "role", "provider", "model", "usage", "attempts")),
    "tool.finished": ("tool.call", ("id", "name", "ok", "error")),
    "memory.persisted": ("memory_persist", ("turns",)),
}
_INSIDE = frozenset({"llm.complete", "tool.call"})


def spans(run: RunTrace) -> list[JsonObject]:
    """The spans of one run (document 001): agent.run over its steps, orchestration over models, tools."""
    if not run.events:
        return []
    first, last = run.events[0], run.events[-1]
    root = _span(run, run.run_id, run.parent, "agent.run", first.ts, (last.ts - first.ts) * 1000)
    root["status"] = "error" if last.type == "run.failed" else "ok"
    root["attributes"] = {"agent": run.agent, "run_id": run.run_id, "status": run.status}
    found = [root]
    orchestration = _orchestration(run)
    for event in run.events:
        if event is orchestration[0]:
            start, end = orchestration[0].ts, orchestration[1].ts
            found.append(
                _span(run, f"{run.run_id}.o", run.run_id, "orchestration", start, (end - start) * 1000)
            )
        if event.type in _STEPS:
            found.append(_step(run, event))
    return found


def _orchestration(run: RunTrace) -> tuple[Event, Event] | tuple[None, None]:
    start = next((e for e in run.events if e.type == "tools.listed"), None)
    if start is None:
        return None, None
    after = run.events[run.events.index(start) :]
    end = next((e for e in after if e.type == "guardrails.checked" or e.type in TERMINAL), after[-1])
    return start, end


def _step(run: RunTrace, event: Event) -> JsonObject:
    name, attributes = _STEPS[event.type]
    data = event.data
    if name == "guardrails":
        name = f"guardrails.{data['stage']}"
    duration = float(data.get("duration_ms", 0.0))
    parent = f"{run.run_id}.o" if name in _INSIDE else run.run_id
    key = f"{run.run_id}.{data['id']}" if name == "tool.call" else f"{run.run_id}.{event.seq}"
    span = _span(run, key, parent, name, event.ts - duration / 1000, duration)
    span["attributes"] = {k: data[k] for k in attributes if k in data}
    span["status"] = "error" if data.get("ok") is False else "ok"
    return span


def _span(run: RunTrace, span_id: str, parent: str, name: str, start: float, duration: float) -> JsonObject:
    return {
        "span_id": span_id,
        "parent_id": parent or None,
        "name": name,
        "start": start,
        "duration_ms": round(duration, 3),
        "status": "ok",
        "attributes": {},
    }
