"""The client metrics of OpenTelemetry's GenAI conventions, from the spans of model calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from astromesh.types import JsonObject

#: attributes of the server of a model, by `server_key`
Servers = Mapping[str, Mapping[str, Any]]
_PATH = "/v1/metrics"
#: the boundaries that the conventions recommend
_TOKEN_BUCKETS = tuple(4.0**n for n in range(14))
_SECOND_BUCKETS = tuple(0.01 * 2**n for n in range(14))
#: type of a token -> key of its count
_TOKEN_TYPES = {"input": "input_tokens", "output": "output_tokens"}


def server_key(attributes: JsonObject) -> str:
    """Returns the key of the server that a model call has asked."""
    return f"{attributes.get('provider', '')}/{attributes.get('model', '')}"


def server_attributes(url: str) -> dict[str, str | int]:
    """Returns host and port of a URL by the names of the conventions; nothing where it has no host."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return {}
    if not host:
        return {}
    port = port or {"https": 443, "http": 80}.get(parts.scheme)
    return {"server.address": host, **({"server.port": port} if port else {})}


class ModelMetrics:
    """`gen_ai.client.token.usage` and `gen_ai.client.operation.duration`, sent once a minute.

    OpenTelemetry's environment variables, e.g. `OTEL_METRIC_EXPORT_INTERVAL`, set the details.

    Args:
        endpoint: base URL of the collector.
    """

    def __init__(self, endpoint: str, service: Resource, scope: InstrumentationScope) -> None:
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=endpoint + _PATH))
        self._provider = MeterProvider([reader], service, shutdown_on_exit=False)
        meter = self._provider.get_meter(scope.name, scope.version, scope.schema_url)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKEN_BUCKETS,
        )
        self._seconds = meter.create_histogram(
            "gen_ai.client.operation.duration",
            "s",
            "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_SECOND_BUCKETS,
        )

    def add(self, spans: Iterable[JsonObject], servers: Servers) -> None:
        """Adds the model calls among the spans of a run. Args: servers: see `Servers`."""
        for span in spans:
            if span["name"] == "llm.complete" and span["attributes"].get("provider"):
                self._add_call(span, servers)

    def _add_call(self, span: JsonObject, servers: Servers) -> None:
        attributes = span["attributes"]
        about: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": attributes["provider"],
            "gen_ai.request.model": attributes.get("model", ""),
            **servers.get(server_key(attributes), {}),
        }
        if model := attributes.get("response_model"):
            about["gen_ai.response.model"] = model
        failed = {"error.type": attributes["error"]} if attributes.get("error") else {}
        self._seconds.record(span["duration_ms"] / 1000, {**about, **failed})
        usage = attributes.get("usage") or {}
        for kind, key in _TOKEN_TYPES.items():
            if usage.get(key):
                self._tokens.record(usage[key], {**about, "gen_ai.token.type": kind})

    def close(self, seconds: float) -> None:
        """Sends what is left. Args: seconds: that this takes at most."""
        self._provider.shutdown(seconds * 1000)
