"""The way of one plain run, and of one streamed token, through astromesh's own code.

    .venv/bin/python scripts/trace_run.py [--list] [--check]

The ASGI application is called in this process; the model is a stand-in behind HTTP on this machine. Frames,
functions and modules are astromesh's alone, in the context of the request: neither background work counts nor
comprehensions, which are functions before Python 3.12 only.

Prints modules, packages, functions and calls of one run; the frames on the stack when the model's request
leaves, and the stretches of packages on it; and the calls that one streamed token costs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from itertools import groupby, pairwise
from pathlib import Path
from threading import Thread
from types import CodeType, FrameType
from typing import Any

import orjson
from aiohttp import web

import astromesh
from astromesh.api.app import create_app
from astromesh.runtime.engine import AgentRuntime

os.environ.setdefault("TRACE_RUN_KEY", "none")
PACKAGE = str(Path(astromesh.__file__).parent) + "/"
WORDS = {"few": 20, "many": 60}
TOKENS = WORDS["many"] - WORDS["few"]
LIMITS = {
    "modules": 40,
    "functions": 200,
    "frames at the model call": 24,
    "stretches of a package on the stack": 1,
    "calls of a streamed token": 20,
}
IN_REQUEST: ContextVar[bool] = ContextVar("in_request", default=False)

AGENT = """
apiVersion: astromesh/v1
kind: Agent
metadata: {name: plain}
spec:
  model: {primary: {provider: openai, model: stand-in, endpoint: "%s", api_key_env: TRACE_RUN_KEY}}
  prompts: {system: "Answer in one sentence."}
"""
RUNTIME = """
apiVersion: astromesh/v1
kind: RuntimeConfig
spec: {telemetry: {log_level: %s}}
"""


class Recorder:
    """Counts calls of astromesh's functions, and keeps the stack at the model's request."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self.order: list[str] = []
        self.stack: list[CodeType] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not IN_REQUEST.get():
            return
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE) and not code.co_name.endswith(("comp>", "genexpr>")):
            self.calls[code] += 1
            self.order.append(package_of(code))
        elif code.co_name == "_request" and code.co_filename.endswith("aiohttp/client.py") and not self.stack:
            self.stack = list(own_frames(frame))[::-1]


def own_frames(frame: FrameType | None) -> Iterator[CodeType]:
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            yield frame.f_code
        frame = frame.f_back


def module_of(code: CodeType) -> str:
    return (
        code.co_filename.removeprefix(PACKAGE).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    )


def package_of(code: CodeType) -> str:
    return module_of(code).partition(".")[0]


async def answer(request: web.Request) -> web.StreamResponse:
    """The stand-in: a sentence of as many words as the question asks for."""
    body = orjson.loads(await request.read())
    query = body["messages"][-1]["content"]
    words = ["word "] * WORDS.get(query.split()[0], 3)
    usage = {"prompt_tokens": 5, "completion_tokens": len(words), "total_tokens": 5 + len(words)}
    if not body.get("stream"):
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(words)},
            "finish_reason": "stop",
        }
        return web.json_response({"id": "1", "model": "stand-in", "choices": [choice], "usage": usage})
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    deltas = [
        {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]} for word in words
    ]
    written = [b"data: " + orjson.dumps(delta) + b"\n\n" for delta in deltas]
    for piece in written if "apart" in query else [b"".join(written)]:
        await response.write(piece)
        if "apart" in query:
            await asyncio.sleep(0.002)
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
    await response.write(b"data: " + orjson.dumps(end) + b"\n\ndata: [DONE]\n\n")
    return response


async def ask(app: Any, query: str, *, stream: bool = False) -> bytes:
    """One request to the application, as a server makes it."""
    body = orjson.dumps({"query": query, "session_id": "trace"})
    headers = [
        (b"host", b"127.0.0.1"),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    if stream:
        headers.append((b"accept", b"text/event-stream"))
    path = "/v1/agents/plain/run"
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000), "state": {},
    }  # fmt: skip
    received, sent = iter([{"type": "http.request", "body": body, "more_body": False}]), bytearray()

    async def receive() -> Any:
        message = next(received, None)
        if message is None:
            await asyncio.Event().wait()
        return message

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start" and message["status"] != 200:
            print("status", message["status"])  # the figures would be of something else
        sent.extend(message.get("body", b""))

    IN_REQUEST.set(True)
    await app(scope, receive, send)
    return bytes(sent)


