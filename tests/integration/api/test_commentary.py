"""Joined text of role `assistant`, without what a stream takes back, is the answer on every transport."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from astromesh import Agent
from astromesh.graph import Guard, NodeFlag, PromptGraph, PromptGraphEngine, PromptNode
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.records import RunRequest
from astromesh.testing import RecordingTool, Reply, ScriptedProvider
from astromesh.types import CompletionRequest, CompletionResult, Delta, ToolCall
from tests.integration.agents_folder import manifest, runtime_of, served, write
from tests.integration.orchestration.pattern_cases import CASES, LOOK, QUESTION, TOOLS, Case
from tests.integration.orchestration.test_pattern_journals import ended

PATIENCE = 30.0
RUN = "/v1/agents/helper/run"
SSE = {"accept": "text/event-stream"}
ANSWER = "Tea costs 3."
#: the output is checked after it was streamed: the text of the first attempt is not the answer
SHORT = {"type": "object", "required": ["price"], "properties": {"price": {"type": "number"}}}
WITH_TOOLS: dict[str, Any] = {"tools": TOOLS, "permissions": {"tools": ["lookup"]}}


def line(*nodes: PromptNode) -> PromptGraph:
    return PromptGraph("made", nodes=nodes).sequential(*(one.name for one in nodes))


def on_error() -> PromptGraph:
    nodes = [PromptNode("p", inject_tools=True), PromptNode("q")]
    return PromptGraph("made", nodes=nodes).set_entry("p").on_error("p", "q")


def never_short(output: Any) -> bool:
    return output != "Hm."


#: a graph, and what its models say; `Hm.` is refused where something checks it
GRAPHS: dict[str, tuple[Callable[[], PromptGraph], list[Any]]] = {
    "several nodes": (
        lambda: line(PromptNode("p", inject_tools=True), PromptNode("q"), PromptNode("r", inject_tools=True)),
        [LOOK, "tea: 3", "3 EUR", LOOK, ANSWER],
    ),
    "an error edge": (on_error, [LOOK, ANSWER]),
    "retries": (
        lambda: line(PromptNode("p", inject_tools=True, flags={NodeFlag.RETRYABLE})),
        [LOOK, ANSWER],
    ),
    "a guard": (
        lambda: line(PromptNode("p", inject_tools=True, guards=[Guard(never_short, "retry", max_retries=2)])),
        [LOOK, "Hm.", ANSWER],
    ),
}
SCRIPTS: dict[str, Case] = {
    **CASES,
    "react": Case({"pattern": "react"}, [LOOK, LOOK, ANSWER], ANSWER, frozenset(), 0),
    "a limit": Case({"pattern": "react", "max_iterations": 2}, [LOOK] * 3, "", frozenset(), 0),
    "a schema": Case(
        {"pattern": "react"}, [LOOK, "Hm.", '{"price": 3}'], '{"price": 3}', frozenset(), 0,
        spec={**WITH_TOOLS, "output_schema": SHORT},
    ),
    "an output rule": Case(
        {"pattern": "react"}, [LOOK, "Call 555-0100 or a@b.example."], "", frozenset(), 0,
        spec={**WITH_TOOLS, "guardrails": {"output": [{"type": "pii_detection"}]}},
    ),
    "sentences": Case(
        {"pattern": "react"}, [LOOK, ANSWER], ANSWER, frozenset(), 0,
        spec={**WITH_TOOLS, "stream": "sentence"},
    ),
    "the whole": Case(
        {"pattern": "react"}, [LOOK, ANSWER], ANSWER, frozenset(), 0,
        spec={**WITH_TOOLS, "stream": "final"},
    ),
    **{
        name: Case({"pattern": "graph", "graph": "made"}, script, ANSWER, frozenset(), 0)
        for name, (_, script) in GRAPHS.items()
    },
}  # fmt: skip


def beside(script: Sequence[Any]) -> list[Any]:
    """The script with text beside each tool call."""
    return [Reply("Let me look.", tool_calls=[one]) if isinstance(one, ToolCall) else one for one in script]


def text_left(events: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """The rule of docs/api.md: joined deltas of role `assistant` without the steps that are taken back."""
    texts: dict[int, str] = {}
    for kind, data in events:
        if kind in ("model.restarted", "model.commentary"):
            texts.pop(data["step"], None)
        elif kind == "model.delta" and data["role"] == "assistant":
            texts[data["step"]] = texts.get(data["step"], "") + data["content"]
    return "".join(texts.values())


def data_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def sent(text: str) -> list[tuple[str, dict[str, Any]]]:
    kinds = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    return [*zip(kinds, data_lines(text), strict=True)]


def chat_text(text: str) -> str:
    choices = [choice for chunk in data_lines(text) for choice in chunk.get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def response_text(text: str) -> str:
    """The text of Open Responses, which is also that of the last event."""
    events = data_lines(text)
    (message,) = [part["text"] for item in events[-1]["response"]["output"] for part in item["content"]]
    deltas = "".join(one["delta"] for one in events if one["type"] == "response.output_text.delta")
    assert deltas == message
    return deltas


async def on_a_socket(host: str) -> tuple[str, str]:
    """What the tokens of a run leave, and its response."""
    async with connect(f"ws://{host}/v1/ws/agent/helper", open_timeout=60) as socket:
        await socket.send(json.dumps({"query": QUESTION, "session_id": "socket"}))
        frames = [json.loads(await socket.recv())]
        while frames[-1]["type"] not in ("done", "error"):
            frames.append(json.loads(await socket.recv()))
    kinds = {"token": "model.delta", "restarted": "model.restarted", "commentary": "model.commentary"}
    heard = [(kinds[one["type"]], {"role": "assistant", **one}) for one in frames if one["type"] in kinds]
    return text_left(heard), frames[-1]["response"]


@pytest.mark.parametrize("name", SCRIPTS)
async def test_what_a_stream_does_not_take_back_is_the_answer(tmp_path: Path, name: str) -> None:
    """Live, stored, read again from any event, of plain and durable runs, on every transport."""
    case = SCRIPTS[name]
    own = {} if case.others else {**WITH_TOOLS, **case.spec}
    write(tmp_path, manifest(orchestration=case.orchestration, **own), *case.others)
    graphs = {"made": GRAPHS[name][0]()} if name in GRAPHS else {}
    runtime = runtime_of(tmp_path, ScriptedProvider(*beside(case.script) * 6), graphs=graphs)
    request = {"model": "helper", "stream": True}
    async with (
        served(runtime) as host,
        httpx.AsyncClient(base_url=f"http://{host}", timeout=PATIENCE) as client,
    ):
        done = await client.post(RUN, json={"query": QUESTION, "session_id": "plain"})
        told = (await client.post(RUN, json={"query": QUESTION, "session_id": "s"}, headers=SSE)).text
        messages = [{"role": "user", "content": QUESTION}]
        chat = (await client.post("/v1/chat/completions", json={**request, "messages": messages})).text
        responses = (await client.post("/v1/responses", json={**request, "input": QUESTION})).text
        tokens, response = await on_a_socket(host)
        accepted = await client.post(RUN + "s", json={"query": QUESTION, "session_id": "durable"})
        place = f"/v1/runs/{accepted.json()['run_id']}/events"
        durable = sent((await client.get(place, headers=SSE)).text)
        events = sent(told)
        place = f"/v1/runs/{events[0][1]['run_id']}/events"
        for after in (0, 1, len(events) // 2, len(events) - 1):
            again = await client.get(place, headers={**SSE, "last-event-id": str(after)})
            assert events[:after] + sent(again.text) == events
    answer = done.json()["response"]
    assert case.answer in ("", answer)
    assert text_left(events) == events[-1][1]["response"] == answer
    assert text_left(durable) == durable[-1][1]["response"] == answer
    assert (tokens, response, chat_text(chat), response_text(responses)) == (answer,) * 4


async def test_text_beside_tool_calls_is_taken_back_before_the_tools_begin(tmp_path: Path) -> None:
    """So is that of a step which another one follows. `text()` of a stream has neither."""
    said: list[Any] = [Reply("Let me look.", tool_calls=[LOOK]), ANSWER]
    tool = RecordingTool("lookup", "tea: 3")
    agent = Agent(ScriptedProvider(*said, *said), tools=[tool])
    async with agent.stream(QUESTION) as stream:
        kinds = [event.type for event in [one async for one in stream]]
    at = kinds.index("model.commentary")
    assert (kinds[at - 1], kinds[at + 1]) == ("model.finished", "tool.started")
    assert kinds.count("model.commentary") == 1
    async with agent.stream(QUESTION) as stream:
        assert "".join([text async for text in stream.text()]) == ANSWER


async def test_the_events_of_a_graph_in_a_program_follow_the_same_rule() -> None:
    for name, (make, script) in GRAPHS.items():
        tool = RecordingTool("lookup", "tea: 3")
        engine = PromptGraphEngine(make(), ScriptedProvider(*beside(script)), tools=[tool])
        events = [(event.type, event.data) async for event in engine.astream_events(QUESTION)]
        assert text_left(events) == events[-1][1]["response"] == ANSWER, name
        if name == "several nodes":
            assert "model.commentary" in [kind for kind, _ in events]


class Shouts:
    """A hook that changes the answer after it was streamed."""

    def post_node(self, node: Any, result: Any, state: Any) -> None:
        result.output = result.output.upper()


async def test_an_answer_that_is_changed_after_its_stream_replaces_it() -> None:
    engine = PromptGraphEngine(line(PromptNode("p")), ScriptedProvider("Tea costs 3."), hooks=[Shouts()])
    events = [(event.type, event.data) async for event in engine.astream_events(QUESTION)]
    assert [data["step"] for kind, data in events if kind == "model.commentary"] == [1]
    assert text_left(events) == events[-1][1]["response"] == "TEA COSTS 3."


class Breaks(ScriptedProvider):
    """A model that says half of an answer after its script, and no more."""

    def __init__(self, *script: Any) -> None:
        super().__init__(*script)
        self.stuck = asyncio.Event()
        self._left = len(script)

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        self._left -= 1
        if self._left >= 0:
            async for piece in super().stream(request):
                yield piece
            return
        yield Delta("Half an answer. ")
        self.stuck.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("name", sorted({*CASES, "react"} - {"autonomous"}))  # that one does not stream
async def test_a_durable_run_takes_back_what_it_has_said_before_a_crash(tmp_path: Path, name: str) -> None:
    case = SCRIPTS[name]
    own = {} if case.others else case.spec
    write(tmp_path, manifest(orchestration=case.orchestration, **own), *case.others)
    script = beside(case.script)
    breaks = Breaks(*script[:-1])
    async with working(tmp_path, breaks) as one:
        run_id = (await one.runner.accept(one.agent("helper"), RunRequest(QUESTION, "s"))).run_id
        async with asyncio.timeout(PATIENCE):
            await breaks.stuck.wait()
    async with working(tmp_path, ScriptedProvider(*script[-1:])) as two:
        run = await ended(two, run_id)
        events = [(event.type, event.data) for event in await two.durable.store.events(run_id)]
    assert text_left(events) == run["result"]["response"] == case.answer


@asynccontextmanager
async def working(folder: Path, provider: ScriptedProvider) -> AsyncIterator[AgentRuntime]:
    runtime = runtime_of(folder, provider)
    await runtime.bootstrap()
    await runtime.durable.start()
    try:
        yield runtime
    finally:
        await runtime.close(grace=0.0)
