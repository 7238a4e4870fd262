"""What waits for a slow reader is bounded, whatever it is, and the last event always arrives (R11)."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from astromesh.api.event_streams import MAX_PENDING_BYTES, EventBuffer
from astromesh.telemetry.run_log import EVENT_OVERHEAD
from astromesh.types import Event

KIB = "x" * 1024


def delta(seq: int, content: str = "x", step: int = 1, run: str = "r", role: str = "assistant") -> Event:
    return Event(run, seq, 0.0, "model.delta", {"step": step, "role": role, "content": content})


def tool(seq: int, size: int) -> Event:
    return Event("r", seq, 0.0, "tool.started", {"id": "c", "name": "t", "arguments": {"a": "x" * size}})


def done(seq: int, response: str = "all") -> Event:
    return Event("r", seq, 0.0, "run.completed", {"response": response, "metadata": {}})


async def taken(outbox: EventBuffer) -> list[Event]:
    outbox.close()
    return list(await outbox.take())


async def test_fifty_megabytes_of_deltas_wait_in_two() -> None:
    outbox, before = EventBuffer(), EventBuffer.dropped_by_all
    for seq in range(1, 50_001):
        outbox.send(delta(seq, KIB))
        assert outbox.pending_bytes <= MAX_PENDING_BYTES
    outbox.send(done(50_001))
    got = await taken(outbox)
    assert outbox.dropped == EventBuffer.dropped_by_all - before > 40_000
    assert sum(len(e.data["content"]) for e in got[:-1]) <= MAX_PENDING_BYTES
    assert (got[-1].type, got[-1].seq) == ("run.completed", 50_001)


async def test_joined_deltas_stay_short_so_that_joining_costs_no_more_with_time() -> None:
    outbox = EventBuffer()
    for seq in range(1, 150_001):
        outbox.send(delta(seq, "word "))
    got = await taken(outbox)
    assert "".join(e.data["content"] for e in got) == "word " * 150_000
    assert max(len(e.data["content"]) for e in got) < 20_000
    assert [e.seq for e in got] == sorted(e.seq for e in got)


async def test_events_that_are_no_deltas_are_bounded_too() -> None:
    outbox = EventBuffer()
    for seq in range(1, 1001):
        outbox.send(tool(seq, 50_000))
    for seq in range(1001, 20_001):
        outbox.send(Event("r", seq, 0.0, "node.started", {"node": "n"}))
    outbox.send(done(20_001))
    assert outbox.pending_bytes <= MAX_PENDING_BYTES + EVENT_OVERHEAD + len("all")
    got = await taken(outbox)
    assert len(got) <= MAX_PENDING_BYTES // EVENT_OVERHEAD + 1
    assert outbox.dropped == 20_001 - len(got)
    assert got[-1].type == "run.completed"


async def test_a_reader_who_is_a_little_late_gets_joined_deltas_and_loses_nothing() -> None:
    outbox = EventBuffer(max_separate=4)
    for seq in range(1, 11):
        outbox.send(delta(seq, str(seq), step=1 + (seq > 8)))
    got = await taken(outbox)
    assert [e.data["content"] for e in got] == ["1", "2", "3", "45678", "910"]
    assert [e.seq for e in got] == [1, 2, 3, 8, 10]
    assert outbox.dropped == 0


async def test_deltas_of_different_runs_and_roles_are_never_joined() -> None:
    outbox = EventBuffer(max_separate=1)
    for event in (delta(1), delta(1, run="other"), delta(2, role="judge"), delta(3)):
        outbox.send(event)
    assert len(await taken(outbox)) == 4


async def test_joining_changes_no_event_that_others_hear_too() -> None:
    outbox, first = EventBuffer(max_separate=1), delta(1, "a")
    outbox.send(first)
    outbox.send(delta(2, "b"))
    assert first.data["content"] == "a"


async def test_what_is_on_its_way_counts_until_its_reader_takes_more() -> None:
    """A socket that has stopped holds what it was given: this and what waits share the limit."""
    outbox = EventBuffer(max_bytes=4 * EVENT_OVERHEAD)
    for seq in range(8):
        outbox.send(tool(seq, 0))
    before = outbox.dropped
    await outbox.take()
    outbox.send(tool(8, 0))
    assert 0 < before < outbox.dropped
    taking = asyncio.ensure_future(outbox.take())
    await asyncio.sleep(0)
    outbox.send(tool(9, 0))
    assert [event.seq for event in await taking] == [9]
    assert outbox.dropped == before + 1


async def test_nothing_is_kept_for_a_reader_who_has_gone() -> None:
    outbox = EventBuffer()
    outbox.send(delta(1))
    outbox.discard()
    outbox.send(done(2))
    assert list(await outbox.take()) == []


async def test_an_outbox_of_one_run_ends_behind_its_last_event() -> None:
    outbox = EventBuffer(close_at_end=True)
    reader = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.send(done(1))
    assert [e.type for e in await reader] == ["run.completed"]
    assert list(await outbox.take()) == []


@given(
    events=st.lists(st.tuples(st.integers(1, 2), st.text(max_size=40)), max_size=60),
    takes=st.sets(st.integers(0, 59)),
    single=st.integers(1, 10),
)
def test_with_room_enough_the_text_joins_to_what_was_sent(
    events: list[tuple[int, str]], takes: set[int], single: int
) -> None:
    async def go() -> list[Event]:
        outbox = EventBuffer(single)
        got: list[Event] = []
        for seq, (step, content) in enumerate(events):
            outbox.send(delta(seq, content, step))
            if seq in takes:
                got += await outbox.take()
        return got + await taken(outbox)

    got = asyncio.run(go())
    for step in (1, 2):
        sent = "".join(content for its, content in events if its == step)
        assert "".join(e.data["content"] for e in got if e.data["step"] == step) == sent
    assert [e.seq for e in got] == sorted(e.seq for e in got)
