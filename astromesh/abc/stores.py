"""The storage seams: conversations, semantic memory, episodic memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from astromesh.abc.leases import SessionLeases
from astromesh.types import JsonObject, SemanticResult, SessionKey, Turn

#: what a cancelled `append` says where it is sure that nothing was written, and nothing will be
NOT_DONE = "not done"


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session without its content. Times in seconds since the epoch."""

    session_id: str
    owner: str
    turns: int
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A compressed beginning of a session: `text` stands for the turns 1 … `upto`."""

    text: str
    upto: int


@dataclass(frozen=True, slots=True)
class Recalled:
    """The end of a session: the newest turns, oldest of them first, and the summary of what is before.

    Args:
        owner: principal id of the first caller, or None where the session does not exist.
        last_seq: seq of the newest turn, 0 where there is none.
    """

    turns: tuple[Turn, ...] = ()
    summary: Summary | None = None
    owner: str | None = None
    last_seq: int = 0


class OwnedPassage(NamedTuple):
    """A passage as its principal is shown it. Args: number: what `after` goes on from."""

    number: int
    agent: str
    content: str
    metadata: JsonObject


class OwnedEvent(NamedTuple):
    """An event as its principal is shown it. Args: number: what `after` goes on from."""

    number: int
    agent: str
    session_id: str
    event: JsonObject


class ConversationStore(Protocol):
    """Append-only turns by session. Every key and every query holds tenant, agent and session.

    Cost of `recall` and `append` does not grow with the session's length.

    Attributes:
        leases: over its sessions; None where only one process can ever use the store.
    """

    leases: SessionLeases | None

    async def recall(self, key: SessionKey, limit: int) -> Recalled:
        """The newest `limit` turns, in one round trip."""

    async def append(
        self, key: SessionKey, owner: str, turns: Sequence[Turn], *, expires_at: float = 0.0, token: int = 0
    ) -> int:
        """Writes all turns or none, numbered behind the last one; answers the last seq.

        Creates the session, owned by `owner`, if it is new. `expires_at`: seconds since the epoch, 0 never;
        it is set anew by every append. A session whose time is over does not exist: it begins again at seq
        1. A caller that is cancelled may be answered all the same, where the turns are written by then.

        Raises:
            SessionNotFound: the session belongs to somebody else; nothing is written.
            LeaseLost: `token` is not that of the session's lease any more; nothing is written.
            asyncio.CancelledError: with `NOT_DONE` as its argument where it is sure that nothing is written.
        """

    async def written(self, key: SessionKey, run_id: str) -> bool:
        """Whether the session holds turns of a run; unlike the others its cost grows with the session."""

    async def set_summary(self, key: SessionKey, summary: Summary) -> None:
        """Keeps a summary that reaches farther than the one there is, and not beyond the last turn."""

    async def page(self, key: SessionKey, *, after: int = 0, limit: int = 50) -> tuple[Turn, ...]:
        """Turns with seq > after, oldest first."""

    async def info(self, key: SessionKey) -> SessionInfo | None: ...

    async def sessions(
        self, tenant: str, agent: str, *, owner: str | None = None, after: str = "", limit: int = 50
    ) -> tuple[SessionInfo, ...]:
        """Sessions of an agent ordered by session_id, those of one owner where `owner` is given."""

    async def owned(
        self, tenant: str, owner: str, *, after: SessionKey | None = None, limit: int = 50
    ) -> tuple[SessionKey, ...]:
        """Every session of one principal, over all agents, ordered by agent and session_id."""

    async def erase(self, key: SessionKey) -> bool:
        """Deletes the session with all its turns; False where there was none."""

    async def erase_owner(self, tenant: str, owner: str) -> int:
        """Deletes every session of one principal; answers how many."""

    async def expire(self, now: float) -> int:
        """Deletes sessions whose time is over; answers how many."""

    async def ping(self) -> None:
        """Raises StoreError when the store does not answer."""

    async def close(self) -> None: ...


class SemanticStore(Protocol):
    """Passages found by meaning or words. Every search names tenant, agent and owner, and finds theirs.

    Args:
        place: where it keeps them: equal for stores of several agents that keep in the same place.
    """

    @property
    def place(self) -> Hashable: ...

    async def add(
        self, tenant: str, agent: str, owner: str, passages: Sequence[tuple[str, JsonObject]]
    ) -> None:
        """Stores passages with their metadata; the same content again is the same passage, told anew.

        Args:
            passages: content and metadata: `source` names where it comes from in a word, `session_id` and
                `run_id` which conversation that was.
        """

    async def search(
        self, tenant: str, agent: str, owner: str, query: str, *, top_k: int = 5, threshold: float = 0.0
    ) -> tuple[SemanticResult, ...]:
        """The best passages, best first; any text is a sound query.

        Args:
            threshold: least score: the cosine where there are vectors, else the share of sought words.

        Raises:
            ProviderError: the query cannot be embedded now.
            StoreUnavailable: the store does not answer.
        """

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedPassage, ...]:
        """Passages of one principal with number > after, over all agents of the place, by number."""

    async def erase(self, key: SessionKey) -> int:
        """Deletes what came from one session; answers how many passages."""

    async def erase_owner(self, tenant: str, owner: str) -> int:
        """Deletes everything of one principal; answers how many passages."""

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


class EpisodicStore(Protocol):
    """What happened, by session, oldest first.

    Args:
        place: where it keeps them: equal for stores of several agents that keep in the same place.
    """

    @property
    def place(self) -> Hashable: ...

    async def record(
        self, key: SessionKey, owner: str, events: Sequence[JsonObject], *, now: float
    ) -> None: ...

    async def recent(
        self, key: SessionKey, limit: int, *, owner: str | None = None
    ) -> tuple[JsonObject, ...]:
        """The newest events, oldest first; those recorded for one owner where `owner` is given."""

    async def owned(
        self, tenant: str, owner: str, *, after: int = 0, limit: int = 50
    ) -> tuple[OwnedEvent, ...]:
        """Events of one principal with number > after, over all agents of the place, by number."""

    async def erase(self, key: SessionKey) -> None: ...

    async def erase_owner(self, tenant: str, owner: str) -> int: ...

    async def ping(self) -> None: ...

    async def close(self) -> None: ...
