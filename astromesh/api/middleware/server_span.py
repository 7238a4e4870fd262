"""Traces requests: each one is a span of kind SERVER, above the runs that it starts."""

from __future__ import annotations

from time import perf_counter, time

from starlette.types import Message, Scope, Send

from astromesh.api.fast_routes import RUN_PATH, agent_to_run
from astromesh.api.middleware.limits import HEALTH_PATHS
from astromesh.telemetry import ids
from astromesh.telemetry.ids import TraceParent, read_traceparent
from astromesh.telemetry.traces import RequestSpan, TraceExporter

_HEADER = b"traceparent"
_UNTRACED = frozenset({*HEALTH_PATHS, "/metrics"})


class RequestTrace:
    """The span of one request. Routes find it as the `traceparent` of the request.

    Args:
        exporter: gets the span if its trace is sampled.
    """

    def __init__(self, scope: Scope, exporter: TraceExporter) -> None:
        self._scope, self._exporter = scope, exporter
        given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        self._caller = read_traceparent(given.decode("latin-1"))
        trace_id = self._caller.trace_id or ids.trace_id()
        sampled = exporter.samples(trace_id) if self._caller.sampled is None else self._caller.sampled
        self._own = TraceParent(trace_id, ids.trace_id()[:16], sampled)
        others = [line for line in scope["headers"] if line[0] != _HEADER]
        scope["headers"] = [*others, (_HEADER, self._own.header.encode())]
        self._status = 500
        self._start, self._begun = time(), perf_counter()

    def watch(self, send: Send) -> Send:
        """Returns a `send` that notes the status."""

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status = message["status"]
            await send(message)

        return watched

    def end(self) -> None:
        """Exports the span; the response has been sent, or nothing more will be."""
        if self._own.sampled:
            self._exporter.offer_request(self._span())

    def _span(self) -> RequestSpan:
        scope = self._scope
        route = RUN_PATH if agent_to_run(scope) else str(getattr(scope.get("route"), "path", ""))
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        return RequestSpan(
            self._own.trace_id,
            self._own.span_id,
            self._caller.span_id,
            scope["method"],
            route,
            self._status,
            self._start,
            (perf_counter() - self._begun) * 1000,
            host.decode("latin-1"),
        )


def is_traced(scope: Scope) -> bool:
    """Whether requests like this one have a span: all but health checks and scrapes."""
    return scope["path"] not in _UNTRACED
