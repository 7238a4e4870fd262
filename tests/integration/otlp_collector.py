"""A collector for OTLP over HTTP that keeps what it is sent, for tests of exported traces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class ExportedSpan(NamedTuple):
    """A span as it arrived. Ids in hex."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    failed: bool
    attributes: dict[str, Any]
    said: str
    kind: int

    def json(self, attribute: str) -> Any:
        return json.loads(self.attributes[attribute])


class Collector:
    """Attributes: url: for `telemetry.otlp_endpoint`. bodies, metric_bodies: requests, raw."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[bytes] = []
        self.metric_bodies: list[bytes] = []

    @property
    def scopes(self) -> set[tuple[Any, ...]]:
        """Where spans came from: attributes and schema of the service; name, version, schema of the scope."""
        return {
            (
                *((a.key, a.value.string_value) for a in resource.resource.attributes), resource.schema_url,
                scope.scope.name, scope.scope.version, scope.schema_url,
            )
            for request in map(ExportTraceServiceRequest.FromString, self.bodies)
            for resource in request.resource_spans
            for scope in resource.scope_spans
        }  # fmt: skip

    def points(self, metric: str) -> list[tuple[dict[str, Any], int, float]]:
        """The newest points of a histogram: attributes, count, sum."""
        found: dict[str, tuple[dict[str, Any], int, float]] = {}
        for request in map(ExportMetricsServiceRequest.FromString, self.metric_bodies):
            for point in _points(request, metric):
                about = {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in point.attributes}
                found[json.dumps(about, sort_keys=True)] = (about, point.count, point.sum)
        return list(found.values())

    @property
    def spans(self) -> list[ExportedSpan]:
        """All spans so far."""
        requests = map(ExportTraceServiceRequest.FromString, self.bodies)
        return [
            _read(span)
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> ExportedSpan:
        """The one span of this name."""
        (found,) = (span for span in self.spans if span.name == name)
        return found


def _points(request: Any, metric: str) -> Iterator[Any]:
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for one in scope.metrics:
                if one.name == metric:
                    yield from one.histogram.data_points


def _read(span: Any) -> ExportedSpan:
    values = {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}
    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    return ExportedSpan(span.name, *ids, span.status.code == 2, values, span.status.message, span.kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a port of its own."""

    class Kept(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept = collector.bodies if self.path == "/v1/traces" else collector.metric_bodies
            kept.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Kept)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
