"""Exports traces by OTLP over HTTP with the GenAI semantic conventions of OpenTelemetry, off the hot path.

An ended run costs an append to a bounded queue; a thread converts it to spans and sends them in batches.
Runs beyond the queue are dropped and counted, so an unreachable collector harms no run. OpenTelemetry's
environment variables (`OTEL_EXPORTER_OTLP_HEADERS`, …) set the headers, the compression and the certificates.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import urlsplit

import orjson
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from pydantic import BaseModel, ConfigDict, Field

from astromesh import __version__
from astromesh.logs import get_logger
from astromesh.plugins import Deps
from astromesh.telemetry.ids import span_bytes
from astromesh.telemetry.traces import RequestSpan, TracedRun, build_spans, captured_content, failure_text
from astromesh.types import JsonObject

#: attributes of the server of a model, by `server_key`
Servers = Mapping[str, Mapping[str, Any]]
_METRICS_PATH = "/v1/metrics"
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
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=endpoint + _METRICS_PATH))
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


#: queued runs, spans per batch, seconds between two batches, seconds for the rest at the end
_MAX_QUEUED_RUNS, _BATCH_SPANS, _SEND_SECONDS, _CLOSE_SECONDS = 2048, 512, 1.0, 3.0
_PATH = "/v1/traces"


class _Service(Resource):
    """This service. The encoder hashes it for each span; the library's own hash encodes it as JSON."""

    def __hash__(self) -> int:
        return id(self)


#: of the conventions whose names this module uses
SCHEMA_URL = Schemas.V1_44_0.value
_SERVICE = _Service({"service.name": "astromesh", "service.version": __version__}, SCHEMA_URL)
_SCOPE = InstrumentationScope("astromesh", __version__, SCHEMA_URL)
_TRACE_BITS = 1 << 64

log = get_logger("astromesh.telemetry")


class OtlpOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    endpoint: str = Field(min_length=1, description="Base URL of the collector, e.g. http://collector:4318.")
    sample_ratio: float = Field(
        1.0, ge=0, le=1, description="Share of exported traces, among those that start in this process."
    )
    addresses: dict[str, str] = Field(
        default_factory=dict, description="Endpoints of models, by `PROVIDER/MODEL`."
    )


class OtlpExporter:
    """Sends the traces of ended runs.

    Args:
        ratio: share of the traces that start here, selected by trace id, so that a trace is exported as a
            whole or not at all. A trace that a caller started follows the caller's decision.
        metrics: of every model call, also of traces that are not exported; None: no metrics.
        addresses: endpoints of models, by `PROVIDER/MODEL`.

    Attributes:
        dropped: runs that were not exported because the queue was full.
    """

    Options: type[BaseModel] = OtlpOptions

    def __init__(
        self,
        exporter: OTLPSpanExporter,
        ratio: float,
        metrics: ModelMetrics | None = None,
        addresses: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.dropped = 0
        self._exporter, self._sample_limit = exporter, int(ratio * _TRACE_BITS)
        self._metrics = metrics
        self._servers = {name: server_attributes(url) for name, url in addresses.items()}
        self._queue: deque[TracedRun | RequestSpan] = deque()
        self._ending = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._work, name="astromesh-otlp", daemon=True)
        self._thread.start()

    @classmethod
    async def open(cls, options: OtlpOptions, deps: Deps) -> Self:
        base = options.endpoint.rstrip("/").removesuffix(_PATH)
        metrics = ModelMetrics(base, _SERVICE, _SCOPE)
        return cls(OTLPSpanExporter(endpoint=base + _PATH), options.sample_ratio, metrics, options.addresses)

    def samples(self, trace_id: str) -> bool:
        """Whether a trace that starts here is exported (OpenTelemetry's `traceidratio`)."""
        return int(trace_id[16:], 16) < self._sample_limit

    def offer(self, run: TracedRun) -> None:
        """Accepts an ended run."""
        if self._metrics is not None or self._is_sampled(run):
            self._queue_up(run)

    def offer_request(self, span: RequestSpan) -> None:
        """Accepts an answered request."""
        self._queue_up(span)

    def _queue_up(self, ended: TracedRun | RequestSpan) -> None:
        if len(self._queue) >= _MAX_QUEUED_RUNS:
            self.dropped += 1
            return
        self._queue.append(ended)

    def _is_sampled(self, run: TracedRun) -> bool:
        """Follows the caller's decision, else that of this process (`parentbased_traceidratio`)."""
        return self.samples(run.trace_id) if run.sampled is None else run.sampled

    async def close(self) -> None:
        """Sends the queued runs, for at most three seconds."""
        self._ending.set()
        await asyncio.to_thread(self._thread.join, _CLOSE_SECONDS)

    # -- in the thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        ending = False
        while not ending:
            ending = self._ending.wait(_SEND_SECONDS)
            while self._queue:
                self._send(self._next_batch())
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        if self._metrics is not None:
            self._metrics.close(_CLOSE_SECONDS)

    def _next_batch(self) -> list[ReadableSpan]:
        batch: list[ReadableSpan] = []
        while self._queue and len(batch) < _BATCH_SPANS:
            ended = self._queue.popleft()
            if isinstance(ended, RequestSpan):
                batch.append(_request_span(ended))
                continue
            try:
                spans = build_spans(ended)
                if self._metrics is not None:
                    self._metrics.add(spans, self._servers)
                if self._is_sampled(ended):
                    batch += [_span(ended, span, self._servers) for span in spans]
            except Exception as error:  # noqa: BLE001 (one invalid run must not stop the export)
                log.warning("trace_not_exported", run_id=ended.run_id, error=str(error))
        return batch

    def _send(self, batch: Sequence[ReadableSpan]) -> None:
        try:
            sent = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 (a fault of the collector must not end the thread)
            log.warning("traces_not_exported", error=str(error))
            sent = False
        if not sent and not self._failing:
            log.warning("traces_not_exported", error="the collector did not answer, or rejected them")
        self._failing = not sent


