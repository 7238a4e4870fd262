"""The memory manager: what a run recalls at step 4 and stores at step 11 (document 001).

Errors of the conversation store end the run. Semantic and episodic memory are optional help: their
failures are logged and named in `MemoryContext.degraded`, and the run continues. `export_records` returns
everything that is stored for one principal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from astromesh.core.facts import FactLearner, FactSource, with_newest_facts
from astromesh.core.guardrails import GuardrailsEngine
from astromesh.errors import AstromeshError, Conflict
from astromesh.knowledge.base import SemanticStore, StoredFact
from astromesh.logs import get_logger
from astromesh.memory.base import (
    ConversationStore,
    EpisodicStore,
    MemoryStrategy,
    RecalledTurns,
    SessionLeases,
    Summary,
)
from astromesh.providers.base import ModelPort
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.types import JsonObject, MemoryContext, SemanticResult, SessionKey, Turn

T = TypeVar("T")
Else = TypeVar("Else")

#: most background tasks; beyond that a run waits until its own answer is indexed
MAX_BACKGROUND_TASKS = 64

log = get_logger("astromesh.memory")


@dataclass(frozen=True, slots=True)
class ConversationalMemory:
    """The session itself.

    Args:
        ttl: seconds after the last turn until a session is deleted, 0 never.
    """

    store: ConversationStore
    strategy: MemoryStrategy
    ttl: float = 0.0


@dataclass(frozen=True, slots=True)
class SemanticMemory:
    """Texts of all sessions, searched by meaning.

    Args:
        threshold: least score of a passage.
        auto_index: whether answers are stored for later retrieval.
        facts: how facts about the user are found in messages; None: none are stored.
    """

    store: SemanticStore
    top_k: int = 5
    threshold: float = 0.0
    auto_index: bool = False
    facts: FactSource | None = None


@dataclass(frozen=True, slots=True)
class EpisodicMemory:
    """Events of the session.

    Args:
        max_events: how many of the newest events a run sees.
    """

    store: EpisodicStore
    max_events: int = 20


class MemoryManager:
    """The memory of one agent. Every part is optional.

    Args:
        model: writes summaries, for strategies that compress; without one they never compress.
        about: the result of `describe`, from the manifest.
        rules: of the agent; its output rules apply to summaries.
    """

    def __init__(  # noqa: PLR0913 (one keyword for each thing that a memory is made of)
        self,
        conversational: ConversationalMemory | None = None,
        semantic: SemanticMemory | None = None,
        episodic: EpisodicMemory | None = None,
        *,
        model: ModelPort | None = None,
        clock: Clock | None = None,
        about: JsonObject | None = None,
        rules: GuardrailsEngine | None = None,
    ) -> None:
        self.conversational, self.semantic, self.episodic = conversational, semantic, episodic
        self._model = model
        self._clock: Clock = clock or SystemClock()
        self._about = about or {}
        self._rules = rules or GuardrailsEngine()
        #: whether runs store nothing in it
        self.is_empty = conversational is None and semantic is None and episodic is None
        #: over the sessions; None if no other process can write to them (third-party stores may lack leases)
        self.leases: SessionLeases | None = getattr(self.conversations, "leases", None)
        self._background: dict[object, asyncio.Task[None]] = {}

    @property
    def conversations(self) -> ConversationStore | None:
        return self.conversational.store if self.conversational else None

    def describe(self) -> JsonObject:
        """The configured memories, for `GET /v1/agents/{name}`."""
        return dict(self._about)

    # -- step 4 --------------------------------------------------------------------------------------------

    async def build_context(
        self,
        agent_name: str,
        session_id: str,
        query: str,
        *,
        tenant: str = "default",
        owner: str = "anonymous",
    ) -> MemoryContext:
        """History, knowledge and past events for one run (document 001, step 4).

        Args:
            query: the text that semantic memory searches for.
            owner: principal of the caller, whose session it is.

        Raises:
            StoreUnavailable: the conversation store does not answer.
        """
        key = SessionKey(tenant, agent_name, session_id, owner)
        if self.semantic is None and self.episodic is None:
            if self.conversational is None:
                return NO_CONTEXT
            recalled = await self._recall(self.conversational, key)
            return MemoryContext(self.conversational.strategy.select(recalled), last_seq=recalled.last_seq)
        return await self._build_full_context(key, query)

    async def _build_full_context(self, key: SessionKey, query: str) -> MemoryContext:
        degraded: list[str] = []
        recalled, results, events = await asyncio.gather(
            self._recall(self.conversational, key) if self.conversational else _immediately(RecalledTurns()),
            _best_effort("semantic", partial(self._search, key, query), (), degraded),
            _best_effort("episodic", partial(self._recent, key), (), degraded),
        )
        history = self.conversational.strategy.select(recalled) if self.conversational else ()
        return MemoryContext(history, results, events, tuple(degraded), recalled.last_seq)

    async def _recall(self, memory: ConversationalMemory, key: SessionKey) -> RecalledTurns:
        recalled = await memory.store.recall(key, memory.strategy.limit)
        if self._model is not None and memory.strategy.due(recalled) and key not in self._background:
            self._start_background(key, _compact(memory, key, recalled, self._model, self._rules))
        return recalled

    async def store_summary(self, key: SessionKey, summary: Summary) -> None:
        """Stores a summary of a session's first turns, so that the next run recalls it in their place.

        The turns remain. A store that fails is logged, and the next run summarizes again.
        """
        if self.conversational is None:
            return
        try:
            await self.conversational.store.set_summary(key, summary)
        except AstromeshError as error:
            log.warning("summary_failed", agent=key.agent, code=error.code, error=str(error))

    async def _search(self, key: SessionKey, query: str) -> tuple[SemanticResult, ...]:
        if self.semantic is None:
            return ()
        memory = self.semantic
        search = memory.store.search(
            key.tenant, key.agent, key.owner, query, top_k=memory.top_k, threshold=memory.threshold
        )
        if memory.facts is None:
            return await search
        found, facts = await asyncio.gather(
            search, memory.store.facts(key.tenant, key.owner, agent=key.agent)
        )
        return with_newest_facts(found, facts)

    async def _recent(self, key: SessionKey) -> tuple[JsonObject, ...]:
        if self.episodic is None:
            return ()
        return await self.episodic.store.recent(key, self.episodic.max_events)

    # -- step 11 -------------------------------------------------------------------------------------------

    def transaction(
        self, key: SessionKey, owner: str, *, skip_written: bool = False, token: int = 0
    ) -> Transaction:
        """Collects the data of a run. If the block ends without an exception, one append writes all turns.

        Args:
            owner: principal that owns the session, or will own it if it is new.
            skip_written: the run may have written its turns before; then they are not written again.
            token: of the lease of the session, which the store checks; 0: no lease.
        """
        return Transaction(self, key, owner, skip_written, token)

    async def commit(self, transaction: Transaction) -> None:
        """Writes a transaction; see `Transaction`."""
        key, owner = transaction.key, transaction.owner
        if self.conversational and transaction.turns:
            memory = self.conversational
            expires_at = self._clock.now() + memory.ttl if memory.ttl else 0.0
            more: dict[str, Any] = {"token": transaction.token} if transaction.token else {}
            if not transaction.skip_written or not await memory.store.written(
                key, transaction.turns[0].run_id
            ):
                await memory.store.append(key, owner, transaction.turns, expires_at=expires_at, **more)
        if self.episodic and transaction.events:
            store, now = self.episodic.store, self._clock.now()
            recorded = partial(store.record, key, owner, transaction.events, now=now)
            await self._await_shielded(key, owner, _best_effort("episodic", recorded, None, []))
        if self.semantic and self.semantic.auto_index:
            await self._index(self.semantic.store, key, owner, transaction.turns)
        if self.semantic and self.semantic.facts:
            self._learn_facts(self.semantic, self.semantic.facts, key, owner, transaction.turns)

    async def _await_shielded(self, key: SessionKey, owner: str, work: Coroutine[Any, Any, None]) -> None:
        """Awaits work for turns that are already written; a cancelled caller continues without it."""
        task = self._start_background(_Indexing(key, owner), work)
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)

    async def record_event(self, key: SessionKey, owner: str, event: JsonObject) -> None:
        """Records an event outside a run, such as feedback on an answer.

        Raises:
            Conflict: this agent has no episodic memory.
            StoreError: the event cannot be written.
        """
        if self.episodic is None:
            raise Conflict(f"The agent {key.agent!r} records no events: it has no memory.episodic.")
        await self.episodic.store.record(key, owner, [event], now=self._clock.now())

    async def _index(self, store: SemanticStore, key: SessionKey, owner: str, turns: Iterable[Turn]) -> None:
        passages = [
            (t.content, _passage_source(key, t)) for t in turns if t.role == "assistant" and t.content
        ]
        if not passages:
            return
        add = partial(store.add, key.tenant, key.agent, owner, passages)
        work = _best_effort("semantic", add, None, [])
        if len(self._background) < MAX_BACKGROUND_TASKS:
            self._start_background(_Indexing(key, owner), work)
        else:
            await work

    def _learn_facts(
        self, memory: SemanticMemory, source: FactSource, key: SessionKey, owner: str, turns: Iterable[Turn]
    ) -> None:
        """Stores the facts of the user's messages in the background: no answer waits for it."""
        stated = [one for one in turns if one.role == "user" and one.content and not one.author]
        if len(self._background) >= MAX_BACKGROUND_TASKS:
            log.warning("facts_left_out", agent=key.agent, reason="too many tasks")
            return
        learner = FactLearner(memory.store, source, self._model, self._rules, self._clock.now)
        for turn in stated:
            work = _best_effort("facts", partial(learner.learn, key, owner, turn), None, [])
            self._start_background(_Learning(key, owner), work)

    async def facts(self, tenant: str, owner: str) -> tuple[StoredFact, ...]:
        """The facts about one principal, of all agents that share the store, the newest first."""
        if self.semantic is None:
            return ()
        return await self.semantic.store.facts(tenant, owner)

    async def forget_fact(self, tenant: str, owner: str, fact: str) -> int:
        """Deletes a fact about a principal; returns how many agents had it."""
        if self.semantic is None:
            return 0
        self._stop_learning(lambda going: (going.key.tenant, going.owner) == (tenant, owner))
        return await self.semantic.store.forget(tenant, owner, fact)

    # -- deletion ------------------------------------------------------------------------------------------

    async def erase(self, key: SessionKey) -> bool:
        """Deletes a session with its turns, summary, events and indexed texts.

        Returns:
            False if there is no such session.
        """
        if (task := self._background.get(key)) is not None:
            task.cancel()
        self._stop_learning(lambda going: going.key == key)
        await self._wait_for_indexing(lambda going: going.key == key)
        if self.episodic:
            await self.episodic.store.erase(key)
        if self.semantic:
            await self.semantic.store.erase(key)
        return await self.conversational.store.erase(key) if self.conversational else False

    async def erase_owner(self, tenant: str, owner: str) -> int:
        """Deletes all records of one principal; returns their number."""
        self._stop_learning(lambda going: (going.key.tenant, going.owner) == (tenant, owner))
        await self.wait_until_indexed(tenant, owner)
        parts = (self.conversational, self.semantic, self.episodic)
        return sum([await part.store.erase_owner(tenant, owner) for part in parts if part is not None])

    async def wait_until_indexed(self, tenant: str, owner: str) -> None:
        """Waits until the answers of one principal are indexed, so that they can be found."""
        await self._wait_for_indexing(lambda going: (going.key.tenant, going.owner) == (tenant, owner))

    async def _wait_for_indexing(self, concerns: Callable[[_Indexing], bool]) -> None:
        """Waits for running index tasks, so that their texts can be deleted."""
        tasks = [
            t for going, t in self._background.items() if isinstance(going, _Indexing) and concerns(going)
        ]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop_learning(self, concerns: Callable[[_Indexing], bool]) -> None:
        """Cancels the search for facts in messages that are erased."""
        for going, task in self._background.items():
            if isinstance(going, _Learning) and concerns(going):
                task.cancel()

    # -- background work -----------------------------------------------------------------------------------

    async def wait_until_idle(self) -> None:
        """Waits for background work: summaries and indexing."""
        while self._background:  # `gather` of tasks that have ended would not let them go (Python 3.12)
            await asyncio.wait(self._background.values())

    async def close(self) -> None:
        """Cancels summaries, which the next run starts again, and models that look for facts.

        Finishes indexing.
        """
        by_model = self.semantic is not None and self.semantic.facts == "model"
        for key, task in self._background.items():
            if isinstance(key, SessionKey) or (by_model and isinstance(key, _Learning)):
                task.cancel()
        await self.wait_until_idle()

    def _start_background(self, key: object, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._background[key] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._background.pop(key, None))
        return task


