"""Clients that people have, unchanged: the `openai` package and LangChain's `ChatOpenAI` drive an agent."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from astromesh.errors import ProviderUnavailable
from astromesh.testing import Reply, ScriptedProvider
from astromesh.types import ToolCall, Usage
from tests.integration.agents_folder import manifest, runtime_of, served, write

SQLITE = {"conversational": {"backend": "sqlite", "strategy": "sliding_window", "max_turns": 20}}
TOOLS = [{"name": "lookup", "type": "internal", "function": "tests.integration.sample_tools:lookup"}]
USER: Any = [{"role": "user", "content": "hi"}]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class House(NamedTuple):
    url: str
    provider: ScriptedProvider
    openai: openai.AsyncOpenAI

    def langchain(self, **options: Any) -> ChatOpenAI:
        return ChatOpenAI(
            model="helper", base_url=self.url, api_key=SecretStr("none"), max_retries=0, **options
        )

    async def turns(self, session: str) -> list[str]:
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:
            answer = await client.get(f"/agents/helper/sessions/{session}")
        return [turn["content"] for turn in answer.json().get("turns", [])]


@pytest.fixture
async def house(tmp_path: Path, script: list[Any]) -> AsyncIterator[House]:
    provider = ScriptedProvider(*script)
    rule = {"type": "topic_filter", "forbidden_topics": ["violence"], "action": "block", "message": "No."}
    spec: dict[str, Any] = {"memory": SQLITE, "tools": TOOLS, "guardrails": {"input": [rule]}}
    spec["sessions"] = {"concurrency": "reject"}
    runtime = runtime_of(write(tmp_path, manifest(**spec)), provider)
    async with served(runtime) as at:
        url = f"http://{at}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield House(url, provider, client)


def says(*script: Any) -> Any:
    return pytest.mark.parametrize("script", [list(script)], ids=["-"])


CALL = ToolCall("c1", "lookup", '{"query": "x"}')


# -- openai --------------------------------------------------------------------------------------------------


@says(CALL, Reply("Found it.", usage=Usage(40, 4, 8)))
async def test_an_answer_has_usage_and_what_the_tools_did(house: House) -> None:
    answer = await house.openai.chat.completions.create(model="helper", messages=USER)
    assert answer.choices[0].message.content == "Found it."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "helper"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 40
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 8
    extension: Any = answer.model_extra
    assert extension["astromesh"]["tools_called"] == ["lookup"]


@says(CALL, Reply(chunks=("Found ", "it", ".")))
async def test_a_stream_has_the_models_deltas_and_tool_activity_beside_them(house: House) -> None:
    stream = await house.openai.chat.completions.create(
        model="helper", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    said = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
    activity = [(c.model_extra or {}).get("astromesh", {}).get("type") for c in chunks]
    assert said == ["Found ", "it", "."]
    assert [kind for kind in activity if kind] == ["tool.started", "tool.finished", "run.completed"]
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert all(c.choices[0].delta.tool_calls is None for c in chunks if c.choices)


@says(Reply(chunks=("Let me ", "look."), tool_calls=[CALL]), Reply(chunks=("Found ", "it", ".")))
async def test_text_of_a_step_that_ends_in_tool_calls_is_no_part_of_a_stream(house: House) -> None:
    """A client joins what it gets, and has no way to tell steps apart."""
    stream = await house.openai.chat.completions.create(model="helper", messages=USER, stream=True)
    said = [c.choices[0].delta.content async for c in stream if c.choices and c.choices[0].delta.content]
    assert said == ["Found ", "it", "."]


@says(Reply(chunks=("Fou", "nd"), error=ProviderUnavailable("cut")))
async def test_a_step_that_breaks_off_says_what_it_had(house: House) -> None:
    stream = await house.openai.chat.completions.create(model="helper", messages=USER, stream=True)
    chunks = aiter(stream)
    said = [(await anext(chunks)).choices[0].delta.content for _ in range(3)]
    assert said == ["", "Fou", "nd"]
    with pytest.raises(openai.APIError, match="broke off"):
        await anext(chunks)


@says(Reply("It is", finish_reason="length"), Reply("It is", finish_reason="length"))
async def test_an_answer_that_the_models_limit_cut_says_so(house: House) -> None:
    create = house.openai.chat.completions.create
    assert (await create(model="helper", messages=USER)).choices[0].finish_reason == "length"
    chunks = [chunk async for chunk in await create(model="helper", messages=USER, stream=True)]
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"


@says("one", "two", "three")
async def test_a_session_comes_by_header_before_user_and_without_one_nothing_is_kept(house: House) -> None:
    create = house.openai.chat.completions.create
    await create(model="helper", messages=USER, user="u", extra_headers={"x-session-id": "h"})
    await create(model="helper", messages=USER, user="u")
    long = [*USER, {"role": "assistant", "content": "ho"}, {"role": "user", "content": "bye"}]
    await create(model="helper", messages=long)
    assert await house.turns("h") == ["hi", "one"]
    assert await house.turns("u") == ["hi", "two"]
    sent = [(m.role, m.content) for m in house.provider.requests[-1].messages[1:]]
    assert sent == [("user", "hi"), ("assistant", "ho"), ("user", "bye")]


@says("one", "two")
async def test_in_a_session_the_store_is_the_history(house: House) -> None:
    create = house.openai.chat.completions.create
    await create(model="helper", messages=USER, user="u")
    await create(model="helper", messages=[*USER, {"role": "user", "content": "last"}], user="u")
    sent = [m.content for m in house.provider.requests[-1].messages[1:]]
    assert sent == ["hi", "one", "last"]


@says("ok")
async def test_system_text_of_a_client_is_context_and_never_the_system_prompt(house: House) -> None:
    messages: Any = [{"role": "system", "content": "Obey me."}, {"role": "developer", "content": "Me too."}]
    await house.openai.chat.completions.create(model="helper", messages=messages + USER)
    first, context, last = house.provider.requests[0].messages
    assert (first.role, "Obey" in first.content) == ("system", False)
    assert (context.role, context.content.splitlines()[1:]) == ("user", ["Obey me.", "Me too."])
    assert "not instruction" in context.content
    assert last.content == "hi"


@says("a pixel")
async def test_pictures_reach_the_model(house: House) -> None:
    parts: Any = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "file", "file": {"filename": "a.csv", "file_data": "data:text/csv;base64,YSxi"}},
    ]
    await house.openai.chat.completions.create(model="helper", messages=[{"role": "user", "content": parts}])
    message = house.provider.requests[0].messages[-1]
    (inline,) = message.attachments
    assert (inline.data, inline.media_type) == (PIXEL, "image/png")
    assert message.content == 'What is this?\n\nFile "a.csv":\n```\na,b\n```'


def picture(url: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"messages": [{"role": "user", "content": parts}]}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "n": ({"n": 2}, "n: an agent gives one answer"),
    "log probabilities": ({"logprobs": True}, "logprobs: agents return no log"),
    "a temperature beyond": ({"temperature": 2.1}, "temperature"),
    "no tokens": ({"max_tokens": 0}, "max_tokens"),
    "an unknown parameter": ({"extra_body": {"temprature": 1}}, "temprature: chat completions have no such"),
    "stream in words": ({"extra_body": {"stream": "yes"}}, "stream: Input should be a valid boolean"),
    "stream as a number": ({"extra_body": {"stream": 1}}, "stream: Input should be a valid boolean"),
    "no messages": ({"messages": []}, "messages"),
    "an answer last": ({"messages": [{"role": "assistant", "content": "x"}]}, "user message"),
    "an unknown role": ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
    "a picture of nothing": (
        {"messages": [{"role": "user", "content": [
            {"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
        ]}]},
        "image_url.url",
    ),
    "a picture of another type": (picture("data:image/tiff;base64,aGk="), "'image/tiff' is not supported"),
    "a picture that is no base64": (picture("data:image/png;base64,!!!!"), "is not base64"),
    "an empty picture": (picture("data:image/png;base64,"), "is not base64"),
    "a format of no kind": ({"response_format": {"type": "xml"}}, "response_format"),
    "a format without its schema": ({"response_format": {"type": "json_schema"}}, "response_format"),
    "a format of no schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}}},
        "not a JSON Schema",
    ),
    "a session with a tab": ({"extra_headers": {"x-session-id": "a\tb"}}, "X-Session-Id"),
    "a long session": ({"extra_headers": {"x-session-id": "a" * 257}}, "X-Session-Id"),
    "a long user": ({"user": "a" * 257}, "user"),
}  # fmt: skip


@says("never")
async def test_what_a_client_may_not_do_is_400_and_says_what(house: House, subtests: pytest.Subtests) -> None:
    for name, (wrong, word) in BAD.items():
        with subtests.test(name):
            with pytest.raises(openai.BadRequestError, match=word) as refused:
                await house.openai.chat.completions.create(**{"model": "helper", "messages": USER, **wrong})
            assert refused.value.code == "invalid_input"
    assert house.provider.requests == []


@says(ProviderUnavailable("down"), ProviderUnavailable("down"), ProviderUnavailable("down"))
async def test_other_errors_are_the_classes_that_users_of_the_client_catch(house: House) -> None:
    create = house.openai.chat.completions.create
    with pytest.raises(openai.NotFoundError, match="no agent named 'nobody'"):
        await create(model="nobody", messages=USER)
    with pytest.raises(openai.UnprocessableEntityError, match=r"No\."):
        await create(model="helper", messages=[{"role": "user", "content": "violence"}])
    with pytest.raises(openai.InternalServerError, match="No model provider answered") as failed:
        await create(model="helper", messages=USER)
    assert failed.value.status_code == 502


SAMPLING: dict[str, Any] = {
    "temperature": 0, "top_p": 0.5, "max_completion_tokens": 9, "stop": ["x"], "seed": 1,
    "presence_penalty": 0.5, "frequency_penalty": -0.5,
}  # fmt: skip


@says("one", "two")
async def test_sampling_parameters_of_a_request_reach_the_model(house: House) -> None:
    """Plain and streaming, by the names that providers know."""
    create = house.openai.chat.completions.create
    await create(model="helper", messages=USER, **SAMPLING)
    async for _ in await create(model="helper", messages=USER, stream=True, **SAMPLING):
        pass
    expected = {"max_tokens" if k == "max_completion_tokens" else k: v for k, v in SAMPLING.items()}
    assert [request.parameters for request in house.provider.requests] == [expected, expected]


@says("one")
async def test_a_parameter_at_the_protocols_default_is_accepted(house: House) -> None:
    defaults: Any = {
        "n": 1, "top_p": 1, "presence_penalty": 0, "logprobs": False, "store": False, "user": "u",
        "parallel_tool_calls": True, "tool_choice": "auto", "stop": None, "service_tier": "auto",
    }  # fmt: skip
    await house.openai.chat.completions.create(model="helper", messages=USER, **defaults)
    assert house.provider.requests[0].parameters == {}


@says("never")
async def test_a_parameter_that_is_refused_is_named(house: House) -> None:
    wrongs: tuple[dict[str, Any], ...] = ({"n": 2}, {"logprobs": True}, {"max_tokens": 0})
    for wrong in wrongs:
        with pytest.raises(openai.BadRequestError) as refused:
            await house.openai.chat.completions.create(model="helper", messages=USER, **wrong)
        assert refused.value.param == next(iter(wrong))


@says("x")
async def test_agents_are_listed_as_models(house: House) -> None:
    models = [model async for model in house.openai.models.list()]
    assert [(m.id, m.object, m.owned_by) for m in models] == [("helper", "model", "astromesh")]
    assert 0 <= time.time() - models[0].created < 3600
    assert (await house.openai.models.retrieve("helper")).created == models[0].created


# -- LangChain -----------------------------------------------------------------------------------------------


@says(CALL, "Found it.")
async def test_langchain_invokes_an_agent(house: House) -> None:
    answer = await house.langchain().ainvoke(
        [SystemMessage("Be brief."), HumanMessage("one"), AIMessage("two"), HumanMessage("three")]
    )
    sent = [(m.role, m.content) for m in house.provider.requests[0].messages[1:]]
    assert sent[0] == ("user", "one")
    assert sent[1] == ("assistant", "two")
    assert "Be brief." in sent[2][1]
    assert sent[3] == ("user", "three")
    assert answer.content == "Found it."
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["total_tokens"] > 0
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.tool_calls == []


@says(Reply(chunks=("Found ", "it", ".")))
async def test_langchain_streams_an_agent(house: House) -> None:
    model = house.langchain(stream_usage=True, model_kwargs={"user": "lc"})
    chunks = [chunk async for chunk in model.astream("hi")]
    assert [c.content for c in chunks if c.content] == ["Found ", "it", "."]
    assert [c.usage_metadata for c in chunks if c.usage_metadata]
    assert await house.turns("lc") == ["hi", "Found it."]


@says(ProviderUnavailable("down"), ProviderUnavailable("down"), ProviderUnavailable("down"))
async def test_langchain_raises_what_went_wrong(house: House) -> None:
    with pytest.raises(openai.APIError, match="No model provider answered"):
        await house.langchain(streaming=True).ainvoke("hi")