# -- spans of document 001 to those of OpenTelemetry ---------------------------------------------------------


def _request_span(span: RequestSpan) -> ReadableSpan:
    """Returns the span of a request. Its error status is that of the HTTP conventions: 500 and above."""
    failed = span.status >= 500
    attributes = {
        "http.request.method": span.method,
        "http.response.status_code": span.status,
        **({"http.route": span.route} if span.route else {}),
        **({"error.type": str(span.status)} if failed else {}),
        **server_attributes(f"//{span.address}"),
    }
    trace, start = int(span.trace_id, 16), int(span.start * 1e9)
    return ReadableSpan(
        f"{span.method} {span.route}".strip(),
        context=SpanContext(trace, int(span.span_id, 16), is_remote=False, trace_flags=TraceFlags(1)),
        parent=SpanContext(trace, int(span.parent_id, 16), is_remote=True) if span.parent_id else None,
        resource=_SERVICE,
        attributes=attributes,
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR) if failed else Status(StatusCode.UNSET),
        start_time=start,
        end_time=start + int(span.duration_ms * 1e6),
        instrumentation_scope=_SCOPE,
    )


def _span(run: TracedRun, span: JsonObject, servers: Servers) -> ReadableSpan:
    name, attributes = _name_and_attributes(run, span)
    if span["name"] == "llm.complete":
        attributes = {**attributes, **servers.get(server_key(span["attributes"]), {})}
    start = int(span["start"] * 1e9)
    failed = span["status"] == "error"
    if failed:
        own = {"error.type": str(error)} if (error := span["attributes"].get("error")) else _failure(run)
        attributes = {**own, **attributes}
    return ReadableSpan(
        name,
        context=_context(run.trace_id, span["span_id"]),
        parent=_parent(run, span["parent_id"]),
        resource=_SERVICE,
        attributes=attributes,
        kind=SpanKind.CLIENT if span["name"] == "llm.complete" else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, _status_description(run, span)) if failed else Status(StatusCode.OK),
        start_time=start,
        end_time=start + int(span["duration_ms"] * 1e6),
        instrumentation_scope=_SCOPE,
    )


def _status_description(run: TracedRun, span: JsonObject) -> str:
    """Returns the description of an error status: of a call its code, else the error that ended the run."""
    return str(span["attributes"].get("error") or failure_text(run))


def _parent(run: TracedRun, span_id: str | None) -> SpanContext | None:
    """Returns the parent span; for the root span, the caller's span if there is one."""
    if span_id:
        return _context(run.trace_id, span_id)
    if not run.remote_span:
        return None
    number = int(run.remote_span, 16)
    return SpanContext(int(run.trace_id, 16), number, is_remote=True, trace_flags=TraceFlags(1))


def _context(trace_id: str, span_id: str) -> SpanContext:
    """Maps a span id to eight bytes, as OpenTelemetry requires."""
    number = int.from_bytes(span_bytes(span_id))
    return SpanContext(int(trace_id, 16), number, is_remote=False, trace_flags=TraceFlags(1))


def _labels(attributes: Mapping[str, Any]) -> JsonObject:
    """Returns tags and metadata of a run; values that are not plain as JSON."""
    labels = {
        f"astromesh.metadata.{key}": _plain(value) for key, value in attributes.get("metadata", {}).items()
    }
    return {**labels, **({"astromesh.tags": attributes["tags"]} if "tags" in attributes else {})}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else orjson.dumps(value).decode()


