"""What streaming costs: time to the first token, memory of idle WebSockets and of readers who do not read.

Starts the model stand-in, `astromesh serve` and a bare relay (`scripts/beside/limit_app.py`) as processes.
Times to the first token are medians, of the model, of an agent on it and of the relay; what each adds is the
median over rounds of its difference to the model. What an unread run takes is counted while it goes on.

    python scripts/bench_streams.py [--streams 16] [--rounds 20] [--sockets 1000] [--unread 250000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from figures import Figure, show  # noqa: E402 (the folders are not on the path before)

from tests.platform.astromesh import ServerProcess  # noqa: E402
from tests.platform.model import MockModel  # noqa: E402
from tests.platform.processes import Command, Server, answers_http, free_port, plain_environment  # noqa: E402

MODEL = "mock+tokens=20+latency=100+gap=5"
AGENT = """apiVersion: astromesh/v1
kind: Agent
metadata: {{name: {name}}}
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


async def of_a_run(http: aiohttp.ClientSession, url: str, n: int) -> float:
    body = {"query": "go", "session_id": f"s{n}"}
    return await first_token(http, f"{url}/v1/agents/first/run", body, b'"content":')


async def of_the_model(http: aiohttp.ClientSession, url: str, _: int) -> float:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "go"}], "stream": True}
    return await first_token(http, f"{url}/chat/completions", chat, b'"content":"the')


async def median_of(http: aiohttp.ClientSession, streams: int, url: str, ask: Any) -> float:
    """Of that many streams at once."""

    async def one(n: int) -> float:
        await asyncio.sleep(n * 0.007)  # clients do not come in one tick
        return float(await ask(http, url, n))

    return statistics.median(await asyncio.gather(*(one(n) for n in range(streams))))


async def first_tokens(
    server: ServerProcess, relay: Relay, model: MockModel, streams: int, rounds: int
) -> None:
    plain, served, relayed = [], [], []
    used = [0.0, 0.0]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        for n in range(rounds + 2):
            if n == 2:  # the first rounds open connections
                used = [processor_ms(server.pid), processor_ms(relay.server.pid)]
            first = await median_of(http, streams, model.url, of_the_model)
            second = await median_of(http, streams, server.url, of_a_run)
            third = await median_of(http, streams, relay.url, of_a_run)
            if n >= 2:
                plain.append(first)
                served.append(second - first)
                relayed.append(third - first)
    ours, bare = statistics.median(served), statistics.median(relayed)
    show(Figure("streams", "time to the first token of the model alone", statistics.median(plain), "ms"))
    show(Figure("streams", f"added by the server, {streams} streams", ours, "ms", bare, "≤ 3 ms"))
    each = (processor_ms(server.pid) - used[0]) / rounds / streams
    limit = (processor_ms(relay.server.pid) - used[1]) / rounds / streams
    show(Figure("streams", "processor time of a whole stream of 20 tokens", each, "ms", limit))


async def idle_sockets(server: ServerProcess, sockets: int) -> None:
    url = f"{server.url}/v1/ws/agent/first"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        warm = [await http.ws_connect(url, compress=15) for _ in range(20)]
        before = resident(server.pid)
        held = [await http.ws_connect(url, compress=15) for _ in range(sockets)]
        after = resident(server.pid)
        await asyncio.gather(*(socket.close() for socket in (*warm, *held)))
    each = (after - before) / 1024 / sockets
    show(Figure("streams", f"memory of an idle WebSocket of {sockets:,}", each, "KiB"))


async def unread(server: ServerProcess) -> None:
    """One reader by SSE, then one by WebSocket, who ask for a long run and never read."""
    async with aiohttp.ClientSession() as http:
        await of_a_run_of(http, server.url)  # the first long answer finds the allocator cold
        started = time.monotonic()
        await of_a_run_of(http, server.url)
        read = time.monotonic() - started
        for name, ask in (("server-sent events", over_sse), ("a WebSocket", over_websocket)):
            before, started = resident(server.pid), time.monotonic()
            with ask(server.port):
                most = before
                await asyncio.sleep(0.5)
                while await listed(http, server.url, "running"):
                    most = max(most, resident(server.pid))
                    await asyncio.sleep(0.1)
            took, grown = time.monotonic() - started, (most - before) / (1 << 20)
            show(Figure("streams", f"memory for an unread run over {name}", grown, "MiB", None, "≤ 5 MiB"))
            show(Figure("streams", "seconds of that run, beside one that is read", took, "s", read))


async def of_a_run_of(http: aiohttp.ClientSession, url: str) -> None:
    body = {"query": "go", "session_id": "long"}
    accept = {"accept": "text/event-stream"}
    async with http.post(f"{url}/v1/agents/long/run", json=body, headers=accept) as answer:
        async for _ in answer.content.iter_chunked(1 << 16):
            pass


async def listed(http: aiohttp.ClientSession, url: str, status: str) -> list[Any]:
    async with http.get(f"{url}/v1/runs?status={status}") as answer:
        runs: list[Any] = (await answer.json())["runs"]
        return runs


@contextmanager
def over_sse(port: int) -> Iterator[None]:
    body = json.dumps({"query": "go", "session_id": "long"}).encode()
    head = (
        b"POST /v1/agents/long/run HTTP/1.1\r\nhost: x\r\n"
        b"accept: text/event-stream\r\ncontent-length: %d\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port)) as reader:
        reader.sendall(head % len(body) + body)
        yield


@contextmanager
def over_websocket(port: int) -> Iterator[None]:
    body = json.dumps({"query": "go", "session_id": "long"}).encode()
    head = (
        b"GET /v1/ws/agent/long HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port)) as reader:
        reader.sendall(head)
        if b" 101 " not in reader.recv(1000):
            raise SystemExit("the handshake was refused")
        reader.sendall(bytes([0x81, 0x80 | len(body)]) + bytes(4) + body)
        yield


def resident(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


class Relay:
    """The bare relay as a process."""

    def __init__(self, home: Path, model_url: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        uvicorn = [sys.executable, "-m", "uvicorn", "--log-level", "warning", "--no-access-log", "--port"]
        env = plain_environment(
            home, {"MODEL_URL": model_url, "PYTHONPATH": str(ROOT / "scripts" / "beside")}
        )
        command = Command([*uvicorn, str(port), "limit_app:app"], env, home)
        self.server = Server(command, home / "relay.log", lambda: answers_http(f"{self.url}/health/live"))


def processor_ms(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sockets", type=int, default=1000)
    parser.add_argument("--unread", type=int, default=250_000, help="tokens of a run that nobody reads")
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    with tempfile.TemporaryDirectory() as work:
        home = Path(work)
        model = MockModel(home)
        model.start()
        (home / "config" / "agents").mkdir(parents=True)
        for name, does in (("first", MODEL), ("long", f"mock+tokens={args.unread}")):
            agent = AGENT.format(name=name, model=does, url=model.url)
            (home / "config" / "agents" / f"{name}.agent.yaml").write_text(agent)
        server, relay = ServerProcess(home, home / "config"), Relay(home, model.url)
        try:
            relay.server.start()
            server.start()
            asyncio.run(first_tokens(server, relay, model, args.streams, args.rounds))
            asyncio.run(idle_sockets(server, args.sockets))
            asyncio.run(unread(server))
        except aiohttp.ClientError as error:
            raise SystemExit(f"{error}; the server's log ends with\n{server.log()[-2000:]}") from error
        finally:
            server.close()
            relay.server.kill()
            model.close()


if __name__ == "__main__":
    main()
