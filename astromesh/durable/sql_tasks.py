"""The store of Tasks of workflows, for both databases. The queries are in `sql/tasks.sql`."""

from __future__ import annotations

import asyncio
import re
import sys
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, ClassVar, NamedTuple

import orjson

from astromesh.durable.base import StoredCallback
from astromesh.durable.callbacks import SqlDeliveries, callback_values
from astromesh.durable.serialization import Column, columns_of
from astromesh.durable.step_view import NESTED
from astromesh.durable.tasks import (
    Artifact,
    ArtifactFilter,
    OpenQuestion,
    TaskChange,
    TaskControl,
    TaskQueueDepth,
    TaskRow,
    TaskWait,
)
from astromesh.errors import LeaseLost
from astromesh.storage.queries import Dialect, Queries, Row, Transaction
from astromesh.telemetry.clock import Clock
from astromesh.types import JsonObject, ManifestSnapshot

_FIELDS = tuple(columns_of(TaskRow))
#: `start` is a word of SQL
_COLUMNS = tuple("start_node" if field.name == "start" else field.name for field in _FIELDS)

_TASK_ID, _RESULT = _COLUMNS.index("task_id"), _COLUMNS.index("result")
#: a store writes the manifests of its Tasks again after this time. Those that no Task refers to, and that no
#: store has written for a day, are deleted: so never under a Task that is accepted at that moment
SNAPSHOT_REFRESH_SECONDS, SNAPSHOT_GRACE_SECONDS = 3600.0, 86400.0


#: bytes of JSON above which values are split in a thread
_MAX_SPLIT_IN_LOOP = 65_536
#: Tasks whose stored payloads are remembered, so that they are not compressed again
_MAX_REMEMBERED = 1000


class _Encoded(NamedTuple):
    """What a commit writes, as JSON, with the payloads that it adds."""

    records: Sequence[str]
    artifacts: Sequence[str]
    result: str
    payloads: Mapping[str, bytes]


