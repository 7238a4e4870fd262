"""The desk with a channel in one file: order, bursts, repeats, several processes, and ends in the middle."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import structlog

from astromesh.channels.base import ChannelRunRequest, Inbox, WebhookRequest
from astromesh.channels.responder import ChannelSetup, ConfiguredChannel
from astromesh.durable.inbox_worker import MAX_ACTIVE, ChannelInboxWorker, queues_to_begin
from astromesh.durable.leases import WorkerHeartbeat
from astromesh.errors import (
    AgentUnavailable,
    ApprovalRequired,
    ChannelError,
    ChannelRejected,
    InvalidInput,
    OutsideWindow,
)
from astromesh.plugins import Deps, Plugins
from astromesh.testing import ManualClock
from tests.contract.channels.sample_channel import Pigeon
from tests.platform.stores import deps_of

RING = "ring-of-the-pigeon"


class Desk:
    """A desk, its pigeon, and an agent that answers with its question in capitals.

    Attributes:
        asked: the questions in order. gate: what each run waits for. raising: raised by the next runs.
    """

    def __init__(self, inbox: Inbox, clock: ManualClock, folder: Path, **setup: Any) -> None:
        self.pigeon = Pigeon(RING)
        self.asked: list[ChannelRunRequest] = []
        self.raising: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.changed = asyncio.Event()
        setup.setdefault("lease", 3600.0)  # the clock may run far ahead of a machine that is busy
        post = ConfiguredChannel("pigeon", self.pigeon, ChannelSetup("helper", **setup))
        self.desk = ChannelInboxWorker(inbox, {"pigeon": post}, self._ask, clock, WorkerHeartbeat(folder))

    async def _ask(self, question: ChannelRunRequest) -> str:
        self.asked.append(question)
        await self.gate.wait()
        if self.raising:
            raise self.raising.pop(0)
        return question.query.upper()

    async def say(self, *lines: str) -> None:
        """Each line is `id|from|text`."""
        parts = [line.split("|") for line in lines]
        body = "\n".join(f"{own}|{sender}|us|{text}" for own, sender, text in parts).encode()
        await self.desk.receive("pigeon", WebhookRequest("POST", {}, {"ring": RING}, body))

    @property
    def sent(self) -> list[str]:
        return [text for _, text in self.pigeon.sent]

    async def until(self, reached: Callable[[Desk], bool], clock: ManualClock | None = None) -> None:
        """Until something is so; the clock goes on meanwhile, where one is given."""
        async with asyncio.timeout(60):
            while not reached(self):
                if clock is not None:
                    clock.advance(0.05)
                await asyncio.sleep(0.002)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=("sqlite", "postgres"))
async def inbox(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Inbox]:
    deps: Deps = deps_of(request, clock, tmp_path)
    yield await Plugins().open("inboxes", request.param, {}, deps)
    await deps.resources.close()


@asynccontextmanager
async def started(inbox: Inbox, clock: ManualClock, **setup: Any) -> AsyncIterator[Desk]:
    with TemporaryDirectory() as folder:
        desk = Desk(inbox, clock, setup.pop("folder", Path(folder)), **setup)
        desk.desk.start()
        try:
            yield desk
        finally:
            desk.gate.set()
            await desk.desk.close()


async def test_one_person_is_answered_in_order_and_others_meanwhile(inbox, clock):
    async with started(inbox, clock) as desk:
        desk.gate.clear()
        await desk.say("1|ann|one", "2|ann|two", "3|bob|uno")
        await desk.until(lambda d: len(d.asked) == 2, clock)
        assert sorted(q.query for q in desk.asked) == ["one", "uno"]
        desk.gate.set()
        await desk.until(lambda d: len(d.sent) == 3, clock)
        assert [text for who, text in desk.pigeon.sent if who == "ann"] == ["ONE", "TWO"]


async def test_a_few_are_begun_at_once_and_more_where_these_wait_for_their_models(inbox, clock):
    """64 people are in work at last, and all are answered."""
    async with started(inbox, clock) as desk:
        desk.gate.clear()
        await desk.say(*(f"{n}|p{n}|m{n}" for n in range(MAX_ACTIVE + 2)))
        await desk.until(lambda d: len(d.asked) == MAX_ACTIVE, clock)
        assert len(desk.desk._worker.active) == MAX_ACTIVE
        desk.gate.set()
        await desk.until(lambda d: len(d.sent) == MAX_ACTIVE + 2, clock)


@pytest.mark.parametrize(
    ("working", "breathed", "begun"),
    [(0, False, 8), (5, False, 3), (8, False, 0), (8, True, 8), (60, True, 4), (64, True, 0)],
)
def test_how_many_may_be_begun(working, breathed, begun):
    assert queues_to_begin(working, burst_over=breathed) == begun


async def test_a_burst_is_one_run_once_the_person_is_silent(inbox, clock):
    async with started(inbox, clock, debounce=10.0) as desk:
        await desk.say("1|ann|one")
        clock.advance(9)
        await desk.say("2|ann|two")
        clock.advance(9)
        await desk.say("3|ann|three")
        await desk.until(lambda d: len(d.sent) == 1, clock)
        assert desk.sent == ["ONE\nTWO\nTHREE"]
        assert desk.asked[0].query == "one\ntwo\nthree"


async def test_the_question_names_no_person_and_is_always_the_same_one(inbox, clock):
    async with started(inbox, clock, tenant="acme") as desk:
        await desk.say("1|+49 170 1234567|one")
        await desk.say("2|+49 170 1234567|two", "3|+49 170 7654321|three")
        await desk.until(lambda d: len(d.sent) == 3, clock)
        one, two, other = (next(q for q in desk.asked if q.query == text) for text in ("one", "two", "three"))
        assert one.session_id == two.session_id != other.session_id
        assert one.caller.user_id == two.caller.user_id != other.caller.user_id
        assert one.key != two.key
        assert (one.agent, one.caller.tenant_id) == ("helper", "acme")
        assert one.caller.scopes == {"agents:run:helper"}
        assert "1234567" not in repr(one)


async def test_a_run_that_could_not_begin_is_tried_again_and_one_that_failed_is_not(inbox, clock):
    async with started(inbox, clock, failure_reply="Sorry.") as desk:
        desk.raising = [AgentUnavailable("broken"), AgentUnavailable("still")]
        await desk.say("1|ann|one")
        await desk.until(lambda d: len(d.sent) == 1, clock)
        assert (desk.sent, len({q.key for q in desk.asked}), len(desk.asked)) == (["ONE"], 1, 3)
        desk.raising = [InvalidInput("wrong")]
        await desk.say("2|ann|two")
        await desk.until(lambda d: len(d.sent) == 2, clock)
        assert desk.sent[1] == "Sorry."


async def test_a_question_that_waits_for_a_person_is_looked_at_quietly_and_counts_no_try(inbox, clock):
    """However long it takes: files are fetched and it is marked as read once, the reply has all its tries."""
    async with started(inbox, clock) as desk:
        desk.raising = [ApprovalRequired("Wait.", "run_1", {}) for _ in range(3)]
        await desk.say("1|ann|one")
        await desk.until(lambda d: len(d.asked) == 2, clock)
        await desk.until(lambda d: not d.desk._worker.active)
        later = clock.now() + 100
        (taken,) = await inbox.take("another", ["pigeon"], later, later + 1, 1)
        assert taken.attempts == 0
        await inbox.release(taken.queue, "another", clock.now(), taken.attempts)
        await desk.until(lambda d: len(d.sent) == 1, clock)
        assert (desk.sent, len(desk.asked)) == (["ONE"], 4)
        assert (desk.pigeon.prepared, desk.pigeon.seen) == (["one"], ["1"])


async def test_who_is_erased_while_a_question_waits_is_held_nowhere(inbox, clock):
    async with started(inbox, clock) as desk:
        desk.raising = [ApprovalRequired("Wait.", "run_1", {})]
        await desk.say("1|ann|one")
        await desk.until(lambda d: bool(d.desk._responder._waiting))
        await desk.desk.erase("default", desk.asked[0].caller.user_id)
        assert desk.desk._responder._waiting == {}


async def test_an_end_does_not_wait_for_runs_and_loses_none(inbox, clock):
    """A run that is worked on elsewhere, or later, is asked about again by whoever comes next."""
    async with started(inbox, clock) as desk:
        desk.gate.clear()
        await desk.say("1|ann|one")
        await desk.until(lambda d: bool(d.asked), clock)
        await desk.desk.close()
    async with started(inbox, clock) as desk:
        await desk.until(lambda d: len(d.sent) == 1, clock)
        assert desk.sent == ["ONE"]


async def test_what_was_sent_is_not_sent_again_when_a_later_part_fails(inbox, clock):
    async with started(inbox, clock) as desk:
        await desk.say("0|ann|first")
        await desk.until(lambda d: len(d.sent) == 1, clock)
        desk.pigeon.failures = [ChannelError("busy", 5.0), ChannelError("busy")]
        await desk.say("1|ann|a/b/c")
        await desk.until(lambda d: len(d.sent) == 4, clock)
        assert desk.sent == ["FIRST", "A", "B", "C"]
        assert len(desk.asked) == 2


@pytest.mark.parametrize("failure", [ChannelRejected("never"), OutsideWindow("too late")])
async def test_what_is_never_taken_does_not_stop_what_follows(inbox, clock, failure):
    async with started(inbox, clock) as desk:
        desk.pigeon.failures = [failure]
        await desk.say("1|ann|a/b", "2|ann|c")
        await desk.until(lambda d: len(d.sent) == 1, clock)
        assert desk.sent == ["C"]


async def test_a_channel_that_crashes_is_tried_again(inbox, clock):
    async with started(inbox, clock) as desk:
        desk.pigeon.failures = [RuntimeError("a fault of the adapter")]
        await desk.say("1|ann|one")
        await desk.until(lambda d: len(d.sent) == 1, clock)
        assert desk.sent == ["ONE"]


async def test_two_desks_on_one_inbox_answer_each_message_once(inbox, clock):
    async with started(inbox, clock) as one, started(inbox, clock) as other:
        lines = [f"{n}|p{n % 7}|m{n}" for n in range(42)]
        await asyncio.gather(*(desk.say(*lines) for desk in (one, other)))
        async with asyncio.timeout(60):
            while len(one.sent) + len(other.sent) < 42:
                clock.advance(0.05)
                await asyncio.sleep(0.002)
        said = one.pigeon.sent + other.pigeon.sent
        assert sorted(text for _, text in said) == sorted(f"M{n}" for n in range(42))


async def test_a_desk_that_ends_in_the_middle_leaves_its_work_to_the_next(inbox, clock):
    async with started(inbox, clock) as first:
        first.gate.clear()
        await first.say("1|ann|one", "2|ann|two")
        await first.until(lambda d: bool(d.asked), clock)
        for task in first.desk._worker.active.values():
            task.cancel()
        await first.desk._worker.abandon()
        async with started(inbox, clock) as second:
            await second.until(lambda d: len(d.sent) == 2, clock)
            assert second.sent == ["ONE", "TWO"]
            assert second.asked[0].key == first.asked[0].key
        assert first.sent == []


async def test_a_dead_worker_of_this_machine_leaves_its_queues_at_once(inbox, clock, tmp_path):
    """Its leases have not expired; its file is unlocked."""
    presence = WorkerHeartbeat(tmp_path)
    presence.enter("dead")
    async with started(inbox, clock, folder=tmp_path) as desk:
        await desk.desk._worker.drain()
        await desk.say("1|ann|one")
        assert await inbox.take("dead", ["pigeon"], clock.now(), clock.now() + 3600.0, 1)
    os.close(presence._own.pop("dead"))  # as the system does when a process dies
    async with started(inbox, clock, folder=tmp_path) as desk:
        await desk.until(lambda d: d.sent == ["ONE"])


async def test_what_another_key_sealed_is_kept_until_that_key_is_back(inbox, clock):
    async with started(inbox, clock, identity_key="old") as desk:
        desk.raising = [AgentUnavailable("not now")]
        await desk.say("1|ann|one")
        await desk.until(lambda d: bool(d.asked))
    with structlog.testing.capture_logs() as logs:
        async with started(inbox, clock, identity_key="new") as desk:
            await desk.until(lambda d: any(line["event"] == "inbox_unreadable" for line in logs), clock)
            assert desk.asked == []
    clock.advance(400)
    async with started(inbox, clock, identity_key="old") as desk:
        await desk.until(lambda d: len(d.sent) == 1, clock)
        assert desk.sent == ["ONE"]
