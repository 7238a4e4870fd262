"""A listener that raises harms neither the run nor the others: it is in the log, and hears nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from structlog.testing import capture_logs

from astromesh.durable.event_stream import DurableStream
from astromesh.graph.ledger import RunLedger
from astromesh.runtime.runs import RunListener
from astromesh.telemetry.events import MODEL_DELTA, EventStream
from astromesh.telemetry.run_log import RunLog
from astromesh.testing import RecordingSink
from astromesh.types import Event


class Broken:
    """A listener whose first event is its last."""

    wants_deltas = True

    def __init__(self) -> None:
        self.heard = 0

    def send(self, event: Event) -> None:
        self.heard += 1
        raise OSError(28, "No space left on device")


class Disk:
    """Takes every event at once."""

    closed = False

    def event(self, event: Event, *, last: bool = False) -> None:
        pass


def _names(lines: Sequence[Any]) -> list[tuple[str, str]]:
    return [(line["event"], line["listener"]) for line in lines]


def test_the_others_hear_every_event_and_the_broken_one_nothing_more() -> None:
    before, broken, behind = RecordingSink(), Broken(), RecordingSink()
    stream = EventStream("r", (before, broken, behind))
    with capture_logs() as lines:
        stream.emit("run.started", agent="a")
        stream.emit(MODEL_DELTA, step=1, role="assistant", content="x")
    assert before.types == behind.types == ["run.started", MODEL_DELTA]
    assert (broken.heard, _names(lines)) == (1, [("listener_failed", "Broken")])


def test_nobody_is_streamed_to_once_the_only_one_who_wanted_deltas_broke() -> None:
    stream = EventStream("r", (Broken(), RecordingSink(wants_deltas=False)))
    with capture_logs():
        stream.emit("run.started", agent="a")
    assert not stream.streaming


def test_a_durable_run_goes_on_and_its_listeners_hear_what_is_on_disk() -> None:
    log = RunLog("r", "t", "acme", "ann", "a", "s", "", RunLedger(), [])
    counting, following, heard = Broken(), Broken(), RecordingSink()
    stream = DurableStream("r", Disk(), log, (counting,), again=(Broken(),))
    for sink in (following, heard):
        stream.add(sink)
    with capture_logs() as lines:
        for kind in ("run.started", "run.completed"):
            stream.emit(kind, agent="a", response="")
            stream.deliver(log.events[-1:])
    assert heard.types == ["run.started", "run.completed"]
    assert (counting.heard, following.heard, len(lines)) == (1, 1, 3)


async def test_who_waits_for_a_durable_run_hears_of_its_end_though_its_listener_broke() -> None:
    broken, heard = Broken(), RecordingSink()
    waits = RunListener((broken, heard))
    with capture_logs() as lines:
        for n, kind in enumerate(("run.started", "run.completed")):
            waits.send(Event("r", n, 0.0, kind, {}))
    await asyncio.wait_for(waits.ended.wait(), 60)
    assert heard.types == ["run.started", "run.completed"]
    assert (broken.heard, _names(lines)) == (1, [("listener_failed", "Broken")])
