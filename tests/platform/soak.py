"""A soak: many runs of every kind against a real server, and what grows meanwhile (reliability.md R12, R13).

The server is asked between rounds, when nothing runs: its resident memory, open files, and asyncio tasks. The
tasks and the lag of its event loop are counted by a tool that one of its agents has.
"""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import aiohttp

from tests.platform.astromesh import ServerProcess
from tests.platform.model import MockModel

_AGENT = """apiVersion: astromesh/v1
kind: Agent
metadata: {{name: {name}}}
spec:
  model: {{primary: {{provider: openai, model: "{model}", endpoint: "{url}", api_key: none, timeout: 60}}}}
  prompts: {{system: "You are {{{{ agent_name }}}}."}}
  orchestration: {{pattern: react, max_iterations: 5}}
  memory: {{conversational: {{backend: sqlite, strategy: sliding_window, max_turns: 20}}}}
{tools}"""
_LOOKUP = '  tools: [{name: lookup, type: internal, function: "soak_tools:lookup", effect: read}]\n'
_CENSUS = '  tools: [{name: census, type: internal, function: "soak_tools:census", effect: read}]\n'
_AGENTS = {
    "plain": ("mock", ""),
    "tools": ("mock+tools=2", _LOOKUP),
    "stream": ("mock+tokens=30", ""),
    "long": ("mock+tokens=2000+gap=20", ""),
    "census": ("mock+tools=1", _CENSUS),
}
_TOOLS = '''
import asyncio
import json
import os

lags = []
sampling = []


async def sample():
    """Notes by how much the loop comes late."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + 0.02
        await asyncio.sleep(0.02)
        lags.append(max(0.0, loop.time() - due))


async def lookup(query: str) -> str:
    """Looks something up."""
    return f"found {query}"


async def census(query: str) -> str:
    """Counts what there is in this process."""
    if not sampling:
        sampling.append(asyncio.create_task(sample(), name="soak lag"))
        await asyncio.sleep(0)
    ordered = sorted(lags)
    p99 = ordered[int(len(ordered) * 0.99)] if ordered else 0.0
    lags.clear()
    with open(os.environ["SOAK_CENSUS"], "a") as file:
        file.write(json.dumps({"tasks": len(asyncio.all_tasks()), "lag": p99}) + "\\n")
    return "counted"
'''
#: runs at once, and seconds for any one of them
CLIENTS, PATIENCE = 24, 120.0
_PAGE = resource.getpagesize()


class Sample(NamedTuple):
    """The server between two rounds.

    Args:
        runs: that it has had so far.
        resident: bytes.
        lag: 99th percentile over the last round, seconds.
    """

    runs: int
    resident: int
    files: int
    tasks: int
    lag: float


class Bounds(NamedTuple):
    """What a run may leave behind (`per_run`, bytes), and how many more files and tasks there may be."""

    per_run: float = 256.0
    files: float = 8.0
    tasks: float = 3.0


def slope(samples: Sequence[Sample]) -> float:
    """Bytes that each run leaves behind: the median of the slopes between all pairs (Theil and Sen)."""
    pairs = [(a, b) for i, a in enumerate(samples) for b in samples[i + 1 :] if b.runs > a.runs]
    return median((b.resident - a.resident) / (b.runs - a.runs) for a, b in pairs) if pairs else 0.0


