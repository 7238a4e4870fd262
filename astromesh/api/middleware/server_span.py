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


class ServerSpan:
    """An open span of kind SERVER.

    Args:
        exporter: gets the span if its trace is sampled.
        caller: the place of the request in its caller's trace.

    Attributes:
        own: the place of what the request starts.
        status: as of HTTP.
    """

    def __init__(self, exporter: TraceExporter, caller: TraceParent, status: int = 500) -> None:
        self._exporter, self._caller = exporter, caller
        trace_id = caller.trace_id or ids.trace_id()
        sampled = exporter.samples(trace_id) if caller.sampled is None else caller.sampled
        self.own = TraceParent(trace_id, ids.trace_id()[:16], sampled)
        self.status = status
        self._start, self._start_counter = time(), perf_counter()

    def end(self, method: str, route: str, scope: Scope) -> None:
        """Exports the span; the response has been sent, or nothing more will be."""
        if not self.own.sampled:
            return
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        self._exporter.offer_request(
            RequestSpan(
                self.own.trace_id,
                self.own.span_id,
                self._caller.span_id,
                method,
                route,
                self.status,
                self._start,
                (perf_counter() - self._start_counter) * 1000,
                host.decode("latin-1"),
            )
        )


class RequestTrace:
    """The span of one HTTP request. Routes find it as the `traceparent` of the request."""

    def __init__(self, scope: Scope, exporter: TraceExporter) -> None:
        self._scope = scope
        traceparent = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        self._span = ServerSpan(exporter, read_traceparent(traceparent.decode("latin-1")))
        others = [line for line in scope["headers"] if line[0] != _HEADER]
        scope["headers"] = [*others, (_HEADER, self._span.own.header.encode())]

    def watch(self, send: Send) -> Send:
        """Returns a `send` that notes the status."""

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._span.status = message["status"]
            await send(message)

        return watched

    def end(self) -> None:
        """Exports the span."""
        scope = self._scope
        route = RUN_PATH if agent_to_run(scope) else str(getattr(scope.get("route"), "path", ""))
        self._span.end(scope["method"], route, scope)


def is_traced(scope: Scope) -> bool:
    """Whether requests like this one have a span: all but health checks and scrapes."""
    return scope["path"] not in _UNTRACED
