"""A rolling update: servers of the last release and of this version over one PostgreSQL, under load.

    python scripts/upgrades.py [--from COMMIT] [--seconds 8]

The wheel of the last release is built from the history: from the last tag, or from the last commit of
another `__version__`, and installed into a folder of its own. Its server begins alone. Then one of this
version starts beside it and migrates the database. Then the old one ends (SIGTERM), and the new one
goes on. Meanwhile runs of shared sessions come to every server in turn. Each accepted run must complete
once, in the order of its session, and no request may fail. Ends with 1 where that does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from tests.platform.astromesh import CHILD, ServerProcess  # noqa: E402 (the folders are not on the path before)
from tests.platform.model import MockModel  # noqa: E402
from tests.platform.postgres import PostgresServer, database_url, execute  # noqa: E402

SESSIONS, PER_SECOND = 6, 12
#: seconds in which everything that was accepted must have ended
PATIENCE = 120.0
_UV = Path(sys.executable).parent / "uv"


def git(*words: str) -> str:
    found = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return found.stdout.strip()


def last_release() -> str:
    """Returns the commit of the last tag, or the last one before the version changed."""
    if tags := git("tag", "--merged", "HEAD", "--sort=-creatordate"):
        return tags.split()[0]
    changed = git("log", "-1", "--format=%H", "-G__version__ =", "--", "astromesh/__init__.py")
    try:
        return git("rev-parse", f"{changed}~1")
    except subprocess.CalledProcessError:
        raise SystemExit("The history has no earlier version. Name one: --from COMMIT.") from None


def installed(commit: str, folder: Path) -> Path:
    """Builds the wheel of a commit. Returns the folder with the package, without its dependencies."""
    source, target = folder / "source", folder / "package"
    source.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
    vendor = Path("astromesh/console/vendor")
    if (ROOT / vendor).is_dir():  # libraries of the console, which are not committed
        shutil.copytree(ROOT / vendor, source / vendor, dirs_exist_ok=True)
    wheels = folder / "wheels"
    argv = [_UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--out-dir", wheels, source]
    subprocess.run([*map(str, argv), "--python", sys.executable], check=True)
    (wheel,) = wheels.glob("*.whl")
    argv = [_UV, "pip", "install", "--quiet", "--no-deps", "--target", target, wheel]
    subprocess.run([*map(str, argv)], check=True)
    return target


def config(folder: Path, url: str, model: str) -> Path:
    (folder / "agents").mkdir(parents=True)
    primary = {"provider": "openai", "model": "mock+latency=150", "endpoint": model, "api_key": "sk-x"}
    spec = {
        "model": {"primary": primary},
        "prompts": {"system": "You answer."},
        "memory": {"conversational": {"backend": "postgres"}},
    }
    agent = {"apiVersion": "astromesh/v1", "kind": "Agent", "metadata": {"name": "helper"}, "spec": spec}
    (folder / "agents" / "helper.agent.yaml").write_text(yaml.safe_dump(agent))
    runtime = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig", "spec": {"storage": {"url": url}}}
    (folder / "runtime.yaml").write_text(yaml.safe_dump(runtime))
    return folder


class Load:
    """Runs that come to all servers in turn: two durable ones, then a plain one."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self.servers: list[str] = []
        self.accepted: dict[str, list[str]] = defaultdict(list)
        self.answers: Counter[str] = Counter()
        self.faults: list[str] = []
        self._going: set[asyncio.Task[None]] = set()
        self.stopped = asyncio.Event()

    async def go(self) -> None:
        number = 0
        while not self.stopped.is_set():
            number += 1
            session = f"s{number % SESSIONS}"
            server = self.servers[number % len(self.servers)]
            if number % 3:
                await self._durable(server, session, number)
            else:
                task = asyncio.create_task(self._plain(server, f"p{number}"))
                self._going.add(task)
                task.add_done_callback(self._going.discard)
            await asyncio.sleep(1 / PER_SECOND)
        await asyncio.gather(*self._going)

    async def _durable(self, server: str, session: str, number: int) -> None:
        body = {"query": f"question {number}", "session_id": session}
        status, answer = await self._post(f"{server}/v1/agents/helper/runs", body)
        if status == 202:
            self.accepted[session].append(answer["run_id"])
            self.answers["durable, accepted"] += 1
        else:
            self.faults.append(f"durable run: {status} {answer}")

    async def _plain(self, server: str, session: str) -> None:
        body = {"query": "go", "session_id": session}
        status, answer = await self._post(f"{server}/v1/agents/helper/run", body)
        if status == 200:
            self.answers["plain, answered"] += 1
        else:
            self.faults.append(f"plain run: {status} {answer}")

    async def _post(self, url: str, body: dict[str, Any]) -> tuple[int, Any]:
        try:
            async with self._http.post(url, json=body) as response:
                return response.status, await response.json()
        except aiohttp.ClientError as error:
            return 0, repr(error)

    async def get(self, url: str) -> Any:
        async with self._http.get(url) as response:
            return await response.json()


