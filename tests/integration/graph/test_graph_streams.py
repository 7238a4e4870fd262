"""What callers hear of graphs while they run: the answer alone, and nothing that a guard refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import connect

from astromesh.graph import (
    BaseNode,
    Guard,
    GuardNode,
    HumanNode,
    LoopNode,
    NodeFlag,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    RetryNode,
    SubgraphNode,
    TransformNode,
)
from astromesh.testing import Reply, ScriptedProvider
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, served, write

RUN, CHAT = "/v1/agents/helper/run", "/v1/chat/completions"


def refuses(output: Any) -> bool:
    return False


def agreed(output: Any) -> Any:
    return output != "SECRET words"


def line(*nodes: BaseNode) -> PromptGraph:
    return PromptGraph("made", nodes=nodes).sequential(*(one.name for one in nodes))


def client_for(folder: Path, graph: PromptGraph, *said: str) -> Any:
    write(folder, manifest(orchestration={"pattern": "graph", "graph": "made"}))
    return client_of(runtime_of(folder, ScriptedProvider(*said), graphs={"made": graph}))


def datas(text: str) -> list[Any]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [orjson.loads(line) for line in lines if line != "[DONE]"]


def chat_text(text: str) -> str:
    choices = [choice for chunk in datas(text) for choice in chunk.get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


ANSWERS = {
    "behind": lambda: line(PromptNode("p"), GuardNode("g", guards=[refuses])),
    "nested": lambda: line(SubgraphNode("s", line(PromptNode("p"), GuardNode("g", guards=[refuses])))),
    "its own": lambda: line(PromptNode("p", guards=[refuses])),
}


@pytest.mark.parametrize("place", list(ANSWERS))
async def test_what_is_refused_is_in_no_stream_and_in_no_record(tmp_path: Path, place: str) -> None:
    """Neither in server-sent events nor in a chat completion nor in the failed run's result."""
    async with client_for(tmp_path, ANSWERS[place](), "SECRET words", "SECRET words") as client:
        body = {"query": "q", "session_id": "s"}
        told = await client.post(RUN, json=body, headers={"accept": "text/event-stream"})
        asked = {"model": "helper", "stream": True, "messages": [{"role": "user", "content": "q"}]}
        chat = await client.post(CHAT, json=asked)
        kept = await client.get(f"/v1/runs/{datas(told.text)[0]['run_id']}")
    assert "run.failed" in told.text
    for text in (told.text, chat.text, kept.text):
        assert "SECRET" not in text


async def test_the_joined_text_of_a_stream_is_the_answer_of_the_last_node(tmp_path: Path) -> None:
    graph = line(PromptNode("one"), PromptNode("two"), PromptNode("last"))
    async with client_for(
        tmp_path, graph, "ONE", "TWO", "FINAL words", "ONE", "TWO", "FINAL words"
    ) as client:
        asked = {"model": "helper", "stream": True, "messages": [{"role": "user", "content": "q"}]}
        chat = await client.post(CHAT, json=asked)
        body = {"query": "q", "session_id": "s"}
        told = await client.post(RUN, json=body, headers={"accept": "text/event-stream"})
    assert chat_text(chat.text) == "FINAL words"
    said = [data for data in datas(told.text) if "content" in data and "role" in data]
    assert "".join(data["content"] for data in said if data["role"] == "assistant") == "FINAL words"
    assert {data["role"] for data in said} == {"one", "two", "assistant"}


async def test_an_answer_that_passed_its_guard_is_streamed_once(tmp_path: Path) -> None:
    graph = line(PromptNode("p"), GuardNode("g", guards=[agreed]))
    async with client_for(tmp_path, graph, "fine words") as client:
        asked = {"model": "helper", "stream": True, "messages": [{"role": "user", "content": "q"}]}
        assert chat_text((await client.post(CHAT, json=asked)).text) == "fine words"


async def test_a_limit_does_not_let_out_what_a_guard_has_sent_back(tmp_path: Path) -> None:
    """What was said last is no answer where a guard had a word in it."""
    guard = GuardNode("g", guards=[Guard(agreed, "retry", max_retries=9)])
    async with client_for(tmp_path, line(PromptNode("p"), guard), *["SECRET words"] * 9) as client:
        body = {"query": "q", "session_id": "s"}
        told = await client.post(RUN, json=body, headers={"accept": "text/event-stream"})
    assert "SECRET" not in told.text


