"""The memory manager: what a run recalls at step 4 and keeps at step 11 (document 001).

Conversation is the memory that must not fail: its errors end the run. Semantic and episodic memory only
help: what of them cannot be asked or written is logged, named in `MemoryContext.degraded`, and the run goes
on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog

from astromesh.abc.clock import Clock, SystemClock
from astromesh.abc.leases import SessionLeases
from astromesh.abc.memory import MemoryStrategy
from astromesh.abc.provider import ModelPort
from astromesh.abc.stores import ConversationStore, EpisodicStore, Recalled, SemanticStore, Summary
from astromesh.core.guardrails import GuardrailsEngine
from astromesh.errors import AstromeshError, Conflict, SessionNotFound
from astromesh.types import JsonObject, MemoryContext, SemanticResult, SessionKey, Turn

T = TypeVar("T")

#: answers being indexed at once; beyond that a run waits for its own
MOST_BESIDE = 64

log = structlog.get_logger("astromesh.memory")


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
    """What was said in any session, found by meaning.

    Args:
        threshold: least score of a passage.
        auto_index: whether answers are stored for later retrieval.
    """

    store: SemanticStore
    top_k: int = 5
    threshold: float = 0.0
    auto_index: bool = False


@dataclass(frozen=True, slots=True)
class EpisodicMemory:
    """What happened in the session.

    Args:
        max_events: how many of the newest events a run sees.
    """

    store: EpisodicStore
    max_events: int = 20


class MemoryManager:
    """The memory of one agent; every part is optional, and an agent without any pays nothing.

    Args:
        model: writes summaries, for strategies that compress; without one they never do.
        about: what the manifest says of it, for `describe`.
        rules: of the agent; its output rules hold for summaries.
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
        # stores of others may not know leases
        self._leases = getattr(self.conversations, "leases", None)
        self._beside: dict[object, asyncio.Task[None]] = {}

    @property
    def conversations(self) -> ConversationStore | None:
        return self.conversational.store if self.conversational else None

    @property
    def keeps_nothing(self) -> bool:
        """Whether runs leave nothing in it, because there is none."""
        return self.conversational is None and self.semantic is None and self.episodic is None

    @property
    def leases(self) -> SessionLeases | None:
        """Over the sessions of the conversation; None where no other process can write to them."""
        return self._leases

    def describe(self) -> JsonObject:
        """Which memories there are, for `GET /v1/agents/{name}`."""
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
        any_owner: bool = False,
    ) -> MemoryContext:
        """History, knowledge and past events for one run (document 001, step 4).

        Args:
            query: what semantic memory is searched for.
            owner: principal id of the caller.
            any_owner: the caller may use sessions of others (scope `sessions:any`).

        Raises:
            SessionNotFound: the session belongs to somebody else.
            StoreUnavailable: the conversation cannot be read now.
        """
        if self.semantic is None and self.episodic is None:
            if self.conversational is None:
                return _EMPTY
            key = SessionKey(tenant, agent_name, session_id)
            recalled = await self._recall(self.conversational, key, None if any_owner else owner)
            return MemoryContext(self.conversational.strategy.select(recalled), owner=recalled.owner or "")
        return await self._build_whole(SessionKey(tenant, agent_name, session_id), query, owner, any_owner)

    async def _build_whole(self, key: SessionKey, query: str, owner: str, any_owner: bool) -> MemoryContext:
        limited = None if any_owner else owner
        degraded: list[str] = []
        recalled, results, events = await asyncio.gather(
            self._recall(self.conversational, key, limited) if self.conversational else _nothing(Recalled()),
            _helping("semantic", self._search(key, owner, query), (), degraded),
            _helping("episodic", self._recent(key, limited), (), degraded),
        )
        history = self.conversational.strategy.select(recalled) if self.conversational else ()
        return MemoryContext(history, results, events, recalled.owner or "", tuple(degraded))

    async def _recall(self, memory: ConversationalMemory, key: SessionKey, owner: str | None) -> Recalled:
        recalled = await memory.store.recall(key, memory.strategy.limit)
        if recalled.owner is not None and owner is not None and recalled.owner != owner:
            raise SessionNotFound(f"There is no session {key.session_id!r}.")
        if self._model is not None and memory.strategy.due(recalled) and key not in self._beside:
            self._go_beside(key, _compact(memory, key, recalled, self._model, self._rules))
        return recalled

    async def _search(self, key: SessionKey, owner: str, query: str) -> tuple[SemanticResult, ...]:
        if self.semantic is None:
            return ()
        memory = self.semantic
        return await memory.store.search(
            key.tenant, key.agent, owner, query, top_k=memory.top_k, threshold=memory.threshold
        )

    async def _recent(self, key: SessionKey, owner: str | None) -> tuple[JsonObject, ...]:
        if self.episodic is None:
            return ()
        return await self.episodic.store.recent(key, self.episodic.max_events, owner=owner)

    # -- step 11 -------------------------------------------------------------------------------------------

    def transaction(self, key: SessionKey, owner: str, *, once: bool = False, token: int = 0) -> Transaction:
        """What a run keeps: written when the block ends without an exception, all turns in one append.

        Args:
            owner: principal that the session belongs to, or will if it is new.
            once: the run may have written its turns before; then they are not written again.
            token: of the session's lease, which is checked; 0 where there is none.
        """
        return Transaction(self, key, owner, once, token)

    async def keep(self, kept: Transaction) -> None:
        """Writes a transaction; see `Transaction`."""
        key, owner = kept.key, kept.owner
        if self.conversational and kept.turns:
            memory = self.conversational
            expires_at = self._clock.now() + memory.ttl if memory.ttl else 0.0
            more: dict[str, Any] = {"token": kept.token} if kept.token else {}
            if not kept.once or not await memory.store.written(key, kept.turns[0].run_id):
                await memory.store.append(key, owner, kept.turns, expires_at=expires_at, **more)
        if self.episodic and kept.events:
            recorded = self.episodic.store.record(key, owner, kept.events, now=self._clock.now())
            await self._after_all(key, owner, _helping("episodic", recorded, None, []))
        if self.semantic and self.semantic.auto_index:
            await self._index(self.semantic.store, key, owner, kept.turns)

    async def _after_all(self, key: SessionKey, owner: str, work: Coroutine[Any, Any, None]) -> None:
        """Awaits what belongs to turns that are written; a caller that is cancelled goes on without it."""
        task = self._go_beside(_Indexing(key, owner), work)
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)

    async def note(self, key: SessionKey, owner: str, event: JsonObject) -> None:
        """Keeps what happened outside a run, such as what a person thinks of an answer.

        Raises:
            Conflict: this agent has no episodic memory.
            StoreError: it cannot be written.
        """
        if self.episodic is None:
            raise Conflict(f"The agent {key.agent!r} keeps no events: it has no memory.episodic.")
        await self.episodic.store.record(key, owner, [event], now=self._clock.now())

    async def _index(self, store: SemanticStore, key: SessionKey, owner: str, turns: Iterable[Turn]) -> None:
        passages = [(t.content, _source(key, t)) for t in turns if t.role == "assistant" and t.content]
        if not passages:
            return
        work = _helping("semantic", store.add(key.tenant, key.agent, owner, passages), None, [])
        if len(self._beside) < MOST_BESIDE:
            self._go_beside(_Indexing(key, owner), work)
        else:
            await work

    # -- erasing -------------------------------------------------------------------------------------------

    async def erase(self, key: SessionKey) -> bool:
        """Deletes a session with its turns, its summary, its events and what was indexed of it.

        Returns:
            False where there was none.
        """
        if (task := self._beside.get(key)) is not None:
            task.cancel()
        await self._indexed(lambda going: going.key == key)
        if self.episodic:
            await self.episodic.store.erase(key)
        if self.semantic:
            await self.semantic.store.erase(key)
        return await self.conversational.store.erase(key) if self.conversational else False

    async def erase_owner(self, tenant: str, owner: str) -> int:
        """Deletes all that is kept for one principal; answers how many things that were."""
        await self.indexed(tenant, owner)
        parts = (self.conversational, self.semantic, self.episodic)
        return sum([await part.store.erase_owner(tenant, owner) for part in parts if part is not None])

    async def indexed(self, tenant: str, owner: str) -> None:
        """Waits until what one principal was told is stored, so that it can be found."""
        await self._indexed(lambda going: (going.key.tenant, going.owner) == (tenant, owner))

    async def _indexed(self, concerns: Callable[[_Indexing], bool]) -> None:
        """Waits until what is being indexed is stored, so that it can be deleted."""
        tasks = [t for going, t in self._beside.items() if isinstance(going, _Indexing) and concerns(going)]
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- beside the runs -----------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Waits for what runs beside: summaries and indexing."""
        while self._beside:
            await asyncio.gather(*self._beside.values(), return_exceptions=True)

    async def close(self) -> None:
        """Ends summarising, which the next run takes up again, and finishes indexing."""
        for key, task in self._beside.items():
            if isinstance(key, SessionKey):
                task.cancel()
        await self.settle()

    def _go_beside(self, key: object, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._beside[key] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._beside.pop(key, None))
        return task


class _Indexing:
    """What of a run is on its way into semantic or episodic memory; each is one of its own."""

    __slots__ = ("key", "owner")

    def __init__(self, key: SessionKey, owner: str) -> None:
        self.key, self.owner = key, owner


class Transaction:
    """What one run keeps. Once the block has ended, a cancel does not take it back: the turns are written."""

    __slots__ = ("_manager", "events", "key", "once", "owner", "token", "turns")

    def __init__(
        self, manager: MemoryManager, key: SessionKey, owner: str, once: bool = False, token: int = 0
    ) -> None:
        self._manager, self.once, self.token = manager, once, token
        self.key, self.owner = key, owner
        self.turns: list[Turn] = []
        self.events: list[JsonObject] = []

    def persist_turn(self, turn: Turn, *, reported_tokens: int = 0) -> None:
        """Adds a turn (document 001, step 11).

        Args:
            turn: without `seq`; the store numbers it.
            reported_tokens: what a model said the content has, 0 where unknown.
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
            await self._manager.keep(self)


