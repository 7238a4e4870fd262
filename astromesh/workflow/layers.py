"""Stores of the memory layers: in memory, SQLite, JSON lines. Items are appended and read, never changed."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import orjson

from astromesh.config.workflow.memory import MemorySpec, StoreSpec
from astromesh.errors import StoreError
from astromesh.workflow.context import Item

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS items (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, layer TEXT NOT NULL,"
    " node TEXT NOT NULL, tags TEXT NOT NULL, value TEXT NOT NULL)"
)
_INSERT = "INSERT OR IGNORE INTO items (id, layer, node, tags, value) VALUES (?, ?, ?, ?, ?)"
_TRIM = "DELETE FROM items WHERE seq <= (SELECT max(seq) FROM items) - ?"
_SELECT = "SELECT id, layer, node, tags, value FROM items ORDER BY seq"

#: seconds that a locked store is waited for, and between two attempts
_PATIENCE, _PAUSE = 10.0, 0.005

_Result = TypeVar("_Result")


class LayerStore(Protocol):
    """One layer of memory that outlives a Task. An item whose id is there already is not added again."""

    async def items(self) -> list[Item]:
        """Every item, oldest first."""

    async def append(self, items: Sequence[Item]) -> None: ...


class InMemoryLayer:
    def __init__(self, most: int, items: Iterable[Item] = ()) -> None:
        self._items: deque[Item] = deque(items, maxlen=most)

    async def items(self) -> list[Item]:
        return list(self._items)

    async def append(self, items: Sequence[Item]) -> None:
        known = {item.id for item in self._items}
        self._items.extend(item for item in items if item.id not in known)


class SqliteLayer:
    """Args: file: made when missing, with its folder. most: older items are dropped."""

    def __init__(self, file: Path, most: int) -> None:
        self._file, self._most = file, most

    async def items(self) -> list[Item]:
        return await asyncio.to_thread(self._patiently, self._read)

    async def append(self, items: Sequence[Item]) -> None:
        await asyncio.to_thread(self._patiently, partial(self._write, items))

    def _patiently(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """SQLite's own patience does not hold while others open the file too or change its journal."""
        give_up = time.monotonic() + _PATIENCE
        while True:
            try:
                with closing(self._connect()) as connection:
                    return work(connection)
            except (OSError, sqlite3.Error) as error:
                if not _is_busy(error) or time.monotonic() >= give_up:
                    raise self._fault(error) from error
            time.sleep(_PAUSE)

    def _fault(self, error: Exception) -> StoreError:
        return StoreError(f"The memory store {self._file.name} cannot be used: {error}.")

    def _connect(self) -> sqlite3.Connection:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._file, timeout=_PATIENCE)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(_SCHEMA)
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
            connection.execute(_TRIM, (self._most,))


def _is_busy(error: Exception) -> bool:
    """Whether another connection has the lock (the low byte of SQLite's extended result codes)."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class JsonlLayer:
    """Args: file: one item a line, only ever appended to. most: older items are not read."""

    def __init__(self, file: Path, most: int) -> None:
        self._file, self._most = file, most

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
            except orjson.JSONDecodeError:  # a line that a killed process did not finish
                continue
            item = Item(data["id"], data["layer"], data["node"], tuple(data["tags"]), data["value"])
            found.setdefault(item.id, item)
        return list(found.values())[-self._most :]

    def _write(self, items: Sequence[Item]) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                file.write(
                    b"".join(orjson.dumps(i.to_json(), option=orjson.OPT_APPEND_NEWLINE) for i in items)
                )
        except OSError as error:
            raise self._fault("written", error) from error

    def _fault(self, what: str, error: OSError) -> StoreError:
        return StoreError(f"The memory store {self._file.name} cannot be {what}: {error.strerror}.")


def open_layers(folder: Path, memory: MemorySpec) -> dict[str, LayerStore]:
    """The stores of memory.yaml, by layer. Relative paths start in the workflow's folder."""
    specs = {"task": memory.task_store, "project": memory.project_store, "global": memory.global_store}
    return {layer: _open(folder, layer, spec) for layer, spec in specs.items()}


def _open(folder: Path, layer: str, spec: StoreSpec) -> LayerStore:
    if spec.type == "in_memory":
        return InMemoryLayer(spec.max_items)
    file = folder / (spec.path or f".state/{layer}.{'db' if spec.type == 'sqlite' else 'jsonl'}")
    return SqliteLayer(file, spec.max_items) if spec.type == "sqlite" else JsonlLayer(file, spec.max_items)
