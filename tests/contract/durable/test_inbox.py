"""One suite for every inbox. A new one joins by a line in `BACKENDS`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astromesh.channels.base import DELIVERY_STATES, DeliveryReport, InboundMessage, Inbox
from astromesh.plugins import Deps, Plugins
from astromesh.testing import ManualClock
from tests.platform.stores import deps_of

BACKENDS = ("sqlite", "postgres")
NOW = 1_700_000_000.0
CHANNELS = ("whatsapp",)
SENT, FAILED, DELIVERED, READ = (DELIVERY_STATES.index(s) for s in ("sent", "failed", "delivered", "read"))


@pytest.fixture(params=BACKENDS)
async def deps(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Deps]:
    deps = deps_of(request, ManualClock(NOW), tmp_path)
    yield deps
    await deps.resources.close()


@pytest.fixture
async def inbox(deps: Deps, request: pytest.FixtureRequest) -> Inbox:
    return await Plugins().open("inboxes", request.node.callspec.params["deps"], {}, deps)


def letter(id: str, queue: str = "q", *, due: float = NOW, channel: str = "whatsapp") -> InboundMessage:
    return InboundMessage(channel, id, queue, "acme", f"p-{queue}", b"address", id.encode(), NOW, due)


async def taken(inbox: Inbox, holder: str = "h", now: float = NOW, limit: int = 10) -> list[str]:
    return sorted(t.queue for t in await inbox.take(holder, CHANNELS, now, now + 15, limit))


async def answered(inbox: Inbox, queue: str = "q", holder: str = "h") -> None:
    kept = await inbox.pending(queue, 10)
    assert await inbox.answer(queue, holder, b"reply", kept[-1].seq)
    await inbox.finish(queue, holder, NOW)


async def test_a_letter_is_kept_once(inbox):
    assert await inbox.put([letter("1"), letter("2"), letter("1")]) == 2
    assert await inbox.put([letter("2"), letter("3")]) == 1
    assert await inbox.put([letter("1", channel="pigeon")]) == 1
    assert await inbox.put([]) == 0
    assert [k.id for k in await inbox.pending("q", 10)] == ["1", "2", "3", "1"]
    assert [k.content for k in await inbox.pending("q", 2)] == [b"1", b"2"]


async def test_a_queue_that_waits_is_due_at_once_and_one_that_has_failed_keeps_its_time(inbox):
    await inbox.put([letter("1", "q"), letter("2", "r")])
    assert await taken(inbox) == ["q", "r"]
    await inbox.release("q", "h", NOW + 5, 0)
    await inbox.release("r", "h", NOW + 5, 1)
    for queue in ("q", "r", "none"):
        await inbox.retry_now(queue, NOW + 1)
    assert await taken(inbox, now=NOW + 1) == ["q"]


async def test_all_queues_of_a_holder_that_has_ended_are_due_as_before(inbox):
    await inbox.put([letter("1", "q"), letter("2", "r", due=NOW - 5), letter("3", "other")])
    assert await taken(inbox, "dead", NOW, 1) == ["r"]
    assert await taken(inbox, "alive", NOW, 1) in (["q"], ["other"])
    await inbox.release_holder("dead")
    assert await inbox.next_due(CHANNELS) == NOW - 5
    assert "r" in await taken(inbox, "h")


async def test_many_copies_at_once_are_one(inbox):
    copies = await asyncio.gather(*(inbox.put([letter("1"), letter("2", "r")]) for _ in range(50)))
    assert sum(copies) == 2


async def test_a_letter_stays_known_after_its_answer_and_its_content_does_not(inbox):
    await inbox.put([letter("1")])
    assert await taken(inbox) == ["q"]
    await answered(inbox)
    assert await inbox.pending("q", 10) == ()
    assert await inbox.put([letter("1")]) == 0
    assert await taken(inbox) == []


async def test_a_queue_has_one_holder_until_the_lease_ends(inbox):
    await inbox.put([letter("1")])
    assert await taken(inbox, "a") == ["q"]
    assert await taken(inbox, "b", NOW + 14) == []
    assert await taken(inbox, "b", NOW + 15) == ["q"]
    assert not await inbox.begin("q", "a", 1)
    assert not await inbox.answer("q", "a", b"late", 99)
    assert not await inbox.record_sent("q", "a", 1, DeliveryReport("x", 0, NOW))
    await inbox.finish("q", "a", NOW)
    await inbox.release("q", "a", NOW, 1)
    assert [k.id for k in await inbox.pending("q", 10)] == ["1"]
    assert await taken(inbox, "c", NOW + 20) == []


async def test_a_holder_prolongs_what_it_holds(inbox):
    await inbox.put([letter("1"), letter("2", "r")])
    await taken(inbox, "a")
    assert await inbox.renew("a", NOW + 100) == {"q", "r"}
    assert await inbox.renew("b", NOW + 100) == frozenset()
    assert await taken(inbox, "b", NOW + 50) == []


async def test_two_servers_never_take_the_same(inbox):
    await inbox.put([letter(str(n), f"q{n}") for n in range(40)])
    both = await asyncio.gather(*(taken(inbox, f"h{n}", limit=10) for n in range(8)))
    queues = [queue for one in both for queue in one]
    assert len(queues) == len(set(queues)) == 40


async def test_what_is_due_first_comes_first_and_what_is_not_waits(inbox):
    await inbox.put([letter("1", "late", due=NOW + 5), letter("2", "now"), letter("3", "soon", due=NOW + 1)])
    assert await inbox.next_due(CHANNELS) == NOW
    assert await taken(inbox, limit=1) == ["now"]
    assert await taken(inbox) == []
    assert await inbox.next_due(CHANNELS) == NOW + 1
    assert await taken(inbox, now=NOW + 5) == ["late", "soon"]
    assert await inbox.next_due(("pigeon",)) is None


async def test_a_later_letter_puts_the_whole_queue_off(inbox):
    await inbox.put([letter("1", due=NOW + 1)])
    await inbox.put([letter("2", due=NOW + 2)])
    assert await taken(inbox, now=NOW + 1.5) == []
    assert await taken(inbox, now=NOW + 2) == ["q"]


async def test_only_set_up_channels_are_taken(inbox):
    await inbox.put([letter("1", channel="pigeon")])
    assert await taken(inbox) == []


async def test_what_came_meanwhile_makes_the_queue_due_again(inbox):
    await inbox.put([letter("1")])
    await taken(inbox)
    kept = await inbox.pending("q", 10)
    await inbox.put([letter("2", due=NOW + 1)])
    await inbox.answer("q", "h", b"reply", kept[-1].seq)
    await inbox.finish("q", "h", NOW)
    assert await taken(inbox) == []
    assert await taken(inbox, now=NOW + 1) == ["q"]
    assert [k.id for k in await inbox.pending("q", 10)] == ["2"]


async def test_letters_put_while_a_queue_is_settled_are_never_forgotten(inbox):
    """Whoever is first, the queue is due afterwards."""
    for n in range(25):
        queue = f"q{n}"
        await inbox.put([letter(f"a{n}", queue)])
        assert await taken(inbox) == [queue]
        kept = await inbox.pending(queue, 10)
        await inbox.answer(queue, "h", b"reply", kept[-1].seq)
        await asyncio.gather(inbox.finish(queue, "h", NOW), inbox.put([letter(f"b{n}", queue)]))
        assert await taken(inbox) == [queue]
        await answered(inbox, queue)


async def test_a_crash_leaves_what_it_had_come_to(inbox):
    await inbox.put([letter("1"), letter("2")])
    await taken(inbox, "a")
    first, second = await inbox.pending("q", 10)
    assert await inbox.begin("q", "a", first.seq)
    (again,) = await inbox.take("b", CHANNELS, NOW + 20, NOW + 35, 1)
    assert (again.upto, again.reply, again.sent) == (first.seq, None, 0)
    assert await inbox.answer("q", "b", b"reply", first.seq)
    assert await inbox.record_sent("q", "b", 1, DeliveryReport("out-1", 0, NOW))
    (again,) = await inbox.take("c", CHANNELS, NOW + 40, NOW + 55, 1)
    assert (again.reply, again.sent, again.address) == (b"reply", 1, b"address")
    assert (again.queue, again.channel, again.tenant, again.principal) == ("q", "whatsapp", "acme", "p-q")
    await inbox.finish("q", "c", NOW + 40)
    (again,) = await inbox.take("d", CHANNELS, NOW + 40, NOW + 55, 1)
    assert (again.upto, again.reply, again.sent) == (0, None, 0)
    assert await inbox.pending("q", 10) == (second,)


async def test_what_is_tried_again_keeps_its_time_whatever_comes(inbox):
    await inbox.put([letter("1")])
    await taken(inbox)
    await inbox.release("q", "h", NOW + 60, 3)
    await inbox.put([letter("2")])
    assert await taken(inbox, now=NOW + 59) == []
    (again,) = await inbox.take("h", CHANNELS, NOW + 60, NOW + 75, 1)
    assert again.attempts == 3


async def test_states_only_grow(inbox):
    await inbox.put([letter("1")])
    await taken(inbox)
    await inbox.record_sent("q", "h", 1, DeliveryReport("out", 0, NOW))
    assert await inbox.report([DeliveryReport("out", DELIVERED, NOW)]) == (True,)
    for state in (SENT, FAILED, DELIVERED):
        assert await inbox.report([DeliveryReport("out", state, NOW, "131047")]) == (False,)
    assert await inbox.delivery_status("out") == (DELIVERED, "")
    assert await inbox.report([DeliveryReport("out", READ, NOW), DeliveryReport("others", READ, NOW)]) == (
        True,
        False,
    )
    assert await inbox.delivery_status("out") == (READ, "")
    assert await inbox.delivery_status("unknown") == (0, "")


async def test_a_status_that_is_faster_than_our_own_note_is_not_lost(inbox):
    await inbox.put([letter("1")])
    await taken(inbox)
    await inbox.report([DeliveryReport("out", FAILED, NOW, "131047")])
    await inbox.record_sent("q", "h", 1, DeliveryReport("out", 0, NOW))
    assert await inbox.delivery_status("out") == (FAILED, "131047")
    assert await inbox.report([DeliveryReport("out", READ, NOW)]) == (True,)


async def test_all_of_one_person_is_erased_and_nothing_of_others(inbox):
    await inbox.put([letter("1"), letter("2", "other")])
    await taken(inbox)
    await inbox.record_sent("q", "h", 1, DeliveryReport("out", 0, NOW))
    assert await inbox.erase("other-tenant", "p-q") == 0
    assert await inbox.erase("acme", "p-q") == 3
    assert await inbox.pending("q", 10) == ()
    assert await inbox.delivery_status("out") == (0, "")
    assert len(await inbox.pending("other", 10)) == 1


async def test_what_is_old_and_answered_is_deleted(inbox):
    await inbox.put([letter("1"), letter("2", "waits")])
    await taken(inbox)
    await answered(inbox)
    assert await inbox.expire(NOW - 1) == 0
    assert await inbox.expire(NOW + 1) == 2
    assert await inbox.put([letter("2", "waits")]) == 0
    assert await inbox.put([letter("1")]) == 1


async def test_it_can_be_asked_whether_it_answers(inbox):
    await inbox.ping()


async def test_the_backlog_counts_messages_without_an_answer_and_answers_that_are_tried_again(inbox):
    await inbox.put([letter("1"), letter("2"), letter("3", "r")])
    assert await taken(inbox) == ["q", "r"]
    await answered(inbox)
    await inbox.release("r", "h", NOW + 5, 2)
    assert await inbox.backlog() == {"whatsapp": (1, 1)}
