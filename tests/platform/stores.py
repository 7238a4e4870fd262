"""What a store of any kind is opened with: its database, empty, and nothing it does not need."""

from __future__ import annotations

from pathlib import Path

import pytest

from astromesh.plugins import Deps
from astromesh.storage.postgres import Address, Postgres
from astromesh.storage.redis import Redis
from astromesh.storage.sqlite import Database, default_file
from astromesh.telemetry.clock import Clock

#: which fixture a backend's server is, and the field of Deps that names it
SERVERS = {
    "postgres": ("postgres_database", "storage_url"),
    "pgvector": ("postgres_database", "storage_url"),
    "redis": ("redis_url", "redis_url"),
}


def deps_of(request: pytest.FixtureRequest, clock: Clock, folder: Path, **more) -> Deps:
    """Args: request: of a fixture parametrized by the backend's name."""
    if request.param in SERVERS:
        fixture, field = SERVERS[request.param]
        more[field] = request.getfixturevalue(fixture)
    return Deps(clock=clock, data_dir=folder, **more)


async def impatient(deps: Deps, deadline: float = 1.0) -> Deps:
    """Opens the server that is named, else the file, so that a call gives up after so many seconds."""
    shared, file = deps.resources.shared, default_file(deps).absolute()
    if deps.redis_url:
        await shared(("redis", deps.redis_url), lambda: Redis(deps.redis_url, deadline=deadline))
    elif deps.storage_url.startswith("postgresql"):
        address = Address.parse(deps.storage_url)
        await shared(("postgres", address), lambda: Postgres(address, deadline=deadline))
    else:
        await shared(("sqlite", file), lambda: Database(file, deadline=deadline))
    return deps
