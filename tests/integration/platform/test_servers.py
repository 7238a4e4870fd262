"""The platform that integration and acceptance tests stand on works."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import asyncpg
import httpx
import pytest
import redis.asyncio

from tests.platform.astromesh import ROOT, ServerProcess
from tests.platform.blocking import BlockingDetector
from tests.platform.forked import ForkServer
from tests.platform.model import MockModel
from tests.platform.network import NetworkForbiddenError, is_loopback, may_be_looked_up
from tests.platform.postgres import PostgresServer
from tests.platform.processes import ServerFailed
from tests.platform.skips import parse
from tests.platform.valkey import RedisServer


def connect_to_nobody() -> None:
    with socket.socket() as client:
        client.connect_ex(("127.0.0.1", 1))


def end_of(connection: asyncpg.Connection) -> asyncio.Event:
    ended = asyncio.Event()
    connection.add_termination_listener(lambda _: ended.set())
    return ended


class TestPostgres:
    async def test_every_test_gets_an_empty_database_that_knows_vectors(self, postgres_database: str) -> None:
        connection = await asyncpg.connect(postgres_database)
        assert await connection.fetch("select from pg_tables where schemaname = 'public'") == []
        await connection.execute("create extension vector")
        assert await connection.fetchval("select '[1,0]'::vector <-> '[1,2]'::vector") == 2.0
        await connection.close()

    async def test_what_was_committed_survives_a_crash(
        self, postgres_server: PostgresServer, postgres_database: str
    ) -> None:
        before = await asyncpg.connect(postgres_database)
        await before.execute("create table kept as select 7 as number")
        cut = end_of(before)
        await asyncio.to_thread(postgres_server.crash)
        await asyncio.wait_for(cut.wait(), 10)
        assert not postgres_server.running
        await asyncio.to_thread(postgres_server.start)
        after = await asyncpg.connect(postgres_database)
        assert await after.fetchval("select number from kept") == 7
        await after.close()

    async def test_all_connections_can_be_cut(
        self, postgres_server: PostgresServer, postgres_database: str
    ) -> None:
        connection = await asyncpg.connect(postgres_database)
        cut = end_of(connection)
        await asyncio.to_thread(postgres_server.terminate_backends)
        await asyncio.wait_for(cut.wait(), 10)


class TestRedis:
    async def test_every_test_gets_an_empty_database(self, redis_url: str) -> None:
        async with redis.asyncio.from_url(redis_url) as client:
            assert await client.dbsize() == 0
            await client.set("left over", "for the next test")

    async def test_what_another_test_left_is_gone(self, redis_url: str) -> None:
        async with redis.asyncio.from_url(redis_url) as client:
            assert await client.get("left over") is None

    async def test_a_killed_server_comes_back_with_its_data(self, redis_server: RedisServer) -> None:
        async with redis.asyncio.from_url(redis_server.url) as client:
            await client.set("kept", "yes")
            await asyncio.to_thread(redis_server.kill)
            with pytest.raises(redis.ConnectionError):
                await client.get("kept")
            await asyncio.to_thread(redis_server.start)
            assert await client.get("kept") == b"yes"


class TestModel:
    def ask(self, model: MockModel, name: str, **body) -> httpx.Response:
        request = {"model": name, "messages": [{"role": "user", "content": "hi"}], **body}
        return httpx.post(f"{model.url}/chat/completions", json=request, timeout=60)

    def test_its_name_chooses_what_it_says(self, mock_llm: MockModel) -> None:
        answer = self.ask(mock_llm, "mock+say=good_day").json()
        assert answer["choices"][0]["message"]["content"] == "good day"

    def test_it_asks_for_the_offered_tool(self, mock_llm: MockModel) -> None:
        tools = [{"type": "function", "function": {"name": "search", "parameters": {}}}]
        answer = self.ask(mock_llm, "mock+tools=1", tools=tools).json()
        assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "search"

    def test_it_fails_as_told(self, mock_llm: MockModel) -> None:
        answer = self.ask(mock_llm, "mock+status=429+retry=3")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")

    def test_a_script_goes_before_the_name(self, mock_llm: MockModel) -> None:
        mock_llm.script({"status": 503}, {"text": "second try"})
        assert self.ask(mock_llm, "mock").status_code == 503
        assert self.ask(mock_llm, "mock").json()["choices"][0]["message"]["content"] == "second try"
        assert [request["model"] for request in mock_llm.requests()] == ["mock", "mock"]

    def test_it_streams_until_the_cut(self, mock_llm: MockModel) -> None:
        with pytest.raises(httpx.RemoteProtocolError):
            self.ask(mock_llm, "mock+cut=2", stream=True)

    def test_it_streams_to_the_end(self, mock_llm: MockModel) -> None:
        text = self.ask(mock_llm, "mock+say=a_b", stream=True).text
        assert text.count('"content":"') == 3
        assert text.endswith("data: [DONE]\n\n")


class TestServerProcess:
    """With a stand-in for the program, so that this holds before there is a server."""

    @pytest.fixture
    def program(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        program = tmp_path / "astromesh"
        monkeypatch.setattr("tests.platform.astromesh.PROGRAM", str(program))
        return program

    def write(self, program: Path, body: str) -> None:
        program.write_text(f"#!{sys.executable}\n{textwrap.dedent(body)}")
        program.chmod(0o755)

    LIVES = """
        import http.server, socket, sys

        class Live(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                try:
                    socket.getaddrinfo("example.com", 80)
                except OSError:
                    print("no network here")
                self.send_response(200)
                self.end_headers()

        port = int(sys.argv[sys.argv.index("--port") + 1])
        http.server.HTTPServer(("127.0.0.1", port), Live).serve_forever()
    """

    def test_it_starts_dies_and_starts_again(self, program: Path, tmp_path: Path) -> None:
        self.write(program, self.LIVES)
        server = ServerProcess(tmp_path, tmp_path)
        server.start()
        assert server.kill() == -signal.SIGKILL
        server.start()
        assert httpx.get(server.url + "/health/live", timeout=60).is_success
        assert server.terminate() == -signal.SIGTERM

    def test_its_network_is_guarded_too(self, program: Path, tmp_path: Path) -> None:
        self.write(program, self.LIVES)
        server = ServerProcess(tmp_path, tmp_path)
        server.start()
        server.kill()
        assert "no network here" in server.log()
        assert set(server.network_attempts()) == {"look up 'example.com'"}

    def test_a_server_that_does_not_start_shows_its_log(self, program: Path, tmp_path: Path) -> None:
        self.write(program, "raise SystemExit('agents/x.agent.yaml:3:1: no such key')")
        with pytest.raises(ServerFailed, match=r"x\.agent\.yaml:3:1"):
            ServerProcess(tmp_path, tmp_path).start()


class TestNetworkGuard:
    @pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "::ffff:127.0.0.1"])
    def test_this_machine_may_be_reached(self, host: str) -> None:
        assert is_loopback(host)

    @pytest.mark.parametrize("host", ["10.0.0.1", "0.0.0.0", "8.8.8.8", "fe80::1%eth0", "example.com"])
    def test_no_other_may(self, host: str) -> None:
        assert not is_loopback(host)

    def test_names_are_not_looked_up_but_addresses_are_parsed(self) -> None:
        assert may_be_looked_up("192.0.2.1")
        assert may_be_looked_up("localhost")
        assert not may_be_looked_up("example.com")

    def test_a_test_that_swallows_the_error_fails_all_the_same(self, tmp_path: Path) -> None:
        done = run_pytest(
            tmp_path,
            """
            import contextlib, socket

            def test_it():
                with contextlib.suppress(OSError):
                    socket.create_connection(("192.0.2.1", 80), timeout=1)
            """,
        )
        assert done.returncode == 1
        assert "tried to connect to 192.0.2.1:80" in done.stdout

    def test_the_error_says_what_is_forbidden(self) -> None:
        code = """
            import socket
            from tests.platform.network import NetworkGuard
            NetworkGuard().install()
            socket.create_connection(("192.0.2.1", 80), timeout=1)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, check=False
        )
        assert NetworkForbiddenError.__name__.encode() in done.stderr


