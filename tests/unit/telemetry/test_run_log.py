"""The records of a process's runs: bounded in number and size, and honest about what is gone."""

from __future__ import annotations

import asyncio

import pytest

from astromesh.errors import EventsGone
from astromesh.graph.ledger import RunLedger
from astromesh.telemetry.events import MODEL_DELTA, EventStream
from astromesh.telemetry.run_log import EVENT_OVERHEAD, RunLog, RunLogs
from astromesh.telemetry.traces import build_spans
from astromesh.testing import RecordingSink


def log_of(run_id: str = "run_1", trace_id: str = "", owner: str = "ann") -> RunLog:
    return RunLog(run_id, trace_id or f"t-{run_id}", "acme", owner, "helper", "s", "", RunLedger(), [])


def ran(
    logs: RunLogs, run_id: str, response: str = "ok", trace_id: str = "", end: str = "run.completed"
) -> RunLog:
    """A run from beginning to end."""
    log = log_of(run_id, trace_id)
    logs.open(log)
    log.stream = stream = EventStream(run_id, (), log)
    stream.emit("run.started", agent="helper")
    stream.emit(end, response=response)
    logs.close(log, 0.0)
    return log


def test_deltas_are_kept_only_where_somebody_listens() -> None:
    log = log_of()
    stream = EventStream("run_1", (RecordingSink(wants_deltas=False),), log)
    stream.emit(MODEL_DELTA, step=1, role="assistant", content="unheard")
    listener = RecordingSink()
    stream.add(listener)
    stream.emit(MODEL_DELTA, step=1, role="assistant", content="heard")
    stream.remove(listener)
    stream.emit(MODEL_DELTA, step=1, role="assistant", content="unheard")
    assert [(e.seq, e.data["content"]) for e in log.events] == [(1, "heard")]


@pytest.mark.parametrize("kind", ["deltas", "arguments", "steps"])
def test_a_run_without_end_keeps_its_beginning_and_its_newest_events(kind: str) -> None:
    log = log_of()
    log.max_bytes = 200_000
    stream = EventStream("run_1", (RecordingSink(),), log)
    stream.emit("run.started", agent="helper")
    for n in range(5000):
        if kind == "deltas":
            stream.emit(MODEL_DELTA, step=1, role="assistant", content="x" * 1000)
        elif kind == "arguments":
            stream.emit("tool.started", id="c", name="t", arguments={"n": n, "text": "x" * 1000})
        else:
            stream.emit("node.started", node="n")
        assert log.size <= log.max_bytes + 256 * EVENT_OVERHEAD
    stream.emit("run.completed", response="all")
    assert log.events[0].type == "run.started"
    assert log.events[-1].type == "run.completed"
    assert [e.seq for e in log.after(log.dropped_through)] == list(range(log.dropped_through + 1, 5003))
    with pytest.raises(EventsGone):
        log.after(log.dropped_through - 1)


def told_by_two_voices(log: RunLog, deltas: int) -> list[tuple[int, float, str, dict[str, object]]]:
    """Deltas of two steps with other events between; answers what a listener heard."""
    heard = RecordingSink()
    stream = EventStream("run_1", (heard,), log)
    stream.emit("run.started", agent="helper")
    for n in range(deltas):
        stream.emit(MODEL_DELTA, step=n // 700 % 2, role="assistant", content=f"é{n} " * (n % 3))
        if n % 100 == 0:
            stream.emit("tool.finished", id=str(n), ok=True)
    stream.emit("run.completed", response="all")
    return [(e.seq, e.ts, e.type, e.data) for e in heard.events]


def test_a_long_answer_is_kept_as_it_was_heard_and_takes_little_more_than_its_text() -> None:
    log = log_of()
    heard = told_by_two_voices(log, 10_000)
    assert log.dropped_through == 0
    for after in (0, 1, 700, 9_999, len(heard)):
        kept = [(e.seq, e.ts, e.type, e.data) for e in log.after(after)]
        assert kept == heard[after:]
    text = sum(len(data["content"]) for _, _, kind, data in heard if kind == MODEL_DELTA)  # type: ignore[arg-type,misc]
    assert log.size < text + 20 * 10_000 + EVENT_OVERHEAD * (103 + 256)


def test_the_oldest_packs_go_first_and_what_is_told_is_still_without_gaps() -> None:
    log = log_of()
    log.max_bytes = 300_000
    heard = told_by_two_voices(log, 20_000)
    assert log.size <= log.max_bytes + 256 * EVENT_OVERHEAD
    assert 0 < log.dropped_through < len(heard) - 1000
    assert [e.seq for e in log.after(log.dropped_through)] == list(
        range(log.dropped_through + 1, len(heard) + 1)
    )


def test_ended_runs_are_bounded_by_number_and_running_ones_stay() -> None:
    logs = RunLogs(max_runs=10, max_dropped_ids=20)
    running = log_of("running")
    logs.open(running)
    for n in range(100):
        ran(logs, f"run_{n}")
    assert len(logs) == 11
    assert logs.find("running") is running
    assert [log.run_id for log in logs.newest()][:2] == ["run_99", "run_98"]
    assert logs.find("run_89") is None
    assert logs.was_dropped("run_89", "acme", "ann")
    assert not logs.was_dropped("run_89", "acme", "bob")
    assert not logs.was_dropped("run_89", "other", None)
    assert not logs.was_dropped("run_10", "acme", None)  # remembered for a while only


@pytest.mark.parametrize("end", ["run.completed", "run.failed", "run.cancelled"])
def test_ended_runs_are_bounded_by_size(end: str) -> None:
    """A run that broke off has said something, too."""
    logs = RunLogs(max_bytes=100_000)
    for n in range(100):
        ran(logs, f"run_{n}", "x" * 10_000, end=end)
    assert len(logs) <= 10


def test_traces_go_with_their_runs() -> None:
    logs = RunLogs(max_runs=2)
    ran(logs, "run_1", trace_id="t")
    ran(logs, "run_2", trace_id="t")
    ran(logs, "run_3")
    (found,) = logs.of_trace("t", "acme", None)
    assert [span["span_id"] for span in build_spans(found)] == ["run_2"]
    ran(logs, "run_4")
    assert logs.of_trace("t", "acme", None) == []


async def test_the_end_of_a_run_can_be_waited_for() -> None:
    log = log_of()
    waiting = [asyncio.create_task(log.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    log.close(1.0)
    await waiting[1]
    await log.wait()
    assert log.status == "failed"  # it ended without a last event


def test_a_durable_run_is_kept_while_it_runs_and_its_nested_ones_longer() -> None:
    """Row and events of the first are on disk; those of the others are nowhere else."""
    logs = RunLogs()
    top, nested = log_of("top"), log_of("nested")
    top.durable = nested.durable = True
    nested.parent = "top.call_1"
    for log in (top, nested):
        logs.open(log)
    assert [log.run_id for log in logs.newest()] == ["nested", "top"]
    for log in (nested, top):
        logs.close(log, 1.0)
    assert [log.run_id for log in logs.newest()] == ["nested"]
    assert not logs.was_dropped("top", top.tenant, None)
    logs.open(top)  # taken up again
    assert logs.find("top") is top
