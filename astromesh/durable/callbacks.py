"""Delivers callbacks of runs and Tasks: signed as Standard Webhooks 1.0 says, repeated for a day, then dead.

A delivery is on disk with the status that it tells about. A process takes what is due and calls; if it dies
meanwhile, another one calls again, with the same id. A receiver may so hear twice, and knows by the id.

Triggers of the tables of runs and Tasks make the deliveries. `SqlDeliveries` has their queries for both
databases.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from random import Random
from typing import ClassVar, NamedTuple

import orjson

from astromesh.durable.base import (
    Callback,
    Delivery,
    DeliveryQuery,
    DeliveryStore,
    RunRow,
    RunStore,
    StoredCallback,
    TakenDelivery,
)
from astromesh.durable.leases import DAY_SECONDS, PeriodicJob
from astromesh.durable.run_registry import run_json
from astromesh.errors import ConfigError, MissingExtra, NetError
from astromesh.logs import get_logger
from astromesh.net.http import Http
from astromesh.net.provider_errors import retry_after
from astromesh.storage.cipher import StoredCipher
from astromesh.storage.queries import Dialect, Row, SqlStore, Transaction
from astromesh.telemetry.clock import Clock, interval_sleep, iso_time
from astromesh.types import JsonObject

#: seconds of one call; seconds after which another process repeats the call of one that died
TIMEOUT_SECONDS, TAKEN_SECONDS = 20.0, 60.0
#: deliveries that one process makes at the same time
_TOGETHER = 16
#: seconds between two looks, while a callback is expected and while none is
POLL_SECONDS, IDLE_SECONDS = 1.0, 30.0
#: seconds to the second attempt, and between two at most
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 3600.0
_GONE = 410
#: the ids of deliveries of Tasks, whose tables begin to count here
FIRST_TASK_DELIVERY = 2**52
_OTHER_KEY = "The headers were encrypted with another secret of callbacks."
_PREFIX = "whsec_"
_MIN_SECRET = 16

log = get_logger("astromesh.callbacks")
_random = Random()  # noqa: S311 (spreads attempts)


def secrets_of(text: str) -> tuple[bytes, ...]:
    """Returns the keys of a secret: `whsec_` and base64. Of several, separated by blanks, each one signs.

    Raises:
        ConfigError: it is not one.
    """
    try:
        found = tuple(b64decode(part.removeprefix(_PREFIX), validate=True) for part in text.split())
    except Base64Error:
        found = ()
    if not found or min(map(len, found)) < _MIN_SECRET:
        raise ConfigError(
            "The secret of callbacks must be `whsec_` and at least 16 bytes in base64, e.g. "
            "`whsec_$(openssl rand -base64 24)`."
        )
    return found


def signature_headers(secrets: Sequence[bytes], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Returns the headers that sign a body (Standard Webhooks 1.0, symmetric signatures)."""
    signed = f"{id}.{timestamp}.".encode() + body
    signatures = [b64encode(hmac.new(secret, signed, sha256).digest()).decode() for secret in secrets]
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{one}" for one in signatures),
    }


class CallbackSource(NamedTuple):
    """Whose callbacks a sender delivers.

    Args:
        kind: of what is told about: `run` or `task`.
        open_store: returns its deliveries, or None as long as there are none.
        message: returns what is told, by its id and in the words of a publisher; None: it was erased.
    """

    kind: str
    open_store: Callable[[], Awaitable[DeliveryStore | None]]
    message: Callable[[str, str], Awaitable[JsonObject | None]]