class TestBlockingDetector:
    async def found(self, call) -> list[str]:
        detector = BlockingDetector()
        detector.start()
        try:
            call()
        finally:
            detector.stop()
        return detector.violations

    @pytest.mark.parametrize(
        ("name", "call"),
        [
            ("time.sleep", lambda: time.sleep(0.001)),
            ("open", lambda: Path(__file__).read_bytes()),
            ("sqlite3.connect", lambda: sqlite3.connect(":memory:").close()),
            ("socket.connect", connect_to_nobody),
        ],
    )
    async def test_a_call_that_blocks_is_found_with_its_place(self, name: str, call) -> None:
        (found,) = [text for text in await self.found(call) if text.startswith(name)]
        assert __file__ in found

    async def test_statements_of_a_connection_opened_elsewhere_are_found(self) -> None:
        detector = BlockingDetector()
        detector.start()
        connection = await asyncio.to_thread(sqlite3.connect, ":memory:", check_same_thread=False)
        await asyncio.to_thread(connection.execute, "select 1")
        assert detector.violations == []
        connection.execute("select 2")
        detector.stop()
        connection.close()
        assert detector.violations[0].startswith("sqlite3 statement: select 2")

    async def test_what_other_threads_do_is_fine(self, free_loop: BlockingDetector) -> None:
        await asyncio.to_thread(Path(__file__).read_bytes)
        await asyncio.to_thread(time.sleep, 0.001)
        await asyncio.sleep(0)

    async def test_a_pause_lets_the_test_itself_block(self, free_loop: BlockingDetector) -> None:
        with free_loop.paused():
            Path(__file__).read_bytes()

    async def test_what_the_loop_waits_for_is_fine(
        self, free_loop: BlockingDetector, mock_llm: MockModel
    ) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            assert (await client.get(f"{mock_llm.url}/models")).is_success