def _name_and_attributes(run: TracedRun, span: JsonObject) -> tuple[str, Mapping[str, Any]]:
    kind, attributes = span["name"], span["attributes"]
    if kind == "agent.run":
        return f"invoke_agent {run.agent}", {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": run.agent,
            "gen_ai.conversation.id": run.session_id,
            "astromesh.run_id": run.run_id,
            "astromesh.status": run.status,
            **_labels(attributes),
            **_failure(run),
            **_content(run),
        }
    if kind == "workflow.run":
        return f"invoke_workflow {run.agent}", {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": run.agent,
            "astromesh.task_id": run.run_id,
            "astromesh.status": run.status,
            **_failure(run),
        }
    if kind == "llm.complete":
        usage = attributes.get("usage", {})
        return f"chat {attributes.get('model', '')}".strip(), {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": attributes.get("provider", ""),
            "gen_ai.request.model": attributes.get("model", ""),
            "gen_ai.usage.input_tokens": usage.get("input_tokens", 0),
            "gen_ai.usage.output_tokens": usage.get("output_tokens", 0),
            "gen_ai.usage.cache_read.input_tokens": usage.get("cached_tokens", 0),
            "gen_ai.usage.cache_creation.input_tokens": usage.get("cache_write_tokens", 0),
            "gen_ai.usage.reasoning.output_tokens": usage.get("reasoning_tokens", 0),
            "astromesh.cost_usd": usage.get("cost_usd", 0.0),
            "astromesh.step": attributes.get("step", 0),
            "astromesh.role": attributes.get("role", ""),
            **_response(attributes),
            **({"error.type": attributes["error"]} if attributes.get("error") else {}),
            **_messages(attributes),
        }
    if kind == "tool.call":
        return f"execute_tool {attributes.get('name', '')}".strip(), {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": attributes.get("name", ""),
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": attributes.get("id", ""),
            **({"error.type": attributes["error"]} if attributes.get("error") else {}),
            **_call(attributes),
        }
    plain = {k: v for k, v in attributes.items() if k != "content" and isinstance(v, str | int | float)}
    return kind, {f"astromesh.{key}": value for key, value in plain.items()}


def _failure(run: TracedRun) -> dict[str, str]:
    """Returns the code of the error that ended a run or Task."""
    code = run.events[-1].data.get("code")
    if run.status == "failure":  # a Task has the error of the stage that failed last
        stages = (e.data for e in reversed(run.events) if e.type == "stage.finished")
        code = next((data["error"] for data in stages if data.get("error")), code)
    return {"error.type": str(code)} if code else {}


def _response(attributes: JsonObject) -> dict[str, Any]:
    """Returns what a service has said of its answer."""
    reason, model = attributes.get("finish_reason"), attributes.get("response_model")
    found: dict[str, Any] = {}
    if reason:
        found["gen_ai.response.finish_reasons"] = (_REASONS.get(reason, reason),)
    if model:
        found["gen_ai.response.model"] = model
    return found


# -- captured content, by the schemas of the GenAI conventions ---------------------------------------------

_ROLES = {"input": "user", "output": "assistant"}
#: finish reasons that have another name in the conventions
_REASONS = {"tool_calls": "tool_call"}


def _content(run: TracedRun) -> dict[str, str]:
    """Returns query and answer of a run."""
    content = captured_content(run.events)
    messages = {way: {"role": _ROLES[way], "content": text} for way, text in content.items()}
    return {f"gen_ai.{way}.messages": _json([_otel_message(message)]) for way, message in messages.items()}


def _messages(attributes: JsonObject) -> dict[str, str]:
    """Returns the messages of a model call."""
    ways = (way for way in _ROLES if way in attributes)
    return {
        f"gen_ai.{way}.messages": _json([_otel_message(message) for message in attributes[way]])
        for way in ways
    }


def _call(attributes: JsonObject) -> dict[str, str]:
    """Returns arguments and result of a tool call."""
    parts = (part for part in ("arguments", "result") if part in attributes)
    return {f"gen_ai.tool.call.{part}": _text(attributes[part]) for part in parts}


def _otel_message(message: JsonObject) -> JsonObject:
    if "tool_call_id" in message:
        part = {"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}
        return {"role": message["role"], "parts": [part]}
    parts = [{"type": "text", "content": message["content"]}] if message["content"] else []
    parts += [{"type": "tool_call", **call} for call in message.get("tool_calls", ())]
    shown = {"role": message["role"], "parts": parts}
    if reason := message.get("finish_reason"):
        shown["finish_reason"] = _REASONS.get(reason, reason)
    return shown


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
