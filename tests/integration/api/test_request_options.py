"""What a request may change of its agent: the form of the answer, its model, its tools, its parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from astromesh.providers.base import Capabilities
from astromesh.testing import Reply, ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, served, write

USER: Any = [{"role": "user", "content": "hi"}]
OWN = [
    {"name": name, "type": "internal", "function": "tests.integration.sample_tools:lookup"}
    for name in ("lookup", "search")
]
CITY = {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
    "additionalProperties": False,
}  # fmt: skip
ROME = '{"city":"Rome"}'


class City(BaseModel):
    city: str


async def chat(path: Path, provider: ScriptedProvider, body: dict[str, Any], **spec: Any) -> Any:
    async with client_of(runtime_of(write(path, manifest(**spec)), provider)) as client:
        return await client.post(
            "/v1/chat/completions", json={"model": "helper", "messages": USER, **body}, timeout=30
        )


async def run(path: Path, provider: ScriptedProvider, body: dict[str, Any], **spec: Any) -> Any:
    async with client_of(runtime_of(write(path, manifest(**spec)), provider)) as client:
        whole = {"query": "hi", "session_id": "s", **body}
        return await client.post("/v1/agents/helper/run", json=whole, timeout=30)


# -- the form of the answer ----------------------------------------------------------------------------------


async def test_the_openai_client_parses_an_answer(tmp_path: Path) -> None:
    """It is repaired once, as the answer of an agent with an output schema."""
    provider = ScriptedProvider("Rome, I think.", ROME)
    async with (
        served(runtime_of(write(tmp_path, manifest()), provider)) as at,
        openai.AsyncOpenAI(base_url=f"http://{at}/v1", api_key="none", max_retries=0) as client,
    ):
        parse = client.chat.completions.parse
        answer = await parse(model="helper", messages=USER, response_format=City)
    assert answer.choices[0].message.parsed == City(city="Rome")
    assert [bool(request.output_schema) for request in provider.requests] == [True, True]


async def test_a_stream_of_a_format_has_the_checked_answer(tmp_path: Path) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    provider = ScriptedProvider(Reply(chunks=("Rome", ".")), ROME)
    answer = await chat(tmp_path, provider, {"response_format": form, "stream": True})
    lines = [line[6:] for line in answer.text.split("\n") if line.startswith("data: {")]
    chunks = [json.loads(line) for line in lines]
    said = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert json.loads(said) == {"city": "Rome"}
    assert chunks[-1]["astromesh"]["output"] == {"city": "Rome"}


@pytest.mark.parametrize("own", [None, CITY])
async def test_any_object_is_asked_for_unless_the_agent_has_a_schema(tmp_path: Path, own: Any) -> None:
    spec = {"output_schema": own} if own else {}
    provider = ScriptedProvider(ROME)
    answer = await chat(tmp_path, provider, {"response_format": {"type": "json_object"}}, **spec)
    assert json.loads(answer.json()["choices"][0]["message"]["content"]) == {"city": "Rome"}
    assert answer.json()["astromesh"]["output"] == {"city": "Rome"}
    assert provider.requests[0].output_schema == (own or {"type": "object"})


async def test_the_schema_of_a_run_replaces_the_agents(tmp_path: Path) -> None:
    provider = ScriptedProvider(ROME)
    answer = await run(tmp_path, provider, {"output_schema": CITY}, output_schema={"type": "array"})
    assert answer.json()["output"] == {"city": "Rome"}
    wrong = await run(tmp_path, provider, {"output_schema": {"type": "no"}})
    assert (wrong.status_code, wrong.json()["param"]) == (422, "output_schema")


async def test_a_durable_run_has_its_schema_in_every_segment(tmp_path: Path) -> None:
    async with client_of(runtime_of(write(tmp_path, manifest()), ScriptedProvider("x", ROME))) as client:
        body = {"query": "hi", "session_id": "s", "output_schema": CITY}
        accepted = (await client.post("/v1/agents/helper/runs", json=body)).json()
        await client.get(accepted["links"]["events"])
        state = (await client.get(accepted["links"]["self"])).json()
    assert state["result"]["output"] == {"city": "Rome"}


# -- what an agent opens -------------------------------------------------------------------------------------


async def test_temperature_and_a_smaller_answer_are_open_by_default(tmp_path: Path) -> None:
    model = {"primary": {"provider": "scripted", "model": "m", "parameters": {"max_tokens": 100}}}
    provider = ScriptedProvider("one")
    await run(tmp_path, provider, {"temperature": 0.5, "max_tokens": 50}, model=model)
    assert provider.requests[0].parameters == {"temperature": 0.5, "max_tokens": 50}


CLOSED: dict[str, tuple[dict[str, Any], Any, str, str]] = {
    "a model": ({"model": "scripted/test-model"}, None, "model", "[max_tokens, model, temperature]"),
    "tools": ({"tools": ["lookup"]}, None, "tools", "[max_tokens, temperature, tools]"),
    "a temperature": ({"temperature": 0.5}, ["max_tokens"], "temperature", "[max_tokens, temperature]"),
    "a limit": ({"max_tokens": 5}, [], "max_tokens", "[max_tokens]"),
}


async def test_what_is_not_open_is_refused_and_names_its_key(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name, (body, opened, param, key) in CLOSED.items():
        with subtests.test(name):
            spec = {} if opened is None else {"overridable": opened}
            refused = await run(tmp_path, ScriptedProvider(), body, tools=OWN, **spec)
            problem = refused.json()
            assert (refused.status_code, problem["code"], problem["param"]) == (422, "not_overridable", param)
            assert f"`spec.overridable: {key}`" in problem["detail"]


async def test_chat_completions_say_the_same(tmp_path: Path) -> None:
    refused = await chat(tmp_path, ScriptedProvider(), {"top_p": 0.5}, overridable=[])
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (422, "not_overridable", "top_p")
    accepted = await chat(tmp_path, ScriptedProvider("x"), {"top_p": 1, "n": 1}, overridable=[])
    assert accepted.status_code == 200


async def test_an_open_limit_may_be_raised(tmp_path: Path) -> None:
    model = {"primary": {"provider": "scripted", "model": "m", "parameters": {"max_tokens": 100}}}
    provider = ScriptedProvider("one", "two")
    await run(tmp_path, provider, {"max_tokens": 500}, model=model, overridable=["max_tokens"])
    assert provider.requests[0].parameters["max_tokens"] == 500


async def test_a_run_may_choose_among_the_tools_of_its_agent(tmp_path: Path) -> None:
    provider = ScriptedProvider("one")
    await run(tmp_path, provider, {"tools": ["search"]}, tools=OWN, overridable=["tools"])
    assert [tool.name for tool in provider.requests[0].tools] == ["search"]
    wrong = await run(tmp_path, provider, {"tools": ["other"]}, tools=OWN, overridable=["tools"])
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_input")
    assert "lookup, search" in wrong.json()["detail"]


async def test_a_run_may_choose_among_the_models_of_its_agent(tmp_path: Path) -> None:
    block = {"provider": "scripted", "model": "test-model"}
    model = {"primary": block, "fallback": [{**block, "model": "other"}]}
    provider = ScriptedProvider("one")
    wrong = await run(tmp_path, provider, {"model": "gpt-9"}, model=model, overridable=["model"])
    assert (wrong.status_code, wrong.json()["param"]) == (422, "model")
    known = wrong.json()["detail"].partition("It has: ")[2].rstrip(".").split(", ")
    answer = await run(tmp_path, provider, {"model": known[-1]}, model=model, overridable=["model"])
    assert answer.status_code == 200


#: what the documentation of the OpenAI SDK calls a default, of chat completions and of both protocols
DEFAULTS: dict[str, Any] = {
    "temperature": 1, "top_p": 1, "stream": False, "store": False, "metadata": {}, "service_tier": "auto",
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m"}, "prompt_cache_retention": "in_memory",
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "top_logprobs": 0,
    "user": "u", "safety_identifier": "u", "moderation": None, "stream_options": None,
}  # fmt: skip
OF_CHAT: dict[str, Any] = {
    "n": 1, "frequency_penalty": 0, "presence_penalty": 0, "reasoning_effort": "medium",
    "verbosity": "medium", "response_format": {"type": "text"}, "modalities": ["text"], "logprobs": False,
    "logit_bias": {}, "function_call": "none", "stop": None, "seed": None, "max_completion_tokens": None,
    "web_search_options": None, "audio": None, "tool_choice": "none",
}  # fmt: skip
OF_RESPONSES: dict[str, Any] = {
    "store": True, "background": False, "truncation": "disabled", "include": [],
    "text": {"format": {"type": "text"}, "verbosity": "medium"}, "context_management": None,
    "reasoning": {"effort": "medium", "summary": "auto", "context": "auto", "mode": "standard"},
    "conversation": None, "prompt": None, "max_tool_calls": None, "max_output_tokens": None,
}  # fmt: skip
NOT_FOLLOWED: list[tuple[str, dict[str, Any]]] = [
    ("chat/completions", {"reasoning_effort": "high"}), ("chat/completions", {"verbosity": "low"}),
    ("responses", {"reasoning": {"effort": "high"}}), ("responses", {"reasoning": {"mode": "pro"}}),
]  # fmt: skip


async def test_defaults_of_the_protocols_are_accepted_and_what_is_not_followed_is_named(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    takes = Capabilities(parameters=frozenset())
    provider = ScriptedProvider("x", repeat=True, capabilities=takes)
    folder = write(tmp_path, manifest(overridable=[]))
    bodies = {"chat/completions": {"messages": USER}, "responses": {"input": "hi"}}
    async with client_of(runtime_of(folder, provider)) as client:

        async def post(door: str, body: Any) -> httpx.Response:
            return await client.post(f"/v1/{door}", json={"model": "helper", **bodies[door], **body})

        for door, own in (("chat/completions", OF_CHAT), ("responses", OF_RESPONSES)):
            answer = await post(door, {**DEFAULTS, **own})
            assert answer.status_code == 200, answer.text
        assert all(not request.parameters for request in provider.requests)
        for door, body in NOT_FOLLOWED:
            with subtests.test(door, **body):
                refused = await post(door, body)
                error = refused.json()["error"]
                assert (refused.status_code, error["code"], error["param"]) == (
                    422, "not_overridable", next(iter(body))
                )  # fmt: skip
        compact = {"model": "helper", "input": "hi", "service_tier": "auto"}
        assert (await client.post("/v1/responses/compact", json=compact)).status_code == 200
        refused = await client.post("/v1/responses/compact", json={**compact, "temprature": 1})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temprature")