async def test_a_draft_that_waits_for_a_person_is_streamed_once_it_is_approved(tmp_path: Path) -> None:
    """Who decides reads it in the question; listeners hear it as the answer, and only then."""
    async with client_for(tmp_path, line(PromptNode("p"), HumanNode("h")), "a draft") as client:
        body = {"query": "q", "session_id": "s"}
        waits = await client.post(RUN, json=body, headers={"accept": "text/event-stream"})
        place = f"/v1/runs/{datas(waits.text)[0]['run_id']}"
        empty = await client.post(f"{place}/resume", json={"decision": "answer"})
        assert (empty.status_code, "answer" in empty.json()["detail"]) == (422, True)
        went_on = await client.post(f"{place}/resume", json={"decision": "approve"})
        assert went_on.is_success, went_on.text
        events = await client.get(f"{place}/events")
    assert "model.delta" not in waits.text
    deltas = [d for d in datas(events.text) if "content" in d and "role" in d]
    assert {d["role"] for d in deltas} <= {"assistant"}
    assert "".join(d["content"] for d in deltas) in ("", "a draft")
    assert datas(events.text)[-1]["response"] == "a draft"


# -- JSON of a model ---------------------------------------------------------------------------------------

OBJECT = '{"a": 1.0,\n "b": 1.50, "c": "é", "d": 12345678901234567890123}'
FENCED = f"```json\n{OBJECT}\n```"
SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "number"}}}


def with_error_edge() -> PromptGraph:
    return PromptGraph("made", nodes=[PromptNode("p"), PromptNode("q")]).set_entry("p").on_error("p", "q")


def same(value: Any) -> Any:
    return value


def always(result: Any) -> bool:
    return True


#: How a graph comes to its answer, what its models say, and what listeners and callers receive.
WRITTEN: dict[str, tuple[Any, list[str], str]] = {
    "one node": (lambda: line(PromptNode("p")), [OBJECT], OBJECT),
    "a fence": (lambda: line(PromptNode("p")), [FENCED], FENCED),
    "spaces around it": (lambda: line(PromptNode("p")), [f"  {OBJECT}\n"], f"  {OBJECT}\n"),
    "a text": (lambda: line(PromptNode("p")), ["  1.0 \n"], "  1.0 \n"),
    "two nodes": (lambda: line(PromptNode("p"), PromptNode("q")), ["{}", OBJECT], OBJECT),
    "edges only": (lambda: line(PromptNode("p", routing="edges_only")), [OBJECT], OBJECT),
    "a schema": (lambda: line(PromptNode("p", output_schema=SCHEMA)), [OBJECT], OBJECT),
    "a schema and prose": (
        lambda: line(PromptNode("p", output_schema=SCHEMA)),
        [f"Sure: {OBJECT} Bye."],
        OBJECT,
    ),
    "a strategy": (
        lambda: line(PromptNode("p", strategy="chain_of_thought")),
        [f"Hm.\nAnswer: {OBJECT}"],
        OBJECT,
    ),
    "its guard": (lambda: line(PromptNode("p", guards=[always])), [OBJECT], OBJECT),
    "a guard behind it": (lambda: line(PromptNode("p"), GuardNode("g", guards=[always])), [OBJECT], OBJECT),
    "retries": (lambda: line(PromptNode("p", flags={NodeFlag.RETRYABLE})), [OBJECT], OBJECT),
    "a cache": (lambda: line(PromptNode("p", flags={NodeFlag.CACHEABLE})), [OBJECT], OBJECT),
    "an error edge": (with_error_edge, [OBJECT], OBJECT),
    "a subgraph": (lambda: line(SubgraphNode("s", line(PromptNode("p")))), [OBJECT], OBJECT),
    "a subgraph of a subgraph": (
        lambda: line(SubgraphNode("s", line(SubgraphNode("t", line(PromptNode("p")))))),
        [OBJECT],
        OBJECT,
    ),
    "a loop": (lambda: line(LoopNode("s", PromptNode("p"), until=always)), [OBJECT], OBJECT),
    "a retry node": (lambda: line(RetryNode("s", PromptNode("p"))), [OBJECT], OBJECT),
    "a transformation": (lambda: line(PromptNode("p"), TransformNode("t", same)), [OBJECT], OBJECT),
}


@pytest.mark.parametrize("kind", WRITTEN)
async def test_the_answer_is_what_the_model_wrote_on_every_transport(tmp_path: Path, kind: str) -> None:
    """Streamed once, in the model's own characters; the joined tokens are the response."""
    make, said, answer = WRITTEN[kind]
    async with client_for(tmp_path, make(), *said * 3) as client:
        plain = await client.post(RUN, json={"query": "q", "session_id": "a"})
        told = await client.post(
            RUN, json={"query": "q", "session_id": "b"}, headers={"accept": "text/event-stream"}
        )
        asked = {"model": "helper", "stream": True, "messages": [{"role": "user", "content": "q"}]}
        chat = await client.post(CHAT, json=asked)
    events = datas(told.text)
    heard = [data["content"] for data in events if data.get("role") == "assistant" and "content" in data]
    assert plain.json()["response"] == events[-1]["response"] == answer
    assert "".join(heard) == answer
    assert chat_text(chat.text) == answer


