"""R10 at the socket: whatever the chunks, what arrives is what the rules make of the whole, and no more."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.sync.client import connect

from astromesh.core.guardrails import GuardrailsEngine
from astromesh.testing import Reply, ScriptedProvider
from astromesh.types import CompletionRequest
from tests.integration.agents_folder import manifest, runtime_of, served, write

PII = {"type": "pii_detection", "action": "redact"}
WORDS = {
    "type": "content_filter",
    "forbidden_keywords": ["internal_only", "secret plan", "a a"],
    "blocked_patterns": [r"\bab{1,3}c\b"],
    "action": "redact",
}
TOPICS = {"type": "topic_filter", "forbidden_topics": ["phone", "straße"], "action": "redact"}
SHORT = {"type": "cost_limit", "max_tokens_per_turn": 40, "action": "truncate"}
BLOCK = {**WORDS, "action": "block", "safe_response": "Safe."}
AGENTS: dict[str, dict[str, Any]] = {
    "pii": {"guardrails": {"output": [PII]}},
    "several": {"guardrails": {"output": [TOPICS, PII, WORDS]}},
    "turned": {"guardrails": {"output": [WORDS, PII, TOPICS]}},
    "sentences": {"guardrails": {"output": [PII, WORDS]}, "stream": "sentence"},
    "final": {"guardrails": {"output": [PII, WORDS]}, "stream": "final"},
    "short": {"guardrails": {"output": [PII, SHORT]}},
    "blocking": {"guardrails": {"output": [PII, BLOCK]}},
}
_IDS = re.compile(r"\b[0-9a-f]{32}\b|\brun_[0-9A-Z]{26}\b")
SEEDS = [
    "4111 1111 1111 1111", "123-45-6789", "(212) 555-0123", "DE89 3704 0044 0532 0130 00",
    "john.doe@example.co.uk", "a@b.com", "internal_only", "Secret Plan", "secret\u200bplan", "a a a", "abbc",
    "phone", "Straße", "The end. Another! ", "Well?\n",
]  # fmt: skip
GLUE = ["", " ", "  ", ".", "-", "@", "\n", ". ", "x", "1", " The "]
pieces = st.one_of(
    st.sampled_from(SEEDS),
    st.sampled_from(GLUE),
    st.sampled_from(SEEDS).flatmap(lambda s: st.integers(0, len(s)).map(lambda n: s[:n])),
    st.text(st.sampled_from("0123456789 -.@abc"), max_size=8),
)
texts = st.lists(pieces, min_size=1, max_size=10).map("".join).filter(str.strip)


class Mouth:
    """The model: says what it was told to, in these chunks."""

    def __init__(self) -> None:
        self.chunks: tuple[str, ...] = ()

    def __call__(self, request: CompletionRequest) -> Reply:
        return Reply("".join(self.chunks), chunks=self.chunks)


class House:
    """A server in a thread of its own, so that examples do not pay for its start."""

    def __init__(self, folder: Path) -> None:
        self.mouth = Mouth()
        self.at = ""
        self.rules: dict[str, GuardrailsEngine] = {}
        self._folder = folder
        self._ready = Event()
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        assert self._ready.wait(30)

    async def _serve(self) -> None:
        folder = write(self._folder, *(manifest(name, **spec) for name, spec in AGENTS.items()))
        runtime = runtime_of(folder, ScriptedProvider(self.mouth, repeat=True))
        async with served(runtime) as self.at:
            self.rules = {name: agent.guardrails for name, agent in runtime.agents.items()}
            self._ready.set()
            await self._over.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(30)
        self._loop.close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("config"))
    yield house
    house.close()


def chunked(text: str, cuts: list[int]) -> tuple[str, ...]:
    places = sorted({min(cut, len(text)) for cut in cuts} - {0, len(text)})
    return tuple(text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True))


def by_sse(house: House, agent: str) -> tuple[list[str], str, str]:
    """The pieces of text that arrived, the answer, and everything as it came."""
    url = f"http://{house.at}/v1/agents/{agent}/run"
    headers = {"accept": "text/event-stream"}
    raw = httpx.post(url, json={"query": "go", "session_id": "s"}, headers=headers, timeout=60).text
    events = [dict(line.split(": ", 1) for line in block.splitlines()) for block in raw.strip().split("\n\n")]
    said = [json.loads(e["data"])["content"] for e in events if e["event"] == "model.delta"]
    assert events[-1]["event"] == "run.completed"
    return said, json.loads(events[-1]["data"])["response"], raw


def by_socket(house: House, agent: str) -> tuple[list[str], str, str]:
    frames: list[dict[str, Any]] = []
    with connect(f"ws://{house.at}/v1/ws/agent/{agent}", open_timeout=60) as socket:
        socket.send(json.dumps({"query": "go", "session_id": "s"}))
        while not frames or frames[-1]["type"] not in ("done", "error"):
            frames.append(json.loads(socket.recv(10)))
    said = [f["content"] for f in frames if f["type"] == "token"]
    return said, frames[-1]["response"], json.dumps(frames, ensure_ascii=False)


def by_chat(house: House, agent: str) -> tuple[list[str], str, str]:
    body = {"model": agent, "messages": [{"role": "user", "content": "go"}], "stream": True}
    raw = httpx.post(f"http://{house.at}/v1/chat/completions", json=body, timeout=60).text
    lines = raw.strip().split("\n\n")
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    said = [c["choices"][0]["delta"].get("content") for c in chunks]
    return [text for text in said if text], "".join(filter(None, said)), raw


def plain(house: House, agent: str) -> str:
    """The answer of a run that does not stream."""
    body = {"query": "go", "session_id": "s"}
    return str(
        httpx.post(f"http://{house.at}/v1/agents/{agent}/run", json=body, timeout=60).json()["response"]
    )


TRANSPORTS = {"sse": by_sse, "websocket": by_socket, "chat": by_chat}


@pytest.mark.parametrize("agent", AGENTS)
@given(
    text=texts,
    cuts=st.lists(st.integers(0, 120), max_size=25),
    transport=st.sampled_from(sorted(TRANSPORTS)),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_arrives_is_the_redacted_text_and_nothing_else(
    house: House, agent: str, text: str, cuts: list[int], transport: str
) -> None:
    house.mouth.chunks = chunked(text, cuts)
    said, response, raw = TRANSPORTS[transport](house, agent)
    assert "".join(said) == response
    if agent != "short":  # a stream estimates the tokens that an answer in one piece has counted
        assert response == plain(house, agent) == house.rules[agent].check_output(text).text
    raw = _IDS.sub("", raw)  # whose hex digits may spell anything
    for secret in SEEDS:
        if secret.strip() in text and secret.strip() not in response:
            assert json.dumps(secret.strip(), ensure_ascii=False)[1:-1] not in raw
