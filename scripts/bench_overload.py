"""Goodput of a server that is asked for more than it can do, and what a noisy tenant takes from another one.

    python scripts/bench_overload.py [--seconds 10] [--factors 1,2,3]

Requests arrive at fixed times, whether earlier ones are answered or not. Good is an answer with status 200
within 15 seconds; the capacity is the best rate of good answers that any number of closed loops reaches.
One server waits for its model (half a second, 50 requests at once). One has a model that takes ten ms of the
processor, which is the limit then; its good answers are counted per second that its process has had a
processor, so that other programs of the machine do not count. A quiet tenant asks for a tenth of the capacity
of the first server while a noisy one asks for three times of it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from figures import Figure, show  # noqa: E402 (the folders are not on the path before)

from astromesh.api.auth import Auth  # noqa: E402
from astromesh.api.middleware.limits import ConcurrencyLimits  # noqa: E402
from astromesh.logs import configure_logging  # noqa: E402
from astromesh.testing import ScriptedProvider  # noqa: E402
from astromesh.types import CallerContext, CompletionRequest  # noqa: E402
from tests.integration.agents_folder import manifest, runtime_of, served, write  # noqa: E402

DEADLINE_SECONDS, GOAL = 15.0, 0.9
#: seconds of the model and requests at once of the server that waits
MODEL_SECONDS, ROOM = 0.5, 50
#: seconds of the processor that the other model takes; closed loops that find the capacity then
BUSY_SECONDS, LOOPS = 0.01, (8, 32)
QUIET_SHARE, NOISY_SHARE = 0.1, 3.0


class ByName:
    """Everybody is the tenant that the token names."""

    async def authenticate(self, token: str) -> CallerContext:
        return CallerContext("ann", token, scopes=frozenset({"admin"}))


async def serve(folder: Path, seconds: float, busy: float, room: int) -> None:
    configure_logging("error", "json")

    async def says(_: CompletionRequest) -> str:
        await asyncio.sleep(seconds)
        until = time.thread_time() + busy
        while time.thread_time() < until:
            pass
        return "done"

    runtime = runtime_of(write(folder, manifest()), ScriptedProvider(says, repeat=True))
    async with served(runtime, Auth((ByName(),)), ConcurrencyLimits(requests=room)) as address:
        print(address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def server(seconds: float, busy: float, room: int) -> AsyncIterator[tuple[str, int]]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        argv = [sys.executable, __file__, "--serve", folder, str(seconds), str(busy), str(room)]
        process = subprocess.Popen(  # noqa: ASYNC220 (it starts once)
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin
        assert process.stdout
        try:
            yield f"http://{(await asyncio.to_thread(process.stdout.readline)).strip()}", process.pid
        finally:
            process.stdin.close()
            process.wait(30)


class Outcome(NamedTuple):
    """Args: good: per second. rest: how many other answers, by status; 0 for none in time."""

    good: float
    sent: int
    rest: Counter[int]

    @property
    def share(self) -> float:
        return 1 - sum(self.rest.values()) / self.sent if self.sent else 0.0


class Client:
    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http, self._url, self._count = http, f"{url}/v1/agents/helper/run", 0

    async def ask(self, tenant: str) -> int:
        self._count += 1
        body, headers = (
            {"query": "go", "session_id": f"s{self._count}"},
            {"authorization": f"Bearer {tenant}"},
        )
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                async with self._http.post(self._url, json=body, headers=headers) as answer:
                    await answer.read()
                    return answer.status
        except (TimeoutError, aiohttp.ClientError):
            return 0

    async def closed(self, loops: int, seconds: float) -> float:
        """Returns the good answers per second to so many callers, each of which waits for its answer."""
        until, good = time.monotonic() + seconds, 0

        async def loop() -> None:
            nonlocal good
            while time.monotonic() < until:
                status = await self.ask("acme")
                good += status == 200

        await asyncio.gather(*(loop() for _ in range(loops)))
        return good / seconds

    async def open(self, rate: float, seconds: float, tenant: str = "acme") -> Outcome:
        """Sends so many requests per second, whatever comes of them."""
        started, tasks = time.monotonic(), list[asyncio.Task[int]]()
        for number in range(int(rate * seconds)):
            if (ahead := started + number / rate - time.monotonic()) > 0:
                await asyncio.sleep(ahead)
            tasks.append(asyncio.create_task(self.ask(tenant)))
        statuses = Counter(await asyncio.gather(*tasks))
        good = statuses.pop(200, 0)
        return Outcome(good / seconds, len(tasks), statuses)


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure_factors(
    client: Client, what: str, capacity: float, args: argparse.Namespace, busy: int = 0
) -> None:
    """Args: busy: the process whose processor time counts instead of the time."""
    goods = list[float]()
    for factor in (float(one) for one in args.factors.split(",")):
        used = processor_seconds(busy) if busy else 0.0
        outcome = await client.open(factor * capacity, args.seconds)
        seconds = processor_seconds(busy) - used if busy else args.seconds
        outcome = outcome._replace(good=outcome.good * args.seconds / seconds)
        goods.append(outcome.good)
        best, goal = max(goods), f"> {GOAL:.2f} of best" if factor == 3.0 else ""
        name = f"{what}, {factor:g} x capacity: good"
        show(Figure("overload", name, outcome.good, "answers/s", best, goal))


async def measure_tenants(client: Client, capacity: float, seconds: float) -> None:
    await client.open(QUIET_SHARE * capacity, 1.0, "quiet")
    noisy, quiet = await asyncio.gather(
        client.open(NOISY_SHARE * capacity, seconds, "noisy"),
        client.open(QUIET_SHARE * capacity, seconds, "quiet"),
    )
    name = "requests of a quiet tenant that are served"
    show(Figure("overload", name, 100 * quiet.share, "%", 100.0, "> 90 %"))
    show(Figure("overload", "and of a noisy one, 3 x capacity", 100 * noisy.share, "%", 100.0))


async def measure(args: argparse.Namespace) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        async with server(MODEL_SECONDS, 0.0, ROOM) as (url, _):
            client, capacity = Client(http, url), ROOM / MODEL_SECONDS
            await client.closed(ROOM, 2.0)
            await measure_factors(client, "a model of half a second", capacity, args)
            await measure_tenants(client, capacity, args.seconds)
        async with server(0.0, BUSY_SECONDS, 1_000) as (url, pid):
            client = Client(http, url)
            await client.closed(8, 2.0)
            rates = [await client.closed(loops, args.seconds / 2) for loops in LOOPS]
            show(Figure("overload", "capacity of the processor, closed loops", max(rates), "answers/s"))
            await measure_factors(client, "a model of 10 ms of processor", max(rates), args, pid)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--factors", default="1,2,3")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        folder, seconds, busy, room = args.serve
        asyncio.run(serve(Path(folder), float(seconds), float(busy), int(room)))
    else:
        asyncio.run(measure(args))


if __name__ == "__main__":
    main()