@pytest.mark.parametrize("end", ["Found it.", "max_iterations"])
@pytest.mark.parametrize("pattern", ["react", "graph"])
async def test_the_last_step_of_the_assistant_is_the_answer_whatever_stood_beside_tool_calls(
    tmp_path: Path, pattern: str, end: str
) -> None:
    """The text of a step that calls tools streams, because nobody knows before its end that it does.

    With `stream: final` it does not, and all that is heard is the answer.
    """
    tool = {"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}
    call = ToolCall("c1", "lookup", '{"query": "x"}')
    looks = Reply("Let me look.", tool_calls=[call])
    said = [looks, looks, end] if end == "Found it." else [looks] * 9
    more: dict[str, Any] = {"graph": "made"} if pattern == "graph" else {}
    orchestration = {"pattern": pattern, "max_iterations": 4, **more}
    spec: dict[str, Any] = {"orchestration": orchestration, "tools": [tool]}
    write(tmp_path, manifest(**spec), manifest("whole", **spec, stream="final"))
    graphs = {"made": line(PromptNode("p", inject_tools=True))}
    async with client_of(runtime_of(tmp_path, ScriptedProvider(*said, *said), graphs=graphs)) as client:
        told, whole = [
            await client.post(
                path, json={"query": "q", "session_id": "b"}, headers={"accept": "text/event-stream"}
            )
            for path in (RUN, "/v1/agents/whole/run")
        ]
    events = datas(told.text)
    heard = [data for data in events if data.get("role") == "assistant" and "content" in data]
    assert "look." in [data["content"] for data in heard]
    last = "".join(data["content"] for data in heard if data["step"] == heard[-1]["step"])
    assert last == events[-1]["response"]
    events = datas(whole.text)
    heard = [data for data in events if data.get("role") == "assistant" and "content" in data]
    assert "".join(data["content"] for data in heard) == events[-1]["response"] == last


@pytest.mark.parametrize("kind", WRITTEN)
async def test_the_answer_is_what_the_model_wrote_on_a_socket(tmp_path: Path, kind: str) -> None:
    make, said, answer = WRITTEN[kind]
    write(tmp_path, manifest(orchestration={"pattern": "graph", "graph": "made"}))
    runtime = runtime_of(tmp_path, ScriptedProvider(*said), graphs={"made": make()})
    async with served(runtime) as host, connect(f"ws://{host}/v1/ws/agent/helper", open_timeout=60) as socket:
        await socket.send(orjson.dumps({"query": "q", "session_id": "s"}).decode())
        frames = [orjson.loads(await socket.recv())]
        while frames[-1]["type"] not in ("done", "error"):
            frames.append(orjson.loads(await socket.recv()))
    assert frames[-1]["response"] == answer
    assert "".join(frame["content"] for frame in frames if frame["type"] == "token") == answer


@pytest.mark.parametrize("kind", WRITTEN)
async def test_the_text_of_a_result_is_what_the_model_wrote(kind: str) -> None:
    """The output may be parsed; the text is not."""
    make, said, answer = WRITTEN[kind]
    result = await PromptGraphEngine(make(), ScriptedProvider(*said)).ainvoke("q")
    assert result.text == answer
    assert isinstance(result.output, str if answer.strip() == "1.0" or kind == "edges only" else dict)
    engine = PromptGraphEngine(make(), ScriptedProvider(*said))
    events = [event async for event in engine.astream_events("q")]
    heard = [e.data["content"] for e in events if e.data.get("role") == "assistant" and "content" in e.data]
    assert "".join(heard) == events[-1].data["response"] == answer


@pytest.mark.parametrize("place", ["in place", "anew"])
async def test_what_a_hook_removes_from_an_output_is_not_in_the_text(place: str) -> None:
    class Removes:
        def post_node(self, node: Any, result: Any, state: Any) -> None:
            if place == "in place":
                del result.output["secret"]
            else:
                result.output = {"a": 1.0}

    model = ScriptedProvider('{"a": 1.0, "secret": "x"}')
    result = await PromptGraphEngine(line(PromptNode("p")), model, hooks=[Removes()]).ainvoke("q")
    assert (result.output, result.text) == ({"a": 1.0}, '{"a":1.0}')
