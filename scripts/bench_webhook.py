"""How long Meta waits for its 200: signed WhatsApp webhooks against a real server, while it answers people.

    python scripts/bench_webhook.py [--webhooks 400] [--at-once 1,2,5] [--per-second 40,80]

Each webhook is a message of another person; behind it stands a durable run with one model call, and a reply
to a stand-in of the Graph API. Model and Graph API are processes of their own on the same cores. A round ends
when all people have an answer, and fails where one has none or two. `--at-once` sends the next webhook when
one is answered, which takes all that the server can give; `--per-second` sends them by the clock, as Meta
does (80 is what one number may bring).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from uuid import uuid4

import aiohttp
import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from figures import Figure, show  # noqa: E402 (the folders are not on the path before)

from astromesh.testing.whatsapp import sign_webhook, text_message, webhook  # noqa: E402
from tests.integration.agents_folder import manifest, write  # noqa: E402
from tests.integration.channels.whatsapp_server import HOOK, SECRET, channel_file  # noqa: E402
from tests.platform.astromesh import ServerProcess  # noqa: E402
from tests.platform.model import MockModel  # noqa: E402
from tests.platform.processes import Command, Server, free_port, plain_environment, port_is_open  # noqa: E402

PATIENCE = 300.0
Send = Callable[[str], Awaitable[None]]
Sending = Callable[[Send, Sequence[str], int], Awaitable[None]]


def config(folder: Path, model_url: str, graph_url: str) -> Path:
    agent = manifest("helper", memory={"conversational": {"backend": "sqlite"}})
    model = {"provider": "openai", "endpoint": model_url, "api_key": "k", "model": "mock+say=Answered"}
    agent["spec"]["model"] = {"primary": model}
    write(folder, agent)
    channel_file(folder, graph_url)
    head = {"apiVersion": "astromesh/v1", "kind": "ProviderConfig", "spec": {"providers": {}}}
    (folder / "providers.yaml").write_text(yaml.safe_dump(head))
    return folder


async def sent(session: aiohttp.ClientSession, graph: str) -> list[str]:
    async with session.get(f"{graph}/sent") as answer:
        return [message["to"] for message in json.loads(await answer.read())["messages"]]


async def posted(session: aiohttp.ClientSession, url: str, person: str) -> float:
    """Seconds until the 200."""
    body, headers = sign_webhook(SECRET, webhook(text_message(f"wamid.{person}", "Hello", person)))
    begun = time.perf_counter()
    async with session.post(url, data=body, headers=headers) as answer:
        await answer.read()
        if answer.status != 200:
            raise SystemExit(f"a webhook was answered {answer.status}")
    return time.perf_counter() - begun


async def at_once(send: Send, people: Sequence[str], width: int) -> None:
    waiting = iter(people)

    async def worker() -> None:
        for person in waiting:
            await send(person)

    await asyncio.gather(*(worker() for _ in range(width)))


async def per_second(send: Send, people: Sequence[str], rate: int) -> None:
    begun, sending = time.perf_counter(), []
    for n, person in enumerate(people):
        await asyncio.sleep(max(begun + n / rate - time.perf_counter(), 0))
        sending.append(asyncio.create_task(send(person)))
    await asyncio.gather(*sending)


async def round_of(
    url: str, graph: str, sending: Sending, pace: int, count: int
) -> tuple[list[float], float]:
    """Seconds of each webhook, and answers per second until all people had one."""
    people = [f"49{uuid4().int % 10**12:012}" for _ in range(count)]
    times: list[float] = []

    async def send(person: str) -> None:
        times.append(await posted(session, url, person))

    async with aiohttp.ClientSession() as session:
        before = len(await sent(session, graph))
        begun = time.perf_counter()
        await sending(send, people, pace)
        while len(answered := (await sent(session, graph))[before:]) < count:
            if time.perf_counter() - begun > PATIENCE:
                raise SystemExit(f"{count - len(answered)} people have no answer")
            await asyncio.sleep(0.05)
        if len(set(answered)) != count:
            raise SystemExit("somebody was answered twice")
        return times, count / (time.perf_counter() - begun)


async def measure(url: str, graph: str, rounds: Sequence[tuple[Sending, int, str]], count: int) -> None:
    await round_of(url, graph, at_once, 9, 50)
    for sending, pace, name in rounds:
        times, rate = await round_of(url, graph, sending, pace, count)
        p99 = statistics.quantiles(times, n=100)[98]
        show(
            Figure(
                "webhook", f"to its 200, {name}, median", statistics.median(times) * 1000, "ms", None, "< 20"
            )
        )
        show(Figure("webhook", f"to its 200, {name}, p99", p99 * 1000, "ms", None, "< 250"))
        show(Figure("webhook", f"people answered, {name}", rate, "per second"))


def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--webhooks", type=int, default=400)
    parser.add_argument("--at-once", type=numbers, default=[1, 2, 5])
    parser.add_argument("--per-second", type=numbers, default=[40, 80])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        folder, port = Path(home), free_port()
        model = MockModel(folder)
        origin = f"http://127.0.0.1:{port}"
        argv = [sys.executable, "-m", "astromesh.testing.whatsapp", "--port", str(port)]
        command = Command(argv, plain_environment(folder), ROOT)
        graph = Server(command, folder / "graph.log", lambda: port_is_open(port))
        (folder / "server").mkdir()
        server = ServerProcess(folder / "server", config(folder / "config", model.url, f"{origin}/v23.0"))
        try:
            model.start()
            graph.start()
            server.start()
            rounds = [(at_once, n, f"{n} at once") for n in args.at_once]
            rounds += [(per_second, n, f"{n} per second") for n in args.per_second]
            asyncio.run(measure(server.url + HOOK, origin, rounds, args.webhooks))
        finally:
            server.close()
            graph.kill()
            model.close()


if __name__ == "__main__":
    main()
