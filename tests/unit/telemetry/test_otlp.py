"""A run that cannot be exported keeps no other from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from astromesh.graph.ledger import RunLedger
from astromesh.telemetry.otlp import OtlpExporter
from astromesh.telemetry.run_log import RunLog
from astromesh.types import Event


class KeptSpans:
    """An exporter that keeps the names of what it is given."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def export(self, batch: Sequence[ReadableSpan]) -> SpanExportResult:
        self.names += [span.name for span in batch]
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None: ...


def run_of(agent: str, trace_id: str) -> RunLog:
    log = RunLog(f"run_{agent}", trace_id, "default", "anonymous", agent, "s", "", RunLedger(), [])
    ends: dict[str, Any] = {"response": "", "metadata": {}}
    log.events += [
        Event(log.run_id, 1, 1.0, "run.started", {}),
        Event(log.run_id, 2, 2.0, "run.completed", ends),
    ]
    log.close(0.0)
    return log


async def test_a_run_that_has_no_spans_as_the_wire_has_them_is_left_out() -> None:
    spans = KeptSpans()
    exporter = OtlpExporter(spans, 1.0)  # type: ignore[arg-type]
    odd = run_of("odd", "a" * 32)
    odd.sampled, odd.remote_span = True, "no hex digits"
    exporter.offer(odd)
    exporter.offer(run_of("sound", "b" * 32))
    await exporter.close()
    assert spans.names == ["invoke_agent sound"]