class SqlTasks(SqlDeliveries):
    """A TaskStore over one database, which it may share with others."""

    package: ClassVar[str] = "astromesh.durable"
    name: ClassVar[str] = "tasks"
    delivery_tables: ClassVar[Mapping[str, str]] = {
        "callbacks": "task_callbacks",
        "deliveries": "task_deliveries",
        "subjects": "tasks",
        "id": "task_id",
        "target": "workflow",
        "is_open": "s.finished_at = 0",
        "words": "'', ''",
    }

    @classmethod
    def fragments(cls, dialect: Dialect) -> Mapping[str, str]:
        mark = "?" if dialect == "sqlite" else "$"
        values = (f"{mark}{n}" for n in range(1, len(_COLUMNS) + 1))
        own = {"columns": ", ".join(_COLUMNS), "values": ", ".join(values)}
        return {**super().fragments(dialect), **own}

    def __init__(self, queries: Queries, clock: Clock) -> None:
        super().__init__(queries, clock)
        self._written_snapshots: dict[str, float] = {}
        self._stored_payloads: dict[str, set[str]] = {}

    async def accept(
        self,
        row: TaskRow,
        records: Sequence[JsonObject],
        artifacts: Sequence[Artifact] = (),
        snapshot: ManifestSnapshot | None = None,
        callback: StoredCallback | None = None,
    ) -> None:
        now = self._clock.now()
        if snapshot and now - self._written_snapshots.get(snapshot.id, 0.0) < SNAPSHOT_REFRESH_SECONDS:
            snapshot = None

        encoded = await self._encode(row.task_id, records, artifacts, row.result)

        async def accept(tx: Transaction) -> None:
            if snapshot is not None:
                await tx.execute("add_snapshot", snapshot.id, _json_text(snapshot.content), now)
            await tx.execute("accept", *_task_values(row, encoded.result))
            await _add(row.task_id, 1, artifacts, encoded, tx)
            if callback is not None:
                await tx.execute("add_callback", *callback_values(row.task_id, callback)[:4])

        await self._queries.transact(accept, synced=True)
        self._remember(row.task_id, encoded, ended=bool(row.finished_at))
        if snapshot is not None:
            self._written_snapshots[snapshot.id] = now

    async def snapshot(self, id: str) -> JsonObject | None:
        rows = await self._queries.read("snapshot", id)
        return orjson.loads(rows[0][0]) if rows else None

    async def commit(self, change: TaskChange) -> TaskControl:
        result = change.end[1] if change.end is not None else None
        encoded = await self._encode(change.task_id, change.records, change.artifacts, result)
        again = await self._encode(change.task_id, [*change.replaced.values()], (), None)
        replaced = [(change.task_id, *pair) for pair in zip(change.replaced, again.records, strict=True)]

        async def commit(tx: Transaction) -> TaskControl:
            control = await _hold(tx, change.task_id, change.worker)
            await _add(change.task_id, change.first, change.artifacts, encoded, tx)
            await tx.execute_many("add_record", replaced)
            texts = [(*one.key, _question_text(one), _json_text(one.answer) if one.answer else None)
                     for one in change.waits]  # fmt: skip
            await tx.execute_many("redact_wait", texts)
            if change.end is not None:
                status, _, at = change.end
                await tx.execute("end", change.task_id, change.worker, status, encoded.result, at)
            return control

        control = await self._queries.transact(commit, synced=change.end is not None)
        self._remember(change.task_id, encoded, ended=change.end is not None)
        return control

    async def _encode(
        self,
        task_id: str,
        records: Sequence[JsonObject],
        artifacts: Sequence[Artifact],
        result: JsonObject | None,
    ) -> _Encoded:
        """Returns values as JSON, with their large parts taken out."""
        contents = [artifact.content for artifact in artifacts]
        texts = [to_json(value) for value in (*records, *contents, result)]
        payloads: dict[str, bytes] = {}
        if any(map(needs_split, texts)):
            splitter = Splitter(self._stored_payloads.get(task_id, ()))
            values = ([*records, result], contents)
            if sum(map(len, texts)) > _MAX_SPLIT_IN_LOOP:
                texts = await asyncio.to_thread(_split, splitter, *values)
            else:
                texts = _split(splitter, *values)
            payloads = splitter.found
        decoded = [text.decode() for text in texts]
        first = len(records)
        return _Encoded(decoded[:first], decoded[first:-1], decoded[-1], payloads)

    def _remember(self, task_id: str, encoded: _Encoded, *, ended: bool) -> None:
        if ended:
            self._stored_payloads.pop(task_id, None)
        elif encoded.payloads:
            if len(self._stored_payloads) >= _MAX_REMEMBERED:
                self._stored_payloads.clear()
            self._stored_payloads.setdefault(task_id, set()).update(encoded.payloads)

    async def _joined(self, stored: Iterable[tuple[str, str | None]]) -> list[Any]:
        """Returns stored JSON texts, each with its Task, as values with their large parts."""
        texts = [(task_id, None if text is None else text.encode()) for task_id, text in stored]
        found: dict[str, dict[str, bytes]] = {task_id: {} for task_id, _ in texts}
        missing = {(task_id, one) for task_id, text in texts if text for one in references(text)}
        while missing:
            tasks, hashes = ({pair[n] for pair in missing} for n in (0, 1))
            rows = await self._queries.read("payloads", list(tasks), list(hashes))
            fresh = [(row[0], row[1], unpack(row[2])) for row in rows if row[1] not in found[row[0]]]
            for task_id, name, text in fresh:
                found[task_id][name] = text
            inner = {(task_id, one) for task_id, _, text in fresh for one in references(text)}
            missing = {(task_id, name) for task_id, name in inner if name not in found[task_id]}
        joiners = {task_id: Joiner(payloads) for task_id, payloads in found.items()}
        return [None if text is None else joiners[task_id].join(text) for task_id, text in texts]

    async def _tasks(self, rows: Sequence[Row]) -> tuple[TaskRow, ...]:
        results = await self._joined((row[_TASK_ID], row[_RESULT]) for row in rows)
        return tuple(_task_of(row, result) for row, result in zip(rows, results, strict=True))

    async def get(self, task_id: str) -> TaskRow | None:
        rows = await self._tasks(await self._queries.read("get", task_id))
        return rows[0] if rows else None

    async def list(
        self, tenant: str, owner: str | None, workflow: str = "", status: str = "", limit: int = 50,
        after: str = "",
    ) -> tuple[TaskRow, ...]:  # fmt: skip
        where = (tenant, owner, workflow, status, limit, after)
        return await self._tasks(await self._queries.read("list", *where))

    async def queues(self) -> tuple[TaskQueueDepth, ...]:
        return tuple(TaskQueueDepth(*row) for row in await self._queries.read("queues"))

    async def records(self, task_id: str, after: int = 0) -> tuple[JsonObject, ...]:
        rows = await self._queries.read("records", task_id, after)
        return tuple(await self._joined((task_id, row[0]) for row in rows))

    async def artifacts(self, tenant: str, owner: str | None, filter: ArtifactFilter) -> tuple[Artifact, ...]:
        rows = await self._queries.read("artifacts", tenant, owner, *filter)
        contents = await self._joined((row[0], row[len(row) - 1]) for row in rows)
        pairs = zip(rows, contents, strict=True)
        return tuple(Artifact._make((*tuple(row)[:-1], content)) for row, content in pairs)

    async def take(self, worker: str, dead: Sequence[str], until: float, limit: int) -> tuple[TaskRow, ...]:
        now, of = self._clock.now(), list(dead)
        if not (await self._queries.read("anything_to_take", now, of))[0][0]:
            return ()
        rows = await self._queries.write("take", worker, until, now, of, limit)
        return tuple(sorted(await self._tasks(rows), key=lambda row: (row.created_at, row.task_id)))

    async def heartbeat(self, worker: str, until: float, tasks: Collection[str] | None = None) -> None:
        await self._queries.write("heartbeat", worker, until, None if tasks is None else list(tasks))

    # -- waits and the inspector ---------------------------------------------------------------------------

    async def wait(self, worker: str, wait: TaskWait) -> tuple[TaskWait, TaskControl]:
        splitter = Splitter()
        question = _question_text(wait, splitter)
        payloads = [(wait.task_id, name, content) for name, content in splitter.found.items()]

        async def add(tx: Transaction) -> TaskControl:
            control = await _hold(tx, wait.task_id, worker)
            await tx.execute_many("add_payload", payloads)
            values = (*wait.key, wait.kind, wait.asked_at, wait.expires_at, question)
            await tx.execute("add_wait", *values)
            return control

        control = await self._queries.transact(add, synced=True)
        return next(one for one in await self.waits(wait.task_id) if one.key == wait.key), control

    async def waits(self, task_id: str) -> tuple[TaskWait, ...]:
        return await self._waits(await self._queries.read("waits", task_id))

    async def open_questions(self, tenant: str, limit: int) -> tuple[OpenQuestion, ...]:
        rows = await self._queries.read("open_waits", tenant, limit)
        waits = await self._waits(rows)
        return tuple(OpenQuestion(wait, row[9], row[10]) for wait, row in zip(waits, rows, strict=True))

    async def _waits(self, rows: Sequence[Row]) -> tuple[TaskWait, ...]:
        questions = await self._joined((row[0], row[7]) for row in rows)
        return tuple(
            TaskWait._make((*tuple(row)[:7], question, None if row[8] is None else orjson.loads(row[8])))
            for row, question in zip(rows, questions, strict=True)
        )

    async def answer(self, wait: TaskWait, answer: JsonObject) -> bool:
        async def decide(tx: Transaction) -> bool:
            if not await tx.fetch("act", wait.task_id):
                return False
            return bool(await tx.execute("answer", *wait.key, _json_text(answer)))

        return await self._queries.transact(decide, synced=True)

    async def pause(self, task_id: str, before: Sequence[str]) -> bool:
        async def pause(tx: Transaction) -> bool:
            rows = await tx.fetch("act", task_id)
            if rows:
                earlier = _inspection(rows[0][1]) or {"all_stages": False, "before": []}
                named = {*earlier["before"], *before}
                inspection = {"all_stages": earlier["all_stages"] or not before, "before": sorted(named)}
                await tx.execute("inspect", task_id, _json_text(inspection))
            return bool(rows)

        return await self._queries.transact(pause, synced=True)

    async def step(self, task_id: str) -> bool:
        async def step(tx: Transaction) -> bool:
            rows = await tx.fetch("act", task_id)
            found = await tx.fetch("waits", task_id) if rows else ()
            paused = next((row for row in found if row[4] == "pause" and row[8] is None), None)
            if paused is not None:
                inspection = {"before": [], **(_inspection(rows[0][1]) or {}), "all_stages": True}
                await tx.execute("inspect", task_id, _json_text(inspection))
                await tx.execute("answer", *tuple(paused)[:4], "{}")
            return paused is not None

        return await self._queries.transact(step, synced=True)

    async def release(self, task_id: str) -> bool:
        async def release(tx: Transaction) -> bool:
            rows = await tx.fetch("act", task_id)
            if not rows:
                return False
            await tx.execute("inspect", task_id, None)
            return bool(await tx.execute("answer_pauses", task_id)) or rows[0][1] is not None

        return await self._queries.transact(release, synced=True)

    async def controls(self, worker: str) -> tuple[TaskControl, ...]:
        rows = await self._queries.read("controls", worker)
        return tuple(TaskControl(row[0], row[1], bool(row[2]), _inspection(row[3])) for row in rows)

    async def cancel(self, task_id: str) -> bool:
        return bool(await self._queries.write("cancel", task_id, synced=True))

    async def expire(self, before: float) -> int:
        unused_since = self._clock.now() - SNAPSHOT_GRACE_SECONDS

        async def expire(tx: Transaction) -> int:
            deleted = await _delete(tx, "expired", before)
            await tx.execute("delete_snapshots", unused_since)
            return deleted

        return await self._queries.transact(expire)

    async def erase_owner(self, tenant: str, owner: str) -> int:
        await self._queries.write("cancel_owned", tenant, owner)
        return await self._queries.transact(lambda tx: _delete(tx, "owned", tenant, owner))


