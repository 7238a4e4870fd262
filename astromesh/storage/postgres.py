"""A PostgreSQL database: one connection pool per database and process, shared by all stores.

A call holds a connection for one statement or one short transaction, never while a model or a tool works. The
pool connects at the first call, and again after the server was unavailable: a call waits for the server until
its deadline. Reads are retried, because repeating them is harmless. Writes are not retried. All tables are in
the PostgreSQL schema `astromesh`. Errors are translated here, by SQLSTATE (PostgreSQL manual, appendix A).
`PostgresChannel` passes notifications between processes on a connection of its own.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from ssl import SSLCertVerificationError
from types import TracebackType
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from astromesh.errors import AstromeshError, ConfigError, InvalidInput, StoreError, StoreUnavailable
from astromesh.logs import OutageLog, get_logger
from astromesh.plugins import Deps
from astromesh.storage.migrations import Schema, store_schema
from astromesh.storage.queries import Dialect, SqlStore, TransactionWork, queries_of
from astromesh.storage.retry import NOT_TEXT, NotSent, ShieldedTasks, retry_until_deadline

#: the store as a whole is unavailable now; longest prefix first
_UNAVAILABLE = (
    ("25006", "is read-only at present; try again"),
    ("40", "had a conflict between two transactions; try again"),
    ("53100", "cannot grow: its disk is full. Free space there"),
    ("53300", "accepts no more connections; try again"),
    ("53", "is out of resources; try again"),
    ("55P03", "is locked; try again"),
    ("57014", "cancelled a statement (statement_timeout, or an administrator); try again"),
    ("57", "is shutting down or starting up; try again"),
    ("58", "reports a system error of its machine; its log has the details"),
    ("08", "closed the connection; try again"),
)

#: the operator must change something
_REFUSED = (
    ("28", "rejects the login: check the user and the password in the URL"),
    ("3D000", "does not exist on that server: create it, or correct the URL"),
    ("42501", "denies a permission: the user needs CREATE on the database, or must own its tables"),
)

#: the extension is not installed, its files are missing, or the user may not create it
_NO_EXTENSION = ("0A000", "58P01", "42501")
#: the library raises the last one if it continues with a connection that the server has closed
DRIVER_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_AWAY = ("08", "57P01", "57P02", "57P03", "53300")


def is_away(error: BaseException) -> bool:
    """Whether the server or the connection is gone, so that the same call may succeed a moment later."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(_AWAY)
    return isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError)


def translate_postgres_error(error: BaseException, name: str) -> AstromeshError:
    """Args: name: the name of the database in messages, without its password."""
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"The database {name} did not answer in time; try again.")
    if isinstance(error.__cause__, UnicodeEncodeError):  # raised before it was sent
        return InvalidInput(NOT_TEXT)
    if type(error) is asyncpg.DataError:  # the library's own error repeats the value
        return StoreError(f"The database {name} does not accept a value of this type.")
    if isinstance(error, asyncpg.PostgresError):
        return _error_of_state(error, error.sqlstate or "", name)
    if isinstance(error, SSLCertVerificationError) or "rejected SSL upgrade" in str(error):
        return StoreUnavailable(f"The database {name} offers no TLS as sslmode in its URL requires: {error}.")
    return StoreUnavailable(f"The database {name} cannot be reached; try again.")


def _error_of_state(error: asyncpg.PostgresError, state: str, name: str) -> AstromeshError:
    if state.startswith(_NO_EXTENSION) and 'extension "vector"' in str(error.args[:1]):
        return StoreError(
            f"The database {name} lacks the extension pgvector: install it on the server, and let a "
            "superuser run CREATE EXTENSION vector."
        )
    for prefix, reason in _UNAVAILABLE:
        if state.startswith(prefix):
            return StoreUnavailable(f"The database {name} {reason}.")
    for prefix, reason in _REFUSED:
        if state.startswith(prefix):
            return StoreError(f"The database {name} {reason}.")
    if isinstance(error, asyncpg.CharacterNotInRepertoireError):
        return InvalidInput("A name or an id has the character NUL, which is not allowed there.")
    return StoreError(f"The database {name} rejected a statement: {error.args[0] if error.args else state}")


