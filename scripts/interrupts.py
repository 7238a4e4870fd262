"""Mixed messages of one session over two servers under `interrupt`, and which of them are answered.

    python scripts/interrupts.py [--rounds 1000] [--at-once 16] [--seed 1]

A round is a session of its own. Some messages come nearly at once to two servers over one PostgreSQL, each
in one of five ways: a plain run, an event stream, chat completions, a WebSocket, a durable run. After a pause
comes one more. It must be answered, and be the last turn of the session. Ends with 1 where a round answered
nobody, or not its newest message. Where a server was so busy that the last one to be sent did not come last,
the one that did is the newest: by its time, or because it was accepted after the last one was sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import aiohttp

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from tests.platform.astromesh import ServerProcess  # noqa: E402 (the folder is not on the path before)
from tests.platform.model import MockModel  # noqa: E402
from tests.platform.postgres import PostgresServer, database_url  # noqa: E402

_AGENT = """apiVersion: astromesh/v1
kind: Agent
metadata: {{name: a}}
spec:
  model:
    primary: {{provider: openai, model: "mock+latency=400+tokens=3", endpoint: "{model}", api_key: none}}
  prompts: {{system: "Answer."}}
  orchestration: {{pattern: react}}
  memory: {{conversational: {{backend: postgres, strategy: sliding_window, max_turns: 50}}}}
  sessions: {{concurrency: interrupt}}
  queue: {{max_running: 4}}
