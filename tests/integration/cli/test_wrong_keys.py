"""A key that a service refuses, one that cannot be tried: what `doctor`, readiness and the terminal show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from astromesh.cli.commands.doctor import Finding, diagnose, exit_code_of
from astromesh.cli.terminal import print_fallback
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.monitoring import check_readiness
from tests.integration.agents_folder import manifest, write


@asynccontextmanager
async def service(status: int, ping: int = 0) -> AsyncIterator[str]:
    """A model service that refuses every call, and answers its list of models with another status."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        said = ping or status if head.startswith(b"GET") else status
        writer.write(b"HTTP/1.1 %d Said\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}" % said)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/v1"


def agent_at(folder: Path, endpoint: str) -> Path:
    first = {"provider": "openai", "model": "m", "endpoint": endpoint, "api_key": "sk-wrong"}
    return write(folder, manifest(model={"primary": first, "fallback": [{"provider": "embedded"}]}))


async def found(folder: Path) -> tuple[int, dict[str, Finding]]:
    findings = await diagnose((folder, folder / "data"))
    return exit_code_of(findings), {one.subject: one for one in findings}


async def test_doctor_marks_a_model_that_answers_401_though_the_agent_can_run(tmp_path: Path) -> None:
    async with service(401) as endpoint:
        code, said = await found(agent_at(tmp_path, endpoint))
    assert (said["provider:openai/m"].state, said["helper: openai/m"].state) == ("wrong", "wrong")
    assert "answered 401" in said["helper: openai/m"].detail
    assert (said["helper"].state, said["helper: embedded"].state, code) == ("ok", "ok", 0)


async def test_doctor_says_where_a_key_could_not_be_tried(tmp_path: Path) -> None:
    async with service(404) as endpoint:
        code, said = await found(agent_at(tmp_path, endpoint))
    assert (said["helper: openai/m"].state, code) == ("note", 0)
    assert said["helper: openai/m"].detail == "could not be checked: GET /models answered 404"


async def test_doctor_asks_the_store_of_runs_which_no_run_has_opened_yet(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest(model={"primary": {"provider": "embedded"}}))
    code, said = await found(folder)
    assert (said["store:runs:sqlite"].state, code) == ("ok", 0)
    (folder / "data" / "astromesh.db").write_bytes(b"no database, but long enough to look like one" * 100)
    code, said = await found(folder)
    assert (said["store:runs"].state, code) == ("failed", 2)


async def test_an_open_circuit_is_shown_and_leaves_the_server_ready_while_a_fallback_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And whoever asked in the terminal is told beside the answer."""
    async with (
        service(401, ping=200) as endpoint,
        AgentRuntime(agent_at(tmp_path, endpoint), data_dir=tmp_path / "data") as runtime,
    ):
        for _ in range(3):
            answer = await runtime.run("helper", "Hello?", "s")
        seen = await check_readiness(runtime)
    assert (seen.ready, seen.results["provider:openai/m"].code) == (True, "circuit_open")
    capsys.readouterr()  # where another test has set up the log, its lines are there as well
    print_fallback(answer.metadata)
    line = capsys.readouterr().err.strip()
    assert line == "(openai/m failed: provider_unauthorized, status 401; answered by embedded/extractive)"