class TestSkips:
    SKIPPED = """
        import pytest

        @pytest.mark.skip(reason="not today")
        def test_it():
            pass
    """

    def test_a_skip_that_is_not_listed_fails_the_run(self, tmp_path: Path) -> None:
        done = run_pytest(tmp_path, self.SKIPPED)
        assert done.returncode == 1
        assert "not today" in done.stdout

    def test_a_module_that_skips_itself_fails_the_run(self, tmp_path: Path) -> None:
        done = run_pytest(tmp_path, "import pytest\npytest.importorskip('no_such_module')\n")
        assert done.returncode != 0
        assert "skipped without a reason" in done.stdout

    def test_an_expected_failure_fails_the_run(self, tmp_path: Path) -> None:
        done = run_pytest(
            tmp_path, self.SKIPPED.replace("skip", "xfail").replace("pass", "assert False"), "-n1"
        )
        assert done.returncode == 1

    def test_a_listed_skip_needs_a_reason(self) -> None:
        (entry,) = parse("# comment\ntests/x.py::test_y* only on Linux\n")
        assert (entry.pattern, entry.reason) == ("tests/x.py::test_y*", "only on Linux")
        with pytest.raises(ValueError, match=r"2: tests/x\.py needs a reason"):
            parse("\ntests/x.py\n")


def test_servers_die_with_pytest_even_when_it_is_killed(tmp_path: Path) -> None:
    test = """
        import time
        from pathlib import Path

        def test_it(postgres_server, redis_server):
            here = Path(__file__).parent
            (here / "homes").write_text(f"{postgres_server.home}\\n{redis_server.home}")
            (here / "ready").touch()
            time.sleep(60)
    """
    (tmp_path / "test_it.py").write_text(textwrap.dedent(test))
    pytest_process = subprocess.Popen(
        pytest_command(tmp_path), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for((tmp_path / "ready").exists)
    pytest_process.kill()
    pytest_process.wait()
    homes = [Path(line) for line in (tmp_path / "homes").read_text().splitlines()]
    wait_for(lambda: not any(home.exists() for home in homes))
    assert not any(str(home) in command for home in homes for command in commands())


# -- helpers -------------------------------------------------------------------------------------------------


def wait_for(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def commands() -> list[str]:
    """The command lines of all processes."""
    return subprocess.run(
        ["ps", "-eo", "args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def pytest_command(folder: Path) -> list[str]:
    """Pytest on a folder outside the tree, with the tree's conftest and settings."""
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-p", "tests.conftest"]
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *settings, str(folder)]


def run_pytest(folder: Path, test: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(textwrap.dedent(test))
    command = [*pytest_command(folder), *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)


def test_the_process_that_forks_is_waited_for_at_its_first_start(tmp_path: Path) -> None:
    """A test that times out meanwhile leaves it to the next: one for each would hold up a busy machine."""
    silent = tmp_path / "tests" / "platform" / "fork_server.py"
    silent.parent.mkdir(parents=True)
    silent.write_text("import sys\nsys.stdin.read()\n")
    ForkServer(tmp_path, {"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}).close()