def _split(splitter: Splitter, objects: Sequence[JsonObject | None], contents: Sequence[Any]) -> list[bytes]:
    """Splits the fields of records and of the result, which comes last, and whole contents of artifacts."""
    whole = Splitter(max_inline=sys.maxsize)
    *records, result = [
        one if one is None else (whole if _is_replaced(one) else splitter).split_fields(one)
        for one in objects
    ]
    return [to_json(one) for one in (*records, *map(splitter.split, contents), result)]


def _is_replaced(record: JsonObject) -> bool:
    """Whether the end of its Task may replace a record, so that no part of it may stay elsewhere."""
    return record.get("type") == "step" and NESTED in record.get("path", "")


def _question_text(wait: TaskWait, splitter: Splitter | None = None) -> str:
    """Returns a question as it is stored: whole, if the end of its Task may replace it."""
    if splitter is None or NESTED in wait.ticket:
        splitter = Splitter(max_inline=sys.maxsize)
    return to_json(splitter.split_fields(wait.question)).decode()


async def _add(
    task_id: str, first: int, artifacts: Sequence[Artifact], encoded: _Encoded, tx: Transaction
) -> None:
    payloads = [(task_id, name, content) for name, content in encoded.payloads.items()]
    await tx.execute_many("add_payload", payloads)
    rows = [(task_id, n, record) for n, record in enumerate(encoded.records, first)]
    await tx.execute_many("add_record", rows)
    texts = zip(artifacts, encoded.artifacts, strict=True)
    await tx.execute_many("add_artifact", [(*one[:-1], text) for one, text in texts])


