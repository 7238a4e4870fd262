"""Memory of a workflow: stores of its layers, the view of one run, the context package of a stage."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from os import SEEK_END
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID, uuid5

import orjson

from astromesh.config.workflow import ContextProfile, MemorySpec, SourceSpec, StoreSpec
from astromesh.errors import StoreError
from astromesh.graph.call_record import hash_of
from astromesh.knowledge.ranking import reciprocal_rank_fusion, terms, words_of
from astromesh.logs import get_logger
from astromesh.tokens import estimate
from astromesh.types import JsonObject
from astromesh.workflow.base import Entry, Task, private_copy

log = get_logger("astromesh.workflows")

#: of the idempotency keys of stages
_KEYS = UUID("0c8b9a54-3f0e-4d0f-9a51-6f0a6c1f7b35")
#: the profile of `context: global`
GLOBAL_PROFILE = ContextProfile(
    id="global", max_tokens=4000, retrieval_policy="recency", sources=(SourceSpec(store="global"),)
)


class Item(NamedTuple):
    """One item of memory.

    Args:
        id: unique, from the lineage: task and stage that wrote it.
        layer: `task`, `project` or `global`.
        node: the node that wrote it.
        value: a stage's output.
    """

    id: str
    layer: str
    node: str
    tags: tuple[str, ...]
    value: Any

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, str) else orjson.dumps(self.value).decode()

    def to_json(self) -> JsonObject:
        return self._asdict()


@dataclass(frozen=True)
class ContextPackage:
    """The items of memory that one stage receives, oldest first. Immutable; its values are copies."""

    profile: str
    items: tuple[Item, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(item.id for item in self.items)

    @property
    def values(self) -> list[Any]:
        return [private_copy(item.value) for item in self.items]

    @cached_property
    def hash(self) -> str:
        return hash_of([[item.id, item.value] for item in self.items])

    @property
    def text(self) -> str:
        """Returns one line per item, with the node that wrote it, for a prompt."""
        return "\n".join(f"- {item.node}: {item.text}" for item in self.items)

    def to_json(self) -> JsonObject:
        return {"profile": self.profile, "hash": self.hash, "items": [item.to_json() for item in self.items]}


@dataclass(frozen=True)
class OperationContext(ContextPackage):
    """The second argument of an operation: the items that it receives, and what names this execution.

    Args:
        task_id: of the Task, with its path below the root.
        stage_id: of the stage.
        attempt: 1 for the first. A stage that its process did not survive begins again.
        now: when the stage began, in seconds since the epoch. In a replay, when it began in the recording. A
            stage of a fork that has the input of the recorded one has its ids and its time, too.
    """

    task_id: str = ""
    stage_id: str = ""
    attempt: int = 1
    now: float = 0.0

    @cached_property
    def idempotency_key(self) -> str:
        """The same in every attempt, and in no other execution of a stage."""
        return uuid5(_KEYS, f"{self.task_id}@{self.stage_id}").hex

    @cached_property
    def random(self) -> Random:
        """Random numbers, which are the same in every attempt and in a replay."""
        return Random(self.idempotency_key)  # noqa: S311 (nothing secret)


def filter_by_tags(items: Iterable[Item], tags: Sequence[str]) -> list[Item]:
    """Returns the items with any of these tags; without tags all. A node's id is a tag of its items."""
    return [item for item in items if not tags or item.node in tags or any(tag in tags for tag in item.tags)]


def assemble_context(profile: ContextProfile, items: Sequence[Item], query: str) -> ContextPackage:
    """Selects items by the profile's policy until its token limit.

    Args:
        items: of all its sources, oldest first.
        query: the stage's input as text.
    """
    ranked = RANKINGS[profile.retrieval_policy](items, query)
    chosen: set[int] = set()
    left = profile.max_tokens
    for place in ranked:
        size = estimate(items[place].text)
        if size <= left:
            chosen.add(place)
            left -= size
    return ContextPackage(profile.id, tuple(item for i, item in enumerate(items) if i in chosen))


def by_recency(items: Sequence[Item], query: str) -> list[int]:
    return list(range(len(items) - 1, -1, -1))


