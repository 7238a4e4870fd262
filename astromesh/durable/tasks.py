"""Stored Tasks of workflows: their records, and the protocol of their store.

A worker holds a Task by a lease.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from astromesh.durable.base import DeliveryStore, StoredCallback
from astromesh.types import JsonObject, ManifestSnapshot


class TaskQueueDepth(NamedTuple):
    """How many durable Tasks of a workflow are open.

    Args:
        queued: wait for room or a process.
        waiting: a stage waits for a person or the inspector.
        oldest_at: when the oldest queued one was accepted, in seconds since the epoch.
    """

    workflow: str
    queued: int
    running: int
    waiting: int
    oldest_at: float | None


#: the states of a Task (document 004, section 1.1)
TaskStatus = Literal["queued", "running", "success", "failure", "partial"]
ENDED_TASK_STATUSES: frozenset[str] = frozenset({"success", "failure", "partial"})
ArtifactType = Literal["output", "tool", "telemetry", "cassette", "evaluation"]


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One Task of a user. Times in seconds since the epoch, 0 for never.

    Args:
        durable: the Task survives its process.
        fingerprint: of the manifests, schemas and operations that it began with.
        caller: user, tenant, roles, scopes, metadata; never a token.
        worker, lease_until: the worker that executes it, and the end of its lease.
        result: after its end: `{output, error, metadata, tasks}`.
        snapshot: id of the manifests that it began with; empty in rows of earlier versions.
        inspection: where the inspector pauses it: `{all_stages, before}`; None: where its manifest says.
        control: grows with each action of the inspector and each decision of a person.
        forked_from: `{"task_id", "step", "edit"}` of a fork.
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
    snapshot: str = ""
    inspection: JsonObject | None = None
    control: int = 0
    forked_from: JsonObject | None = None


class TaskWait(NamedTuple):
    """A stage of a Task that waits for a person or for the inspector.

    Args:
        path, stage: who waits.
        ticket: identity of the question within the stage; empty for a pause.
        kind: `pause`, `human`, `approval` or `unknown_outcome`.
        asked_at, expires_at: seconds since the epoch; 0: it does not expire.
        question: what is asked, or the input and context of a paused stage.
        answer: None while it waits; the decision; for a pause an empty object.
    """

    task_id: str
    path: str
    stage: str
    ticket: str
    kind: str
    asked_at: float
    expires_at: float
    question: JsonObject
    answer: JsonObject | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self[:4]


class OpenQuestion(NamedTuple):
    """A question to people, with the workflow and the owner of its Task."""

    wait: TaskWait
    workflow: str
    owner: str


class TaskControl(NamedTuple):
    """What others want of a Task.

    Args:
        control: grows with each action on the Task.
        inspection: where it pauses, or None.
    """

    task_id: str
    control: int
    cancelling: bool
    inspection: JsonObject | None


class Artifact(NamedTuple):
    """An artifact of a Task.

    Args:
        n: its number in the Task, from 1.
        path: lineage of the Task within the run; empty for the root.
        node, stage: what made it; empty for the whole Task.
        fingerprint: the fingerprint of the run.
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


class ArtifactFilter(NamedTuple):
    """The filter of a list of artifacts; empty fields match any. `since`: seconds since the epoch.

    Args:
        after_time, after_n: `created_at` and `n` of the last artifact of the page before.
    """

    task_id: str = ""
    node: str = ""
    type: str = ""
    since: float = 0.0
    limit: int = 1000
    after_time: float = 0.0
    after_n: int = 0


class TaskChange(NamedTuple):
    """One commit of the holder of a Task.

    Args:
        first: number of the first record, from 1.
        end: status, result and time of the end of the Task.
        replaced: stored records that have other contents from here on, by their numbers.
        waits: questions that have other texts from here on.
    """

    task_id: str
    worker: str
    first: int = 0
    records: Sequence[JsonObject] = ()
    artifacts: Sequence[Artifact] = ()
    end: tuple[TaskStatus, JsonObject, float] | None = None
    replaced: Mapping[int, JsonObject] = MappingProxyType({})
    waits: Sequence[TaskWait] = ()


