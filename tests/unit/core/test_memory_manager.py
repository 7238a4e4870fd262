"""Steps 4 and 11: what a run recalls, what it keeps, whose it is, and what happens when a part fails."""

from __future__ import annotations

import asyncio

import pytest

from astromesh.core.memory import ConversationalMemory, EpisodicMemory, MemoryManager, SemanticMemory
from astromesh.errors import ProviderTimeout, StoreUnavailable
from astromesh.memory.backends.in_memory import InMemoryConversations
from astromesh.memory.base import ConversationStore
from astromesh.memory.strategies import SlidingWindow, SummaryStrategy, TokenBudget
from astromesh.testing import (
    FaultInjector,
    ManualClock,
    ScriptedProvider,
)
from astromesh.types import MemoryContext, Message, SessionKey, Turn
from tests.unit.core.memory_stores import InMemoryEpisodicStore, InMemorySemanticStore

KEY = SessionKey("acme", "support", "s-1", "ann")
DOWN = StoreUnavailable("down")


def conversational(strategy=None, **options) -> ConversationalMemory:
    return ConversationalMemory(InMemoryConversations(), strategy or SlidingWindow(20), **options)


def store_of(memory: MemoryManager) -> ConversationStore:
    assert memory.conversations is not None
    return memory.conversations


async def recall(memory: MemoryManager, query: str = "q", *, owner: str = "ann") -> MemoryContext:
    return await memory.build_context(KEY.agent, KEY.session_id, query, tenant=KEY.tenant, owner=owner)


async def say(memory: MemoryManager, question: str, answer: str, owner: str = "ann") -> None:
    async with memory.transaction(KEY._replace(owner=owner), owner) as transaction:
        transaction.persist_turn(Turn("user", question, run_id="run_1"))
        transaction.persist_turn(Turn("assistant", answer, run_id="run_1"))


async def test_an_agent_without_memory_recalls_and_keeps_nothing():
    memory = MemoryManager()
    await say(memory, "q", "a")
    assert await recall(memory) == MemoryContext()
    assert await memory.erase(KEY) is False
    assert await memory.erase_owner("acme", "ann") == 0


async def test_a_run_that_is_cancelled_before_its_memory_is_asked_leaves_nothing_behind():
    """Python warned of calls that nobody awaited, which is an error here."""
    stores = InMemorySemanticStore(), InMemoryEpisodicStore()
    memory = MemoryManager(conversational(), SemanticMemory(stores[0]), EpisodicMemory(stores[1]))
    asked = asyncio.create_task(recall(memory))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


async def test_a_run_sees_every_turn_before_it():
    memory = MemoryManager(conversational())
    assert await recall(memory) == MemoryContext()
    await say(memory, "q1", "a1")
    await say(memory, "q2", "a2")
    context = await recall(memory)
    assert context.conversation_history == (
        Message("user", "q1"), Message("assistant", "a1"), Message("user", "q2"), Message("assistant", "a2"),
    )  # fmt: skip


async def test_both_turns_are_one_append():
    store = FaultInjector(InMemoryConversations())
    memory = MemoryManager(ConversationalMemory(store, SlidingWindow()))
    await say(memory, "q", "a")
    assert store.calls == ["append"]


async def test_a_run_that_fails_keeps_nothing():
    memory = MemoryManager(conversational(), episodic=EpisodicMemory(events := InMemoryEpisodicStore()))

    async def fail() -> None:
        async with memory.transaction(KEY, "ann") as transaction:
            transaction.persist_turn(Turn("user", "q"))
            transaction.record([{"event": "run"}])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert await recall(memory) == MemoryContext()
    assert events.events == []


async def test_a_run_that_may_have_written_its_turns_before_writes_them_once():
    memory = MemoryManager(conversational())
    for run in ("run_1", "run_1", "run_2"):
        async with memory.transaction(KEY, "ann", skip_written=True) as transaction:
            transaction.persist_turn(Turn("user", f"question of {run}", run_id=run))
    asked = [message.content for message in (await recall(memory)).conversation_history]
    assert asked == ["question of run_1", "question of run_2"]


# -- owners --------------------------------------------------------------------------------------------------


async def test_what_is_somebody_elses_does_not_exist():
    memory = MemoryManager(conversational(), episodic=EpisodicMemory(InMemoryEpisodicStore()))
    await say(memory, "secret", "answer")
    assert await recall(memory, owner="bob") == MemoryContext()
    await say(memory, "mine?", "yes", owner="bob")
    assert [m.content for m in (await recall(memory)).conversation_history] == ["secret", "answer"]
    assert [m.content for m in (await recall(memory, owner="bob")).conversation_history] == ["mine?", "yes"]