"""
_RUNTIME = """apiVersion: astromesh/v1
kind: RuntimeConfig
spec: {{storage: {{url: "{url}"}}}}
"""
#: seconds for one message; seconds between messages that come nearly at once; the pause before the newest one
PATIENCE, NEARLY, PAUSE = 60.0, 0.1, 1.0
_ENDED = ("completed", "failed", "cancelled")
#: when durable runs were accepted, by session and message
ACCEPTED: dict[tuple[str, str], float] = {}
#: sends a message to a server in a session; returns whether it was answered
Send = Callable[[aiohttp.ClientSession, str, str, str], Awaitable[bool]]


class StoredRun(NamedTuple):
    """A run as the list of runs has it."""

    created_at: str
    finished_at: str
    status: str


async def plain(http: aiohttp.ClientSession, url: str, session: str, query: str) -> bool:
    body = {"query": query, "session_id": session}
    async with http.post(f"{url}/v1/agents/a/run", json=body) as answer:
        return _answered(answer.status, await answer.json())


async def stream(http: aiohttp.ClientSession, url: str, session: str, query: str) -> bool:
    body, headers = {"query": query, "session_id": session}, {"accept": "text/event-stream"}
    async with http.post(f"{url}/v1/agents/a/run", json=body, headers=headers) as answer:
        text = await answer.text()
        return "event: run.completed" in text if answer.status == 200 else _answered(answer.status, text)


async def chat(http: aiohttp.ClientSession, url: str, session: str, query: str) -> bool:
    body = {"model": "a", "messages": [{"role": "user", "content": query}]}
    async with http.post(
        f"{url}/v1/chat/completions", json=body, headers={"x-session-id": session}
    ) as answer:
        return _answered(answer.status, await answer.json())


async def socket(http: aiohttp.ClientSession, url: str, session: str, query: str) -> bool:
    async with http.ws_connect(f"{url}/v1/ws/agent/a") as channel:
        await channel.send_json({"query": query, "session_id": session})
        async for message in channel:
            frame = json.loads(message.data)
            if frame.get("done") or frame["type"] == "error":
                assert frame["type"] != "error" or "replaced this one" in str(frame), frame
                return frame["type"] != "error"
    return False


async def durable(http: aiohttp.ClientSession, url: str, session: str, query: str) -> bool:
    body = {"query": query, "session_id": session}
    async with http.post(f"{url}/v1/agents/a/runs", json=body) as answer:
        run = await answer.json()
        assert answer.status == 202, run
        ACCEPTED[session, query] = time.monotonic()
    while run["status"] not in _ENDED:
        await asyncio.sleep(0.1)
        async with http.get(f"{url}/v1/runs/{run['run_id']}") as answer:
            run = await answer.json()
    assert run["status"] != "failed", run
    return bool(run["status"] == "completed")


def _answered(status: int, body: Any) -> bool:
    """Raises: AssertionError: the message failed for another reason than a newer one."""
    assert status == 200 or (status == 409 and "replaced this one" in str(body)), f"{status}: {body}"
    return status == 200


KINDS: tuple[Send, ...] = (plain, stream, chat, socket, durable)


async def play(http: aiohttp.ClientSession, urls: list[str], session: str, chance: Random) -> str:
    """Plays one round and returns what is wrong with it; empty if nothing is."""
    count = chance.randint(2, 5)
    plan = [
        (chance.choice(KINDS), chance.choice(urls), PAUSE if n == count else chance.uniform(0, NEARLY))
        for n in range(count + 1)
    ]
    sent, last_sent = [], 0.0
    for n, (send, url, pause) in enumerate(plan):
        await asyncio.sleep(pause)
        last_sent = time.monotonic()
        sent.append(asyncio.create_task(send(http, url, session, f"message {n}")))
    async with asyncio.timeout(PATIENCE):
        answered = await asyncio.gather(*sent)
    said = ", ".join(f"{send.__name__} {answer}" for (send, *_), answer in zip(plan, answered, strict=True))
    if not any(answered):
        return f"nobody: {said}"
    async with http.get(f"{urls[0]}/v1/agents/a/sessions/{session}") as answer:
        turns = (await answer.json())["turns"]
    asked = [turn["content"] for turn in turns if turn["role"] == "user"]
    newest = f"message {count}"
    if answered[-1] and asked[-1:] == [newest]:
        return ""
    runs = await _runs(http, urls[0], session, len(sent))
    accepted_late = ACCEPTED.get((session, asked[-1] if asked else ""), 0.0) > last_sent
    late = came_late(newest, answered[-1], asked, runs, accepted_late)
    return f"{'came late' if late else 'not the newest'}: {said}; {asked}; {runs}"


async def _runs(http: aiohttp.ClientSession, url: str, session: str, count: int) -> list[StoredRun]:
    """Returns the runs of a session once all are stored: another server stores a plain run after its end."""
    async with asyncio.timeout(PATIENCE):
        while True:
            async with http.get(f"{url}/v1/runs", params={"session": session}) as answer:
                found = (await answer.json())["runs"]
            if len(found) >= count and all(run["status"] in _ENDED for run in found):
                return [StoredRun(run["created_at"], run["finished_at"], run["status"]) for run in found]
            await asyncio.sleep(0.1)


def came_late(
    newest: str, answered: bool, asked: list[str], runs: list[StoredRun], accepted_late: bool
) -> bool:
    """Whether the message with the last turn came to its server after the one that was sent last.

    Args:
        newest: the message that was sent last.
        answered: whether it was answered.
        asked: the messages with a turn, in their order.
        runs: all of the session. They complete one by one, so their ends are in the order of turns.
        accepted_late: the last turn is of a durable run that was accepted after the newest message was sent.
    """
    completed = sorted((run for run in runs if run.status == "completed"), key=lambda run: run.finished_at)
    if not asked or len(completed) != len(asked) or answered != (newest in asked):
        return False
    came = completed[asked.index(newest)] if answered else max(runs)
    return accepted_late or completed[-1].created_at >= came.created_at


async def rounds(urls: list[str], count: int, at_once: int, seed: int) -> Counter[str]:
    """Plays rounds, several at once; counts how they ended."""
    ended: Counter[str] = Counter()
    numbers = iter(range(count))
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=PATIENCE)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:

        async def client() -> None:
            for n in numbers:
                fault = await play(http, urls, f"round-{n}", Random(seed * 1_000_003 + n))
                ended[fault.partition(":")[0]] += 1
                if fault:
                    print(f"round {n}: {fault}", file=sys.stderr, flush=True)

        for url in urls:  # the first runs of a process open its stores
            await asyncio.gather(*(send(http, url, f"first-{send.__name__}", "Hello") for send in KINDS))
        await asyncio.gather(*(client() for _ in range(at_once)))
    return ended


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    postgres = PostgresServer()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        model = MockModel(home)
        config = home / "config"
        (config / "agents").mkdir(parents=True)
        (config / "agents" / "a.agent.yaml").write_text(_AGENT.format(model=model.url))
        postgres.start()
        postgres.execute("create database interrupts")
        (config / "runtime.yaml").write_text(_RUNTIME.format(url=database_url(postgres.url, "interrupts")))
        servers = []
        try:
            model.start()
            for name in ("one", "two"):
                (home / name).mkdir()
                servers.append(ServerProcess(home / name, config))
                servers[-1].start()
            started = time.monotonic()
            ended = asyncio.run(rounds([s.url for s in servers], args.rounds, args.at_once, args.seed))
            seconds = time.monotonic() - started
        finally:
            for server in servers:
                server.close()
            model.close()
            postgres.close()
    faults = ended["nobody"], ended["not the newest"]
    print("| rounds | answered nobody | not the newest | the last one came late | seconds |")
    print(f"| {args.rounds} | {faults[0]} | {faults[1]} | {ended['came late']} | {seconds:.0f} |")
    return int(any(faults))


if __name__ == "__main__":
    sys.exit(main())