def by_relevance(items: Sequence[Item], query: str) -> list[int]:
    """Returns the positions of items that share words with the query, best first; rare words weigh more."""
    query_terms = terms(query)
    bags = [{word.lower() for word in words_of(item.text)} for item in items]
    having = Counter(word for bag in bags for word in query_terms if word in bag)
    weight = {word: math.log(1 + len(items) / count) for word, count in having.items()}
    scores = [sum(weight[word] for word in query_terms if word in bag) for bag in bags]
    return sorted((i for i, score in enumerate(scores) if score), key=lambda i: (-scores[i], -i))


def by_relevance_and_recency(items: Sequence[Item], query: str) -> list[int]:
    return [
        place for place, _ in reciprocal_rank_fusion((by_relevance(items, query), by_recency(items, query)))
    ]


RANKINGS: Mapping[str, Callable[[Sequence[Item], str], list[int]]] = {
    "recency": by_recency,
    "semantic": by_relevance,
    "hybrid": by_relevance_and_recency,
}


# -- stores of the layers: items are appended and read, never changed ----------------------------------------

_LAYER_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS items (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, layer TEXT NOT NULL,"
    " node TEXT NOT NULL, tags TEXT NOT NULL, value TEXT NOT NULL)"
)
_INSERT = "INSERT OR IGNORE INTO items (id, layer, node, tags, value) VALUES (?, ?, ?, ?, ?)"
_TRIM = "DELETE FROM items WHERE seq <= (SELECT max(seq) FROM items) - ?"
_SELECT = "SELECT id, layer, node, tags, value FROM items ORDER BY seq"
#: seconds until a locked store is an error, and between two attempts
_LOCK_TIMEOUT, _RETRY_INTERVAL = 10.0, 0.005
_Result = TypeVar("_Result")


class LayerStore(Protocol):
    """One layer of memory that outlives a Task. It ignores an item whose id it already holds."""

    async def items(self) -> list[Item]:
        """Returns every item, oldest first."""

    async def append(self, items: Sequence[Item]) -> None: ...


class InMemoryLayer:
    def __init__(self, limit: int, items: Iterable[Item] = ()) -> None:
        self._items: deque[Item] = deque(items, maxlen=limit)

    async def items(self) -> list[Item]:
        return list(self._items)

    async def append(self, items: Sequence[Item]) -> None:
        known = {item.id for item in self._items}
        self._items.extend(item for item in items if item.id not in known)