T = TypeVar("T")
Connection: TypeAlias = "PoolConnectionProxy[Any]"
#: work with one connection
Session: TypeAlias = Callable[[Connection], Awaitable[T]]

SCHEMES = ("postgresql", "postgres")
POOL_SIZE, STATEMENT_CACHE = 10, 256
_NO_URL = "PostgreSQL needs a URL postgresql://USER@HOST/DATABASE, e.g. as storage.url."

#: seconds until an idle connection is closed
_IDLE_SECONDS = 300.0
#: seconds that the start waits for a server, and the deadline of a migration
_START_SECONDS, _MIGRATION_SECONDS = 2.0, 600.0
#: the advisory lock of a migration; a number that nothing else uses
_MIGRATING = 0x61737472
_VERSIONS = "CREATE TABLE astromesh.schemas (name TEXT PRIMARY KEY, version INTEGER NOT NULL)"
_READ = "SELECT version FROM astromesh.schemas WHERE name = $1"

_WRITE = (
    "INSERT INTO astromesh.schemas VALUES ($1, $2)"
    " ON CONFLICT (name) DO UPDATE SET version = excluded.version"
)

log = get_logger("astromesh.storage")


class Address(NamedTuple):
    """A URL taken apart.

    Args:
        dsn: for asyncpg, with the password.
        name: for messages, without it.
        pool_size: maximum number of connections (`?pool_size=`).
        statement_cache: prepared statements per connection (`?statement_cache=`), 0 behind PgBouncer.
    """

    dsn: str
    name: str
    pool_size: int = POOL_SIZE
    statement_cache: int = STATEMENT_CACHE

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises: ConfigError: it is not the URL of a PostgreSQL database; the message does not repeat it."""
        try:
            parts = urlsplit(url)
            port = parts.port or 5432
        except ValueError:  # its message repeats parts of the URL
            raise ConfigError(_NO_URL) from None
        if parts.scheme not in SCHEMES or not parts.path.strip("/"):
            raise ConfigError(_NO_URL)
        query = dict(parse_qsl(parts.query))
        size = _number(query.pop("pool_size", str(POOL_SIZE)), "pool_size", 1)
        cache = _number(query.pop("statement_cache", str(STATEMENT_CACHE)), "statement_cache", 0)
        name = f"{parts.hostname or 'localhost'}:{port}/{parts.path.strip('/')}"
        return cls(parts._replace(query=urlencode(query)).geturl(), name, size, cache)


class Postgres:
    """An async context manager; used by one event loop.

    Args:
        address: the database, and the size of the pool.
        deadline: seconds of a call, including the waits for the server and for a free connection.
    """

    def __init__(self, address: Address, *, deadline: float = 5.0) -> None:
        self.address = address
        self._deadline = deadline
        self._pool: asyncpg.Pool[Any] | None = None
        self._pending: list[Schema] = []
        self._migrating = asyncio.Lock()
        self._writes = ShieldedTasks()

    async def __aenter__(self) -> Self:
        # the pool connects at the first call, so that the server may start later
        self._pool = await asyncpg.create_pool(
            self.address.dsn,
            min_size=0,
            max_size=self.address.pool_size,
            max_inactive_connection_lifetime=_IDLE_SECONDS,
            statement_cache_size=self.address.statement_cache,
            timeout=self._deadline,
            reset=_no_reset,
            server_settings={"application_name": "astromesh"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._writes.settle()
        pool, self._pool = self._opened, None
        try:
            async with asyncio.timeout(self._deadline):
                await pool.close()
        except DRIVER_ERRORS:
            pool.terminate()

    async def read(self, query: str, *bound: object) -> list[asyncpg.Record]:
        """Returns the rows of a query. Repeats it if the connection breaks.

        Raises:
            StoreUnavailable: the server did not answer before the deadline.
            StoreError: it rejected the statement.
        """
        return await self._do(partial(_fetch, query, bound), _may_repeat_read)

    async def write(self, query: str, *bound: object) -> list[asyncpg.Record]:
        """Executes a statement and returns its rows. Cancelling the caller does not stop it.

        Raises:
            StoreUnavailable: the server is unavailable. If the connection broke during the write, it is
                unknown whether the statement was executed.
        """
        return await self._writes.run(self._do(partial(_fetch, query, bound), _may_repeat_write))

    async def decide(self, query: str, *bound: object) -> list[asyncpg.Record]:
        """Does what `write` does. A cancelled caller still receives the result."""
        return await self._writes.finish(self._do(partial(_fetch, query, bound), _may_repeat_write))

    async def write_in_chunks(self, query: str, *bound: object, chunk: int) -> int:
        """Repeats a statement until it returns no row, so that no transaction is long; like `write`.

        Args:
            chunk: the statement's last argument: how many rows it may change, and return, at once.

        Returns:
            The number of rows.
        """
        total = 0
        while rows := await self.write(query, *bound, chunk):
            total += len(rows)
        return total

    async def write_many(self, query: str, rows: Sequence[Sequence[object]]) -> None:
        """Executes a statement once for each row, all or none, in one round trip; like `write`."""
        await self._writes.run(self._do(partial(_execute_many, query, rows), _may_repeat_write))

    async def transact(self, work: Session[T], *, deadline: float = 0) -> T:
        """Executes `work` in one transaction; like `write`.

        Args:
            deadline: seconds, for work that takes longer than other calls.
        """
        return await self._writes.run(self._do(partial(_in_transaction, work), _may_repeat_write, deadline))

    async def look(self, work: Session[T]) -> T:
        """Executes `work` in one transaction that only reads; like `read`."""
        return await self._do(partial(_in_transaction, work), _may_repeat_read)

    async def migrate(self, schema: Schema) -> None:
        """Brings one schema up to date. If the server is unavailable, the first call that reaches it does.

        Raises:
            ConfigError: a newer astromesh wrote the tables.
            StoreError: the tables cannot be created.
        """
        probe = partial(_fetch, "SELECT 1", ())
        try:
            await self._do(probe, _may_repeat_read, _START_SECONDS)
        except StoreUnavailable as error:
            self._pending.append(schema)
            log.warning("database_away", database=self.address.name, error=str(error))
            return
        self._pending.append(schema)
        await self._do(probe, _may_repeat_read, _MIGRATION_SECONDS)

    async def ping(self) -> None:
        """Raises StoreUnavailable if the server does not answer."""
        await self.read("SELECT 1")

    # -- inside --------------------------------------------------------------------------------------------

    @property
    def _opened(self) -> asyncpg.Pool[Any]:
        if self._pool is None:
            raise StoreUnavailable(f"The database {self.address.name} is closed.")
        return self._pool

    async def _do(
        self, work: Session[T], may_retry: Callable[[BaseException], bool], deadline: float = 0
    ) -> T:
        try:
            return await retry_until_deadline(
                partial(self._once, work), DRIVER_ERRORS, may_retry, deadline or self._deadline
            )
        except DRIVER_ERRORS as error:
            raise translate_postgres_error(error, self.address.name) from error

    async def _once(self, work: Session[T]) -> T:
        pool = self._opened
        try:
            connection = await pool.acquire()
        except DRIVER_ERRORS as error:
            raise NotSent(error) from error
        try:
            if self._pending:
                await self._bring_up(connection)
            return await work(connection)
        except (asyncio.CancelledError, NotSent, *DRIVER_ERRORS) as error:
            cause = error.cause if isinstance(error, NotSent) else error
            if isinstance(cause, asyncio.CancelledError) or is_away(cause):
                connection.terminate()  # it is broken, or may still receive the answer of this call
            raise
        finally:
            await pool.release(connection)

    async def _bring_up(self, connection: Connection) -> None:
        async with self._migrating:
            while self._pending:
                try:
                    await _in_transaction(partial(_migrate, self._pending[0]), connection)
                except DRIVER_ERRORS as error:
                    raise NotSent(error) from error
                self._pending.pop(0)


def _may_repeat_read(error: BaseException) -> bool:
    return is_away(error.cause if isinstance(error, NotSent) else error)


def _may_repeat_write(error: BaseException) -> bool:
    return isinstance(error, NotSent) and is_away(error.cause)


async def _fetch(query: str, bound: tuple[object, ...], connection: Connection) -> list[asyncpg.Record]:
    rows: list[asyncpg.Record] = await connection.fetch(query, *bound)
    return rows


async def _execute_many(query: str, rows: Sequence[Sequence[object]], connection: Connection) -> None:
    await connection.executemany(query, rows)


async def _in_transaction(work: Session[T], connection: Connection) -> T:
    async with connection.transaction():
        return await work(connection)


async def _no_reset(connection: asyncpg.Connection[Any]) -> None:
    """Does nothing: no statement changes the settings of a connection, so its return needs no round trip."""


def _number(text: str, name: str, minimum: int) -> int:
    if not text.isdecimal() or int(text) < minimum:
        raise ConfigError(f"{name} in the URL of the database must be a number of at least {minimum}.")
    return int(text)


async def _migrate(schema: Schema, connection: Connection) -> None:
    """Executes the missing migrations; one process at a time."""
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATING)
    if await connection.fetchval("SELECT to_regclass('astromesh.schemas')") is None:
        await connection.execute("CREATE SCHEMA IF NOT EXISTS astromesh")
        await connection.execute(_VERSIONS)
    version = await connection.fetchval(_READ, schema.name) or 0
    missing = schema.missing_steps(version, "postgres")
    for step in missing:
        await connection.execute(step)
    if missing:
        await connection.execute(_WRITE, schema.name, version + len(missing))


class PostgresOptions(BaseModel):
    """Options of a store that may use a database of its own."""

    model_config = ConfigDict(extra="forbid")

    url: SecretStr = Field(
        SecretStr(""), description="postgresql://…, may hold a password; empty: storage.url of runtime.yaml."
    )


async def shared_postgres(deps: Deps, url: str = "") -> Postgres:
    """Returns the database of a URL, which is opened once per runtime.

    Args:
        url: postgresql://…; empty for `storage.url` of runtime.yaml.

    Raises:
        ConfigError: no URL is set, or it is not one of PostgreSQL.
    """
    address = Address.parse(url or deps.storage_url)
    opened: Postgres = await deps.resources.shared(("postgres", address), lambda: Postgres(address))
    return opened


# -- stores that run on both databases -----------------------------------------------------------------------

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
#: between the parts of a lock's name
_LOCK_SEPARATOR = "\x1f"


class PostgresTransaction:
    """A `Transaction` on one connection."""

    __slots__ = ("_connection", "_statements")

    def __init__(self, connection: Connection, statements: Mapping[str, str]) -> None:
        self._connection, self._statements = connection, statements

    async def fetch(self, query: str, *values: object) -> list[asyncpg.Record]:
        return await _fetch(self._statements[query], values, self._connection)

    async def execute(self, query: str, *values: object) -> int:
        status = await self._connection.execute(self._statements[query], *values)
        return int(status.rpartition(" ")[2])  # e.g. UPDATE 1

    async def execute_many(self, query: str, rows: Sequence[Sequence[object]]) -> None:
        if rows:
            await self._connection.executemany(self._statements[query], rows)

    async def lock(self, *name: str) -> None:
        await self._connection.execute(_LOCK, _LOCK_SEPARATOR.join(name))


class PostgresQueries:
    """`Queries` in a PostgreSQL database.

    Args:
        statements: by the names of the queries.
    """

    dialect: ClassVar[Dialect] = "postgres"

    def __init__(self, database: Postgres, statements: Mapping[str, str]) -> None:
        self._database, self._statements = database, statements

    @property
    def database(self) -> Postgres:
        return self._database

    async def read(self, query: str, *values: object) -> Sequence[asyncpg.Record]:
        return await self._database.read(self._statements[query], *values)

    async def write(self, query: str, *values: object, synced: bool = False) -> Sequence[asyncpg.Record]:
        return await self._database.write(self._statements[query], *values)

    async def write_many(self, query: str, rows: Sequence[Sequence[object]]) -> None:
        """Executes a statement once for each row, all or none, in one round trip."""
        await self._database.write_many(self._statements[query], rows)

    async def transact(self, work: TransactionWork[T], *, synced: bool = False) -> T:
        return await self._database.transact(
            lambda connection: work(PostgresTransaction(connection, self._statements))
        )

    def scrub_soon(self) -> None:
        """Does nothing: the server's log is its operator's."""

    async def ping(self) -> None:
        await self._database.ping()


class PostgresStore(SqlStore):
    """A store in the database of `storage.url`, for several servers."""

    _queries: PostgresQueries

    @classmethod
    async def open(cls, options: BaseModel, deps: Deps) -> Self:
        """Raises: ConfigError: no URL, or a newer astromesh wrote the tables. StoreError: no permission."""
        database = await shared_postgres(deps)
        await database.migrate(store_schema(cls, "postgres"))
        statements = queries_of(cls, "postgres")
        return cls(PostgresQueries(database, statements), deps.clock)


# -- NUL -----------------------------------------------------------------------------------------------------

# PostgreSQL stores every character except NUL, which is escaped here.

_NUL, _ESCAPE = "\x00", "\x1a"


def escape_nul(text: str) -> str:
    """Returns a text without NUL; unchanged unless it has NUL or SUBSTITUTE."""
    if _NUL in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPE + "1").replace(_NUL, _ESCAPE + "0")
    return text


def unescape_nul(text: str) -> str:
    """Returns the text before `escape_nul`."""
    if _ESCAPE in text:
        return text.replace(_ESCAPE + "0", _NUL).replace(_ESCAPE + "1", _ESCAPE)
    return text


A = TypeVar("A")
R = TypeVar("R")

#: calls in one batch. 64 take a fifth less processor time of a durable run than 16 when as many are active
MAX_BATCH = 64


class GroupCommit(Generic[A, R]):
    """A callable that batches its calls: concurrent calls of one kind become one call.

    A database returns fifty rows in nearly the time of one, and a round trip costs more processor time than
    the row in it. A single call starts at once. Under load, the calls that arrive meanwhile form the next
    batch. Cancelling a caller does not stop its call.

    If a batch is rejected, each call is repeated alone, so that only the faulty ones fail.

    Args:
        work: executes all calls of a batch or none; returns one result per call, in order.
        max_batch: maximum number of calls in a batch.
    """

    def __init__(
        self, work: Callable[[Sequence[A]], Coroutine[Any, Any, Sequence[R]]], max_batch: int = MAX_BATCH
    ) -> None:
        self._work, self._max_batch = work, max_batch
        self._waiting: list[tuple[A, asyncio.Future[R]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def __call__(self, argument: A) -> R:
        """Returns the result of one call. Raises what `work` raises."""
        result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((argument, result))
        if self._worker is None:
            self._worker = asyncio.create_task(self._drain())
        return await result

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
                await self._settle(batch)
        finally:
            self._worker = None

    async def _settle(self, batch: Sequence[tuple[A, asyncio.Future[R]]]) -> None:
        arguments = [argument for argument, _ in batch]
        working = asyncio.ensure_future(self._work(arguments))
        await asyncio.wait([working])
        error = asyncio.CancelledError() if working.cancelled() else working.exception()
        if error is None:
            for (_, future), result in zip(batch, working.result(), strict=True):
                if not future.done():
                    future.set_result(result)
        elif len(batch) > 1 and not isinstance(error, (StoreUnavailable, asyncio.CancelledError)):
            for call in batch:
                await self._settle([call])
        else:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)


# -- notifications between processes -------------------------------------------------------------------------

#: seconds between two notifications of one process: each has the newest number of every name
_PAUSE_SECONDS = 0.025
#: seconds until a lost connection is made again: at first, at most
_FIRST_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.5, 30.0
#: seconds for an answer of the server; seconds between two checks of a silent connection
_ANSWER_SECONDS, _CHECK_SECONDS = 5.0, 20.0
_NOTIFY = "SELECT pg_notify($1, told) FROM unnest($2::text[]) AS told"
_DEAF = "it passes no notifications on: set storage.listen_url to a URL that does not lead over a pooler"


class PostgresChannel:
    """One process tells all others that something has a new number, over LISTEN and NOTIFY.

    A notification has a name and a number, never data. It may be lost with its connection. So who waits for
    one looks at the tables when the connection is made or lost, and polls while there is none.

    Args:
        name: of the channel.
        address: where it listens. A pooler in transaction mode passes no notifications on.
        received: called with each name and number that any process has published, this one included.
        changed: called when the connection was made or lost.
    """

    def __init__(
        self,
        database: Postgres,
        name: str,
        address: Address,
        received: Callable[[str, int], None],
        changed: Callable[[], None],
    ) -> None:
        self._database, self._name, self._address = database, name, address
        self._received, self._changed = received, changed
        self._outages = OutageLog(log, "notifications_away", "notifications_back")
        self._connected = False
        self._probe, self._probe_heard = "", asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self._due: dict[str, int] = {}
        self._sending: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether notifications arrive."""
        return self._connected

    def start(self) -> None:
        """Starts to listen. A channel that listens continues."""
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())

    def publish(self, name: str, number: int) -> None:
        """Tells every process, soon: of several numbers within a pause, the largest one."""
        self._due[name] = max(number, self._due.get(name, 0))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def close(self) -> None:
        """Sends what is due, and ends."""
        if self._sending is not None:
            await asyncio.wait([self._sending])
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    async def _send(self) -> None:
        while self._due:
            due, self._due = self._due, {}
            with suppress(AstromeshError):  # who waits polls, more slowly
                messages = [f"{name} {number}" for name, number in due.items()]
                await self._database.write(_NOTIFY, self._name, messages)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _listen(self) -> None:
        """Listens until it is cancelled, with a new connection after each that is lost."""
        pause = _FIRST_RETRY_SECONDS
        while True:
            try:
                reason = "the connection was lost"
                if await self._listen_once():
                    pause = _FIRST_RETRY_SECONDS
                else:
                    reason = _DEAF
            except (AstromeshError, *DRIVER_ERRORS) as error:
                reason = str(error) or type(error).__name__
            self._outages.failed(reason)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_RETRY_SECONDS)

    async def _listen_once(self) -> bool:
        """Listens until the connection is lost. Returns False if no notification arrives over it."""
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            self._address.dsn, timeout=_ANSWER_SECONDS, statement_cache_size=0
        )
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        try:
            await connection.add_listener(self._name, self._hear)
            if not await self._is_heard():
                return False
            self._set_connected(True)
            self._outages.succeeded()
            while not lost.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK_SECONDS):
                        await lost.wait()
                if not lost.is_set():
                    await connection.execute("SELECT 1", timeout=_ANSWER_SECONDS)
            return True
        finally:
            self._set_connected(False)
            connection.terminate()

    async def _is_heard(self) -> bool:
        """Whether a notification of this process arrives over the new connection."""
        self._probe = secrets.token_hex(8)
        self._probe_heard.clear()
        await self._database.write(_NOTIFY, self._name, [f"{self._probe} 0"])
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._probe_heard.wait()
        return self._probe_heard.is_set()

    def _set_connected(self, connected: bool) -> None:
        if connected != self._connected:
            self._connected = connected
            self._changed()

    def _hear(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        name, _, number = str(payload).rpartition(" ")
        if name == self._probe:
            self._probe_heard.set()
        elif name and number.isdecimal():
            self._received(name, int(number))
