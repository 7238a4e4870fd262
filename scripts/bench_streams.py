"""What streaming costs: time to the first token over the model's own, memory of an idle WebSocket.

Starts the model stand-in and `astromesh serve` as processes. Times to the first token are medians, of the
model and of an agent on it; what the server adds is the median over rounds of the difference.

    python scripts/bench_streams.py [--streams 16] [--rounds 20] [--sockets 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from figures import Figure, show  # noqa: E402 (the folders are not on the path before)

from tests.platform.astromesh import ServerProcess  # noqa: E402
from tests.platform.model import MockModel  # noqa: E402

MODEL = "mock+tokens=20+latency=100+gap=5"
AGENT = """apiVersion: astromesh/v1
kind: Agent
metadata: {{name: bench}}
spec:
  model: {{primary: {{provider: openai, model: "{model}", endpoint: "{url}", api_key: sk-bench}}}}
  prompts: {{system: "You are {{{{ agent_name }}}}."}}
"""
PAGE = resource.getpagesize()


async def first_token(http: aiohttp.ClientSession, url: str, body: dict[str, Any], mark: bytes) -> float:
    """Milliseconds until a line with `mark` and text arrives."""
    started = time.perf_counter()
    first = 0.0
    async with http.post(url, json=body, headers={"accept": "text/event-stream"}) as answer:
        async for line in answer.content:
            if not first and mark in line:
                first = (time.perf_counter() - started) * 1000
    if not first:
        raise SystemExit(f"{url} sent no token")
    return first


async def median_of(http: aiohttp.ClientSession, streams: int, to_agent: str, to_model: str) -> float:
    """Of that many streams at once, to the agent if one is named, else to the model."""

    async def one(n: int) -> float:
        await asyncio.sleep(n * 0.007)  # clients do not come in one tick
        if to_agent:
            body = {"query": "go", "session_id": f"s{n}"}
            return await first_token(http, f"{to_agent}/v1/agents/bench/run", body, b'"content":')
        messages = [{"role": "user", "content": "go"}]
        chat = {"model": MODEL, "messages": messages, "stream": True}
        return await first_token(http, f"{to_model}/chat/completions", chat, b'"content":"the')

    return statistics.median(await asyncio.gather(*(one(n) for n in range(streams))))


async def first_tokens(server: ServerProcess, model: MockModel, streams: int, rounds: int) -> None:
    plain, served = [], []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        for n in range(rounds + 2):
            pair = (
                await median_of(http, streams, "", model.url),
                await median_of(http, streams, server.url, ""),
            )
            if n >= 2:  # the first rounds open connections
                plain.append(pair[0])
                served.append(pair[1])
    model, server_too = statistics.median(plain), statistics.median(served)
    show(Figure("streams", f"time to the first token, {streams} streams", server_too, "ms", model))
    added = [after - before for before, after in zip(plain, served, strict=True)]
    show(Figure("streams", "of that the server's", statistics.median(added), "ms", None, "≤ 3 ms"))


async def idle_sockets(server: ServerProcess, sockets: int) -> None:
    url = f"{server.url}/v1/ws/agent/bench"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        warm = [await http.ws_connect(url, compress=15) for _ in range(20)]
        before = resident(server.pid)
        held = [await http.ws_connect(url, compress=15) for _ in range(sockets)]
        after = resident(server.pid)
        await asyncio.gather(*(socket.close() for socket in (*warm, *held)))
    each = (after - before) / 1024 / sockets
    show(Figure("streams", f"memory of an idle WebSocket of {sockets:,}", each, "KiB"))


def resident(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sockets", type=int, default=1000)
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    with tempfile.TemporaryDirectory() as work:
        home = Path(work)
        model = MockModel(home)
        model.start()
        (home / "config" / "agents").mkdir(parents=True)
        agent = AGENT.format(model=MODEL, url=model.url)
        (home / "config" / "agents" / "bench.agent.yaml").write_text(agent)
        server = ServerProcess(home, home / "config")
        try:
            server.start()
            asyncio.run(first_tokens(server, model, args.streams, args.rounds))
            asyncio.run(idle_sockets(server, args.sockets))
        except aiohttp.ClientError as error:
            raise SystemExit(f"{error}; the server's log ends with\n{server.log()[-2000:]}") from error
        finally:
            server.close()
            model.close()


if __name__ == "__main__":
    main()