class _Indexing:
    """The key of one running task that writes to semantic or episodic memory."""

    __slots__ = ("key", "owner")

    def __init__(self, key: SessionKey, owner: str) -> None:
        self.key, self.owner = key, owner


class _Learning(_Indexing):
    """The key of one running task that looks for facts in a message."""

    __slots__ = ()


class Transaction:
    """Collects the data of one run. A cancel after the end of the block does not undo the written turns."""

    __slots__ = ("_manager", "events", "key", "owner", "skip_written", "token", "turns")

    def __init__(
        self, manager: MemoryManager, key: SessionKey, owner: str, skip_written: bool = False, token: int = 0
    ) -> None:
        self._manager, self.skip_written, self.token = manager, skip_written, token
        self.key, self.owner = key, owner
        self.turns: list[Turn] = []
        self.events: list[JsonObject] = []

    def persist_turn(self, turn: Turn, *, reported_tokens: int = 0) -> None:
        """Adds a turn (document 001, step 11).

        Args:
            turn: without `seq`; the store numbers it.
            reported_tokens: tokens of the content as the model reported them; 0: unknown.
        """
        memory = self._manager.conversational
        if memory is None and self._manager.semantic is None:
            return
        tokens = memory.strategy.measure(turn.content, reported_tokens) if memory else 0
        self.turns.append(turn._replace(tokens=tokens) if tokens else turn)

    def record(self, events: Iterable[JsonObject]) -> None:
        """Adds episodic events: tool calls, guardrail actions, provider, latency, usage."""
        if self._manager.episodic is not None:
            self.events += events

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and (self.turns or self.events):
            await self._manager.commit(self)


