"""How the throughput of durable runs grows with the processes over one PostgreSQL; what a long queue costs.

    python scripts/bench_fleet.py [--runs 2000] [--processes 1,2,4] [--queued 100000] [--postgres URL]

A run has one call of a model that takes a second, so that processes wait and the processor is idle. A process
that only accepts runs (`--role api`) accepts all of them; then workers with `max_concurrent_runs: 50` start.
The rate is that between the first tenth and the last tenth of the runs. Without --postgres the tests' own
server is started, which does not wait for the disk (fsync off).
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import asyncpg
import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from figures import Figure, show  # noqa: E402 (the folders are not on the path before)

from astromesh.logs import configure_logging  # noqa: E402
from astromesh.plugins import Plugins  # noqa: E402
from astromesh.runtime.engine import AgentRuntime  # noqa: E402
from astromesh.runtime.records import RunRequest  # noqa: E402
from astromesh.testing import ScriptedProvider, plugin_of  # noqa: E402
from astromesh.types import CompletionRequest  # noqa: E402
from tests.platform.postgres import PostgresServer, database_url, execute  # noqa: E402

MODEL_SECONDS, SLOTS, AGENT = 1.0, 50, "waits"
#: runs that are accepted at the same time
AT_ONCE = 64
_ENDED = "SELECT finished_at FROM astromesh.runs WHERE finished_at > 0 ORDER BY finished_at"
_COPIES = """
INSERT INTO astromesh.runs (run_id, tenant, owner, agent, session_id, trace_id, parent, status, durable,
    segment, worker, priority, created_at, queued_at, finished_at, deadline_at, wake_at, input_tokens,
    output_tokens, cached_tokens, cost_usd, estimated, request, manifest, caller, attempts, ordered)
SELECT run_id || n, tenant, owner, agent, session_id || n, trace_id, parent, 'queued', TRUE, 1, '', priority,
    created_at, queued_at, 0, 0, 0, 0, 0, 0, 0, FALSE, request, manifest, caller, '[]', TRUE
FROM (SELECT * FROM astromesh.runs LIMIT 1) one, generate_series(1, $1::int) n
"""


def config(folder: Path, url: str) -> None:
    (folder / "agents").mkdir(parents=True)
    spec = {"model": {"primary": {"provider": "scripted", "model": "slow"}}, "prompts": {"system": "x"}}
    agent = {"apiVersion": "astromesh/v1", "kind": "Agent", "metadata": {"name": AGENT}, "spec": spec}
    (folder / "agents" / f"{AGENT}.agent.yaml").write_text(yaml.safe_dump(agent))
    settings = {"storage": {"url": url}, "limits": {"max_concurrent_runs": SLOTS}}
    runtime = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "spec": settings}
    (folder / "runtime.yaml").write_text(yaml.safe_dump(runtime))


async def says(_: CompletionRequest) -> str:
    await asyncio.sleep(MODEL_SECONDS)
    return "done"


def runtime_of(folder: Path) -> AgentRuntime:
    plugins = Plugins({"providers": {"scripted": plugin_of(ScriptedProvider(says, repeat=True))}})
    return AgentRuntime(folder, data_dir=folder / "data", plugins=plugins, env={})


async def work(folder: Path) -> None:
    """One worker: says `ready`, begins after a line, and ends with its standard input."""
    configure_logging("error", "json")
    runtime = runtime_of(folder)
    await runtime.bootstrap()
    try:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await runtime.durable.start()
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await runtime.close(grace=5.0)


async def accept(folder: Path, count: int) -> None:
    runtime = runtime_of(folder)
    runtime.durable.executes = False
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with gate:
            await runtime.runner.accept(runtime.agent(AGENT), RunRequest("go", f"s-{number}"))

    async with runtime:
        await asyncio.gather(*map(one, range(count)))


@contextmanager
def workers(folder: Path, count: int) -> Iterator[None]:
    argv = [sys.executable, __file__, "--work", str(folder)]
    started = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    try:
        for process in started:
            assert process.stdout
            process.stdout.readline()
        for process in started:
            print("go", file=process.stdin, flush=True)
        yield
    finally:
        for process in started:
            assert process.stdin
            process.stdin.close()
        for process in started:
            process.wait(60)


@contextmanager
def place(server: str) -> Iterator[tuple[Path, str]]:
    """A configuration over an empty database, and the URL of that."""
    name = f"bench_{uuid4().hex}"
    execute(server, f"create database {name}")
    url = database_url(server, name)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary) / "config"
        config(folder, url)
        try:
            yield folder, url
        finally:
            execute(server, f"drop database {name} with (force)")


async def rate_of(url: str, runs: int) -> float:
    """Returns the runs per second between the first tenth and the last tenth."""
    connection = await asyncpg.connect(url)
    try:
        ended: list[asyncpg.Record] = []
        while len(ended) < runs:
            await asyncio.sleep(0.5)
            ended = await connection.fetch(_ENDED)
    finally:
        await connection.close()
    first, last = runs // 10, runs - runs // 10 - 1
    return (last - first) / float(ended[last][0] - ended[first][0])


def measure_processes(server: str, runs: int, processes: list[int]) -> None:
    alone = 0.0
    for count in processes:
        with place(server) as (folder, url):
            asyncio.run(accept(folder, runs))
            with workers(folder, count):
                rate = asyncio.run(rate_of(url, runs))
        alone = alone or rate
        goal = "> 3.5 times one" if count == 4 else ""
        show(Figure("fleet", f"{count} x {SLOTS} runs of a second at once", rate, "runs/s", alone, goal))


async def measure_queue(folder: Path, url: str, queued: int) -> tuple[float, float]:
    """Returns the MiB of so many queued runs, and the milliseconds of a claim among them."""
    await accept(folder, 1)
    connection = await asyncpg.connect(url)
    size = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE 'run%' AND relkind = 'r'"
    before = await connection.fetchval(size)
    await connection.fetch(_COPIES, queued)
    await connection.execute("ANALYZE astromesh.runs")
    mib = float(await connection.fetchval(size) - before) / (1 << 20)
    await connection.close()
    runtime, times = runtime_of(folder), list[float]()
    runtime.durable.executes = False
    async with runtime:
        store = await runtime.durable.open()
        for run_id, segment in await store.overdue(1e9, 100, queued=1e-6):
            started = time.perf_counter()
            await store.claim(run_id, segment, "bench")
            times.append(1000 * (time.perf_counter() - started))
    return mib, sorted(times)[len(times) // 2]


def measure(args: argparse.Namespace, server: str) -> None:
    measure_processes(server, args.runs, [int(one) for one in args.processes.split(",")])
    with place(server) as (folder, url):
        mib, milliseconds = asyncio.run(measure_queue(folder, url, args.queued))
    show(Figure("fleet", f"{args.queued:,} queued runs in PostgreSQL", mib, "MiB", None, "< 200 MiB"))
    show(Figure("fleet", "a claim among them, the median", milliseconds, "ms", None, "< 5 ms"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--processes", default="1,2,4")
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--postgres", default="", metavar="URL")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        asyncio.run(work(Path(args.work)))
    elif args.postgres:
        measure(args, args.postgres)
    else:
        server = PostgresServer()
        server.start()
        try:
            measure(args, server.url)
        finally:
            server.close()


if __name__ == "__main__":
    main()
