"""The store of runs that the runtime's storage calls for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from astromesh.abc.deps import Deps
from astromesh.abc.durable import RunStore
from astromesh.durable.postgres import PostgresRuns
from astromesh.durable.sqlite import SqliteRuns
from astromesh.storage.database import SQLITE_URL, shared_database
from astromesh.storage.postgres import shared_postgres


async def open_run_store(deps: Deps) -> RunStore:
    """The runs beside everything else that `storage.url` keeps, opened once per runtime.

    Raises:
        StoreUnavailable, ConfigError: the database cannot be used, or is of a newer astromesh.
    """
    store: RunStore = await deps.resources.shared(RunStore, lambda: _opened(deps))
    return store


@asynccontextmanager
async def _opened(deps: Deps) -> AsyncIterator[RunStore]:
    store: RunStore
    if not deps.storage_url or deps.storage_url.startswith(SQLITE_URL):
        store = await SqliteRuns.open(await shared_database(deps), deps.clock)
    else:
        store = await PostgresRuns.open(await shared_postgres(deps), deps.clock)
    yield store
    await store.close()