async def test_events_of_a_session_are_shown_to_those_they_were_recorded_for():
    memory = MemoryManager(episodic=EpisodicMemory(InMemoryEpisodicStore()))
    async with memory.transaction(KEY, "ann") as transaction:
        transaction.record([{"event": "tool_call", "tool": "search"}])
    assert (await recall(memory)).episodic_events == ({"event": "tool_call", "tool": "search"},)
    assert (await recall(memory, owner="bob")).episodic_events == ()


# -- semantic and episodic memory ----------------------------------------------------------------------------


async def test_all_three_memories_make_one_context():
    passages = InMemorySemanticStore()
    memory = MemoryManager(
        conversational(),
        SemanticMemory(passages, top_k=1, threshold=0.5, auto_index=True),
        EpisodicMemory(InMemoryEpisodicStore(), max_events=2),
    )
    async with memory.transaction(KEY, "ann") as transaction:
        transaction.persist_turn(Turn("user", "how to reset", run_id="run_1"))
        transaction.persist_turn(Turn("assistant", "press the red button", run_id="run_1"))
        transaction.record([{"event": "tool_call"}, {"event": "guardrail"}, {"event": "run"}])
    await memory.wait_until_idle()
    context = await recall(memory, "red button")
    assert [m.content for m in context.conversation_history] == ["how to reset", "press the red button"]
    (found,) = context.semantic_results
    assert (found.content, found.score, found.source) == ("press the red button", 1.0, "conversation")
    assert found.metadata["run_id"] == "run_1"
    assert context.episodic_events == ({"event": "guardrail"}, {"event": "run"})
    assert (await recall(memory, "blue lamp")).semantic_results == ()


@pytest.mark.parametrize("turns", range(12))
async def test_background_work_is_waited_for_in_whatever_turn_of_the_loop_it_ends(turns):
    memory = MemoryManager(conversational(), SemanticMemory(InMemorySemanticStore(), auto_index=True))
    await say(memory, "q", "a")
    for _ in range(turns):
        await asyncio.sleep(0)
    await memory.wait_until_idle()


async def test_answers_are_not_indexed_unless_asked():
    passages = InMemorySemanticStore()
    memory = MemoryManager(conversational(), SemanticMemory(passages))
    await say(memory, "q", "a")
    await memory.wait_until_idle()
    assert passages.passages == []


async def test_what_only_helps_does_not_end_a_run_when_it_fails():
    semantic = FaultInjector(InMemorySemanticStore(), search=[DOWN], add=[DOWN])
    episodic = FaultInjector(InMemoryEpisodicStore(), recent=[DOWN], record=[DOWN])
    memory = MemoryManager(
        conversational(), SemanticMemory(semantic, auto_index=True), EpisodicMemory(episodic)
    )
    async with memory.transaction(KEY, "ann") as transaction:
        transaction.persist_turn(Turn("user", "q"))
        transaction.persist_turn(Turn("assistant", "a"))
        transaction.record([{"event": "run"}])
    await memory.wait_until_idle()
    context = await recall(memory)
    assert len(context.conversation_history) == 2
    assert sorted(context.degraded) == ["episodic", "semantic"]
    assert {"search", "add"} <= set(semantic.calls)
    assert (await recall(memory)).degraded == ()


async def test_a_conversation_that_cannot_be_read_or_written_ends_the_run():
    store = FaultInjector(InMemoryConversations(), recall=[DOWN], append=[DOWN])
    memory = MemoryManager(ConversationalMemory(store, SlidingWindow()))
    with pytest.raises(StoreUnavailable):
        await recall(memory)
    with pytest.raises(StoreUnavailable):
        await say(memory, "q", "a")
    await say(memory, "q", "a")
    assert len((await recall(memory)).conversation_history) == 2


# -- time to live, sizes -------------------------------------------------------------------------------------


async def test_a_session_ends_its_ttl_after_the_last_turn():
    clock = ManualClock()
    store = InMemoryConversations(clock=clock)
    memory = MemoryManager(ConversationalMemory(store, SlidingWindow(), ttl=60), clock=clock)
    await say(memory, "q", "a")
    clock.advance(59)
    await say(memory, "q", "a")
    clock.advance(59)
    assert len((await recall(memory)).conversation_history) == 4
    clock.advance(1)
    assert await recall(memory) == MemoryContext()


