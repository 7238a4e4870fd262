"""The seam of stored Tasks of workflows: rows, the records that a Task is taken up again from, artifacts.

A Task of `POST /v1/workflows/NAME/runs` is accepted when its row and its first record are on disk. Whoever
works on it holds a lease; each commit names the holder, so that of two processes only one is heard. All
others are kept when they have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from astromesh.types import JsonObject

#: as a Task ends (document 004, section 1.1), and what it is before
TaskStatus = Literal["queued", "running", "success", "failure", "partial"]
TASK_ENDED: frozenset[str] = frozenset({"success", "failure", "partial"})
ArtifactType = Literal["output", "tool", "telemetry", "cassette", "evaluation"]


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One Task of a user. Times in seconds since the epoch, 0 for never.

    Args:
        durable: accepted for good before it ran.
        fingerprint: of the manifests, operations and models that it began with (workflow.md E52).
        caller: user, tenant, roles, scopes, metadata; never a token.
        worker, lease_until: who works on it, and until when that counts.
        result: once it has ended: `{output, error, metadata, tasks}`.
    """

    task_id: str
    tenant: str
    owner: str
    workflow: str
    start: str
    status: TaskStatus
    created_at: float
    fingerprint: str = ""
    trace_id: str = ""
    durable: bool = False
    caller: JsonObject = field(default_factory=dict)
    metadata: JsonObject = field(default_factory=dict)
    worker: str = ""
    lease_until: float = 0.0
    cancelling: bool = False
    finished_at: float = 0.0
    result: JsonObject | None = None


class Artifact(NamedTuple):
    """Something that a Task left behind.

    Args:
        n: which one of its Task, from 1.
        path: lineage of the Task within the run, empty for the root.
        node, stage: what made it; empty for the whole Task.
        fingerprint: that of the run.
    """

    task_id: str
    n: int
    type: ArtifactType
    path: str
    node: str
    stage: str
    created_at: float
    fingerprint: str
    content: Any


class Found(NamedTuple):
    """Which artifacts are wanted; empty: any. `since`: seconds since the epoch."""

    task_id: str = ""
    node: str = ""
    type: str = ""
    since: float = 0.0
    limit: int = 1000


class TaskChange(NamedTuple):
    """One commit of a Task's holder.

    Args:
        first: number of the first of the records, from 1.
        end: status and result where the Task has ended.
    """

    task_id: str
    worker: str
    first: int = 0
    records: Sequence[JsonObject] = ()
    artifacts: Sequence[Artifact] = ()
    end: tuple[TaskStatus, JsonObject, float] | None = None


class TaskStore(Protocol):
    """Tasks, records and artifacts in a database.

    Raises (all of them):
        StoreUnavailable: the database does not answer now.
    """

    async def accept(
        self, row: TaskRow, records: Sequence[JsonObject], artifacts: Sequence[Artifact] = ()
    ) -> None:
        """Keeps a Task with its records so far, in one transaction."""

    async def commit(self, change: TaskChange) -> None:
        """What was written and whose answer was lost may be written again, but for a Task's end.

        Raises:
            LeaseLost: somebody else works on the Task, or it has ended; nothing is written.
        """

    async def get(self, task_id: str) -> TaskRow | None: ...

    async def list(
        self, tenant: str, owner: str | None, workflow: str = "", status: str = "", limit: int = 50
    ) -> tuple[TaskRow, ...]:
        """The newest first."""

    async def records(self, task_id: str, after: int = 0) -> tuple[JsonObject, ...]:
        """Behind the `after` first ones, in order."""

    async def artifacts(self, tenant: str, owner: str | None, found: Found) -> tuple[Artifact, ...]:
        """By time, the oldest first."""

    async def take(self, worker: str, dead: Sequence[str], until: float, limit: int) -> tuple[TaskRow, ...]:
        """Makes the worker the holder of durable Tasks whose holder is dead or whose lease is over.

        A worker that has not renewed a lease of its own is such a holder, too.

        Args:
            dead: workers that are known to be.
        """

    async def beat(self, worker: str, until: float, tasks: Collection[str] | None = None) -> tuple[str, ...]:
        """The worker's leases last longer; answers those of its Tasks whose end was asked for.

        Args:
            tasks: those that it works on, which alone are meant; None: all.
        """

    async def cancel(self, task_id: str) -> bool:
        """Asks for a Task's end; False where it has ended."""

    async def expire(self, before: float) -> int:
        """Deletes Tasks that ended before that time; answers how many."""

    async def erase_owner(self, tenant: str, owner: str) -> int:
        """Deletes the ended Tasks of one principal with all that they left; asks the others to end."""

    async def ping(self) -> None: ...

    async def close(self) -> None: ...