async def ended(load: Load, server: str) -> list[str]:
    """Waits for all accepted runs; returns what is wrong with them."""
    until, faults = time.monotonic() + PATIENCE, list[str]()
    for session, run_ids in load.accepted.items():
        times = list[str]()
        for run_id in run_ids:
            run = await load.get(f"{server}/v1/runs/{run_id}")
            while run.get("status") not in ("completed", "failed", "cancelled") and time.monotonic() < until:
                await asyncio.sleep(0.2)
                run = await load.get(f"{server}/v1/runs/{run_id}")
            if run.get("status") != "completed":
                faults.append(f"{run_id} of {session}: {run}")
                continue
            times.append(run["finished_at"])
        if times != sorted(times):
            faults.append(f"the runs of {session} ended in another order than they came")
        page = await load.get(f"{server}/v1/agents/helper/sessions/{session}?limit=200")
        asked = sum(turn["role"] == "user" for turn in page["turns"])
        if asked != len(run_ids):
            faults.append(f"{session} has {asked} questions, and {len(run_ids)} runs were accepted")
    return faults


@contextmanager
def server(home: Path, folder: Path, package: Path) -> Iterator[ServerProcess]:
    home.mkdir()
    process = ServerProcess(home, folder, env={"PYTHONPATH": f"{CHILD}:{package}"})
    process.start()
    try:
        yield process
    finally:
        process.close()


async def update(place: Path, folder: Path, old_package: Path, seconds: float) -> list[str]:
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        load = Load(http)
        with server(place / "old", folder, old_package) as old:
            load.servers = [old.url]
            working = asyncio.create_task(load.go())
            await asyncio.sleep(seconds)
            with server(place / "new", folder, ROOT) as new:
                versions = [(await load.get(f"{one.url}/health/live"))["version"] for one in (old, new)]
                load.servers = [old.url, new.url]
                await asyncio.sleep(seconds)
                load.servers = [new.url]  # as a balancer does before a process ends
                await asyncio.sleep(0.5)
                old.signal(signal.SIGTERM)
                await asyncio.to_thread(old.wait, 60)
                await asyncio.sleep(seconds)
                load.stopped.set()
                await working
                faults = load.faults + await ended(load, new.url)
    print(f"{' → '.join(versions)}: {dict(load.answers)}, {len(faults)} faults")
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="commit", default="", metavar="COMMIT")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each of the three phases")
    args = parser.parse_args()
    database = PostgresServer()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        place = Path(temporary)
        model = MockModel(place)
        package = installed(args.commit or last_release(), place)
        database.start()
        model.start()
        try:
            execute(database.url, "create database upgrades")
            folder = config(place / "config", database_url(database.url, "upgrades"), model.url)
            faults = asyncio.run(update(place, folder, package, args.seconds))
        finally:
            model.close()
            database.close()
    for fault in faults[:20]:
        print(fault)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