async def _hold(tx: Transaction, task_id: str, worker: str) -> TaskControl:
    """Makes sure that a worker has a Task. Raises: LeaseLost."""
    rows = await tx.fetch("hold", task_id, worker)
    if not rows:
        raise LeaseLost(f"The Task {task_id!r} is no longer this worker's, or it has ended.")
    return TaskControl(task_id, rows[0][0], False, _inspection(rows[0][1]))


def _inspection(text: str | None) -> JsonObject | None:
    return None if text is None else orjson.loads(text)


async def _delete(tx: Transaction, query: str, *values: object) -> int:
    tasks = [row[0] for row in await tx.fetch(query, *values)]
    for name in ("delete_records", "delete_artifacts", "delete_payloads", "delete_waits", "delete"):
        await tx.execute(name, tasks)
    return len(tasks)


def _task_values(row: TaskRow, result: str) -> list[Any]:
    values = [_column_value(field, getattr(row, field.name)) for field in _FIELDS]
    if row.result is not None:
        values[_RESULT] = result
    return values


def _task_of(row: Row, result: JsonObject | None) -> TaskRow:
    values = {
        field.name: _field_value(field, value)
        for field, value in zip(_FIELDS, row, strict=True)
        if field.name != "result"
    }
    return TaskRow(**values, result=result)


