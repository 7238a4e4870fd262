"""What durable runs cost: runs per second and processor time by store; memory of those that wait.

    python scripts/bench_durable.py [--runs 300] [--processes 1,2] [--waiting 10000] [--postgres URL]

A run has three steps that are recorded each: a model call that asks for a tool, the tool, a model call that
answers. The model and the tool answer at once, so that a figure holds the runtime and the store alone. Every
process accepts its runs and works them off, over one store for all. Without --postgres the tests' own server
is started, which does not wait for the disk (fsync off). The store `restate` is PostgreSQL with a Restate
server that places the runs. The milliseconds of a run are those from its acceptance to its end while nothing
else runs. SQLite syncs what was promised; the store `sqlite-normal` does not
(`storage.sqlite.synchronous: normal`). The first row has the disk's own syncs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from uuid import uuid4

import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from figures import Figure, show  # noqa: E402 (the folders are not on the path before)

from astromesh.logs import configure_logging  # noqa: E402
from astromesh.plugins import Plugins  # noqa: E402
from astromesh.runtime.engine import AgentRuntime  # noqa: E402
from astromesh.runtime.records import RunRequest  # noqa: E402
from astromesh.testing import ScriptedProvider, plugin_of  # noqa: E402
from astromesh.types import CompletionRequest, ToolCall  # noqa: E402
from tests.platform.postgres import PostgresServer, database_url, execute  # noqa: E402
from tests.platform.processes import free_port  # noqa: E402
from tests.platform.restate import RestateServer  # noqa: E402

OPS = "def lookup(query: str) -> str:\n    return f'found {query}'\n"
#: by store and processes; the limit is one process
GOALS = {
    ("postgres", 1): "≥ 700 runs/s",
    ("postgres", 2): "ratio ≥ 1.8",
    ("sqlite", 1): "≥ 800 runs/s",
}
SETTLED = ("completed", "failed", "cancelled", "waiting")
#: runs that each process accepts at once, and runs of which each begins when the one before has ended
AT_ONCE, ONE_BY_ONE = 64, 30


def config(folder: Path, spec_of_runtime: Mapping[str, object]) -> None:
    """Two agents with the tool `lookup`; a person approves the calls of one of them.

    Args:
        spec_of_runtime: of runtime.yaml.
    """
    (folder / "agents").mkdir(parents=True)
    (folder / "bench_lookup.py").write_text(OPS)
    for name, approval in (("steps", "none"), ("asks", "required")):
        tool = {"name": "lookup", "type": "internal", "function": "bench_lookup:lookup", "effect": "read"}
        spec = {
            "model": {"primary": {"provider": "scripted", "model": "instant"}},
            "prompts": {"system": "You are {{ agent_name }}."},
            "tools": [{**tool, "approval": approval}],
        }
        head = {"apiVersion": "astromesh/v1", "kind": "Agent", "metadata": {"name": name}}
        (folder / "agents" / f"{name}.agent.yaml").write_text(yaml.safe_dump({**head, "spec": spec}))
    runtime = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "spec": dict(spec_of_runtime)}
    (folder / "runtime.yaml").write_text(yaml.safe_dump(runtime))


def says(request: CompletionRequest) -> str | list[ToolCall]:
    if request.messages[-1].role == "tool":
        return "done"
    return [ToolCall("call_1", "lookup", '{"query": "x"}')]


async def settle(runtime: AgentRuntime, agent: str, count: int) -> None:
    """Accepts runs and returns when all have come to rest, in whatever process that was."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def accepted(n: int) -> str:
        async with gate:
            request = RunRequest("go", f"s-{os.getpid()}-{agent}-{n}")
            return (await runtime.runner.accept(runtime.agent(agent), request)).run_id

    for run_id in await asyncio.gather(*(accepted(n) for n in range(count))):
        row = await runtime.durable.store.get(run_id)
        while row is None or row.status not in SETTLED:
            await asyncio.sleep(0.02)
            row = await runtime.durable.store.get(run_id)
        if row.status not in ("completed", "waiting"):
            raise SystemExit(f"a run is {row.status}: {row.error}")


async def one_by_one(runtime: AgentRuntime) -> float:
    """Median milliseconds from the acceptance of a run to its end."""
    took = []
    for n in range(ONE_BY_ONE):
        began = time.perf_counter()
        row = await runtime.runner.accept(
            runtime.agent("steps"), RunRequest("go", f"s-{os.getpid()}-one-{n}")
        )
        while row.status != "completed":
            await asyncio.sleep(0.001)
            row = await runtime.durable.store.get(row.run_id) or row
        took.append(time.perf_counter() - began)
    return 1000 * median(took)