async def _compact(
    memory: ConversationalMemory,
    key: SessionKey,
    recalled: RecalledTurns,
    model: ModelPort,
    rules: GuardrailsEngine,
) -> None:
    async def page(after: int, limit: int) -> tuple[Turn, ...]:
        return await memory.store.page(key, after=after, limit=limit)

    try:
        summary = await memory.strategy.compact(recalled, page, model)
        await memory.store.set_summary(key, _filter_summary(summary, rules, key))
    except AstromeshError as error:  # the turns remain, and the next run tries again
        log.warning("summary_failed", agent=key.agent, code=error.code, error=str(error))


def _filter_summary(summary: Summary, rules: GuardrailsEngine, key: SessionKey) -> Summary:
    """A summary as the output rules return it: later prompts contain it, and its owner can read it."""
    released = rules.check_output(summary.text)
    if released.blocked:  # the next summary would be blocked, too
        log.warning("summary_withheld", agent=key.agent, rule=released.actions[-1]["type"])
    return replace(summary, text=released.text) if released.actions else summary


async def _best_effort(
    part: str, work: Callable[[], Awaitable[T]], otherwise: Else, degraded: list[str]
) -> T | Else:
    """Does optional work; its failure is recorded and does not end the run."""
    try:
        return await work()
    except AstromeshError as error:
        log.warning("memory_degraded", part=part, code=error.code, error=str(error))
        degraded.append(part)
        return otherwise


