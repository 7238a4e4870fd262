"""Servers for tests that kill many: forked from a process that has imported them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.conftest import ServerFactory
from tests.platform.forked import ForkServer
from tests.reliability.payment_agent import LEASE


@pytest.fixture(scope="session")
def _fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    server = ForkServer(tmp_path_factory.mktemp("forks"), LEASE)
    yield server
    server.close()


@pytest.fixture
def forked_server(_fork_server: ForkServer, server_process: ServerFactory) -> ServerFactory:
    """As `server_process`; a start takes a tenth of the time. The lease is that of these tests."""
    return partial(server_process, spawn=_fork_server.spawn)