async def _compact(
    memory: ConversationalMemory,
    key: SessionKey,
    recalled: Recalled,
    model: ModelPort,
    rules: GuardrailsEngine,
) -> None:
    async def page(after: int, limit: int) -> tuple[Turn, ...]:
        return await memory.store.page(key, after=after, limit=limit)

    try:
        summary = await memory.strategy.compact(recalled, page, model)
        await memory.store.set_summary(key, _checked(summary, rules, key))
    except AstromeshError as error:  # nothing is lost: the turns stay, and the next run tries again
        log.warning("summary_failed", agent=key.agent, code=error.code, error=str(error))


def _checked(summary: Summary, rules: GuardrailsEngine, key: SessionKey) -> Summary:
    """A summary as the output rules leave it: it goes into every later prompt, and is shown to its owner."""
    released = rules.check_output(summary.text)
    if released.blocked:  # it would be no other one the next time
        log.warning("summary_withheld", agent=key.agent, rule=released.actions[-1]["type"])
    return replace(summary, text=released.text) if released.actions else summary


async def _helping(part: str, work: Awaitable[T], otherwise: T, degraded: list[str]) -> T:
    """Awaits what only helps; its failure is noted and does not end the run."""
    try:
        return await work
    except AstromeshError as error:
        log.warning("memory_degraded", part=part, code=error.code, error=str(error))
        degraded.append(part)
        return otherwise


async def _nothing(value: T) -> T:
    return value


def _source(key: SessionKey, turn: Turn) -> JsonObject:
    return {"source": "conversation", "session_id": key.session_id, "run_id": turn.run_id}


_EMPTY = MemoryContext()