async def _immediately(value: T) -> T:
    return value


def _passage_source(key: SessionKey, turn: Turn) -> JsonObject:
    return {"source": "conversation", "session_id": key.session_id, "run_id": turn.run_id}


#: of an agent without memory
NO_CONTEXT = MemoryContext()


# -- export of the records of one principal ----------------------------------------------------------------

#: records of one read
EXPORT_PAGE_SIZE = 200


async def export_records(
    memories: Iterable[MemoryManager], tenant: str, owner: str
) -> AsyncIterator[JsonObject]:
    """Every turn, summary, passage and event of one principal, each once even if agents share a store.

    Raises:
        StoreUnavailable: a store does not answer; raised before the first record if possible.
    """
    conversations: dict[Hashable, ConversationStore] = {}
    passages: dict[Hashable, SemanticStore] = {}
    events: dict[Hashable, EpisodicStore] = {}
    for memory in memories:
        if memory.conversational:  # agents share the store object
            conversations[id(memory.conversational.store)] = memory.conversational.store
        if memory.semantic:
            passages[memory.semantic.store.place] = memory.semantic.store
        if memory.episodic:
            events[memory.episodic.store.place] = memory.episodic.store
        await memory.wait_until_indexed(tenant, owner)
    every: list[ConversationStore | SemanticStore | EpisodicStore] = [*conversations.values()]
    every += [*passages.values(), *events.values()]
    for one in every:
        await one.ping()
    for records in (
        *(_export_conversations(store, tenant, owner) for store in conversations.values()),
        *(_export_passages(store, tenant, owner) for store in passages.values()),
        *(_export_events(store, tenant, owner) for store in events.values()),
    ):
        async for record in records:
            yield record