async def test_sizes_are_kept_with_the_turns():
    memory = MemoryManager(conversational(TokenBudget(1000)))
    async with memory.transaction(KEY, "ann") as transaction:
        transaction.persist_turn(Turn("user", "x" * 80))
        transaction.persist_turn(Turn("assistant", "x" * 80), reported_tokens=33)
    turns = await store_of(memory).page(KEY)
    assert [t.tokens for t in turns] == [20, 33]


# -- summaries -----------------------------------------------------------------------------------------------


async def test_older_turns_are_summarised_beside_the_run_and_stay_in_the_store():
    model = ScriptedProvider("They counted.")
    memory = MemoryManager(conversational(SummaryStrategy(keep_turns=2, every=4)), model=model)
    for n in range(3):
        await say(memory, f"q{n}", f"a{n}")
    first = await recall(memory)
    assert [m.content for m in first.conversation_history] == ["q0", "a0", "q1", "a1", "q2", "a2"]
    await memory.wait_until_idle()
    second = await recall(memory)
    assert "They counted." in second.conversation_history[0].content
    assert [m.content for m in second.conversation_history[1:]] == ["q2", "a2"]
    assert len(model.requests) == 1
    assert len(await store_of(memory).page(KEY)) == 6


async def test_a_summary_that_fails_loses_nothing_and_is_tried_again():
    model = ScriptedProvider(ProviderTimeout("slow"), "They counted.")
    memory = MemoryManager(conversational(SummaryStrategy(keep_turns=2, every=4)), model=model)
    for n in range(3):
        await say(memory, f"q{n}", f"a{n}")
    await recall(memory)
    await memory.wait_until_idle()
    assert len((await recall(memory)).conversation_history) == 6
    await memory.wait_until_idle()
    assert "They counted." in (await recall(memory)).conversation_history[0].content


async def test_one_session_is_summarised_once_at_a_time():
    model = ScriptedProvider("They counted.")
    memory = MemoryManager(conversational(SummaryStrategy(keep_turns=2, every=4)), model=model)
    for n in range(3):
        await say(memory, f"q{n}", f"a{n}")
    for _ in range(5):
        await recall(memory)
    await memory.wait_until_idle()
    assert len(model.requests) == 1


# -- erasing -------------------------------------------------------------------------------------------------


async def test_erasing_a_session_takes_its_turns_events_and_the_summary_in_the_making():
    model = ScriptedProvider("They counted.", repeat=True)
    events = InMemoryEpisodicStore()
    memory = MemoryManager(
        conversational(SummaryStrategy(keep_turns=2, every=4)), episodic=EpisodicMemory(events), model=model
    )
    for n in range(3):
        await say(memory, f"q{n}", f"a{n}")
    async with memory.transaction(KEY, "ann") as transaction:
        transaction.record([{"event": "run"}])
    await recall(memory)
    assert await memory.erase(KEY) is True
    for n in range(4):
        await say(memory, f"new{n}", f"new{n}", owner="bob")
    await memory.wait_until_idle()
    assert (await store_of(memory).recall(KEY, 1)).summary is None
    assert events.events == []


async def test_all_that_was_kept_for_a_principal_can_be_erased():
    passages, events = InMemorySemanticStore(), InMemoryEpisodicStore()
    memory = MemoryManager(
        conversational(), SemanticMemory(passages, auto_index=True), EpisodicMemory(events)
    )
    async with memory.transaction(KEY, "ann") as transaction:
        transaction.persist_turn(Turn("user", "q"))
        transaction.persist_turn(Turn("assistant", "a"))
        transaction.record([{"event": "run"}])
    await memory.wait_until_idle()
    assert await memory.erase_owner("acme", "ann") == 3
    assert (passages.passages, events.events) == ([], [])
    assert await recall(memory) == MemoryContext()


async def test_closing_ends_summaries_and_finishes_indexing():
    clock = ManualClock()

    async def never(request):
        await clock.sleep(3600)
        return "late"

    passages = InMemorySemanticStore()
    memory = MemoryManager(
        conversational(SummaryStrategy(keep_turns=2, every=2)),
        SemanticMemory(passages, auto_index=True),
        model=ScriptedProvider(never, repeat=True),
    )
    await say(memory, "q0", "a0")
    await say(memory, "q1", "a1")
    await recall(memory)
    await memory.close()
    assert [p[3] for p in passages.passages] == ["a0", "a1"]