def settled(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The second half: caches and bounded records are full by then."""
    return samples[len(samples) // 2 :]


def grown(samples: Sequence[Sample], of: Callable[[Sample], float]) -> float:
    """What the last quarter has more than the second one."""
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter] or samples[:1], samples[-quarter:]
    return median(map(of, late)) - median(map(of, early))


def complaints(samples: Sequence[Sample], bounds: Bounds = Bounds()) -> list[str]:  # noqa: B008 (immutable)
    """What grows that must not; empty where all is well."""
    found = []
    if (left := slope(settled(samples))) > bounds.per_run:
        found.append(f"each run leaves {left:.0f} bytes behind (at most {bounds.per_run:.0f})")
    if (more := grown(samples, lambda s: s.files)) > bounds.files:
        found.append(f"{more:.0f} more files are open than at the start")
    if (more := grown(samples, lambda s: s.tasks)) > bounds.tasks:
        found.append(f"{more:.0f} more tasks live than at the start")
    return found


class Soak:
    """A server with a stand-in model, and clients of every kind.

    Args:
        home: an empty folder.
    """

    def __init__(self, home: Path) -> None:
        self._census = home / "census"
        self.model = MockModel(home)
        config = home / "config"
        (config / "agents").mkdir(parents=True)
        (config / "soak_tools.py").write_text(_TOOLS)
        for name, (model, tools) in _AGENTS.items():
            text = _AGENT.format(name=name, model=model, url=self.model.url, tools=tools)
            (config / "agents" / f"{name}.agent.yaml").write_text(text)
        self.server = ServerProcess(home, config, {"SOAK_CENSUS": str(self._census)})
        self.runs = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Starts both; the session is for `round`."""
        try:
            await asyncio.to_thread(self.model.start)
            await asyncio.to_thread(self.server.start)
            timeout = aiohttp.ClientTimeout(total=PATIENCE)
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(self.server.url, timeout=timeout, connector=connector) as http:
                yield http
        finally:
            await asyncio.to_thread(self.server.close)
            await asyncio.to_thread(self.model.close)

    async def round(self, http: aiohttp.ClientSession, runs: int) -> Sample:
        """So many runs, a sixth of each kind; then a look at the server."""
        numbers = iter(range(self.runs, self.runs + runs))

        async def client() -> None:
            for n in numbers:
                await _KINDS[n % len(_KINDS)](http, n)

        await asyncio.gather(*(client() for _ in range(min(CLIENTS, runs))))
        self.runs += runs
        return await self.look(http)

    async def look(self, http: aiohttp.ClientSession) -> Sample:
        """Waits until nothing runs, and counts."""
        async with asyncio.timeout(PATIENCE):
            while (await _json(http, "/v1/runs?status=running&limit=1"))["runs"]:
                await asyncio.sleep(0.05)
        body = {"query": "count", "session_id": f"census-{self.runs}"}
        await _json(http, "/v1/agents/census/run", body)
        counted = json.loads(self._census.read_text().splitlines()[-1])
        proc = Path(f"/proc/{self.server.pid}")
        resident = int((proc / "statm").read_text().split()[1]) * _PAGE
        files = len(list((proc / "fd").iterdir()))
        return Sample(self.runs, resident, files, counted["tasks"], counted["lag"])


async def _json(http: aiohttp.ClientSession, path: str, body: dict[str, Any] | None = None) -> Any:
    async with http.request("GET" if body is None else "POST", path, json=body) as answer:
        said = await answer.json()
        assert answer.status < 300, f"{path}: {answer.status} {said}"
        return said


def _body(n: int) -> dict[str, Any]:
    return {"query": f"question {n}", "session_id": f"soak-{n // 12}-{n % 12}"}


async def _plain(http: aiohttp.ClientSession, n: int) -> None:
    assert (await _json(http, "/v1/agents/plain/run", _body(n)))["response"]


async def _tools(http: aiohttp.ClientSession, n: int) -> None:
    answer = await _json(http, "/v1/agents/tools/run", _body(n))
    assert answer["metadata"]["tools_called"] == ["lookup", "lookup"], answer


@asynccontextmanager
async def _streamed(http: aiohttp.ClientSession, agent: str, n: int) -> AsyncIterator[aiohttp.ClientResponse]:
    headers = {"accept": "text/event-stream"}
    async with http.post(f"/v1/agents/{agent}/run", json=_body(n), headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        yield answer


async def _until(answer: aiohttp.ClientResponse, event: bytes) -> bytes:
    """Reads until an event of this type; answers its data."""
    found = False
    async for line in answer.content:
        if found and line.startswith(b"data: "):
            return line[6:]
        found = found or line.strip() == b"event: " + event
    raise AssertionError(f"the stream ended without {event.decode()}")


async def _stream(http: aiohttp.ClientSession, n: int) -> None:
    async with _streamed(http, "stream", n) as answer:
        await _until(answer, b"run.completed")


async def _gone(http: aiohttp.ClientSession, n: int) -> None:
    """The client goes away in the middle, which cancels the run."""
    async with _streamed(http, "long", n) as answer:
        await _until(answer, b"model.delta")
        answer.close()


async def _cancelled(http: aiohttp.ClientSession, n: int) -> None:
    """Somebody cancels it in the middle."""
    async with _streamed(http, "long", n) as answer:
        run_id = json.loads(await _until(answer, b"run.started"))["run_id"]
        await _until(answer, b"model.delta")
        await _json(http, f"/v1/runs/{run_id}/cancel", {})
        await _until(answer, b"run.cancelled")


async def _socket(http: aiohttp.ClientSession, n: int) -> None:
    """A WebSocket that asks, hears tokens and leaves."""
    async with http.ws_connect("/v1/ws/agent/stream") as socket:
        await socket.send_json(_body(n))
        async for message in socket:
            frame = json.loads(message.data)
            assert frame["type"] != "error", frame
            if frame.get("done"):
                return
    raise AssertionError("the socket closed before the answer was done")


_KINDS: tuple[Callable[[aiohttp.ClientSession, int], Awaitable[None]], ...] = (
    _plain,
    _tools,
    _stream,
    _gone,
    _cancelled,
    _socket,
)
