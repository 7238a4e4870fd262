"""The server's description and its socket, fuzzed: whatever comes, no answer is a 500 (reliability.md S9).

Schemathesis compares each answer with what the description says of its status, type, headers and form.

`make reliability` asks far more (ASTROMESH_FUZZ_EXAMPLES per route and kind, frames in proportion).
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
import schemathesis
import structlog
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from astromesh.api.app import create_app
from astromesh.api.fastapi_app import create_fastapi_app
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import manifest, runtime_of, write

#: those that look at one answer; tests of their own call without a credential and with unknown methods
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
EXAMPLES = int(os.environ.get("ASTROMESH_FUZZ_EXAMPLES", "3"))
RAG = """\
apiVersion: astromesh/v1
kind: RAGPipeline
metadata: {name: helper}
spec: {sources: [], store: {backend: sqlite}, chunking: {strategy: markdown}}
"""
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Fuzzed(NamedTuple):
    client: TestClient
    operations: list[Any]
    real: dict[str, str]


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    folder = write(
        tmp_path_factory.mktemp("fuzz"), manifest("helper", memory={"conversational": {"backend": "sqlite"}})
    )
    (folder / "rag").mkdir()
    (folder / "rag" / "helper.rag.yaml").write_text(RAG)
    app = create_app(runtime_of(folder, ScriptedProvider("fine", repeat=True)))
    schema = schemathesis.openapi.from_dict(create_fastapi_app(app.state).openapi())
    operations: list[Any] = [found.ok() for found in schema.get_all_operations()]  # type: ignore[union-attr]
    with TestClient(app, raise_server_exceptions=False) as client:
        body = {"query": "Hello", "session_id": "s1"}
        answer = client.post("/v1/agents/helper/run", json=body).json()
        real = {
            "name": "helper", "pipeline": "helper", "session_id": "s1", "run_id": answer["run_id"],
            "trace_id": answer["metadata"]["trace_id"], "channel": "whatsapp", "principal": "anonymous",
        }  # fmt: skip
        yield Fuzzed(client, operations, real)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A hundred thousand lines of refusals help nobody."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    yield
    structlog.configure(**before)


@pytest.mark.timeout(60 + 60 * EXAMPLES)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_route_answers_500_whatever_it_is_asked(
    fuzzed: Fuzzed, mode: GenerationMode, subtests: pytest.Subtests
) -> None:
    seen: Counter[str] = Counter()
    for operation in fuzzed.operations:
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query or operation.headers):
            continue  # a path can hardly be wrong
        with subtests.test(f"{operation.method} {operation.path}"):
            seen += asked(fuzzed, operation, mode)
    assert sum(seen.values()) > 50
    assert len(seen) >= 3, "the routes were not reached"


def asked(fuzzed: Fuzzed, operation: Any, mode: GenerationMode) -> Counter[str]:
    """Calls one route with generated requests; half of them name what there really is."""
    seen: Counter[str] = Counter()

    @FUZZ
    @given(case=operation.as_strategy(generation_mode=mode), known=st.booleans())
    def call(case: Any, known: bool) -> None:
        if known and case.path_parameters:
            case.path_parameters.update((k, v) for k, v in fuzzed.real.items() if k in case.path_parameters)
        sent = case.as_transport_kwargs(base_url="http://testserver")
        parts = {k: v for k, v in sent.items() if k in ("params", "headers", "json", "data")}
        if isinstance(parts.get("data"), bytes | str):
            parts["content"] = parts.pop("data")
        answer = fuzzed.client.request(sent["method"], sent["url"], **parts)
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        if answer.status_code >= 400 and answer.content:
            assert {"code", "detail", "trace_id"} <= set(answer.json())
        is_wrong = mode is GenerationMode.NEGATIVE and answer.status_code not in (413, 414)
        checks = (*CHECKS, negative_data_rejection) if is_wrong else CHECKS
        case.validate_response(answer, checks=checks)
        seen[str(answer.status_code)] += 1

    call()
    return seen


# -- frames ------------------------------------------------------------------------------------------------

FRAMES = 10_000 * max(1, EXAMPLES // 20)
PING = '{"type":"ping"}'
#: few of them start a run when nothing is wrong with them: that is what takes the time
SEEDS: list[dict[str, Any]] = [
    *[{"type": "cancel", "run_id": "run_1"}] * 3,
    *[{"type": "resume", "run_id": "run_1", "after": 3}] * 3,
    *[{"query": "", "session_id": "s1", "context": {"a": [1, {"b": None}]}}] * 3,
    {"query": "Hello", "session_id": "s1", "context": {"a": [1, {"b": None}]}},
    {"type": "cancel", "run_id": "run_1"},
    {"type": "resume", "run_id": "run_1", "after": 3},
    {"type": "ping"},
]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = ["type", "query", "session_id", "context", "run_id", "after", "extra", ""]
FLIPS = ["\x00", "\ud800", '"', "{", "}", "[", "\\u", "é", "9" * 30, "null", "\n"]


@st.composite
def frames(draw: st.DrawFn) -> list[str]:
    """A hundred frames, each a sound one that was changed in one way; what is put in is hypothesis's."""
    oddities = [draw(values) for _ in range(5)]
    chance = random.Random(draw(st.integers(0, 2**32)))
    return [_mutated(chance, oddities) for _ in range(100)]


