"""Measures the server beside the limit, and beside what users would pick instead, in one run.

    python scripts/bench_server.py [--rows plain,full] [--seconds 5] [--peers .venv/peers/bin/python]

Needs `wrk` (Debian package `wrk`) and, for figures that mean something, two cores: the server under test has
the first, the model stand-in and the load the last. Absolute figures mean little on shared machines; the
ratio to the limit (`scripts/beside/limit_app.py`: a bare FastAPI route with one model call), measured a few
seconds apart, is what counts. Rows:

    plain    runs per second, one model call, no memory                      (limit: the same bare call)
    sqlite   the same with persisted conversation, a new session per run
    full     the same with all guardrails too
    tools    runs per second with two tool rounds: three model calls         (limit: a third of plain's)
    stream   tokens per second relayed by SSE, 16 streams of 200 tokens      (limit: the same relay)
    slow     300 runs at once against a model that takes 1 s: seconds, peak memory of the server
    session  milliseconds per turn in one session: turns 281-300 against turns 1-20
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

ROOT = Path(__file__).parents[1]
BESIDE = ROOT / "scripts" / "beside"
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from beside.make_config import main as make_config  # noqa: E402 (the folders are not on the path before)
from figures import Figure, show  # noqa: E402

from tests.platform.processes import free_port  # noqa: E402

ROWS = "plain,sqlite,full,tools,stream,slow,session"
RUNS_PER_SECOND = ("plain", "sqlite", "full", "tools")
#: what each row is, its unit and what is aimed at: the ratio to the limit, or the value
TOLD = {
    "plain": ("plain: one model call, no memory", "runs/s", "ratio ≥ 0.70"),
    "sqlite": (
        "sqlite: the same with a conversation in SQLite, a new session per run",
        "runs/s",
        "ratio ≥ 0.62",
    ),
    "full": ("full: the same with all guardrails too", "runs/s", "ratio ≥ 0.60"),
    "tools": ("tools: two rounds of tools, three model calls", "runs/s", "ratio ≥ 0.90"),
    "stream": ("stream: tokens relayed, 16 streams of 200 at once", "tokens/s", "ratio ≥ 1.0"),
    "slow_s": ("slow: 300 runs at once, a model of 1 s", "s", "≤ 1.2 s"),
    "slow_mib": ("slow: memory at its peak", "MiB", "≤ 110 MiB"),
    "last_ms": ("growth: turns 281–300 of a session beside 1–20", "ms", "ratio ≤ 1.1"),
    "ready_s": ("ready after", "s", "≤ 0.5 s"),
    "idle_mib": ("memory before the first run", "MiB", "≤ 78 MiB"),
}
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


class Subject(NamedTuple):
    """A server that can be measured.

    Args:
        argv: its command; the port is appended.
        rows: those it has agents for.
        route: where an agent's runs are, with {} for its name.
        request: the wrk script that makes them.
        health: a path that answers once it is ready.
        token: what a line of its event stream with a token begins with.
    """

    argv: Sequence[str]
    rows: Sequence[str]
    route: str = "/v1/agents/{}/run"
    request: str = "post.lua"
    health: str = "/health/live"
    token: bytes = b"event: model.delta"


class Server:
    """A process pinned to a core, ready when its health path answers."""

    def __init__(self, argv: Sequence[str], url: str, env: dict[str, str], core: int = 0) -> None:
        self.url = url
        self._log = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115 (open as long as the process)
        self.process = subprocess.Popen(
            pinned(core, argv),
            env={**os.environ, **env},
            cwd=ROOT,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    async def ready(self, path: str) -> float:
        """Seconds until it answered."""
        started = time.monotonic()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
            while time.monotonic() - started < 60 and self.process.poll() is None:
                with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError):
                    async with http.get(self.url + path) as answer:
                        if answer.status == 200:
                            return time.monotonic() - started
                await asyncio.sleep(0.02)
        raise SystemExit(f"the server did not start; its output:\n{self._said()}")

    def _said(self) -> str:
        return Path(self._log.name).read_text()[-2000:]

    def resident(self) -> float:
        """Memory of the process group in MiB."""
        asked = ["ps", "-o", "rss=", "-g", str(self.process.pid)]
        listed = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        return sum(map(int, listed.split())) / 1024

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def pinned(nth: int, argv: Sequence[str]) -> list[str]:
    if shutil.which("taskset") and len(CORES) > 1:
        return ["taskset", "-c", str(CORES[nth]), *argv]
    return list(argv)


def wrk(url: str, seconds: int, request: str) -> float:
    """Answers per second over 16 connections; anything but 2xx ends the benchmark."""
    argv = ["wrk", "-t1", "-c16", f"-d{seconds}s", "--timeout", "20s", "-s", str(BESIDE / request), url]
    ended = subprocess.run(pinned(-1, argv), capture_output=True, text=True, check=False)
    if bad := re.search(r"Non-2xx or 3xx responses: (\d+)", ended.stdout):
        raise SystemExit(f"{url}: {bad.group(1)} answers were not 2xx")
    if bad := re.search(r"Socket errors: (.*)", ended.stdout):
        raise SystemExit(f"{url}: socket errors: {bad.group(1)}")
    if not (rate := re.search(r"Requests/sec:\s+([\d.]+)", ended.stdout)):
        raise SystemExit(f"wrk {url}: {(ended.stderr or ended.stdout).strip()[-300:]}")
    return float(rate.group(1))


async def runs_per_second(server: Server, subject: Subject, agent: str, seconds: int) -> float:
    url = server.url + subject.route.format(agent)
    await asyncio.to_thread(wrk, url, 2, subject.request)
    rate = await asyncio.to_thread(wrk, url, seconds, subject.request)
    # where nothing has ended in the time, the time was too short
    return rate or await asyncio.to_thread(wrk, url, 5 * seconds, subject.request)


async def tokens_per_second(server: Server, subject: Subject, streams: int = 16, rounds: int = 4) -> float:
    url = server.url + subject.route.format("stream")

    async def one(http: aiohttp.ClientSession, n: int) -> int:
        total = 0
        for i in range(rounds):
            body: dict[str, Any] = {"json": {"query": "go", "session_id": f"st-{n}-{i}"}}
            if subject.request == "form.lua":
                body = {"data": {"message": "go", "stream": "true", "session_id": f"st-{n}-{i}"}}
            async with http.post(url, headers={"accept": "text/event-stream"}, **body) as answer:
                got = 0
                async for line in answer.content:
                    got += line.startswith(subject.token)
            if answer.status != 200 or got < 190:
                raise SystemExit(f"{url}: status {answer.status}, {got} of 200 tokens came as events")
            total += got
        return total

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await one(http, 999)
        started = time.monotonic()
        counts = await asyncio.gather(*(one(http, n) for n in range(streams)))
        return sum(counts) / (time.monotonic() - started)


async def slow(server: Server, subject: Subject, runs: int = 300) -> tuple[float, float]:
    """Seconds for that many runs at once, and the most memory meanwhile in MiB."""
    peak, url = 0.0, server.url + subject.route.format("slow")

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, await asyncio.to_thread(server.resident))
            await asyncio.sleep(0.2)

    async def one(http: aiohttp.ClientSession, n: int) -> None:
        async with http.post(url, json={"query": "go", "session_id": f"sl-{n}"}) as answer:
            await answer.read()
            answer.raise_for_status()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await one(http, 10_000)
        watcher = asyncio.create_task(watch())
        started = time.monotonic()
        await asyncio.gather(*(one(http, n) for n in range(runs)))
        took = time.monotonic() - started
        watcher.cancel()
        return took, peak


async def session(server: Server, turns: int = 300) -> tuple[float, float]:
    """Milliseconds of the first and of the last twenty turns of one session."""
    times = []
    async with aiohttp.ClientSession() as http:
        for n in range(turns):
            started = time.perf_counter()
            body = {"query": f"turn {n}", "session_id": "long"}
            async with http.post(f"{server.url}/v1/agents/sqlite/run", json=body) as answer:
                await answer.read()
                answer.raise_for_status()
            times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times[:20]), statistics.median(times[-20:])


async def measure(server: Server, subject: Subject, rows: Sequence[str], seconds: int) -> dict[str, float]:
    got = {"ready_s": await server.ready(subject.health), "idle_mib": server.resident()}
    for row in rows:
        if row not in subject.rows:
            continue
        if row in RUNS_PER_SECOND:
            got[row] = await runs_per_second(server, subject, row, seconds)
        elif row == "stream":
            got[row] = await tokens_per_second(server, subject)
        elif row == "slow":
            got["slow_s"], got["slow_mib"] = await slow(server, subject)
        elif row == "session":
            got["first_ms"], got["last_ms"] = await session(server)
    return got


def subjects(config: str, peers: str) -> dict[str, Subject]:
    served = [str(Path(sys.executable).parent / "astromesh"), "serve", "--config", config, "--port"]
    uvicorn = ["-m", "uvicorn", "--log-level", "warning", "--no-access-log"]
    found = {
        "limit": Subject([sys.executable, *uvicorn, "limit_app:app", "--port"], ("plain", "stream", "slow")),
        "astromesh": Subject(served, ROWS.split(",")),
    }
    if peers:
        rows = ("plain", "tools", "stream")
        found["LangGraph"] = Subject([peers, *uvicorn, "langgraph_app:app", "--port"], rows)
        found["AgentOS"] = Subject(
            [peers, *uvicorn, "agentos_app:app", "--port"],
            rows,
            "/agents/{}/runs",
            "form.lua",
            "/health",
            b"event: RunContent\n",
        )
    return found


def report(part: str, got: dict[str, float], limit: dict[str, float], *, goals: bool) -> None:
    """Shows what was measured of one server beside the same of the limit."""
    plain = limit.get("plain")
    bounds = {**limit, "sqlite": plain, "full": plain, "tools": plain / 3 if plain else None}
    bounds["last_ms"] = got.get("first_ms")
    for key, (name, unit, goal) in TOLD.items():
        if key in got:
            show(Figure(part, name, got[key], unit, bounds.get(key), goal if goals else ""))


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--peers", default="", metavar="PYTHON", help="of requirements/peers.txt")
    args = parser.parse_args()
    rows = args.rows.split(",")
    if not shutil.which("wrk"):
        left_out = [row for row in rows if row in RUNS_PER_SECOND]
        print(f"wrk is missing, so {', '.join(left_out)} are left out: apt-get install wrk", file=sys.stderr)
        rows = [row for row in rows if row not in left_out]
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit("ended by a signal")
    )  # so that no server is left behind
    if len(CORES) > 1:
        os.sched_setaffinity(0, {CORES[-1]})
    port = free_port()
    model_url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        config = work + "/config"
        make_config(config, model_url + "/v1")
        env = {
            "MODEL_URL": model_url + "/v1",
            "PYTHONPATH": str(BESIDE),
            "ASTROMESH_DATA_DIR": work + "/data",
            "OPENAI_API_KEY": "sk-bench",
        }
        stand_in = [sys.executable, "-m", "tests.platform.mock_llm", "--port", str(port)]
        model = Server(stand_in, model_url, {}, core=-1)
        try:
            await model.ready("/stats")
            limit: dict[str, float] = {}
            for name, subject in subjects(config, args.peers).items():
                at = free_port()
                server = Server([*subject.argv, str(at)], f"http://127.0.0.1:{at}", env)
                try:
                    got = await measure(server, subject, rows, args.seconds)
                finally:
                    server.stop()
                if name == "limit":
                    limit = got
                else:
                    report(name if args.peers else "server", got, limit, goals=not args.peers)
        finally:
            model.stop()


if __name__ == "__main__":
    asyncio.run(main())
