"""Runs one store on SQLite and on PostgreSQL: named queries, and transactions that are written once.

A store keeps its SQL in its package. `sql/NAME.sql` holds the queries of both databases, written for
PostgreSQL; `sql/DIALECT/NAME.sql` holds those of one database. A transaction is a coroutine function:

    async def finish(tx: Transaction) -> None:
        if await tx.fetch("lock", queue):
            await tx.execute("release", queue)

    await queries.transact(finish)

SQLite executes it in the thread of the database, where no statement waits. PostgreSQL awaits each statement.
A transaction must await nothing else, and it must be repeatable until it is committed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict

from astromesh.telemetry.clock import Clock

Dialect: TypeAlias = Literal["sqlite", "postgres"]
T = TypeVar("T")


class Row(Protocol):
    """The columns of a row in their order: a tuple of SQLite, a record of PostgreSQL."""

    def __getitem__(self, index: int, /) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...


class Transaction(Protocol):
    """The statements of one transaction, by the names of their queries."""

    async def fetch(self, query: str, *values: object) -> Sequence[Row]: ...

    async def execute(self, query: str, *values: object) -> int:
        """Returns the number of rows that an INSERT, UPDATE or DELETE has changed."""

    async def execute_many(self, query: str, rows: Sequence[Sequence[object]]) -> None: ...

    async def lock(self, *name: str) -> None:
        """Waits until no other transaction holds this lock, which ends with the transaction."""


#: executes statements; they are rolled back if it raises
TransactionWork: TypeAlias = Callable[[Transaction], Coroutine[Any, Any, T]]


class Queries(Protocol):
    """The named queries of one store in a database.

    Raises (all of them):
        StoreUnavailable: the database does not answer now. StoreError: it refused a statement.
    """

    @property
    def dialect(self) -> Dialect: ...

    async def read(self, query: str, *values: object) -> Sequence[Row]:
        """Returns the rows of a query that changes nothing."""

    async def write(self, query: str, *values: object, synced: bool = False) -> Sequence[Row]:
        """Executes one statement and returns its rows. Cancelling the caller does not stop it.

        Args:
            synced: The commit survives a loss of power. PostgreSQL syncs every commit.
        """

    async def transact(self, work: TransactionWork[T], *, synced: bool = False) -> T:
        """Returns what `work` returns, once its transaction is committed.

        Args:
            synced: As in `write`.
        """

    def scrub_soon(self) -> None:
        """Empties SQLite's write-ahead log within seconds, so that no overwritten text is left in it."""

    async def ping(self) -> None:
        """Raises StoreUnavailable if the database does not answer."""


async def write_in_chunks(queries: Queries, query: str, *values: object, chunk: int) -> int:
    """Repeats a statement until it returns no row, so that no transaction is long. Returns how many rows.

    Args:
        chunk: the last value of the statement: how many rows it may change and return.
    """
    total = 0
    while rows := await queries.write(query, *values, chunk):
        total += len(rows)
    return total


class NoOptions(BaseModel):
    """Takes no options: the store uses the database of `storage.url` (runtime.yaml)."""

    model_config = ConfigDict(extra="forbid")


class SqlStore:
    """A store whose queries run on both databases. A class of each database opens it.

    Args:
        queries: its named queries, in a database that other stores may share.
    """

    Options: ClassVar[type[BaseModel]] = NoOptions
    #: package that holds the folder `sql`, and name of the files there and of the schema
    package: ClassVar[str]
    name: ClassVar[str]
    #: names of further files, which other stores of the package have too
    shared_files: ClassVar[Sequence[str]] = ()

    def __init__(self, queries: Queries, clock: Clock) -> None:
        self._queries, self._clock = queries, clock

    @classmethod
    def fragments(cls, dialect: Dialect) -> Mapping[str, str]:
        """Returns what replaces `{NAME}` in the queries."""
        return {}

    async def ping(self) -> None:
        await self._queries.ping()

    async def close(self) -> None:
        """Does nothing: the database closes with the resources of the runtime."""


# -- the files -----------------------------------------------------------------------------------------------

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_SECTION = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)

#: what SQLite writes in another way than PostgreSQL, or has not
_TO_SQLITE = (
    (re.compile(r"\bastromesh\."), ""),
    (re.compile(r"= ANY ?\((\$\d+)(::\w+\[\])?\)"), r"IN (SELECT value FROM json_each(\1))"),
    (re.compile(r"::\w+(\[\])?"), ""),
    (re.compile(r"\$(\d+)"), r"?\1"),
    (re.compile(r"\s+FOR (NO KEY )?UPDATE( SKIP LOCKED)?"), ""),
    (re.compile(r"\bTRUE\b"), "1"),
    (re.compile(r"\bFALSE\b"), "0"),
    (re.compile(r"\b(greatest|bool_or)\("), "max("),
    (re.compile(r"\bleast\("), "min("),
    (re.compile(r"\bsplit_part\(([\w.]+), '(.)', 1\)"), r"substr(\1, 1, instr(\1, '\2') - 1)"),
)


@cache
def to_sqlite(query: str) -> str:
    """Translates a query of PostgreSQL for SQLite.

    It has no schema, casts or row locks, `?1` for `$1`, 1 for TRUE, and JSON arrays for arrays.
    """
    for pattern, replacement in _TO_SQLITE:
        query = pattern.sub(replacement, query)
    return query


def queries_of(store: type[SqlStore], dialect: Dialect) -> Mapping[str, str]:
    """Returns the queries of a store by name, those of its shared files included."""
    found: dict[str, str] = {}
    for name in (*store.shared_files, store.name):
        found.update(store_queries(store.package, name, dialect, store.fragments(dialect)))
    return found


def store_queries(
    package: str, name: str, dialect: Dialect, fragments: Mapping[str, str]
) -> Mapping[str, str]:
    """Returns the queries of a file by name, and of the one beside it for this database alone.

    Args:
        fragments: replace `{NAME}` in the queries, as the sections `-- fragment: NAME` of the files do.
    """
    folder = files(package).joinpath("sql")
    shared, own = _sections(folder / f"{name}.sql"), _sections(folder / dialect / f"{name}.sql")
    if dialect == "sqlite":
        shared = {key: to_sqlite(text) for key, text in shared.items()}
    sections = {**shared, **own}
    parts = {key: text for (kind, key), text in sections.items() if kind == "fragment"}
    parts.update(fragments)

    def filled(text: str) -> str:
        return _PLACEHOLDER.sub(lambda found: filled(parts[found[1]]), text)

    return {key: filled(text) for (kind, key), text in sections.items() if kind == "name"}


def _sections(file: Traversable) -> dict[tuple[str, str], str]:
    """The sections of a file by kind and name; a file that does not exist has none."""
    if not file.is_file():
        return {}
    _, *parts = _SECTION.split(file.read_text("utf-8"))
    return dict(zip(zip(parts[::3], parts[1::3], strict=True), map(str.strip, parts[2::3]), strict=True))
