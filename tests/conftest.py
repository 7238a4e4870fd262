"""The fixtures that all tests share; what they hand out is in `tests.platform`."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from uuid import uuid4

import certifi
import pytest
from hypothesis import HealthCheck, settings

from tests.platform import blocking, forked, logs, skips
from tests.platform.astromesh import ServerProcess
from tests.platform.blocking import BlockingDetector
from tests.platform.model import MockModel
from tests.platform.network import NetworkGuard
from tests.platform.postgres import EMPTY, ExternalPostgres, PostgresServer, database_url, execute
from tests.platform.reaper import reaper
from tests.platform.restate import RestateServer
from tests.platform.valkey import ExternalRedis, RedisServer

LOGS = pytest.StashKey[dict[str, Callable[[], str]]]()
NETWORK = NetworkGuard()
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----\n"
# on a busy machine an example may take any time
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
# the fixtures that start a database server
SERVERS = frozenset({"postgres_server", "postgres_database", "redis_server", "redis_url", "restate_server"})


# -- around every test ---------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--embedded", action="store_true", help="only tests that need neither PostgreSQL nor Redis"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what starts a database server, where `--embedded` says so."""
    if not config.getoption("--embedded"):
        return
    config.hook.pytest_deselected(items=[item for item in items if _needs_server(item)])
    items[:] = [item for item in items if not _needs_server(item)]


def _needs_server(item: pytest.Item) -> bool:
    """Whether a test asks for a server's fixture, or is the case of a contract that names one."""
    case = getattr(item, "callspec", None)
    named = (
        case is not None and re.search("postgres|pgvector|redis|restate", case.id, re.IGNORECASE) is not None
    )
    return named or not SERVERS.isdisjoint(getattr(item, "fixturenames", ()))