class CallbackSender:
    """The callbacks of one process.

    Args:
        open_store: returns the store of runs, or None as long as it holds none.
        secret: signs, and encrypts stored headers.
        encode: returns the body of a delivery in the words of a publisher.
        wake_at: asks for `wake` at a time, by name, where something has timers.
    """

    def __init__(
        self,
        open_store: Callable[[], Awaitable[RunStore | None]],
        http: Http,
        secret: str,
        clock: Clock,
        encode: Callable[[str, RunRow], Awaitable[JsonObject]],
        wake_at: Callable[[str, float], Awaitable[bool]],
    ) -> None:
        self._open_store, self._http, self._clock, self._encode = open_store, http, clock, encode
        self._wake_at = wake_at
        #: in the order of their ids, the lowest first
        self._sources = [CallbackSource("run", open_store, self._message_of_run)]
        self._secrets = secrets_of(secret)
        self._cipher = StoredCipher(secret.rsplit(maxsplit=1)[-1], "callbacks", _OTHER_KEY)
        self._job = PeriodicJob(
            self._deliver_due,
            POLL_SECONDS,
            self._store_failed,
            sleep=interval_sleep(clock),
            at_once=True,
        )

    def start(self) -> None:
        self._job.start()

    def add(self, source: CallbackSource) -> None:
        """Delivers the callbacks of another source, too. The ids of its deliveries are above all others."""
        self._sources.append(source)

    def wake(self) -> None:
        """Looks for deliveries now, and every second while some are expected."""
        self._job.wake()

    def run_ended(self) -> None:
        """Looks for deliveries now, as another process may have accepted the run or Task."""
        if self._job.seconds > POLL_SECONDS:
            self._job.wake()

    async def close(self) -> None:
        """Ends. A call that is active is repeated by the next process."""
        await self._job.close()

    def stored(self, callback: Callback) -> StoredCallback:
        headers = self._cipher.encrypt(dict(callback.headers), callback.url) if callback.headers else b""
        return StoredCallback(callback.url, callback.events, headers, callback.publisher, callback.name)

    async def of_run(self, run_id: str, publisher: str) -> tuple[StoredCallback, ...]:
        """Returns the callbacks of a run in the words of a publisher, oldest first."""
        store = await self._open_store()
        return () if store is None else await store.callbacks_of(run_id, publisher)

    async def set(self, run_id: str, callback: Callback) -> bool:
        """Adds a callback to a run, or replaces the one with its name. Returns False: the URL is taken."""
        store = await self._open_store()
        found = store is not None and await store.set_callback(run_id, self.stored(callback))
        self.wake()
        return found

    async def delete(self, run_id: str, publisher: str, name: str) -> bool:
        store = await self._open_store()
        return store is not None and await store.delete_callback(run_id, publisher, name)

    async def list(self, filter: DeliveryQuery) -> tuple[Delivery, ...]:
        """Returns deliveries with the highest ids first: those of Tasks, then those of runs."""
        found: tuple[Delivery, ...] = ()
        for source in reversed(self._sources):
            store, left = await source.open_store(), filter.limit - len(found)
            if store is not None and left > 0:
                found += await store.callbacks(filter._replace(limit=left))
        return found

    async def retry(self, id: int, tenant: str, owner: str | None) -> bool:
        """Sends a dead delivery again. Returns False if the caller has none with that id."""
        for source in self._sources:
            store = await source.open_store()
            if store is not None and await store.retry_callback(id, tenant, owner):
                self.wake()
                return True
        return False

    def _store_failed(self, error: Exception) -> None:
        log.warning("callbacks_not_delivered", error=str(error))
        self._job.seconds = _FIRST_PAUSE

    async def _deliver_due(self) -> None:
        self._job.seconds = IDLE_SECONDS
        for source in self._sources:
            if (store := await source.open_store()) is not None:
                await self._deliver_due_of(source, store)

    async def _deliver_due_of(self, source: CallbackSource, store: DeliveryStore) -> None:
        now = self._clock.now()
        while deliveries := await store.take_callbacks(now, now + TAKEN_SECONDS, _TOGETHER):
            await asyncio.gather(*(self._deliver(source, store, one) for one in deliveries))
            now = self._clock.now()
        if await store.callbacks_expected():
            self._job.seconds = POLL_SECONDS

    async def _message_of_run(self, run_id: str, publisher: str) -> JsonObject | None:
        store = await self._open_store()
        run = None if store is None else await store.get(run_id)
        if run is None:
            return None
        return await self._encode(publisher, run) if publisher else run_json(run)

    async def _deliver(self, source: CallbackSource, store: DeliveryStore, delivery: TakenDelivery) -> None:
        if (found := await store.callback(delivery.callback)) is None:  # erased meanwhile
            return
        url, encrypted = found.url, found.headers
        now = self._clock.now()
        status, error, pause = 0, "", 0.0
        try:
            message = await source.message(delivery.run_id, found.publisher)
            if message is None:  # erased meanwhile
                return
            if not found.publisher:
                kind = f"{source.kind}.{delivery.event}"
                message = {"type": kind, "timestamp": iso_time(now), "data": message}
            body = orjson.dumps(message)
            own = self._cipher.decrypt(encrypted, url) if encrypted else {}
            headers = {**own, "content-type": "application/json"}
            headers |= signature_headers(self._secrets, _message_id(delivery), int(now), body)
            response = await self._http.fetch_untrusted(
                "POST", url, body=body, headers=headers, timeout=TIMEOUT_SECONDS, follow=False
            )
            status, pause = response.status, retry_after(response.headers)
            error = "" if 200 <= status < 300 else f"The receiver answered {status}."
        except (NetError, ConfigError, MissingExtra) as failure:
            error = str(failure)
        if not error:
            await store.end_callback_attempt(delivery.id, "delivered", 0.0, status, "")
            return
        pause = max(pause, pause_after(delivery.attempts))
        is_dead = status == _GONE or now + pause > delivery.began_at + DAY_SECONDS
        log.warning(
            "callback_dead" if is_dead else "callback_failed",
            **{f"{source.kind}_id": delivery.run_id}, callback_id=delivery.id,
            attempts=delivery.attempts, error=error,
        )  # fmt: skip
        await store.end_callback_attempt(
            delivery.id, "dead" if is_dead else "pending", now + pause, status, error
        )
        if not is_dead:
            await self._wake_at("callbacks", now + pause)