class SqliteLayer:
    """Items in a SQLite file.

    Args:
        file: created with its folder if it does not exist.
        limit: items that the store keeps; it deletes older ones.
    """

    def __init__(self, file: Path, limit: int) -> None:
        self._file, self._limit = file, limit

    async def items(self) -> list[Item]:
        return await asyncio.to_thread(self._with_retry, self._read)

    async def append(self, items: Sequence[Item]) -> None:
        await asyncio.to_thread(self._with_retry, partial(self._write, items))

    def _with_retry(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Retries while the file is locked.

        SQLite's own timeout does not cover a change of the journal mode.
        """
        give_up = time.monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                with closing(self._connect()) as connection:
                    return work(connection)
            except (OSError, sqlite3.Error) as error:
                if not _is_busy(error) or time.monotonic() >= give_up:
                    raise self._fault(error) from error
            time.sleep(_RETRY_INTERVAL)

    def _fault(self, error: Exception) -> StoreError:
        return StoreError(f"The memory store {self._file.name} cannot be used: {error}.")

    def _connect(self) -> sqlite3.Connection:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._file, timeout=_LOCK_TIMEOUT)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(_LAYER_SCHEMA)
        except BaseException:
            connection.close()
            raise
        return connection

    def _read(self, connection: sqlite3.Connection) -> list[Item]:
        rows = connection.execute(_SELECT).fetchall()
        return [Item(i, la, n, tuple(orjson.loads(t)), orjson.loads(v)) for i, la, n, t, v in rows]

    def _write(self, items: Sequence[Item], connection: sqlite3.Connection) -> None:
        rows = [
            (i.id, i.layer, i.node, orjson.dumps(i.tags).decode(), orjson.dumps(i.value).decode())
            for i in items
        ]
        with connection:
            connection.executemany(_INSERT, rows)
            connection.execute(_TRIM, (self._limit,))


def _is_busy(error: Exception) -> bool:
    """Returns whether another connection holds the lock (low byte of SQLite's extended result codes)."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class JsonlLayer:
    """Items in a file of JSON lines.

    Args:
        file: one item per line, append-only.
        limit: latest items that the store reads.
    """

    def __init__(self, file: Path, limit: int) -> None:
        self._file, self._limit = file, limit

    async def items(self) -> list[Item]:
        return await asyncio.to_thread(self._read)

    async def append(self, items: Sequence[Item]) -> None:
        await asyncio.to_thread(self._write, items)

    def _read(self) -> list[Item]:
        if not self._file.exists():
            return []
        found: dict[str, Item] = {}
        try:
            lines = self._file.read_bytes().splitlines()
        except OSError as error:
            raise self._fault("read", error) from error
        for line in lines:
            try:
                data = orjson.loads(line)
            except orjson.JSONDecodeError:  # an unfinished line of a killed process
                continue
            found.setdefault(data["id"], item_from_json(data))
        return list(found.values())[-self._limit :]

    def _write(self, items: Sequence[Item]) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            lines = b"".join(orjson.dumps(i.to_json(), option=orjson.OPT_APPEND_NEWLINE) for i in items)
            with self._file.open("a+b") as file:
                if file.tell():
                    file.seek(-1, SEEK_END)
                    if file.read() != b"\n":  # an unfinished line of a killed process
                        lines = b"\n" + lines
                file.write(lines)
        except OSError as error:
            raise self._fault("written", error) from error

    def _fault(self, what: str, error: OSError) -> StoreError:
        return StoreError(f"The memory store {self._file.name} cannot be {what}: {error.strerror}.")


def open_layers(folder: Path, memory: MemorySpec) -> dict[str, LayerStore]:
    """Returns the stores of memory.yaml by layer. Relative paths start in the workflow's folder."""
    return {layer: _open_layer(folder, layer, spec) for layer, spec in memory.stores().items()}


def _open_layer(folder: Path, layer: str, spec: StoreSpec) -> LayerStore:
    if spec.type == "in_memory":
        return InMemoryLayer(spec.max_items)
    file = folder / (spec.path or f".state/{layer}.{'db' if spec.type == 'sqlite' else 'jsonl'}")
    return SqliteLayer(file, spec.max_items) if spec.type == "sqlite" else JsonlLayer(file, spec.max_items)


class RunMemory:
    """The memory of one run: task memory by lineage, the other layers as they were when it began.

    A child sees what its parent had written before the fork, and what it wrote itself; a merge appends what
    its inputs wrote, in their order, to the memory of the Task that continues. Writes to stores are deferred
    until the run has ended, so that what stages read does not depend on other runs or on timing.

    Args:
        stores: by layer.
        write: layers that outputs are written to.
        tags: node → tags of what it writes.
        persistent: layers whose store outlives the process.
        read_tags: tags that context profiles ask for.
    """

    def __init__(
        self,
        stores: Mapping[str, LayerStore],
        write: Sequence[str],
        tags: Mapping[str, tuple[str, ...]],
        persistent: frozenset[str] = frozenset(),
        read_tags: frozenset[str] = frozenset(),
    ) -> None:
        self._read_tags = read_tags
        self._stores, self._write, self._tags, self._persistent = stores, write, tags, persistent
        self._items_by_task: dict[str, list[tuple[int, Item]]] = {}
        self._staged: dict[str, list[Item]] = {}
        self._snapshots: dict[str, list[Item]] = {}
        self._reading = asyncio.Lock()
        self._is_fork = False
        self._recorded: Mapping[tuple[str, str], JsonObject] = {}

    def remember(self, task: Task, entry: Entry, *, passes_on: bool = False) -> None:
        """Stores the output of a successful stage.

        Args:
            passes_on: its output is its input, which is stored only where the layer does not hold it yet.
        """
        written = f"{task.id}@{entry.stage}"
        for layer in self._write:
            item = Item(written, layer, entry.node, self._tags.get(entry.node, ()), entry.output)
            if passes_on and self._holds(task, item):
                continue
            if layer == "task":
                self._items_by_task.setdefault(task.path, []).append((entry.seq, item))
            if layer != "task" or "task" in self._persistent:
                self._staged.setdefault(layer, []).append(item)

    def _holds(self, task: Task, item: Item) -> bool:
        """Returns whether a layer has received a value of this run, and every profile finds it there."""
        known = self._visible_items(task) if item.layer == "task" else self._staged.get(item.layer, ())
        names = self._read_tags & {item.node, *item.tags}
        return any(one.value == item.value and names <= {one.node, *one.tags} for one in known)

    def merge(self, task: Task, inputs: Iterable[Task], seq: int) -> None:
        """Adds what the inputs of a merge wrote since their fork to the Task that continues."""
        scope = task.parent if task.lineage == "merge" else task
        known = {item.id for item in self._visible_items(task)}
        own = self._items_by_task.setdefault(task.path, [])
        for one in inputs:
            for _, item in self._items_since(one, scope):
                if item.id not in known:
                    known.add(item.id)
                    own.append((seq, item))

    def fork(self, contexts: Iterable[Mapping[str, Any]]) -> None:
        """Writes to no store: the Task is a fork.

        Args:
            contexts: packages of stages that have a part of their calls, as `{task, stage, context}`.
        """
        self._is_fork = True
        self._recorded = {(one["task"], one["stage"]): one["context"] for one in contexts}

    async def package(self, task: Task, profile: ContextProfile, query: str) -> ContextPackage:
        """Assembles the context package of a stage."""
        if (recorded := self._recorded.get((task.path, task.stage))) is not None:
            return package_from_json(recorded)
        found: dict[str, Item] = {}
        for source in profile.sources:
            items = (
                list(self._visible_items(task))
                if source.store == "task"
                else await self._snapshot(source.store)
            )
            for item in filter_by_tags(items, source.tags):
                found.setdefault(f"{item.layer}:{item.id}", item)
        return assemble_context(profile, list(found.values()), query)

    async def commit(self) -> None:
        """Writes the staged items to the stores, layer by layer, in the order of the stages.

        The stages have had their effects, and listeners know the result: a store that fails changes neither.
        """
        staged, self._staged = ({} if self._is_fork else self._staged), {}
        for layer, items in staged.items():
            try:
                await self._stores[layer].append(items)
            except StoreError as error:
                log.error("memory_not_written", layer=layer, items=len(items), error=str(error))

    async def _snapshot(self, layer: str) -> list[Item]:
        async with self._reading:  # stages that begin together receive the same items
            if layer not in self._snapshots:
                self._snapshots[layer] = await self._stores[layer].items()
        return self._snapshots[layer]

    def _visible_items(self, task: Task) -> list[Item]:
        """Returns the Task's items and those of its ancestors up to each fork, oldest first."""
        found: list[Item] = []
        limit: float = float("inf")
        one: Task | None = task
        while one is not None:
            own = [item for seq, item in self._items_by_task.get(one.path, ()) if seq <= limit]
            found[:0] = own
            limit = min(limit, one.forked_from_seq)
            one = one.parent
        return found

    def _items_since(self, task: Task, scope: Task | None) -> Iterator[tuple[int, Item]]:
        line: list[Task] = []
        one: Task | None = task
        while one is not None and one is not scope:
            line.append(one)
            one = one.parent
        for each in reversed(line):
            yield from self._items_by_task.get(each.path, ())


def package_from_json(context: JsonObject | None) -> ContextPackage:
    """Restores a recorded package."""
    return (
        ContextPackage("", ())
        if context is None
        else ContextPackage(context["profile"], tuple(map(item_from_json, context["items"])))
    )


def item_from_json(data: JsonObject) -> Item:
    return Item(data["id"], data["layer"], data["node"], tuple(data["tags"]), data["value"])