@pytest.hookimpl(optionalhook=True)  # `make mutants` runs without xdist
def pytest_xdist_auto_num_workers() -> int:
    """Half as many workers again as processors: tests of servers wait half of their time."""
    return max(1, (os.cpu_count() or 1) * 3 // 2)


def pytest_configure(config: pytest.Config) -> None:
    skips.pytest_configure(config)
    NETWORK.install()
    blocking.install()
    logs.install()
    trust_one_authority()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Sends what a worker tells about reruns at once: TCP would hold it back for 40 ms in each test."""
    database = getattr(session.config, "failures_db", None)
    if (connection := getattr(database, "sock", None)) is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are imported and made, and seldom later.

    It takes a quarter of the time of the former, and the million objects of all tests are looked at whenever
    the oldest generation is collected.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.unfreeze()  # all of it is of the oldest generation now
        gc.set_threshold(50_000)
        gc.enable()


def pytest_collection_finish() -> None:
    """Keep no byte code of modules that tests write: two versions of one may have the same time and size."""
    sys.dont_write_bytecode = True


def trust_one_authority() -> None:
    """Names a file of one certificate as the trusted ones: a client of httpx reads all of them at its start.

    No test speaks TLS.
    """
    every = Path(certifi.where()).read_text()
    first = every[every.index(_BEGIN) : every.index(_END) + len(_END)]
    path = reaper().temporary_directory("trusted") / "one.pem"
    path.write_text(first)
    os.environ["SSL_CERT_FILE"] = str(path)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Lets a worker of xdist clean up: it is interrupted where that takes longer than five seconds."""
    if hasattr(session.config, "workerinput"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def pytest_unconfigure() -> None:
    """Ends the helpers of this session. `make mutants` begins several sessions in one process."""
    for helper in (forked.shared, reaper):
        if helper.cache_info().currsize:
            helper().close()
            helper.cache_clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that tried to leave this machine, even where the code under test swallowed the error.

    What it has configured of logging, of Ctrl-C and of garbage collection, and has set in the environment, is
    undone: commands of the CLI set the two folders for what they start, and a server freezes what exists, so
    that `gc.get_objects()` of a later test would not show it.
    """
    NETWORK.take()
    gc.unfreeze()
    threshold = gc.get_threshold()
    on_interrupt = signal.getsignal(signal.SIGINT) or signal.default_int_handler
    environment = dict(os.environ)
    try:
        with logs.kept():
            yield
    finally:
        signal.signal(signal.SIGINT, on_interrupt)
        gc.unfreeze()
        gc.set_threshold(*threshold)
        for name in os.environ.keys() - environment.keys() - {"PYTEST_CURRENT_TEST"}:
            del os.environ[name]
    tried = NETWORK.take()
    if item.get_closest_marker("looks_up_hosts"):
        tried = [one for one in tried if not one.startswith("look up")]
    if tried:
        pytest.fail(f"tests stay on this machine, but this one tried to {', '.join(tried)}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the servers a test used to the report of its failure."""
    report = yield
    if report.failed:
        for name, log in item.stash.get(LOGS, {}).items():
            report.sections.append((f"log of {name}", log()[-20_000:]))
    return report


def _keep_log(request: pytest.FixtureRequest, name: str, log: Callable[[], str]) -> None:
    request.node.stash.setdefault(LOGS, {})[name] = log


# -- PostgreSQL ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def _postgres() -> Iterator[PostgresServer | ExternalPostgres]:
    if url := os.environ.get("ASTROMESH_TEST_POSTGRES_URL"):
        yield ExternalPostgres(url)
        return
    server = PostgresServer()
    server.start()
    yield server
    server.close()


@pytest.fixture
def postgres_server(
    _postgres: PostgresServer | ExternalPostgres, request: pytest.FixtureRequest
) -> Iterator[PostgresServer]:
    """The server, to be stopped, crashed and started by the test; it runs again afterwards."""
    if isinstance(_postgres, ExternalPostgres):
        pytest.skip("the server of ASTROMESH_TEST_POSTGRES_URL can't be stopped from here")
    _keep_log(request, "PostgreSQL", _postgres.log)
    yield _postgres
    if not _postgres.running:
        _postgres.start()


@pytest.fixture(scope="session")
def _emptied(_postgres: PostgresServer | ExternalPostgres) -> Iterator[list[str]]:
    """Databases that earlier tests have used, emptied: to make a new one takes longer."""
    names: list[str] = []
    yield names
    if isinstance(_postgres, ExternalPostgres):
        for name in names:
            _postgres.execute(f"drop database {name} with (force)")


@pytest.fixture
def postgres_database(_postgres: PostgresServer | ExternalPostgres, _emptied: list[str]) -> Iterator[str]:
    """URL of an empty database of the test's own; `create extension vector` works there."""
    if not _emptied:
        name = f"test_{uuid4().hex}"
        _postgres.execute(f"create database {name}")
        _emptied.append(name)
    name = _emptied.pop()
    url = database_url(_postgres.url, name)
    yield url
    if isinstance(_postgres, PostgresServer) and not _postgres.running:
        _postgres.start()
    execute(url, EMPTY)
    _emptied.append(name)


# -- Redis ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def _redis() -> Iterator[RedisServer | ExternalRedis]:
    if url := os.environ.get("ASTROMESH_TEST_REDIS_URL"):
        yield ExternalRedis(url)
        return
    server = RedisServer()
    server.start()
    yield server
    server.close()


@pytest.fixture
def redis_server(
    _redis: RedisServer | ExternalRedis, request: pytest.FixtureRequest
) -> Iterator[RedisServer]:
    """The server, emptied, to be stopped and started by the test; it runs again afterwards."""
    if isinstance(_redis, ExternalRedis):
        pytest.skip("the server of ASTROMESH_TEST_REDIS_URL can't be stopped from here")
    _keep_log(request, "Redis", _redis.log)
    _redis.flush()
    yield _redis
    if not _redis.running:
        _redis.start()


@pytest.fixture
def redis_url(_redis: RedisServer | ExternalRedis) -> str:
    """URL of an empty database."""
    _redis.flush()
    return _redis.url


# -- Restate -------------------------------------------------------------------------------------------------


@pytest.fixture
def restate_server(request: pytest.FixtureRequest) -> Iterator[RestateServer]:
    """An empty server of the test's own, which it may kill and start: one that idles takes processor time."""
    server = RestateServer()
    _keep_log(request, "Restate", server.log)
    server.start()
    yield server
    server.close()


# -- a model, and astromesh itself ---------------------------------------------------------------------------


@pytest.fixture(scope="session")
def _mock_llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockModel]:
    model = MockModel(tmp_path_factory.mktemp("mock_llm"))
    model.start()
    yield model
    model.close()


@pytest.fixture
def mock_llm(_mock_llm: MockModel) -> Iterator[MockModel]:
    """An OpenAI-compatible model at `.url`: its name chooses what it does, `.script(…)` what it says."""
    _mock_llm.reset()
    yield _mock_llm
    if not _mock_llm.running:
        _mock_llm.start()


ServerFactory = Callable[..., ServerProcess]


@pytest.fixture
def server_process(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ServerFactory]:
    """`server_process(config, env={}, args=[])` starts `astromesh serve` and answers it when it lives.

    Arguments are those of `ServerProcess`; `start=False` leaves the starting to the test. The process is
    forked from one that has imported a server, unless `spawn=spawned` asks for the command as installed.
    """
    servers: list[ServerProcess] = []

    def serve(config: Path, *, start: bool = True, **options) -> ServerProcess:
        spawn = options.pop("spawn", None) or forked.shared().spawn
        server = ServerProcess(tmp_path_factory.mktemp("server"), config, spawn=spawn, **options)
        servers.append(server)
        _keep_log(request, f"astromesh serve ({server.url})", server.log)
        if start:
            server.start()
        return server

    yield serve
    for server in servers:
        server.close()
    tried = [attempt for server in servers for attempt in server.network_attempts()]
    if tried:
        pytest.fail(f"the server tried to {', '.join(tried)}", pytrace=False)


# -- the event loop ------------------------------------------------------------------------------------------


@pytest.fixture
def free_loop() -> Iterator[BlockingDetector]:
    """Fails the test when anything blocks the event loop while it runs; see `tests.platform.blocking`."""
    detector = BlockingDetector()
    detector.start()
    yield detector
    detector.stop()
    if detector.violations:
        pytest.fail("the event loop was blocked by\n" + "\n".join(detector.violations), pytrace=False)
