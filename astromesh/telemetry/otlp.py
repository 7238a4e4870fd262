"""Export of traces by OTLP over HTTP, with the GenAI semantic names of OpenTelemetry, off the hot path.

A run that ends costs an append to a bounded queue; a thread makes spans of it and sends them in batches. What
does not fit the queue is dropped and counted: a collector that is down harms no run. The headers, the
compression and the certificates of the collector are those of OpenTelemetry's own environment variables
(`OTEL_EXPORTER_OTLP_HEADERS`, …).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Self

import orjson
import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.deps import Deps
from astromesh.telemetry.traces import Traced, captured, failure, spans
from astromesh.types import JsonObject

#: runs that wait, spans sent at once, seconds between two sends, seconds for what is left at the end
_MOST, _BATCH, _PERIOD, _LAST = 2048, 512, 1.0, 3.0
_PATH = "/v1/traces"


class _Service(Resource):
    """This service; the encoder hashes it for each span, the library's hash of it is its JSON each time."""

    def __hash__(self) -> int:
        return id(self)


_SERVICE = _Service({"service.name": "astromesh"})
_SCOPE = InstrumentationScope("astromesh")
_TRACE_BITS = 1 << 64

log = structlog.get_logger("astromesh.telemetry")


class OtlpOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    endpoint: str = Field(min_length=1, description="Base URL of the collector, e.g. http://collector:4318.")
    sample_ratio: float = Field(
        1.0, ge=0, le=1, description="Share of the traces that begin here that is exported."
    )


class OtlpExporter:
    """Sends the traces of runs that have ended.

    Args:
        ratio: share of the traces that begin here; which ones follows from the trace id, so that all of a
            trace goes or none. One that a caller began goes where the caller keeps it.

    Attributes:
        dropped: runs that were not exported because too many waited.
    """

    Options: type[BaseModel] = OtlpOptions

    def __init__(self, exporter: OTLPSpanExporter, ratio: float) -> None:
        self.dropped = 0
        self._exporter, self._least = exporter, int(ratio * _TRACE_BITS)
        self._waiting: deque[Traced] = deque()
        self._ending = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._work, name="astromesh-otlp", daemon=True)
        self._thread.start()

    @classmethod
    async def open(cls, options: OtlpOptions, deps: Deps) -> Self:
        exporter = OTLPSpanExporter(endpoint=options.endpoint.rstrip("/").removesuffix(_PATH) + _PATH)
        return cls(exporter, options.sample_ratio)

    def offer(self, run: Traced) -> None:
        """Takes a run that has ended."""
        if not self._is_sampled(run):
            return
        if len(self._waiting) >= _MOST:
            self.dropped += 1
            return
        self._waiting.append(run)

    def _is_sampled(self, run: Traced) -> bool:
        """By whoever began the trace, else by its id (OpenTelemetry's `parentbased_traceidratio`)."""
        return int(run.trace_id[16:], 16) < self._least if run.sampled is None else run.sampled

    async def close(self) -> None:
        """Sends what waits, for at most three seconds."""
        self._ending.set()
        await asyncio.to_thread(self._thread.join, _LAST)

    # -- in the thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        ending = False
        while not ending:
            ending = self._ending.wait(_PERIOD)
            while self._waiting:
                self._send(self._taken())
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _taken(self) -> list[ReadableSpan]:
        batch: list[ReadableSpan] = []
        while self._waiting and len(batch) < _BATCH:
            run = self._waiting.popleft()
            try:
                batch += exported(run)
            except Exception as error:  # noqa: BLE001 (plugin observer: one odd run stops no export)
                log.warning("trace_not_exported", run_id=run.run_id, error=str(error))
        return batch

    def _send(self, batch: Sequence[ReadableSpan]) -> None:
        try:
            sent = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 (plugin observer: the collector's fault is no run's)
            log.warning("traces_not_exported", error=str(error))
            sent = False
        if not sent and not self._failing:
            log.warning("traces_not_exported", error="the collector does not take them")
        self._failing = not sent


# -- spans of document 001 to those of OpenTelemetry ---------------------------------------------------------


def exported(run: Traced) -> list[ReadableSpan]:
    """The spans of a run as OpenTelemetry has them."""
    return [_span(run, span) for span in spans(run)]