def _column_value(field: Column, value: Any) -> Any:
    if field.json:
        return None if value is None else _json_text(value)
    return int(value) if field.sql_type == "boolean" else value


def _field_value(field: Column, value: Any) -> Any:
    if field.json:
        return None if value is None else orjson.loads(value)
    return bool(value) if field.sql_type == "boolean" else value


def _json_text(value: Any) -> str:
    return to_json(value).decode()


#: bytes of JSON that stay in place
MAX_INLINE = 4096
#: fast: twice the level takes three times as long and saves a tenth
_LEVEL = 3
_MARK = "$payload"
_QUOTED_MARK = b'"$payload"'
#: a value of a caller with our key stands below this one
_LITERAL = "literal"
_REFERENCE = re.compile(rb'"\$payload":"([0-9a-f]{64})"')


def to_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


def needs_split(text: bytes) -> bool:
    """Whether a value with this JSON may have a large part, or holds our key itself."""
    return len(text) > MAX_INLINE or _QUOTED_MARK in text


class Splitter:
    """Takes the large parts out of values of one Task: each is stored once, compressed, by its SHA-256.

    A value of more than 4 KiB in a record, an artifact or a result leaves `{"$payload": HASH}` in its place.
    Its own large parts are taken out first: stages that add a key to a document store the large part of it
    once.

    Args:
        known: hashes that are stored already.
        max_inline: bytes of JSON that stay in place.

    Attributes:
        found: the others: hash → compressed content.
    """

    def __init__(self, known: Iterable[str] = (), max_inline: int = MAX_INLINE) -> None:
        self._known, self._max_inline = frozenset(known), max_inline
        self.found: dict[str, bytes] = {}
        #: by identity: one output is in a record and in an artifact
        self._split: dict[int, tuple[Any, Any]] = {}

    def split(self, value: Any) -> Any:
        """Returns a value with references in place of its large parts, itself included."""
        if isinstance(value, (int, float, bool, type(None))):
            return value
        if (done := self._split.get(id(value))) is not None:
            return done[1]
        text = to_json(value)
        if not needs_split(text):
            return value
        split = self._without_large_parts(value, text)
        self._split[id(value)] = (value, split)  # holds the value, so that no other takes its identity
        return split

    def split_fields(self, value: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Returns an object whose fields are split; it stays an object."""
        fields = {key: self.split(one) for key, one in value.items()}
        return {_MARK: {_LITERAL: fields}} if _MARK in fields else fields

    def _without_large_parts(self, value: Any, text: bytes) -> Any:
        if isinstance(value, Mapping):
            value = self.split_fields(value)
            text = to_json(value)
        elif isinstance(value, (list, tuple)):
            value = [self.split(one) for one in value]
            text = to_json(value)
        if len(text) <= self._max_inline:
            return value
        name = sha256(text).hexdigest()
        if name not in self._known and name not in self.found:
            self.found[name] = zlib.compress(text, _LEVEL)
        return {_MARK: name}


def references(text: bytes) -> set[str]:
    """Returns the hashes that a stored JSON text refers to, and perhaps others."""
    return {found.decode() for found in _REFERENCE.findall(text)} if _QUOTED_MARK in text else set()


def unpack(content: bytes) -> bytes:
    """Returns the JSON text of a stored payload."""
    return zlib.decompress(content)


class Joiner:
    """Puts the large parts of one Task back.

    Args:
        texts: hash → JSON text; what is missing stays a reference.
    """

    def __init__(self, texts: Mapping[str, bytes]) -> None:
        self._texts, self._values = texts, dict[str, Any]()

    def join(self, text: bytes) -> Any:
        """Returns the value of a stored JSON text. Equal large parts are one object."""
        value = orjson.loads(text)
        return self._joined(value) if _QUOTED_MARK in text else value

    def _joined(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._joined(one) for one in value]
        if not isinstance(value, dict):
            return value
        reference = value.get(_MARK) if len(value) == 1 else None
        if isinstance(reference, str) and reference in self._texts:
            if reference not in self._values:
                self._values[reference] = self.join(self._texts[reference])
            return self._values[reference]
        if isinstance(reference, dict) and reference.keys() == {_LITERAL}:
            value = reference[_LITERAL]
        return {key: self._joined(one) for key, one in value.items()}
