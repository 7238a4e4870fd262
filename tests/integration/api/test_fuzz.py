"""The server's description and its socket, fuzzed: whatever comes, no answer is a 500 (reliability.md S9).

Schemathesis compares each answer with what the description says of it, by all of its checks
(`tests/openapi/schemathesis.toml`).

`make reliability` asks far more (ASTROMESH_FUZZ_EXAMPLES per route, every value at the edge of its
schema, frames in proportion).
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from starlette.datastructures import State

from astromesh.api.app import create_app
from astromesh.api.auth import Auth
from astromesh.api.fastapi_app import create_fastapi_app
from astromesh.testing import ScriptedProvider
from astromesh.types import CallerContext
from tests.integration.agents_folder import manifest, runtime_of, served, write
from tests.platform.astromesh import ROOT

EXAMPLES = int(os.environ.get("ASTROMESH_FUZZ_EXAMPLES", "1"))
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


KEY = "key-of-the-fuzzer"
CONFIG = ROOT / "tests" / "openapi" / "schemathesis.toml"
#: the phase `coverage` takes five times as long as the other
PHASES = "fuzzing" if EXAMPLES < 20 else "coverage,fuzzing"


class OneKey:
    """Knows one key, which may do everything."""

    async def authenticate(self, token: str) -> CallerContext | None:
        return CallerContext(user_id="fuzzer", scopes=frozenset({"admin"})) if token == KEY else None


def with_names(names: Mapping[str, str]) -> str:
    """Returns the configuration of Schemathesis, in which half of the paths name what there really is."""
    lines = [CONFIG.read_text()]
    for name, value in names.items():
        lines.append(f'[dictionaries.{name}]\nvalues = ["{value}"]')
        lines.append(f'[parameters."path.{name}"]\ndictionary = "{name}"\nprobability = 0.5')
    return "\n".join(lines)


@pytest.mark.looks_up_hosts  # of URLs in the requests; nobody is asked for them
@pytest.mark.timeout(180 + 60 * EXAMPLES)
async def test_schemathesis_finds_no_failure(tmp_path: Path) -> None:
    memory = {"conversational": {"backend": "sqlite"}}
    folder = write(tmp_path / "config", manifest("helper", memory=memory))
    (folder / "rag").mkdir()
    (folder / "rag" / "helper.rag.yaml").write_text(RAG)
    headers = {"X-API-Key": KEY}
    async with (
        served(runtime_of(folder, ScriptedProvider("fine", repeat=True)), Auth((OneKey(),))) as at,
        httpx.AsyncClient(base_url=f"http://{at}", headers=headers, timeout=60) as client,
    ):
        run = await client.post("/v1/agents/helper/runs", json={"query": "Hello", "session_id": "s1"})
        real = {"name": "helper", "pipeline": "helper", "session_id": "s1", "run_id": run.json()["run_id"]}
        (tmp_path / "schemathesis.toml").write_text(with_names(real))
        options = f"--url http://{at} --checks all --phases {PHASES} -n {EXAMPLES} --seed 1 --no-color"
        process = await asyncio.create_subprocess_exec(
            Path(sys.prefix) / "bin" / "schemathesis", "--config-file", "schemathesis.toml", "run",
            f"http://{at}/openapi.json", "--header", f"X-API-Key: {KEY}", *options.split(),
            cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    tested = re.search(r"Selected: (\d+)/(\d+)\s+Tested: (\d+)", said)
    assert tested is not None and len({*tested.groups()}) == 1, said


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


def test_every_reference_of_the_description_leads_somewhere() -> None:
    description = create_fastapi_app(State()).openapi()
    found = set(re.findall(r'"\$ref":"([^"]+)"', orjson.dumps(description).decode()))
    assert found
    for reference in found:
        place = description
        for step in reference.removeprefix("#/").split("/"):
            assert step in place, reference
            place = place[step]