async def _export_conversations(
    store: ConversationStore, tenant: str, owner: str
) -> AsyncIterator[JsonObject]:
    last: SessionKey | None = None
    while keys := await store.owned(tenant, owner, after=last, limit=EXPORT_PAGE_SIZE):
        for key in keys:
            async for record in _export_session(store, key, owner):
                yield record
        last = keys[-1]


async def _export_session(store: ConversationStore, key: SessionKey, owner: str) -> AsyncIterator[JsonObject]:
    where: JsonObject = {"agent": key.agent, "session_id": key.session_id}
    recalled = await store.recall(key, 0)
    if recalled.owner != owner:  # deleted meanwhile, and started again by another principal
        return
    if recalled.summary:
        yield {"kind": "summary", **where, "upto": recalled.summary.upto, "content": recalled.summary.text}
    after = 0
    while turns := await store.page(key, after=after, limit=EXPORT_PAGE_SIZE):
        for turn in turns:
            yield {"kind": "turn", **where, **turn._asdict()}
        after = turns[-1].seq


async def _export_passages(store: SemanticStore, tenant: str, owner: str) -> AsyncIterator[JsonObject]:
    async for _, agent, content, metadata in _owned(store, tenant, owner):
        kind = "fact" if metadata.get("source") == "fact" else "passage"
        yield {"kind": kind, "agent": agent, "content": content, "metadata": metadata}


async def _export_events(store: EpisodicStore, tenant: str, owner: str) -> AsyncIterator[JsonObject]:
    async for _, agent, session_id, event in _owned(store, tenant, owner):
        yield {"kind": "event", "agent": agent, "session_id": session_id, "event": event}


async def _owned(store: SemanticStore | EpisodicStore, tenant: str, owner: str) -> AsyncIterator[Any]:
    after = 0
    while found := await store.owned(tenant, owner, after=after, limit=EXPORT_PAGE_SIZE):
        for record in found:
            yield record
        after = found[-1].number
