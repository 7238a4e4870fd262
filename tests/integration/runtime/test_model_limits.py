"""What the only model of an agent cannot do: tools are left out, images refused, conversations trimmed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from astromesh.errors import ProviderRejected
from astromesh.providers.base import Capabilities
from astromesh.runtime.records import RunRequest
from astromesh.testing import ScriptedProvider
from astromesh.tokens import estimate_request
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

RUN = "/v1/agents/helper/run"
LOOKUP = {"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}
MEMORY = {"conversational": {"backend": "in_memory", "max_turns": 200}}
PATTERNS: list[dict[str, Any]] = [
    {"pattern": "react"},
    {"pattern": "plan_and_execute"},
    {"pattern": "reasoning"},
]


@asynccontextmanager
async def client(folder: Path, provider: ScriptedProvider, **spec: Any) -> AsyncIterator[httpx.AsyncClient]:
    write(folder, manifest(**spec))
    async with client_of(runtime_of(folder, provider)) as http:
        yield http


def model(*said: Any, repeat: bool = False, **features: Any) -> ScriptedProvider:
    return ScriptedProvider(*said, repeat=repeat, capabilities=Capabilities(**features))


@pytest.mark.parametrize("orchestration", PATTERNS, ids=lambda block: block["pattern"])
async def test_a_model_without_tools_is_offered_none_and_the_log_says_so(
    tmp_path: Path, orchestration: dict[str, Any]
) -> None:
    provider = model("Done.", repeat=True, tools=False)
    with capture_logs() as log:
        async with client(tmp_path, provider, tools=[LOOKUP], orchestration=orchestration) as http:
            answer = await http.post(RUN, json={"query": "Hi", "session_id": "s"})
    assert answer.status_code == 200
    assert provider.requests and not any(request.tools for request in provider.requests)
    (warned,) = [line for line in log if line["event"] == "tools_left_out"]
    assert (warned["log_level"], warned["agent"], warned["tools"]) == ("warning", "helper", ["lookup"])


async def test_a_role_that_can_call_tools_is_offered_them(tmp_path: Path) -> None:
    provider = model("Done.", tools=True)
    with capture_logs() as log:
        async with client(tmp_path, provider, tools=[LOOKUP]) as http:
            await http.post(RUN, json={"query": "Hi", "session_id": "s"})
    assert [spec.name for spec in provider.requests[0].tools] == ["lookup"]
    assert not [line for line in log if line["event"] == "tools_left_out"]


@pytest.mark.parametrize(("text_only", "status"), [(True, 400), (False, 200)])
async def test_images_are_refused_if_the_operator_says_that_the_model_accepts_none(
    tmp_path: Path, text_only: bool, status: int
) -> None:
    provider = model("A cat.", text_only=text_only)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    content = [{"type": "text", "text": "What is this?"}, picture]
    body = {"model": "helper", "messages": [{"role": "user", "content": content}]}
    async with client(tmp_path, provider) as http:
        answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == status, answer.text
    assert len(provider.requests) == (0 if text_only else 1)
    assert ("accepts no images" in answer.text) is text_only


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_conversation_that_outgrows_the_window_loses_its_oldest_turns(
    tmp_path: Path, streamed: bool
) -> None:
    provider = model("y" * 300, repeat=True, context_window=1500)
    accept = {"accept": "text/event-stream"} if streamed else {}
    async with client(tmp_path, provider, memory=MEMORY) as http:
        for number in range(24):
            body = {"query": f"{number:02d} " + "x" * 200, "session_id": "s"}
            answer = await http.post(RUN, json=body, headers=accept)
            assert answer.status_code == 200
    text = answer.text.split("event: run.completed\ndata: ")[1].split("\n")[0] if streamed else answer.text
    assert json.loads(text)["metadata"]["left_out"]["messages"] > 0
    assert json.loads(text)["metadata"]["left_out"]["context_window"] == 1500
    for request in provider.requests:
        assert estimate_request(request) <= 1200
        assert request.messages[0].content == "You are helper. Helps."
    assert [r.messages[-1].content[:2] for r in provider.requests] == [f"{n:02d}" for n in range(24)]
    # while it grows, most requests begin as the one before did
    first = [request.messages[1].content[:2] for request in provider.requests]
    assert len(set(first)) < len(first) / 2


async def test_a_short_conversation_has_lost_nothing(tmp_path: Path) -> None:
    async with client(tmp_path, model("Hello.", context_window=600)) as http:
        answer = await http.post(RUN, json={"query": "Hi", "session_id": "s"})
    assert "left_out" not in answer.json()["metadata"]


async def test_results_of_tools_give_way_with_their_calls(tmp_path: Path) -> None:
    looks = [ToolCall(f"c{n}", "lookup", json.dumps({"query": "z" * 400})) for n in range(8)]
    provider = model(*looks, "Done.", context_window=600)
    async with client(tmp_path, provider, tools=[LOOKUP]) as http:
        answer = await http.post(RUN, json={"query": "Hi", "session_id": "s"})
    assert answer.json()["response"] == "Done."
    assert answer.json()["metadata"]["left_out"]["tool_results"] > 0
    for request in provider.requests:
        asked = [call.id for message in request.messages for call in message.tool_calls]
        assert asked == [message.tool_call_id for message in request.messages if message.role == "tool"]
        assert request.messages[1].content == "Hi"


@pytest.mark.parametrize("orchestration", PATTERNS[:1], ids=lambda block: block["pattern"])
async def test_a_question_that_does_not_fit_alone_is_413_and_names_the_window(
    tmp_path: Path, orchestration: dict[str, Any]
) -> None:
    provider = model("Done.", context_window=600)
    async with client(tmp_path, provider, orchestration=orchestration) as http:
        answer = await http.post(RUN, json={"query": "x" * 4000, "session_id": "s"})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    assert "600 tokens" in answer.json()["detail"]
    assert not provider.requests


@pytest.mark.parametrize("durable", [False, True])
async def test_with_the_strategy_summary_what_does_not_fit_is_summarized(
    tmp_path: Path, durable: bool
) -> None:
    memory = {
        "conversational": {"backend": "in_memory", "strategy": "summary", "keep_turns": 200, "every": 50}
    }
    said = iter(range(100))

    def say(request: Any) -> str:
        return "They spoke of tea." if request.role == "summary" else f"{next(said):02d} " + "y" * 300

    provider = ScriptedProvider(say, repeat=True, capabilities=Capabilities(context_window=1500))
    async with client(tmp_path, provider, memory=memory) as http:
        for number in range(20):
            body = {"query": f"{number:02d} " + "x" * 200, "session_id": "s"}
            if durable:
                accepted = (await http.post("/v1/agents/helper/runs", json=body)).json()
                async with asyncio.timeout(30):
                    place = f"/v1/runs/{accepted['run_id']}"
                    while not (run := (await http.get(place)).json())["finished_at"]:
                        await asyncio.sleep(0.01)
                done = run["result"]
            else:
                done = (await http.post(RUN, json=body)).json()
            if "left_out" in done["metadata"]:
                break
    asked, answered = provider.requests[-2:]
    assert asked.role == "summary"
    assert "user: 00 xxx" in asked.messages[-1].content
    assert "They spoke of tea." in answered.messages[0].content
    assert answered.messages[0].content.startswith("You are helper. Helps.")
    assert answered.messages[-1].content.startswith(f"{number:02d} ")
    assert estimate_request(answered) <= 1200
    left = done["metadata"]["left_out"]
    assert left["summarized_messages"] > 0 and left["context_window"] == 1500


async def test_the_cut_moves_rarely_also_where_memory_forgets_a_turn_with_each_run(tmp_path: Path) -> None:
    memory = {"conversational": {"backend": "in_memory", "max_turns": 20}}
    provider = ScriptedProvider("y" * 300, repeat=True, capabilities=Capabilities(context_window=2600))
    async with client(tmp_path, provider, memory=memory) as http:
        for number in range(40):
            await http.post(RUN, json={"query": f"{number:02d} " + "x" * 600, "session_id": "s"})
    asked = [request.messages for request in provider.requests[15:]]
    assert all(estimate_request(request) <= 2600 * 0.8 for request in provider.requests)
    moved = sum(one[:-1] != after[: len(one) - 1] for one, after in pairwise(asked))
    assert 2 <= moved <= len(asked) // 2 + 1


async def test_the_next_runs_use_a_summary_until_the_window_is_outgrown_again(tmp_path: Path) -> None:
    """The session keeps it, so that neither a call nor the cache of the prompt is lost in each turn."""
    memory = {
        "conversational": {"backend": "in_memory", "strategy": "summary", "keep_turns": 200, "every": 50}
    }

    def say(request: Any) -> str:
        return f"Summary {len(summaries())}." if request.role == "summary" else "y" * 300

    provider = ScriptedProvider(say, repeat=True, capabilities=Capabilities(context_window=1500))

    def summaries() -> list[Any]:
        return [request for request in provider.requests if request.role == "summary"]

    async with client(tmp_path, provider, memory=memory) as http:
        for number in range(40):
            await http.post(RUN, json={"query": f"{number:02d} " + "x" * 200, "session_id": "s"})
    answered = [request.messages for request in provider.requests if request.role != "summary"]
    moved = sum(one[:-1] != after[: len(one) - 1] for one, after in pairwise(answered))
    assert 2 <= moved == len(summaries()) <= 13
    second = summaries()[1].messages[-1].content
    assert "Summary 1." in second and "user: 00 xxx" not in second
    newest = answered[-1][0].content
    assert f"Summary {moved}." in newest and f"Summary {moved - 1}." not in newest


async def test_a_failed_summary_leaves_the_turns_out(tmp_path: Path) -> None:
    memory = {
        "conversational": {"backend": "in_memory", "strategy": "summary", "keep_turns": 200, "every": 50}
    }

    def say(request: Any) -> str:
        if request.role == "summary":
            raise ProviderRejected("no summaries")
        return "y" * 300

    provider = ScriptedProvider(say, repeat=True, capabilities=Capabilities(context_window=1500))
    async with client(tmp_path, provider, memory=memory) as http:
        for number in range(20):
            done = await http.post(RUN, json={"query": f"{number:02d} " + "x" * 200, "session_id": "s"})
            assert done.status_code == 200
    assert done.json()["metadata"]["left_out"]["messages"] > 0


CHAT = {"model": "helper", "messages": [{"role": "user", "content": "Hi"}]}


async def test_a_request_never_raises_the_limit_of_an_answer(tmp_path: Path) -> None:
    provider = model("Done.", repeat=True, answer_tokens=100)
    async with client(tmp_path, provider) as http:
        for asked in (50, 500):
            await http.post("/v1/chat/completions", json={**CHAT, "max_tokens": asked})
    assert [request.parameters["max_tokens"] for request in provider.requests] == [50, 100]


async def test_a_parameter_that_the_model_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    provider = model("Done.", parameters=frozenset({"temperature"}))
    async with client(tmp_path, provider) as http:
        refused = await http.post("/v1/chat/completions", json={**CHAT, "seed": 1, "presence_penalty": 0})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "seed")
    assert "scripted/test-model" in refused.json()["detail"]
    assert provider.requests == []


async def test_a_durable_run_keeps_the_parameters_of_its_request(tmp_path: Path) -> None:
    """Those of every call whose result may be the answer."""
    provider = model(ToolCall("c1", "lookup", "{}"), "Done.")
    write(tmp_path, manifest(tools=[LOOKUP]))
    async with runtime_of(tmp_path, provider) as runtime:
        request = RunRequest("Hi", "s", parameters={"temperature": 0.5, "stop": ["x"]})
        row = await runtime.runner.accept(runtime.agent("helper"), request)
        await runtime.runs.wait(row, ())
    assert [dict(r.parameters) for r in provider.requests] == [{"temperature": 0.5, "stop": ["x"]}] * 2