def _mutated(chance: random.Random, oddities: list[Any]) -> str:
    frame: dict[str, Any] = dict(chance.choice(SEEDS))
    way = chance.randrange(4)
    if way == 0:
        frame.pop(chance.choice([*frame]))
    elif way == 1:
        frame[chance.choice(NAMES)] = chance.choice(oddities)
    text = orjson.dumps(frame, option=orjson.OPT_NON_STR_KEYS).decode() if _sayable(frame) else "{"
    at = chance.randrange(len(text))
    if way == 2:
        return text[:at] + chance.choice(FLIPS) + text[at + chance.randrange(4) :]
    return text[:at] if way == 3 else text


def _sayable(frame: Any) -> bool:
    try:
        orjson.dumps(frame, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:
        return False
    return True


class Wire:
    """A socket without a network: what is put in comes to the app, what the app sends is kept."""

    def __init__(self) -> None:
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._pongs = asyncio.Semaphore(0)
        self.codes: Counter[str] = Counter()
        self.put({"type": "websocket.connect"})

    def put(self, message: dict[str, Any]) -> None:
        self._incoming.put_nowait(message)

    def say(self, text: str) -> None:
        self.put({"type": "websocket.receive", "text": text})

    async def pong(self) -> None:
        async with asyncio.timeout(60):
            await self._pongs.acquire()

    async def receive(self) -> dict[str, Any]:
        return await self._incoming.get()

    async def send(self, message: Any) -> None:
        assert message["type"].startswith("websocket."), message
        if message["type"] == "websocket.send":
            frame = orjson.loads(message["text"])
            self.codes[frame.get("code", frame["type"])] += 1
            if frame["type"] == "pong":
                self._pongs.release()


def ten_thousand() -> list[list[str]]:
    batches: list[list[str]] = []

    @settings(FUZZ, max_examples=FRAMES // 100)
    @given(frames())
    def collect(batch: list[str]) -> None:
        batches.append(batch)

    collect()
    return batches


async def test_ten_thousand_mutated_frames_are_answered_and_the_socket_lives(tmp_path: Path) -> None:
    app = create_app(runtime_of(write(tmp_path, manifest("helper")), ScriptedProvider("fine", repeat=True)))
    wire, scope = Wire(), socket_scope("/v1/ws/agent/helper")
    async with app.router.lifespan_context(app):
        serving = asyncio.create_task(app(scope, wire.receive, wire.send))
        for batch in ten_thousand():
            for text in batch:
                wire.say(text)
            wire.say(PING)
            for _ in range(1 + batch.count(PING)):
                await wire.pong()
            assert not serving.done()
            assert wire.codes["internal"] == 0, batch
        wire.put({"type": "websocket.receive", "bytes": b"\x00\xff"})
        wire.put({"type": "websocket.disconnect", "code": 1000})
        await serving
    assert wire.codes["invalid_input"] > FRAMES // 4
    assert wire.codes["run_started"] > 10


async def test_a_run_whose_client_leaves_at_once_ends_without_a_warning(tmp_path: Path) -> None:
    """Its task is cancelled before it begins; a coroutine that nobody awaits would be an error here."""
    app = create_app(runtime_of(write(tmp_path, manifest("helper")), ScriptedProvider("fine")))
    wire = Wire()
    async with app.router.lifespan_context(app):
        wire.say(orjson.dumps({"query": "go", "session_id": "s"}).decode())
        wire.put({"type": "websocket.disconnect", "code": 1000})
        await app(socket_scope("/v1/ws/agent/helper"), wire.receive, wire.send)
    gc.collect()
    assert wire.codes == {}


def socket_scope(path: str) -> dict[str, Any]:
    return {
        "type": "websocket", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": [],
        "subprotocols": [], "scheme": "ws", "server": ("test", 80), "client": ("127.0.0.1", 1), "state": {},
        "root_path": "", "asgi": {"version": "3.0"},
    }  # fmt: skip


def test_every_reference_of_the_description_leads_somewhere(fuzzed: Fuzzed) -> None:
    description = fuzzed.client.get("/openapi.json").json()
    found = set(re.findall(r'"\$ref":"([^"]+)"', orjson.dumps(description).decode()))
    assert found
    for reference in found:
        place = description
        for step in reference.removeprefix("#/").split("/"):
            assert step in place, reference
            place = place[step]
