"""What parts cost a server whose agents do not use them: routes, console, protocols and the durable engine.

    python scripts/bench_unused.py [--seconds 5] [--rounds 5]

No switch turns these parts off: each is loaded when it is first used. So one server uses one part after the
other, and its memory is read after each; the row of a part has what the server took before as its limit. Then
plain runs of that server are made in turn with those of a server that has used none of them, which is the
limit: processor time of a run, which a busy machine changes less than runs per second. Modules are imported
in processes of their own, in turn. Needs `wrk` for the plain runs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import aiohttp
from bench_idle import use
from bench_server import BESIDE, CORES, Server, Subject, make_config, subjects, wrk
from figures import Figure, show

from tests.platform.processes import free_port

PART = "unused"
#: seconds after a first use until what it has begun has ended
SETTLE_SECONDS = 3.0
_SERVER = "from astromesh.cli import startup; startup.prepare_imports(); import astromesh.cli.commands.serve"
IMPORTS = {
    "import of a server": _SERVER,
    "import of a server with all routes": f"{_SERVER}, astromesh.api.fastapi_app",
    "import of a server with the engine of Tasks": f"{_SERVER}, astromesh.runtime.tasks",
}


class FirstUse(NamedTuple):
    """A request that uses a part. Args: body: as JSON; None for a GET."""

    name: str
    path: str
    body: dict[str, Any] | None = None


_HELLO = {"role": "user", "content": "Hello"}
_INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}
USES = (
    FirstUse("routes of the API", "/v1/agents"),
    FirstUse("console", "/console/"),
    FirstUse("MCP", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _INITIALIZE}),
    FirstUse("A2A", "/v1/agents/plain/a2a/.well-known/agent-card.json"),
    FirstUse("a plain run", "/v1/agents/plain/run", {"query": "Hello", "session_id": "first"}),
    FirstUse("Responses", "/v1/responses", {"model": "plain", "input": "Hello"}),
    FirstUse(
        "AG-UI",
        "/v1/agents/plain/agui",
        {"threadId": "t1", "runId": "r1", "messages": [{"id": "m1", **_HELLO}]},
    ),
    FirstUse("durable engine", "/v1/agents/plain/runs", {"query": "Hello", "session_id": "second"}),
)


def import_seconds(code: str) -> float:
    """Processor time of a process that imports something."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def show_imports(rounds: int) -> None:
    took: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(rounds + 1):  # the first one compiles
        for name, code in IMPORTS.items():
            took[name].append(import_seconds(code) * 1000)
    least = statistics.median(took["import of a server"][1:])
    for name, values in took.items():
        limit = least if name != "import of a server" else None
        show(Figure(PART, name, statistics.median(values[1:]), "ms of processor", limit))


async def first_use(http: aiohttp.ClientSession, server: Server, part: FirstUse) -> float:
    """Makes the request. Returns the milliseconds until it was answered."""
    started = time.perf_counter()
    headers = {"accept": "application/json, text/event-stream"} if part.name in ("AG-UI", "MCP") else {}
    method = "GET" if part.body is None else "POST"
    async with http.request(method, server.url + part.path, json=part.body, headers=headers) as answer:
        text = await answer.text()
    if not answer.ok:
        raise SystemExit(f"{part.path}: {answer.status} {text[:300]}")
    return (time.perf_counter() - started) * 1000


async def show_uses(server: Server) -> None:
    await asyncio.sleep(SETTLE_SECONDS)
    before = server.resident()
    show(Figure(PART, "memory, nothing used", before, "MiB"))
    async with aiohttp.ClientSession() as http:
        for part in USES:
            took = await first_use(http, server, part)
            await asyncio.sleep(SETTLE_SECONDS)
            after = server.resident()
            show(Figure(PART, f"{part.name}: memory from its first use", after, "MiB", before))
            show(Figure(PART, f"{part.name}: answer to its first use", took, "ms"))
            before = after


async def run_ms(server: Server, subject: Subject, seconds: int) -> float:
    """Milliseconds of processor time that a server takes for a plain run."""
    before, started = use([server.process.pid]), time.monotonic()
    rate = await asyncio.to_thread(wrk, server.url + subject.route.format("plain"), seconds, subject.request)
    took = time.monotonic() - started
    return (use([server.process.pid]).seconds - before.seconds) / (rate * took) * 1000


async def show_runs(used: Server, unused: Server, subject: Subject, seconds: int, rounds: int) -> None:
    times: dict[Server, list[float]] = {unused: [], used: []}
    for server in times:
        await run_ms(server, subject, 1)
    for _ in range(rounds):
        for server, own in times.items():
            own.append(await run_ms(server, subject, seconds))
    ratio = statistics.median(a / b for a, b in zip(times[used], times[unused], strict=True))
    value = statistics.median(times[used])
    show(Figure(PART, "a plain run of a server that has used all", value, "ms of processor", value / ratio))


async def measure(start: Callable[[], Server], subject: Subject, args: argparse.Namespace) -> None:
    used, unused = start(), start()
    try:
        for server in (used, unused):
            await server.ready(subject.health)
        await show_uses(used)
        if shutil.which("wrk"):
            await show_runs(used, unused, subject, args.seconds, args.rounds)
    finally:
        used.stop()
        unused.stop()


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if len(CORES) > 1:
        os.sched_setaffinity(0, {CORES[-1]})
    show_imports(args.rounds)
    port = free_port()
    model_url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        config = f"{work}/config"
        make_config(config, model_url + "/v1")
        subject, folders = subjects(config, "")["astromesh"], iter((f"{work}/used", f"{work}/unused"))

        def start() -> Server:
            at = free_port()
            env = {
                "PYTHONPATH": str(BESIDE),
                "ASTROMESH_DATA_DIR": next(folders),
                "OPENAI_API_KEY": "sk-bench",
            }
            return Server([*subject.argv, str(at)], f"http://127.0.0.1:{at}", env)

        model = Server(
            [sys.executable, "-m", "tests.platform.mock_llm", "--port", str(port)], model_url, {}, -1
        )
        try:
            await model.ready("/stats")
            await measure(start, subject, args)
        finally:
            model.stop()


if __name__ == "__main__":
    asyncio.run(main())