def resident() -> float:
    """KiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1024


async def work(folder: Path, agent: str, runs: int) -> None:
    """One process: says `ready`, waits for a line.

    Prints seconds, those of processor, KiB that stayed, and milliseconds of a run alone.
    """
    configure_logging("info", "json")
    model = ScriptedProvider(says, repeat=True)
    runtime = AgentRuntime(
        folder,
        data_dir=folder / "data",
        plugins=Plugins({"providers": {"scripted": plugin_of(model)}}),
        env={},
    )
    await runtime.bootstrap()
    try:
        await settle(runtime, agent, 20)
        alone = await one_by_one(runtime) if agent == "steps" else 0.0
        model.requests.clear()
        gc.collect()
        before = resident()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        # of those that are to wait a few at once: what is under way together is not what waits
        most = runs if agent == "steps" else AT_ONCE
        started, busy = time.perf_counter(), time.process_time()
        for first in range(0, runs, most):
            await settle(runtime, agent, min(most, runs - first))
        seconds, busy = time.perf_counter() - started, time.process_time() - busy
        model.requests.clear()
        gc.collect()
        print(seconds, busy, resident() - before, alone, flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    finally:
        await runtime.close(grace=5.0)


def together(folder: Path, agent: str, runs: int, processes: int) -> tuple[float, float, float, float]:
    """Seconds of the slowest process; of the first, those of processor, KiB that stayed, ms of a run alone.

    All begin at once.
    """
    argv = [sys.executable, __file__, "--work", str(folder), "--agent", agent, "--runs", str(runs)]
    log = (folder / "log").open("ab")  # what the processes say goes wrong
    started = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        for _ in range(processes)
    ]
    try:
        for process in started:
            assert process.stdout
            if process.stdout.readline().strip() != "ready":
                tail = (folder / "log").read_text()[-2000:]
                raise SystemExit(f"a process ended before it was ready; the log ends with\n{tail}")
        for process in started:
            print("go", file=process.stdin, flush=True)
        said = [tuple(map(float, p.stdout.readline().split())) for p in started if p.stdout]
        for process in started:
            print("end", file=process.stdin, flush=True)
            process.wait(30)
    finally:
        for process in started:
            process.kill()
            process.wait()
        log.close()
    return max(seconds for seconds, *_ in said), said[0][1], said[0][2], said[0][3]


@contextmanager
def place(store: str, server: str, restate: RestateServer | None = None) -> Iterator[Path]:
    """A configuration over an empty store."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder, url = Path(temporary) / "config", ""
        storage: dict[str, object] = {}
        spec: dict[str, object] = {"storage": storage}
        if store in ("postgres", "restate"):
            name = f"bench_{uuid4().hex}"
            execute(server, f"create database {name}")
            storage["url"] = url = database_url(server, name)
        elif store == "sqlite-normal":
            storage["sqlite"] = {"synchronous": "normal"}
        if restate:
            own = {"listen": f"127.0.0.1:{free_port()}", "admin_url": restate.admin_url}
            spec["durable"] = {"backend": "restate", "url": restate.url, "restate": own}
        config(folder, spec)
        try:
            yield folder
        finally:
            if url:
                execute(server, f"drop database {name} with (force)")


def syncs_per_second() -> float:
    """How often the disk of the temporary folder syncs a page that was appended, in one second."""
    with tempfile.TemporaryFile(buffering=0) as file:
        ends, count = time.perf_counter() + 1.0, 0
        while time.perf_counter() < ends:
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            count += 1
    return float(count)


def measure(args: argparse.Namespace, url: str) -> None:
    show(Figure("durable", "syncs of the disk alone, one after the other", syncs_per_second(), "syncs/s"))
    for store in args.stores.split(","):
        first = 0.0
        for processes in map(int, args.processes.split(",")):
            with ExitStack() as opened:
                restate = opened.enter_context(closing(RestateServer())) if store == "restate" else None
                if restate:
                    restate.start()
                folder = opened.enter_context(place(store, url, restate))
                seconds, busy, _, alone = together(folder, "steps", args.runs, processes)
            rate = args.runs * processes / seconds
            first = first or rate
            plural = "processes" if processes > 1 else "process"
            what = f"{store}, three steps, {processes} {plural}"
            show(Figure("durable", what, rate, "runs/s", first, GOALS.get((store, processes), "")))
            show(Figure("durable", f"{what}: processor time a run", 1000 * busy / args.runs, "ms"))
            show(Figure("durable", f"{what}: a run alone, accepted to ended", alone, "ms"))
    with place("sqlite", url) as folder:
        seconds, _, kib, _ = together(folder, "asks", args.waiting, 1)
    show(Figure("durable", f"sqlite, {args.waiting:,} runs come to wait for a person", seconds, "s"))
    what = f"memory of the process for {args.waiting:,} that wait"
    show(Figure("durable", what, kib / 1024, "MiB", None, "≤ 20 MiB for 10,000"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=300, help="of each process")
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--stores", default="sqlite,sqlite-normal,postgres,restate")
    parser.add_argument("--postgres", default="", metavar="URL")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    parser.add_argument("--agent", default="steps", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        asyncio.run(work(Path(args.work), args.agent, args.runs))
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