def _message_id(delivery: TakenDelivery) -> str:
    """Returns the id of a message, which no other database and no restored one gives to another message."""
    return f"msg_{delivery.run_id.partition('_')[2]}_{delivery.id}"


def pause_after(attempts: int) -> float:
    """Returns the seconds to the next attempt: 5, 20, 80 … up to an hour, a fifth more at random."""
    return min(_FIRST_PAUSE * 4.0 ** (attempts - 1), _LONGEST_PAUSE) * _random.uniform(1.0, 1.2)


def delivery_json(one: Delivery) -> JsonObject:
    """Returns a delivery as `GET /v1/callbacks` shows it."""
    is_task = one.id >= FIRST_TASK_DELIVERY
    return {
        "id": one.id,
        "run_id": None if is_task else one.run_id,
        "agent": None if is_task else one.agent,
        "task_id": one.run_id if is_task else None,
        "workflow": one.agent if is_task else None,
        "event": one.event,
        "url": one.url,
        "state": one.state,
        "attempts": one.attempts,
        "first_attempt_at": iso_time(one.began_at) if one.began_at else None,
        "next_attempt_at": iso_time(one.due_at) if one.state == "pending" and one.attempts else None,
        "http_status": one.http_status or None,
        "error": one.error or None,
    }


class SqlDeliveries(SqlStore):
    """A DeliveryStore in the database of the runs or Tasks."""

    #: the fragments of `sql/callbacks.sql`
    delivery_tables: ClassVar[Mapping[str, str]]
    shared_files: ClassVar[Sequence[str]] = ("callbacks",)

    @classmethod
    def fragments(cls, dialect: Dialect) -> Mapping[str, str]:
        return cls.delivery_tables

    async def take_callbacks(self, now: float, until: float, limit: int) -> tuple[TakenDelivery, ...]:
        rows = await self._queries.write("take_callbacks", now, until, limit)
        return tuple(TakenDelivery(*row) for row in rows)

    async def callback(self, number: int) -> StoredCallback | None:
        rows = await self._queries.read("callback", number)
        return _callback_of(rows[0]) if rows else None

    async def end_callback_attempt(
        self, id: int, state: str, due_at: float, http_status: int, error: str
    ) -> None:
        await self._queries.write("end_callback_attempt", id, state, due_at, http_status, error)

    async def callbacks_expected(self) -> bool:
        return bool((await self._queries.read("callbacks_expected"))[0][0])

    async def callbacks(self, filter: DeliveryQuery) -> tuple[Delivery, ...]:
        return tuple(Delivery(*row) for row in await self._queries.read("callbacks", *filter))

    async def retry_callback(self, id: int, tenant: str, owner: str | None) -> bool:
        async def retry(tx: Transaction) -> bool:
            return await tx.execute("retry_callback", id, tenant, owner) > 0

        return await self._queries.transact(retry)


class SqlCallbacks(SqlDeliveries):
    """A CallbackStore in the database of the runs."""

    delivery_tables: ClassVar[Mapping[str, str]] = {
        "callbacks": "callbacks",
        "deliveries": "callback_deliveries",
        "subjects": "runs",
        "id": "run_id",
        "target": "agent",
        "is_open": "s.status IN ('queued', 'running', 'waiting')",
        "words": "publisher, name",
    }

    package: ClassVar[str] = "astromesh.durable"
    name: ClassVar[str] = "runs"

    async def callbacks_of(self, run_id: str, publisher: str) -> tuple[StoredCallback, ...]:
        return tuple(map(_callback_of, await self._queries.read("callbacks_of", run_id, publisher)))

    async def set_callback(self, run_id: str, callback: StoredCallback) -> bool:
        async def set_callback(tx: Transaction) -> bool:
            await _delete(tx, run_id, callback.publisher, callback.name)
            return await tx.execute("add_callback", *callback_values(run_id, callback)) > 0

        return await self._queries.transact(set_callback)

    async def delete_callback(self, run_id: str, publisher: str, name: str) -> bool:
        async def delete(tx: Transaction) -> bool:
            return await _delete(tx, run_id, publisher, name)

        return await self._queries.transact(delete)


def callback_values(run_id: str, callback: StoredCallback) -> tuple[object, ...]:
    """Returns the values of the query `add_callback`."""
    url, events, headers, publisher, name = callback
    return run_id, url, json.dumps(events), headers, publisher, name


def _callback_of(row: Row) -> StoredCallback:
    url, events, headers, publisher, name = row
    return StoredCallback(url, tuple(json.loads(events)), bytes(headers), publisher, name)


async def _delete(tx: Transaction, run_id: str, publisher: str, name: str) -> bool:
    await tx.execute("delete_deliveries", run_id, publisher, name)
    return await tx.execute("delete_callback", run_id, publisher, name) > 0