def _span(run: Traced, span: JsonObject) -> ReadableSpan:
    name, attributes = _named(run, span)
    start = int(span["start"] * 1e9)
    failed = span["status"] == "error"
    return ReadableSpan(
        name,
        context=_context(run.trace_id, span["span_id"]),
        parent=_parent(run, span["parent_id"]),
        resource=_SERVICE,
        attributes=attributes,
        kind=SpanKind.CLIENT if span["name"] == "llm.complete" else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, _why(run, span)) if failed else Status(StatusCode.OK),
        start_time=start,
        end_time=start + int(span["duration_ms"] * 1e6),
        instrumentation_scope=_SCOPE,
    )


def _why(run: Traced, span: JsonObject) -> str:
    """What an error's status says: of a call its code, of the run and its pattern what ended them."""
    return str(span["attributes"].get("error") or failure(run))


def _parent(run: Traced, span_id: str | None) -> SpanContext | None:
    """The span above; over the root of a run that a caller's trace began, the caller's own."""
    if span_id:
        return _context(run.trace_id, span_id)
    if not run.remote_span:
        return None
    number = int(run.remote_span, 16)
    return SpanContext(int(run.trace_id, 16), number, is_remote=True, trace_flags=TraceFlags(1))


def _context(trace_id: str, span_id: str) -> SpanContext:
    """Our span ids are words; OpenTelemetry's have eight bytes."""
    number = int.from_bytes(blake2b(span_id.encode(), digest_size=8).digest())
    return SpanContext(int(trace_id, 16), number, is_remote=False, trace_flags=TraceFlags(1))


def _named(run: Traced, span: JsonObject) -> tuple[str, Mapping[str, Any]]:
    kind, given = span["name"], span["attributes"]
    if kind == "agent.run":
        return f"invoke_agent {run.agent}", {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": run.agent,
            "gen_ai.conversation.id": run.session_id,
            "astromesh.run_id": run.run_id,
            "astromesh.status": run.status,
            **_content(run),
        }
    if kind == "workflow.run":
        return f"invoke_workflow {run.agent}", {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": run.agent,
            "astromesh.task_id": run.run_id,
            "astromesh.status": run.status,
        }
    if kind == "llm.complete":
        usage = given.get("usage", {})
        return f"chat {given.get('model', '')}".strip(), {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": given.get("provider", ""),
            "gen_ai.request.model": given.get("model", ""),
            "gen_ai.usage.input_tokens": usage.get("input_tokens", 0),
            "gen_ai.usage.output_tokens": usage.get("output_tokens", 0),
            "gen_ai.usage.cache_read.input_tokens": usage.get("cached_tokens", 0),
            "astromesh.cost_usd": usage.get("cost_usd", 0.0),
            "astromesh.step": given.get("step", 0),
            "astromesh.role": given.get("role", ""),
            **({"error.type": given["error"]} if given.get("error") else {}),
            **_messages(given),
        }
    if kind == "tool.call":
        return f"execute_tool {given.get('name', '')}".strip(), {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": given.get("name", ""),
            "gen_ai.tool.call.id": given.get("id", ""),
            **({"error.type": given["error"]} if given.get("error") else {}),
            **_call(given),
        }
    plain = {k: v for k, v in given.items() if k != "content" and isinstance(v, str | int | float)}
    return kind, {f"astromesh.{key}": value for key, value in plain.items()}


# -- what was captured, by the schemas of the GenAI conventions ----------------------------------------------

_ROLES = {"input": "user", "output": "assistant"}
#: why a model ended, where the conventions have another word for it
_REASONS = {"tool_calls": "tool_call"}


def _content(run: Traced) -> dict[str, str]:
    """Query and answer of a run."""
    said = captured(run.events)
    messages = {way: {"role": _ROLES[way], "content": text} for way, text in said.items()}
    return {f"gen_ai.{way}.messages": _json([_shown(message)]) for way, message in messages.items()}


def _messages(given: JsonObject) -> dict[str, str]:
    """The messages of a model call."""
    ways = (way for way in _ROLES if way in given)
    return {f"gen_ai.{way}.messages": _json([_shown(message) for message in given[way]]) for way in ways}


def _call(given: JsonObject) -> dict[str, str]:
    """Arguments and result of a tool call."""
    parts = (part for part in ("arguments", "result") if part in given)
    return {f"gen_ai.tool.call.{part}": _text(given[part]) for part in parts}


def _shown(message: JsonObject) -> JsonObject:
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
