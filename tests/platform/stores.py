"""What a store of any kind is opened with: its database, empty, and nothing it does not need."""

from __future__ import annotations

from pathlib import Path

import pytest

from astromesh.plugins import Deps
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
