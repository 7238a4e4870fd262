"""What one plain run costs, step by step: instructions of the server, and each step's share.

    python scripts/bench_steps.py [--runs 400] [--only-shares]

The instructions are those of `astromesh serve` and of the limit (`scripts/beside/limit_app.py`: a bare route
of FastAPI with one model call) under callgrind, which counts the same on a busy machine. Sixteen runs are
made at once, and what an idle server executes in the same time is subtracted, because callgrind makes a run
so slow that timers tick many times during it. They need Debian's package `valgrind`; without it, or with
--only-shares, they are left out. The shares are of processor time:
the ASGI application is called in this process, without the server around it, and what functions of C take
counts for the step that calls them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import os
import pstats
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import aiohttp  # noqa: E402 (the folders are not on the path before)
from beside.make_config import main as make_config  # noqa: E402
from figures import Figure, show  # noqa: E402
from trace_run import application, ask, stand_in  # noqa: E402

from astromesh.logs import configure_logging  # noqa: E402

#: beginnings of file names, the first that fits -> step
STEPS = (
    ("astromesh/api/middleware/", "limits of requests and the head of the response"),
    ("astromesh/api/", "authorisation, body and answer of the route"),
    ("starlette/", "authorisation, body and answer of the route"),
    ("pydantic/", "authorisation, body and answer of the route"),
    ("astromesh/runtime/pipeline", "steps 3 to 6 and 10 to 12: rules, memory, prompt, tools, answer"),
    ("astromesh/core/prompt_engine", "steps 3 to 6 and 10 to 12: rules, memory, prompt, tools, answer"),
    ("astromesh/runtime/", "start of the run, and what wraps it"),
    ("astromesh/access/", "start of the run, and what wraps it"),
    ("astromesh/durable/", "start of the run, and what wraps it"),
    ("astromesh/orchestration/", "step 7: the pattern and its graph"),
    ("astromesh/graph/", "step 7: the pattern and its graph"),
    ("astromesh/core/", "step 8: the model router"),
    ("astromesh/providers/", "step 8: the wire format of the provider"),
    ("astromesh/net/", "step 8: the HTTP client"),
    ("aiohttp/", "step 8: the HTTP client"),
    ("yarl/", "step 8: the HTTP client"),
    ("multidict/", "step 8: the HTTP client"),
    ("astromesh/telemetry/", "events, metrics, trace and ids"),
    ("astromesh/logs", "log line"),
    ("structlog/", "log line"),
)
REST = "event loop and the rest"
AT_ONCE = 16
#: a place in a profile: file, line, function
Place = tuple[str, int, str]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--only-shares", action="store_true")
    args = parser.parse_args()
    if shutil.which("valgrind") and not args.only_shares:
        own, limit = asyncio.run(instructions(args.runs))
        show(Figure("steps", "instructions of one plain run", own, "million", limit, "≤ 1.45 million"))
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
        percent = asyncio.run(shares(3 * args.runs))
    for step, share in percent.most_common():
        show(Figure("steps", f"share: {step}", share, "%"))


# -- shares --------------------------------------------------------------------------------------------------


async def shares(runs: int) -> Counter[str]:
    """Returns the percent of processor time that each step takes, with log lines that go nowhere."""
    configure_logging("info", "json")
    profile = cProfile.Profile(time.process_time, subcalls=True)
    async with application(log_level="info") as app:
        for _ in range(50):
            await asyncio.create_task(ask(app, "few"))
        for _ in range(runs):
            profile.enable()
            await asyncio.create_task(ask(app, "few"))
            profile.disable()
    taken = Counter[str]()
    for step, seconds in steps_of(pstats.Stats(profile)):
        taken[step] += seconds
    whole = sum(taken.values())
    return Counter({step: 100 * seconds / whole for step, seconds in taken.items()})


def steps_of(profile: pstats.Stats) -> Iterator[tuple[str, float]]:
    """Yields the own time of every function with its step. That of a C function counts for its callers."""
    for place, (_, _, own, _, callers) in profile.stats.items():  # type: ignore[attr-defined]
        if place[0] != "~":
            if (step := step_of(place)) is not None:
                yield step, own
            continue
        for caller, (_, _, seconds, _) in callers.items():
            if (step := step_of(caller)) is not None:
                yield step, seconds


def step_of(place: Place) -> str | None:
    """Returns the step of a function, None for what measures and for the stand-in."""
    file = place[0]
    if "/scripts/" in file or "aiohttp/web" in file:
        return None
    path = file.rpartition("site-packages/")[2].removeprefix(f"{ROOT}/")
    return next((step for begins, step in STEPS if path.startswith(begins)), REST)


# -- instructions --------------------------------------------------------------------------------------------


async def instructions(runs: int) -> tuple[float, float]:
    """Returns millions of instructions of one plain run, and of the limit."""
    python = [sys.executable, "-m"]
    with stand_in() as port, tempfile.TemporaryDirectory() as folder:
        model = f"http://127.0.0.1:{port}/v1"
        make_config(f"{folder}/config", model)
        serve = [*python, "astromesh", "serve", "--config", f"{folder}/config", "--port"]
        limit = [*python, "uvicorn", "--log-level", "warning", "--app-dir"]
        limit += [str(ROOT / "scripts/beside"), "limit_app:app", "--port"]
        own = await counted(serve, runs, folder, {})
        return own, await counted(limit, runs, folder, {"MODEL_URL": model})


async def counted(argv: list[str], runs: int, folder: str, env: Mapping[str, str]) -> float:
    """Returns millions of instructions that each of so many runs takes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dump = Path(folder, f"callgrind.{port}")
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={dump}", *argv, str(port)]
    server = subprocess.Popen(  # noqa: ASYNC220 (it starts once)
        valgrind, cwd=folder, env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession() as http:
            await ready(http, url, server)
            await make_runs(http, url, 100)
            control(server.pid, "--zero")
            started = time.monotonic()
            await make_runs(http, url, runs)
            took = time.monotonic() - started
            busy = dumped(server.pid, dump)
            await asyncio.sleep(took)
            idle = dumped(server.pid, dump)
        return (busy - idle) / runs / 1e6
    finally:
        server.kill()
        server.wait()


def dumped(pid: int, dump: Path) -> int:
    """Returns the instructions since the last dump of callgrind, which numbers them."""
    control(pid, "--dump")
    newest = max(dump.parent.glob(f"{dump.name}.*[0-9]"), key=lambda file: file.stat().st_mtime)
    totals = re.search(r"^totals: (\d+)", newest.read_text(), re.MULTILINE)
    assert totals is not None
    return int(totals[1])


def control(pid: int, what: str) -> None:
    subprocess.run(["callgrind_control", what, str(pid)], check=True, stdout=subprocess.DEVNULL)


async def ready(http: aiohttp.ClientSession, url: str, server: subprocess.Popen[Any]) -> None:
    while server.poll() is None:
        with contextlib.suppress(aiohttp.ClientError):
            async with http.get(f"{url}/health/live") as answer:
                if answer.status == 200:
                    return
        await asyncio.sleep(2)
    raise SystemExit("the server under callgrind did not start")


async def make_runs(http: aiohttp.ClientSession, url: str, runs: int) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def make_run(n: int) -> None:
        body = {"query": f"few {n}", "session_id": f"s{n}"}
        async with gate, http.post(f"{url}/v1/agents/plain/run", json=body) as answer:
            if answer.status != 200:
                raise SystemExit(f"{url} answered {answer.status}: {await answer.text()}")
            await answer.read()

    await asyncio.gather(*map(make_run, range(runs)))


if __name__ == "__main__":
    main()