class TaskStore(DeliveryStore, Protocol):
    """Tasks, records, artifacts and callbacks in a database.

    Raises (all of them):
        StoreUnavailable: the database does not answer now.
    """

    async def accept(
        self,
        row: TaskRow,
        records: Sequence[JsonObject],
        artifacts: Sequence[Artifact] = (),
        snapshot: ManifestSnapshot | None = None,
        callback: StoredCallback | None = None,
    ) -> None:
        """Stores a Task with its records so far, its manifests and its callback, in one transaction."""

    async def queues(self) -> tuple[TaskQueueDepth, ...]:
        """Returns the queues of workflows with open durable Tasks, by their names."""

    async def snapshot(self, id: str) -> JsonObject | None:
        """Returns manifests that a stored Task refers to."""

    async def commit(self, change: TaskChange) -> TaskControl:
        """Writes a change in one transaction. A commit whose answer was lost may be repeated, except the end.

        Returns:
            What others want of the Task at that moment.

        Raises:
            LeaseLost: another worker has the Task, or it has ended; nothing is written.
        """

    async def wait(self, worker: str, wait: TaskWait) -> tuple[TaskWait, TaskControl]:
        """Stores that a stage waits, unless it is stored. Returns it as it is stored.

        Raises:
            LeaseLost: as `commit`.
        """

    async def waits(self, task_id: str) -> tuple[TaskWait, ...]:
        """Returns everything that a Task waits or has waited for, in order."""

    async def open_questions(self, tenant: str, limit: int) -> tuple[OpenQuestion, ...]:
        """Returns the unanswered questions of a tenant's Tasks, the oldest first."""

    async def answer(self, wait: TaskWait, answer: JsonObject) -> bool:
        """Answers what a stage waits for. Returns False if it is answered, or the Task has ended."""

    async def pause(self, task_id: str, before: Sequence[str]) -> bool:
        """Pauses a Task before these stages too; without any, before every one. False: it has ended."""

    async def step(self, task_id: str) -> bool:
        """Answers the oldest pause, and pauses before every stage. Returns False if no stage is paused."""

    async def release(self, task_id: str) -> bool:
        """Answers every pause, and ends those to come. Returns False if there were none."""

    async def get(self, task_id: str) -> TaskRow | None: ...

    async def list(
        self,
        tenant: str,
        owner: str | None,
        workflow: str = "",
        status: str = "",
        limit: int = 50,
        after: str = "",
    ) -> tuple[TaskRow, ...]:
        """The newest first. Args: after: the id of the last Task of the page before."""

    async def records(self, task_id: str, after: int = 0) -> tuple[JsonObject, ...]:
        """Returns the records after the first `after` ones, in order."""

    async def artifacts(self, tenant: str, owner: str | None, filter: ArtifactFilter) -> tuple[Artifact, ...]:
        """Returns artifacts by time, the oldest first."""

    async def take(self, worker: str, dead: Sequence[str], until: float, limit: int) -> tuple[TaskRow, ...]:
        """Makes the worker the holder of durable Tasks whose holder is dead or whose lease has expired.

        A worker takes its own Tasks, too, if it has not renewed their leases.

        Args:
            dead: workers that are known to be dead.
        """

    async def heartbeat(self, worker: str, until: float, tasks: Collection[str] | None = None) -> None:
        """Renews the leases of a worker.

        Args:
            tasks: renews these alone; None: all.
        """

    async def controls(self, worker: str) -> tuple[TaskControl, ...]:
        """Returns the Tasks of this worker that others have acted on."""

    async def cancel(self, task_id: str) -> bool:
        """Requests the end of a Task. Returns False if it has ended."""

    async def expire(self, before: float) -> int:
        """Deletes Tasks that ended before that time, and unused manifests; returns how many Tasks."""

    async def erase_owner(self, tenant: str, owner: str) -> int:
        """Deletes the ended Tasks of one principal with records and artifacts.

        Requests the end of the others.
        """

    async def ping(self) -> None: ...

    async def close(self) -> None: ...
