"""What memories keep for one principal, as records for that principal, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable
from typing import NamedTuple

from astromesh.abc.stores import ConversationStore, EpisodicStore, SemanticStore
from astromesh.core.memory import MemoryManager
from astromesh.types import JsonObject, SessionKey

#: things that are read at once
PAGE = 200


async def owned_records(
    memories: Iterable[MemoryManager], tenant: str, owner: str
) -> AsyncIterator[JsonObject]:
    """Every turn, summary, passage and event of one principal, each once, whatever agents share a store.

    Raises:
        StoreUnavailable: a store does not answer; before the first record, where it is away already.
    """
    stores = _Stores({}, {}, {})
    for memory in memories:
        stores.take(memory)
        await memory.indexed(tenant, owner)
    for ping in stores.pings():
        await ping()
    for part in (
        *(_said(store, tenant, owner) for store in stores.conversations.values()),
        *(_learned(store, tenant, owner) for store in stores.passages.values()),
        *(_happened(store, tenant, owner) for store in stores.events.values()),
    ):
        async for record in part:
            yield record


class _Stores(NamedTuple):
    """The stores of several agents, each once, by where they keep things."""

    conversations: dict[Hashable, ConversationStore]
    passages: dict[Hashable, SemanticStore]
    events: dict[Hashable, EpisodicStore]

    def take(self, memory: MemoryManager) -> None:
        if memory.conversational:  # agents share the store itself
            self.conversations[id(memory.conversational.store)] = memory.conversational.store
        if memory.semantic:
            self.passages[memory.semantic.store.place] = memory.semantic.store
        if memory.episodic:
            self.events[memory.episodic.store.place] = memory.episodic.store

    def pings(self) -> list[Callable[[], Awaitable[None]]]:
        conversations = [store.ping for store in self.conversations.values()]
        passages = [store.ping for store in self.passages.values()]
        return [*conversations, *passages, *(store.ping for store in self.events.values())]


async def _said(store: ConversationStore, tenant: str, owner: str) -> AsyncIterator[JsonObject]:
    last: SessionKey | None = None
    while keys := await store.owned(tenant, owner, after=last, limit=PAGE):
        for key in keys:
            async for record in _session(store, key, owner):
                yield record
        last = keys[-1]


async def _session(store: ConversationStore, key: SessionKey, owner: str) -> AsyncIterator[JsonObject]:
    where: JsonObject = {"agent": key.agent, "session_id": key.session_id}
    recalled = await store.recall(key, 0)
    if recalled.owner != owner:  # erased meanwhile, and begun anew by somebody else
        return
    if recalled.summary:
        yield {"kind": "summary", **where, "upto": recalled.summary.upto, "content": recalled.summary.text}
    after = 0
    while turns := await store.page(key, after=after, limit=PAGE):
        for turn in turns:
            yield {"kind": "turn", **where, **turn._asdict()}
        after = turns[-1].seq


async def _learned(store: SemanticStore, tenant: str, owner: str) -> AsyncIterator[JsonObject]:
    after = 0
    while found := await store.owned(tenant, owner, after=after, limit=PAGE):
        for _, agent, content, metadata in found:
            yield {"kind": "passage", "agent": agent, "content": content, "metadata": metadata}
        after = found[-1].number


async def _happened(store: EpisodicStore, tenant: str, owner: str) -> AsyncIterator[JsonObject]:
    after = 0
    while found := await store.owned(tenant, owner, after=after, limit=PAGE):
        for _, agent, session_id, event in found:
            yield {"kind": "event", "agent": agent, "session_id": session_id, "event": event}
        after = found[-1].number
