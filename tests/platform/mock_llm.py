"""A stand-in for an OpenAI-compatible model, for tests and for trying things by hand.

It speaks HTTP/1.1 on 127.0.0.1. The model's name in the request chooses what it does, options joined by '+':

    mock                 answers at once
    mock+tokens=200      an answer of 200 tokens (20 unless told)
    mock+letters=2000    every token has 2,000 letters
    mock+say=TEXT        answers TEXT ('_' stands for a blank)
    mock+latency=500     waits 500 ms before answering, or before the first token
    mock+gap=10          waits 10 ms between streamed tokens
    mock+tools=2         asks for a tool in 2 rounds, then answers; the tool is the first that the request
                         offers, its arguments are {"query": "round N"}
    mock+parallel=3      asks for 3 tools at once in each of those rounds
    mock+args={"a":1}    with these arguments instead (no '+' inside)
    mock+status=503      answers with that HTTP status
    mock+retry=2         adds `Retry-After: 2` to it
    mock+reset           closes the connection without an answer
    mock+hang            never answers
    mock+cut=5           streams 5 tokens, then closes the connection
    mock+garbage         answers 200 with a body that is not JSON

`POST /script` with a JSON list queues answers that go before all that, one per chat request: objects with
`text`, `tool_calls` ([{name, arguments}]), `finish_reason`, `status`, `retry`, `latency`, `model` (options as
above).

`POST …/embeddings` answers deterministic unit vectors of 64 floats. `GET /stats` answers the number of
requests (all, and those for chat), how many that take their time are open and the most that were open at
once. `GET /bodies` answers the last 256 chat and embedding bodies, newest last. `POST /reset` forgets all.

    python -m tests.platform.mock_llm --port 9100
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import httptools
import orjson

TEXT = "the quick brown fox jumps over the lazy dog and then it rests under a tall old tree near water"
WORDS = TEXT.split(" ")
EMBEDDING_SIZE = 64
ANSWERING_SECONDS = 3600.0


@dataclass
class Stats:
    requests: int = 0
    chats: int = 0
    open: int = 0
    most_open: int = 0
    bodies: deque[bytes] = field(default_factory=lambda: deque(maxlen=256))
    script: deque[dict[str, Any]] = field(default_factory=deque)


@dataclass(frozen=True)
class Answer:
    """What the model says in one turn."""

    words: list[str]
    calls: list[dict[str, Any]]
    finish_reason: str


class MockLLM(asyncio.Protocol):
    def __init__(self, stats: Stats) -> None:
        self.stats = stats
        self.parser = httptools.HttpRequestParser(self)
        self.body = bytearray()
        self.url = b""
        self.tasks: set[asyncio.Task[None]] = set()

    # -- the protocol, and what httptools calls --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        for task in self.tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def on_message_begin(self) -> None:
        self.body.clear()

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.stats.requests += 1
        body = bytes(self.body)
        path = self.url.split(b"?")[0].decode()
        if path.endswith("/chat/completions"):
            self.stats.chats += 1
            self.stats.bodies.append(body)
            self.chat(body)
        elif path.endswith("/embeddings"):
            self.stats.bodies.append(body)
            self.embeddings(body)
        else:
            self.control(path, body)

    def control(self, path: str, body: bytes) -> None:
        stats = self.stats
        if path.endswith("/models"):
            self.send_json(
                {"object": "list", "data": [{"id": "mock", "object": "model", "owned_by": "mock"}]}
            )
        elif path == "/stats":
            counts = {name: getattr(stats, name) for name in ("requests", "chats", "open", "most_open")}
            self.send_json(counts)
        elif path == "/bodies":
            self.send_json([orjson.loads(body) for body in stats.bodies])
        elif path == "/script":
            stats.script.extend(orjson.loads(body))
            self.send_json({"queued": len(stats.script)})
        elif path == "/reset":
            stats.__init__()  # type: ignore[misc]
            self.send_json({})
        else:
            self.send_error(404, f"no route {path}")

    # -- answers ---------------------------------------------------------------------------------------------

    def send(self, payload: bytes, status: int = 200, headers: str = "") -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}"
        self.transport.write(f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload)

    def send_json(self, value: Any) -> None:
        self.send(orjson.dumps(value))

    def send_error(self, status: int, message: str, headers: str = "") -> None:
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.send(orjson.dumps({"error": {"message": message, "type": kind}}), status, headers)

    def embeddings(self, body: bytes) -> None:
        request = orjson.loads(body)
        inputs = request["input"] if isinstance(request["input"], list) else [request["input"]]
        data = [
            {"object": "embedding", "index": index, "embedding": embed(str(text))}
            for index, text in enumerate(inputs)
        ]
        usage = {"prompt_tokens": len(inputs), "total_tokens": len(inputs)}
        self.send_json({"object": "list", "model": request.get("model"), "data": data, "usage": usage})

    def chat(self, body: bytes) -> None:
        try:
            request = orjson.loads(body)
            model = str(request["model"])
        except (ValueError, KeyError, TypeError):
            self.send_error(400, "bad request")
            return
        scripted = self.stats.script.popleft() if self.stats.script else {}
        options = options_of(str(scripted.get("model", model))) | {
            name: str(scripted[name]) for name in ("status", "latency", "retry") if name in scripted
        }
        answer = scripted_answer(scripted) if {"text", "tool_calls"} & scripted.keys() else None
        if "reset" in options:
            self.transport.abort()
        elif "garbage" in options:
            self.send(b"<html>this is not JSON")
        elif request.get("stream") or {"latency", "gap", "hang"} & options.keys():
            task = asyncio.ensure_future(self.later(request, options, answer))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        else:
            self.answer(request, options, answer)

    def answer(self, request: dict[str, Any], options: dict[str, str], answer: Answer | None) -> None:
        if "status" in options:
            retry = f"retry-after: {options['retry']}\r\n" if "retry" in options else ""
            self.send_error(int(options["status"]), "asked to fail", retry)
            return
        said = answer or self.turn(request, options)
        message: dict[str, Any] = {"role": "assistant", "content": "".join(said.words).strip() or None}
        if said.calls:
            message["tool_calls"] = [
                {key: value for key, value in call.items() if key != "index"} for call in said.calls
            ]
        choice = {"index": 0, "message": message, "finish_reason": said.finish_reason}
        self.send_json(
            self.envelope(request, "chat.completion") | {"choices": [choice], "usage": usage_of(said)}
        )

    async def later(self, request: dict[str, Any], options: dict[str, str], answer: Answer | None) -> None:
        self.stats.open += 1
        self.stats.most_open = max(self.stats.most_open, self.stats.open)
        try:
            if "hang" in options:
                await asyncio.sleep(ANSWERING_SECONDS)
            if "latency" in options:
                await asyncio.sleep(int(options["latency"]) / 1000)
            if not request.get("stream") or "status" in options:
                self.answer(request, options, answer)
            else:
                await self.stream(request, options, answer or self.turn(request, options))
        finally:
            self.stats.open -= 1

    async def stream(self, request: dict[str, Any], options: dict[str, str], said: Answer) -> None:
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        base = self.envelope(request, "chat.completion.chunk")
        gap, cut = int(options.get("gap") or 0) / 1000, int(options.get("cut") or 0)

        def delta(value: dict[str, Any], reason: str | None = None) -> None:
            self.send_event(base | {"choices": [{"index": 0, "delta": value, "finish_reason": reason}]})

        delta({"role": "assistant", "content": ""})
        for call in said.calls:
            for piece in pieces_of(call):
                delta({"tool_calls": [piece]})
        for number, word in enumerate(said.words):
            if cut and number == cut:
                self.transport.abort()
                return
            delta({"content": word})
            if gap:
                await asyncio.sleep(gap)
        delta({}, said.finish_reason)
        if (request.get("stream_options") or {}).get("include_usage"):
            self.send_event(base | {"choices": [], "usage": usage_of(said)})
        self.send_chunk(b"data: [DONE]\n\n")
        self.transport.write(b"0\r\n\r\n")

    def send_event(self, value: dict[str, Any]) -> None:
        self.send_chunk(b"data: " + orjson.dumps(value) + b"\n\n")

    def send_chunk(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%s\r\n" % (len(data), data))

    def envelope(self, request: dict[str, Any], kind: str) -> dict[str, Any]:
        identity = f"chatcmpl-{self.stats.requests}"
        return {"id": identity, "object": kind, "created": 1_700_000_000, "model": request["model"]}

    def turn(self, request: dict[str, Any], options: dict[str, str]) -> Answer:
        offered = [tool["function"]["name"] for tool in request.get("tools") or []]
        done = rounds_since_user(request.get("messages") or [])
        if offered and done < int(options.get("tools") or 0):
            arguments = options.get("args") or orjson.dumps({"query": f"round {done}"}).decode()
            names = [offered[index % len(offered)] for index in range(int(options.get("parallel") or 1))]
            prefix = f"call_{self.stats.requests}"
            return Answer(
                [], [call_of(prefix, *entry, arguments) for entry in enumerate(names)], "tool_calls"
            )
        if "say" in options:
            return Answer([word + " " for word in options["say"].replace("_", " ").split()], [], "stop")
        count = int(options.get("tokens") or 20)
        if "letters" in options:
            return Answer(["x" * (int(options["letters"]) - 1) + " "] * count, [], "stop")
        return Answer([WORDS[index % len(WORDS)] + " " for index in range(count)], [], "stop")


def options_of(model: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in model.split("+")[1:])
    return {key: value for key, _, value in pairs}


def scripted_answer(entry: dict[str, Any]) -> Answer:
    words = [word + " " for word in str(entry.get("text") or "").split(" ") if word]
    calls = [
        call_of("call", index, call["name"], orjson.dumps(call.get("arguments", {})).decode())
        for index, call in enumerate(entry.get("tool_calls") or [])
    ]
    return Answer(words, calls, entry.get("finish_reason") or ("tool_calls" if calls else "stop"))


def call_of(prefix: str, index: int, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": f"{prefix}_{index}", "type": "function", "function": function}


def pieces_of(call: dict[str, Any]) -> list[dict[str, Any]]:
    """A tool call as it is streamed: the name, then the arguments in two halves."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    half = len(arguments) // 2
    return [
        call | {"function": {"name": name, "arguments": ""}},
        {"index": call["index"], "function": {"arguments": arguments[:half]}},
        {"index": call["index"], "function": {"arguments": arguments[half:]}},
    ]


def usage_of(said: Answer) -> dict[str, int]:
    count = len(said.words)
    return {"prompt_tokens": 10, "completion_tokens": count, "total_tokens": 10 + count}


def rounds_since_user(messages: list[dict[str, Any]]) -> int:
    """How often the assistant spoke since the user did."""
    roles = [message.get("role") for message in messages]
    since = roles[::-1].index("user") if "user" in roles else len(roles)
    return roles[len(roles) - since :].count("assistant")


def embed(text: str) -> list[float]:
    """A bag-of-words hash embedding: texts that share words are near each other."""
    vector = [0.0] * EMBEDDING_SIZE
    for word in text.lower().split():
        digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
        vector[digest[0] % EMBEDDING_SIZE] += 1.0 if digest[1] & 1 else -1.0
    norm = math.sqrt(sum(value * value for value in vector)) or 1.0
    return [value / norm for value in vector]


async def serve(port: int) -> None:
    stats = Stats()
    server = await asyncio.get_running_loop().create_server(lambda: MockLLM(stats), "127.0.0.1", port)
    print(f"model stand-in on http://127.0.0.1:{port}/v1", flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=9100)
    asyncio.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