async def traced(app: Any, query: str, *, stream: bool = False) -> Recorder:
    recorder = Recorder()
    with recorder.recording():
        await asyncio.create_task(ask(app, query, stream=stream))
    return recorder


async def calls_per_token(app: Any, manner: str) -> Counter[CodeType]:
    """The calls that a stream of `TOKENS` more words has more."""
    few, many = [await traced(app, query + manner, stream=True) for query in WORDS]
    return many.calls - few.calls


@contextmanager
def stand_in() -> Iterator[int]:
    """The model behind HTTP on this machine, in a thread of its own: its port."""
    begun, ended = Future[tuple[int, asyncio.AbstractEventLoop]](), asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(web.Application())
        runner.app.router.add_post("/v1/chat/completions", answer)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        begun.set_result((runner.addresses[0][1], asyncio.get_running_loop()))
        await ended.wait()
        await runner.cleanup()

    serving = Thread(target=lambda: asyncio.run(serve()))
    serving.start()
    port, loop = begun.result(30)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(ended.set)
        serving.join()


@asynccontextmanager
async def application(log_level: str = "error") -> AsyncIterator[Any]:
    """The ASGI application with one agent, `plain`, that asks the stand-in."""
    with stand_in() as port, tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config")
        (config / "agents").mkdir(parents=True)
        (config / "agents" / "plain.agent.yaml").write_text(AGENT % f"http://127.0.0.1:{port}/v1")
        (config / "runtime.yaml").write_text(RUNTIME % log_level)
        app = create_app(AgentRuntime(config, data_dir=Path(folder, "data")))
        async with app.router.lifespan_context(app):
            yield app


async def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="every function with its calls, and the stack")
    parser.add_argument("--check", action="store_true", help="fails 5 percent above a limit")
    arguments = parser.parse_args()
    async with application() as app:
        for query in ("few", "many", "warm up"):
            await asyncio.create_task(ask(app, query))
            await asyncio.create_task(ask(app, query, stream=True))
        # a run of a slow machine has more: the watch whether its client is still there
        runs = [await traced(app, "few") for _ in range(5)]
        run = min(runs, key=lambda one: len(one.calls))
        report(run, show=arguments.list)
        # all tokens come in one piece, unless the network cuts it
        tries = [await calls_per_token(app, "") for _ in range(3)]
        together = min(tries, key=lambda one: one.total())
        apart = await calls_per_token(app, " apart")
        waking = apart.total() - together.total()
        print(
            f"a streamed token: {together.total() / TOKENS:.1f} calls, "
            f"and {waking / TOKENS:.1f} to wake its run where it arrives alone"
        )
        if arguments.list:
            for code, count in together.most_common():
                print(f"  {count / TOKENS:5.2f}  {module_of(code)}:{code.co_qualname}")
    figures = {**figures_of(run), "calls of a streamed token": together.total() / TOKENS}
    above = {name: value for name, value in figures.items() if value > LIMITS[name]}
    for name, value in above.items():
        print(f"{name}: {value:g}, the limit is {LIMITS[name]}")
    return 1 if arguments.check and above else 0


def figures_of(run: Recorder) -> dict[str, float]:
    """The figures of a plain run that have limits."""
    stretches = Counter(package for package, _ in groupby(map(package_of, run.stack)))
    return {
        "modules": len({module_of(code) for code in run.calls}),
        "functions": len(run.calls),
        "frames at the model call": len(run.stack),
        "stretches of a package on the stack": max(stretches.values()),
    }


def report(run: Recorder, *, show: bool) -> None:
    modules = {module_of(code) for code in run.calls}
    changes = sum(a != b for a, b in pairwise(run.order))
    stretches = [package for package, _ in groupby(map(package_of, run.stack))]
    packages = {module.partition(".")[0] for module in modules}
    print(
        f"a plain run: {len(run.calls)} functions in {len(modules)} modules of {len(packages)} packages, "
        f"{run.calls.total()} calls, {changes} changes of package"
    )
    print(f"at the model call: {len(run.stack)} frames, packages {' > '.join(stretches)}")
    twice = sorted(package for package, count in Counter(stretches).items() if count > 1)
    print(f"packages in two stretches: {', '.join(twice) or 'none'}")
    if show:
        for code, count in sorted(run.calls.items(), key=lambda item: module_of(item[0])):
            print(f"  {count:4}  {module_of(code)}:{code.co_qualname}")
        print("the stack:")
        for code in run.stack:
            print(f"  {module_of(code)}:{code.co_qualname}")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
