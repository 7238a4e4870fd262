"""What every model service's provider does, whatever its wire format; the SDKs accept the same server."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import anthropic
import openai
import orjson
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.oauth2 import service_account
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from astromesh.errors import (
    ConfigError,
    MissingKey,
    ProviderError,
    ProviderRateLimited,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnauthorized,
    ProviderUnavailable,
)
from astromesh.net.http import Http
from astromesh.plugins import Deps, Plugins, Resources
from astromesh.providers.base import Provider
from astromesh.providers.entra import token_request
from astromesh.providers.openai import OpenAIOptions
from astromesh.providers.presets import PRESETS
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    Delta,
    Image,
    Message,
    ToolCall,
    ToolSpec,
    Usage,
    attached_usage,
)
from tests.platform import aws
from tests.platform.astromesh import ROOT
from tests.platform.model_server import Call, ModelServer, ResponsesSpeaker, Scenario

KEY = "zq-very-secret-0123456789"
SEARCH = ToolSpec(
    "search",
    "Searches",
    {"type": "object", "required": ["query"], "properties": {"query": {"type": "string"}}},
)
SCHEMA = {
    "type": "object",
    "required": ["city"],
    "properties": {"city": {"type": "string"}},
    "additionalProperties": False,
}
TWO_CALLS = (Call("call_1", "search", {"query": "a"}), Call("call_2", "search", {"query": "b"}))
BASES = {
    "openai": "/v1", "openai_responses": "/v1", "anthropic": "", "ollama": "", "gemini": "/v1beta",
    "azure": "", "bedrock": "", "vertex": "/v1",
}  # fmt: skip
#: Azure is the provider `openai` at another address
OPTIONS: dict[str, dict[str, Any]] = {
    "azure": {"api_version": "2024-10-21"},
    "bedrock": {"region": "eu-central-1", "structured_output": "json_schema"},
    "vertex": {"credentials_file": "account.json"},
}
#: they prove who calls without a key in the block
KEYLESS = {"bedrock", "vertex"}


@dataclass
class World:
    """One wire format with its server."""

    kind: str
    server: ModelServer
    deps: Deps
    at: str

    async def provider(self, **options: Any) -> Any:
        given = {
            "model": "m-1",
            "endpoint": self.server.url + BASES[self.at],
            "timeout": 20,
        }
        if self.at not in KEYLESS:
            given["api_key"] = KEY
        given |= OPTIONS.get(self.at, {})
        return await Plugins().open("providers", self.kind, {**given, **options}, self.deps)

    def says(self, **scenario: Any) -> None:
        self.server.script = [Scenario(**scenario)]


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(KEY) as running:
        yield running


@pytest.fixture(params=sorted(BASES))
async def world(request, server, monkeypatch, tmp_path) -> AsyncIterator[World]:
    if request.param == "bedrock":
        signs_with(monkeypatch, KEY)
    if request.param == "vertex":
        write_account(tmp_path / "account.json", server.url)
    async with Http() as http:
        kind = "openai" if request.param == "azure" else request.param
        deps = Deps(http=http, config_dir=tmp_path)
        yield World(kind, server, deps, request.param)
        await deps.resources.close()


def signs_with(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    """Makes credentials of AWS all that the environment has."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_BEARER_TOKEN_BEDROCK"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session-token")


@cache
def private_key() -> str:
    key = rsa.generate_private_key(65537, 2048)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def write_account(file: Path, url: str, project: str = "p-1") -> None:
    """Writes a service account of Google that gets its tokens from the server."""
    account = {
        "type": "service_account", "project_id": project, "private_key": private_key(), "private_key_id": "k",
        "client_email": "a@p-1.iam.gserviceaccount.com", "token_uri": f"{url}/token",
    }  # fmt: skip
    file.write_bytes(orjson.dumps(account))


def asking(*messages: Message, **request: Any) -> CompletionRequest:
    return CompletionRequest(
        messages or (Message("system", "Be brief."), Message("user", "Hello?")), **request
    )


async def streamed(provider: Provider, request: CompletionRequest) -> tuple[list[str], CompletionResult]:
    pieces = [piece async for piece in provider.stream(request)]
    texts = [piece.content for piece in pieces if isinstance(piece, Delta)]
    assert len(texts) == len(pieces) - 1
    assert isinstance(pieces[-1], CompletionResult)
    return texts, pieces[-1]


async def refused(
    provider: Provider, request: CompletionRequest, *, stream: bool
) -> tuple[ProviderError, str]:
    """The error, and the text that came before it."""
    text, raised = "", None
    try:
        if stream:
            async for piece in provider.stream(request):
                assert isinstance(piece, Delta)
                text += piece.content
        else:
            await provider.complete(request)
    except ProviderError as error:
        raised = error
    assert raised is not None, "the fault was taken for an answer"
    assert KEY not in str(raised)
    assert raised.provider == provider.name
    return raised, text


@asynccontextmanager
async def full_listener() -> AsyncIterator[str]:
    """The URL of a socket that takes no more connections."""
    with ExitStack() as held:
        listener = held.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


# -- what goes well ------------------------------------------------------------------------------------------


async def test_a_text_comes_with_its_usage_and_the_name_of_who_said_it(world):
    provider = await world.provider()
    result = await provider.complete(asking())
    assert result.content == "Hello, world."
    assert (result.provider, result.model, result.finish_reason) == (world.kind, "m-1", "stop")
    assert provider.name == f"{world.kind}/m-1"
    assert (result.usage.input_tokens, result.usage.output_tokens) == (12, 4)
    assert result.usage.cached_tokens == (0 if world.kind == "ollama" else 8)
    assert result.latency_ms > 0


async def test_deltas_come_as_the_service_sent_them_and_join_to_the_whole_answer(world):
    provider = await world.provider()
    whole = await provider.complete(asking())
    texts, result = await streamed(provider, asking())
    assert texts == ["Hello", ", ", "world", "."]
    assert (result.content, result.usage, result.finish_reason) == (
        whole.content,
        whole.usage,
        whole.finish_reason,
    )


async def test_what_is_asked_arrives_in_the_services_own_words(world):
    provider = await world.provider(parameters={"temperature": 0.3, "max_tokens": 9})
    await provider.complete(asking(tools=(SEARCH,), parameters={"temperature": 0.7}))
    seen = world.server.seen[0]
    assert (seen.model, seen.system, seen.turns, seen.tools) == (
        "m-1",
        "Be brief.",
        (("user", "Hello?"),),
        ("search",),
    )
    assert seen.key == KEY
    sent = seen.body.get("options", seen.body)
    assert sent["temperature"] == 0.7
    assert sent["num_predict" if world.kind == "ollama" else "max_tokens"] == 9


@both
async def test_parallel_tool_calls_are_read_whole(world, stream):
    world.says(pieces=("Let me see.",), calls=TWO_CALLS)
    provider = await world.provider()
    request = asking(tools=(SEARCH,))
    result = (await streamed(provider, request))[1] if stream else await provider.complete(request)
    assert [(c.name, c.arguments.replace(" ", "")) for c in result.tool_calls] == [
        ("search", '{"query":"a"}'),
        ("search", '{"query":"b"}'),
    ]
    assert len({c.id for c in result.tool_calls}) == 2
    assert all(c.id for c in result.tool_calls)
    assert (result.content, result.finish_reason) == ("Let me see.", "tool_calls")


async def test_tool_results_go_back_with_the_calls_they_answer(world):
    calls = (ToolCall("call_1", "search", '{"query":"a"}'), ToolCall("call_2", "search", '{"query":"b"}'))
    await (await world.provider()).complete(
        asking(
            Message("user", "Find a and b."),
            Message("assistant", "", calls),
            Message("tool", "found a", tool_call_id="call_1", name="search"),
            Message("tool", "found b", tool_call_id="call_2", name="search"),
            tools=(SEARCH,),
        )
    )
    seen = world.server.seen[0]
    assert seen.calls == (("search", {"query": "a"}), ("search", {"query": "b"}))
    assert seen.results == ("found a", "found b")


async def test_arguments_that_are_no_json_can_be_told_back(world):
    broken = '["a"]' if world.kind.startswith("openai") else "{a"
    await (await world.provider()).complete(
        asking(
            Message("user", "Find a."),
            Message("assistant", "", (ToolCall("c1", "search", '{"query": "a"}'),)),
            Message("tool", "ok", tool_call_id="c1", name="search"),
            Message("assistant", "", (ToolCall("c2", "search", broken),)),
            Message("tool", "The arguments are no JSON.", tool_call_id="c2", name="search"),
        )
    )
    assert len(world.server.seen[0].calls) == 2


async def test_pictures_are_sent(world):
    message = Message("user", "What is it?", attachments=(Image(data="aGk=", media_type="image/png"),))
    await (await world.provider()).complete(asking(message))
    assert world.server.seen[0].images == 1


async def test_an_output_schema_reaches_the_service(world):
    await (await world.provider()).complete(asking(output_schema=SCHEMA))
    assert world.server.seen[0].schema == SCHEMA


@both
async def test_an_answer_that_was_too_long_says_so(world, stream):
    world.says(length=True)
    provider = await world.provider()
    result = (await streamed(provider, asking()))[1] if stream else await provider.complete(asking())
    assert result.finish_reason == "length"


@both
async def test_what_the_service_does_not_count_is_estimated(world, stream):
    world.says(usage=None)
    provider = await world.provider()
    result = (await streamed(provider, asking()))[1] if stream else await provider.complete(asking())
    assert result.usage.input_tokens > 3
    assert result.usage.output_tokens > 2


async def test_usage_is_priced_by_the_operators_table_with_cached_tokens_apart(world):
    price = {"input_per_million": 10.0, "output_per_million": 100.0, "cached_per_million": 1.0}
    provider = await world.provider(prices={"m-1": price})
    usage = (await provider.complete(asking())).usage
    fresh = usage.input_tokens - usage.cached_tokens
    assert usage.cost_usd == pytest.approx(
        (fresh * 10 + usage.cached_tokens + usage.output_tokens * 100) / 1e6
    )
    assert provider.estimated_cost(asking()) > 0


async def test_the_same_tools_are_the_same_bytes_in_every_call(world):
    provider = await world.provider()
    for text in ("one", "two"):
        await provider.complete(
            asking(Message("system", "Be brief."), Message("user", text), tools=(SEARCH,))
        )
    first, second = (seen.body for seen in world.server.seen)
    assert first["tools"] == second["tools"]
    assert list(first) == list(second)


#: a row of the table of docs/models.md: the type, and what it supports
ROW = re.compile(r"^\| `([\w ]+)` \|((?: (?:yes|no) \|){9})$", re.MULTILINE)
COLUMNS = (
    "streaming", "tools", "parallel tools", "structured output", "images", "PDF files", "reasoning",
    "cached tokens", "embeddings",
)  # fmt: skip
THOUGHT = "c2lnbmVk"


async def test_the_page_says_what_the_service_supports(world):
    text = (ROOT / "docs" / "models.md").read_text()
    assert "| type | " + " | ".join(COLUMNS) + " |" in text
    rows = {
        name: dict(zip(COLUMNS, re.findall("yes|no", cells), strict=True))
        for name, cells in ROW.findall(text)
    }
    names = {name for name in Plugins().names("providers") if name not in {one.name for one in PRESETS}}
    assert rows.keys() == {*names, "azure"} - {"recording"}, "a type of its own has a row"
    supported = {column for column, cell in rows[world.at].items() if cell == "yes"}
    assert supported == {column async for column in supported_by(world)}


async def supported_by(world: World) -> AsyncIterator[str]:
    """The columns of the table that hold, by what server and provider say to each other."""
    provider, seen = await world.provider(), world.server.seen
    if len((await streamed(provider, asking()))[0]) == 4:
        yield "streaming"
    world.says(calls=TWO_CALLS, thought=THOUGHT)
    question = Message("user", "Find a and b.")
    said = await provider.complete(asking(question, tools=(SEARCH,)))
    results = [Message("tool", "x", tool_call_id=call.id, name="search") for call in said.tool_calls]
    await provider.complete(asking(question, Message("assistant", "", said.tool_calls), *results))
    for name, least in (("tools", 1), ("parallel tools", 2)):
        if min(len(said.tool_calls), len(seen[-1].calls), len(seen[-1].results)) >= least:
            yield name
    if THOUGHT in json.dumps(seen[-1].body):
        yield "reasoning"
    if said.usage.cached_tokens:
        yield "cached tokens"
    await provider.complete(asking(output_schema=SCHEMA))
    if seen[-1].schema == SCHEMA:
        yield "structured output"
    for name, media_type in (("images", "image/png"), ("PDF files", "application/pdf")):
        with suppress(ProviderRejected):
            attached = Image(data="aGk=", media_type=media_type, name="a.pdf")
            await provider.complete(asking(Message("user", "See.", attachments=(attached,))))
            assert (seen[-1].images, seen[-1].files) == ((1, 0) if name == "images" else (0, 1))
            yield name
    if world.at in Plugins().names("embedders"):
        yield "embeddings"


# -- what goes wrong -----------------------------------------------------------------------------------------

STATUSES = [
    (400, ProviderRejected),
    (401, ProviderUnauthorized),
    (403, ProviderUnauthorized),
    (404, ProviderUnavailable),
    (413, ProviderRejected),
    (422, ProviderRejected),
    (429, ProviderRateLimited),
    (500, ProviderUnavailable),
    (503, ProviderUnavailable),
    (529, ProviderUnavailable),
]


@both
@pytest.mark.parametrize(("status", "kind"), STATUSES)
async def test_every_status_has_its_error(world, status, kind, stream):
    world.says(status=status, error=f"Incorrect key {KEY} or sk-abcdefgh1234: no")
    error, text = await refused(await world.provider(), asking(), stream=stream)
    assert (type(error), error.upstream_status, text) == (kind, status, "")
    assert "sk-abcdefgh" not in str(error)


@both
async def test_an_error_inside_an_answer_is_shown_without_the_key(server, stream):
    refusal = orjson.dumps({"error": {"code": 400, "message": f"No model for {KEY}."}})
    raw = b"data: %s\n\n" % refusal if stream else refusal
    async with Http() as http:
        provider = await World("openai", server, Deps(http=http), "openai").provider()
        server.script = [Scenario(then="raw", after=1, raw=raw)]
        error, _ = await refused(provider, asking(), stream=stream)
    assert "No model for ***." in str(error)


async def test_what_a_service_says_about_the_request_is_passed_on(world):
    world.says(status=400, error="The context is\ntoo long.")
    short = {} if world.at in KEYLESS else {"api_key": "te"}  # a part of words is no secret
    error, _ = await refused(await world.provider(**short), asking(), stream=False)
    assert "The context is too long." in str(error)


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"retry-after": "7"}, 7, 7),
        ({"retry-after-ms": "1500"}, 1.5, 1.5),
        ({"retry-after": "Fri, 31 Dec 2100 23:59:59 GMT"}, 3600, 3600),
        ({"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}, 0, 0),
        ({"retry-after": "soon"}, 0, 0),
        ({"retry-after": "nan"}, 0, 0),
        ({}, 0, 0),
    ],
)
async def test_retry_after_is_read_as_seconds_or_as_a_date(world, headers, least, most):
    world.says(status=429, headers=headers)
    error, _ = await refused(await world.provider(), asking(), stream=False)
    assert least <= error.retry_after <= most


GARBAGE = [
    b"<html>no JSON",
    b"[]",
    b'"text"',
    b"null",
    b"{}",
    b'{"choices": []}',
    b'{"choices": [{"message": 3}]}',
    b'{"content": 7}',
    b'{"content": [{}]}',
    b'{"message": []}',
    b'{"message": {"content": 5}}',
    b"\xff\xfe",
]


@pytest.mark.parametrize("raw", GARBAGE)
async def test_an_answer_of_another_shape_is_a_service_that_cannot_answer(world, raw):
    world.says(then="raw", raw=raw)
    error, _ = await refused(await world.provider(), asking(), stream=False)
    assert type(error) is ProviderUnavailable


#: by format: a stream and a whole answer that end without a text, a tool call or a reason
WORDLESS: dict[str, tuple[bytes, bytes]] = {
    "openai": (b"data: [DONE]\n\n", b'{"choices": [{"message": {"content": null}}]}'),
    "openai_responses": (
        b'data: {"type": "response.completed", "response": {"output": []}}\n\n',
        b'{"output": [], "status": null}',
    ),
    "anthropic": (b'data: {"type": "message_stop"}\n\n', b'{"content": [], "stop_reason": null}'),
    "bedrock": (
        aws.event("metadata", {"metrics": {"latencyMs": 1}}),
        b'{"output": {"message": {"content": []}}, "stopReason": null}',
    ),
    "ollama": (b'{"done": true}\n', b'{"message": {"content": ""}, "done": true}'),
    "gemini": (b'data: {"candidates": []}\n\n', b'{"candidates": []}'),
}
WORDLESS["vertex"] = WORDLESS["gemini"]


@both
async def test_an_answer_that_says_nothing_at_all_is_a_broken_one(world, stream):
    """It is asked again, or somebody else is; an empty answer with a reason is an answer."""
    world.says(then="raw", raw=WORDLESS[world.kind][not stream], after=0)
    error, text = await refused(await world.provider(), asking(), stream=stream)
    assert (type(error), error.retryable, text) == (ProviderUnavailable, True, "")
    world.says(pieces=())
    provider = await world.provider()
    result = (await streamed(provider, asking()))[1] if stream else await provider.complete(asking())
    assert (result.content, result.finish_reason) == ("", "stop")


def shaped(kind: str, *, name: Any = "search", asked: Any = 5, tokens: Any = 3) -> tuple[bytes, bytes]:
    """An answer with one tool call in a service's own form: whole, and as a stream."""
    if kind == "openai":
        call = {"index": 0, "id": "c", "function": {"name": name, "arguments": "{}"}}
        usage = {"prompt_tokens": asked, "completion_tokens": tokens}
        whole = {"choices": [{"message": {"tool_calls": [call]}}], "usage": usage}
        return orjson.dumps(whole), events(
            {"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}], "usage": usage}
        )
    if kind == "openai_responses":
        item = {"type": "function_call", "call_id": "c", "name": name, "arguments": "{}"}
        usage = {"input_tokens": asked, "output_tokens": tokens}
        answer = {"output": [item], "status": "completed", "usage": usage}
        return orjson.dumps(answer), events({"type": "response.completed", "response": answer})
    if kind == "anthropic":
        block = {"type": "tool_use", "id": "c", "name": name, "input": {}}
        usage = {"input_tokens": asked, "output_tokens": tokens}
        return orjson.dumps({"content": [block], "usage": usage}), events(
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": usage},
            {"type": "message_stop"},
        )
    if kind == "bedrock":
        used = {"toolUseId": "c", "name": name}
        answer = {"stopReason": "tool_use", "usage": {"inputTokens": asked, "outputTokens": tokens}}
        message = {"content": [{"toolUse": {**used, "input": {}}}]}
        return orjson.dumps({"output": {"message": message}, **answer}), b"".join(
            aws.event(kind, payload)
            for kind, payload in (
                ("contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": used}}),
                ("messageStop", answer),
                ("metadata", answer),
            )
        )
    if kind in ("gemini", "vertex"):
        parts = [{"functionCall": {"name": name, "args": {}}}]
        counts = {"promptTokenCount": asked, "candidatesTokenCount": tokens}
        candidate = {"content": {"parts": parts}, "finishReason": "STOP"}
        answer = {"candidates": [candidate], "usageMetadata": counts}
        return orjson.dumps(answer), events(answer)
    call = {"function": {"name": name, "arguments": {}}}
    counts = {"prompt_eval_count": asked, "eval_count": tokens}
    line = {"message": {"tool_calls": [call]}, "done": True, **counts}
    return orjson.dumps(line), orjson.dumps(line) + b"\n"


def events(*payloads: Any) -> bytes:
    return b"".join(b"data: %s\n\n" % orjson.dumps(payload) for payload in payloads)


@both
@pytest.mark.parametrize("name", [None, "", 7, ["search"], {"a": 1}])
async def test_a_tool_call_without_a_name_that_is_text_is_no_answer(world, name, stream):
    world.says(then="raw", raw=shaped(world.kind, name=name)[stream], after=0)
    error, _ = await refused(await world.provider(), asking(), stream=stream)
    assert type(error) is ProviderUnavailable


@both
@pytest.mark.parametrize("tokens", ["many", -3, 1e300, [2]])
async def test_counts_that_cannot_be_cost_no_answer_and_are_estimated(world, tokens, stream):
    world.says(then="raw", raw=shaped(world.kind, tokens=tokens)[stream], after=0)
    provider = await world.provider()
    result = (await streamed(provider, asking()))[1] if stream else await provider.complete(asking())
    assert result.tool_calls[0].name == "search"
    assert 0 < result.usage.output_tokens < 100


@both
@pytest.mark.parametrize(
    ("asked", "tokens"), [(None, None), (5, None), (None, 3), ("many", None), ([2], 3), (None, "many")]
)
async def test_a_count_that_is_null_is_estimated_and_the_other_one_stays(world, asked, tokens, stream):
    """Nobody's tokens are booked as 0 because a service names them and does not count them."""
    world.says(then="raw", raw=shaped(world.kind, asked=asked, tokens=tokens)[stream], after=0)
    provider = await world.provider()
    result = (await streamed(provider, asking()))[1] if stream else await provider.complete(asking())
    usage = result.usage
    assert usage.estimated and usage.input_tokens > 0 and usage.output_tokens > 0
    if tokens is None:
        assert usage.input_tokens == 5 or asked != 5
    if asked is None and tokens == 3:
        assert usage.output_tokens == 3


@pytest.mark.parametrize(
    "raw",
    [b"data: {no JSON\n\n", b"data: []\n\n", b'data: {"choices": 3}\n\n', b"{nonsense}\n\n", b"[1]\n\n"],
)
async def test_a_stream_of_another_shape_ends_in_an_error_with_the_text_kept(world, raw):
    world.says(then="raw", raw=raw, after=3)
    error, text = await refused(await world.provider(), asking(), stream=True)
    assert type(error) is ProviderUnavailable
    assert "Hello, world.".startswith(text)


@both
@pytest.mark.parametrize("after", [0, 4])
async def test_a_cut_answer_is_never_taken_for_a_whole_one(world, after, stream):
    world.says(then="cut", after=after)
    error, text = await refused(await world.provider(), asking(), stream=stream)
    assert type(error) is ProviderUnavailable
    assert bool(text) == (stream and bool(after))


async def test_a_stream_that_just_ends_early_is_cut_too(world):
    world.says(after=4)
    error, text = await refused(await world.provider(), asking(), stream=True)
    assert type(error) is ProviderUnavailable
    assert text


@both
async def test_silence_is_a_timeout(world, stream):
    world.says(then="silent", after=4)
    error, _ = await refused(await world.provider(timeout=0.3), asking(), stream=stream)
    assert type(error) is ProviderTimeout


@both
async def test_an_error_inside_a_good_answer_is_one(world, stream):
    world.says(then="error", after=4, error="no capacity")
    error, text = await refused(await world.provider(), asking(), stream=stream)
    assert type(error) is ProviderUnavailable
    assert bool(text) == stream


@both
async def test_nobody_there_is_unavailable(world, stream):
    provider = await world.provider(endpoint="http://127.0.0.1:9")
    error, _ = await refused(provider, asking(), stream=stream)
    assert type(error) is ProviderUnavailable


# -- what it has cost when it broke off ----------------------------------------------------------------------

NOTHING = Usage()
PRICED = {"prices": {"m-1": {"input_per_million": 1.0, "output_per_million": 10.0}}}


@pytest.mark.parametrize("fault", [{"then": "cut"}, {"then": "error"}, {"then": "raw", "raw": b"{no"}, {}])
async def test_a_stream_that_breaks_off_has_cost_what_came_and_what_was_asked(world, fault):
    """What the service had counted by then holds; beyond it an estimate that says so."""
    world.says(after=4, **fault)
    error, text = await refused(await world.provider(**PRICED), asking(), stream=True)
    usage = attached_usage(error) or NOTHING
    assert text
    assert usage.estimated
    assert usage.output_tokens >= 1
    if world.kind == "anthropic":  # it says first how long the prompt was
        assert (usage.input_tokens, usage.cached_tokens) == (12, 8)
    else:
        assert usage.input_tokens > 5
    assert usage.cost_usd > 0


@both
async def test_a_call_that_took_too_long_was_heard(world, stream):
    world.says(then="silent", after=0)
    error, _ = await refused(await world.provider(timeout=0.3), asking(), stream=stream)
    assert (attached_usage(error) or NOTHING).input_tokens > 5


@both
async def test_a_call_that_is_cancelled_has_cost_what_came(world, stream):
    world.says(then="silent", after=5)
    provider = await world.provider()
    if stream:
        task = asyncio.create_task(streamed(provider, asking()))
    else:
        task = asyncio.create_task(provider.complete(asking()))
    while not world.server.seen:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await task
    assert (attached_usage(cancelled.value) or NOTHING).input_tokens > 5


@both
@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 504])
async def test_what_a_service_refuses_costs_nothing(world, status, stream):
    world.says(status=status)
    error, _ = await refused(await world.provider(), asking(), stream=stream)
    assert attached_usage(error) is None


@both
async def test_an_answer_that_cannot_be_read_costs_what_the_service_counted(world, stream):
    """It came whole and was paid for; only its tool call is none."""
    world.says(then="raw", raw=shaped(world.kind, name=7, tokens=2)[stream], after=0)
    error, _ = await refused(await world.provider(), asking(), stream=stream)
    usage = attached_usage(error)
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (5, 2) or usage.estimated
    assert stream or not usage.estimated


@both
async def test_a_connection_that_nobody_takes_costs_nothing_and_is_a_timeout(server, stream):
    """A listener whose queue is full: nothing was sent."""
    async with full_listener() as url, Http() as http:
        world = World("openai", server, Deps(http=http), "openai")
        error, _ = await refused(await world.provider(endpoint=url, timeout=2), asking(), stream=stream)
    assert type(error) is ProviderTimeout
    assert attached_usage(error) is None


@both
async def test_what_never_arrived_costs_nothing(world, stream):
    error, _ = await refused(await world.provider(endpoint="http://127.0.0.1:9"), asking(), stream=stream)
    assert attached_usage(error) is None


# -- what is odd ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [204, 302, 404, 405, 410, 501])
async def test_what_only_the_operator_can_mend_is_not_asked_again(world, status):
    world.says(status=status)
    error, _ = await refused(await world.provider(), asking(), stream=False)
    assert not error.retryable


@both
async def test_a_character_that_is_cut_in_two_is_one(world, stream):
    """Services that count UTF-16 units may send the halves of a surrogate pair in two deltas."""
    world.says(pieces=("a \ud83d", "\ude00 b", " \ud83d", " c"))
    provider = await world.provider()
    if stream:
        texts, result = await streamed(provider, asking())
        assert "".join(texts) == result.content
    else:
        result = await provider.complete(asking())
    assert result.content == "a \U0001f600 b \ufffd c"


async def test_text_that_is_no_unicode_is_the_requests_fault(world):
    error, _ = await refused(await world.provider(), asking(Message("user", "\ud800")), stream=False)
    assert type(error) is ProviderRejected
    assert world.server.seen == []


async def test_leaving_a_stream_closes_the_models_connection(world):
    world.says(then="silent", after=4)
    async with aclosing((await world.provider()).stream(asking())) as pieces:
        async for _ in pieces:
            break
    await world.server.client_left()
    assert world.server.left == 1


async def test_cancelling_a_call_closes_the_models_connection(world):
    world.says(then="silent", after=4)
    provider = await world.provider()
    task = asyncio.create_task(streamed(provider, asking()))
    while not world.server.seen:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await world.server.client_left()


async def test_after_any_fault_the_next_call_works(world):
    provider = await world.provider()
    world.server.script = [Scenario(then="cut", after=2), Scenario(then="raw", raw=b"x", after=2), Scenario()]
    for _ in range(2):
        await refused(provider, asking(), stream=True)
    assert (await provider.complete(asking())).content == "Hello, world."


async def test_a_ping_spends_nothing_and_tells_a_wrong_key(world):
    provider = await world.provider()
    await provider.ping()
    world.says(status=401)
    with pytest.raises(ProviderUnauthorized):
        await provider.ping()
    with pytest.raises(ProviderUnavailable):
        await (await world.provider(endpoint="http://127.0.0.1:9")).ping()
    assert world.server.seen == []


# -- opening -------------------------------------------------------------------------------------------------


async def test_a_key_that_is_named_but_not_set_is_a_missing_key(world, tmp_path):
    with pytest.raises(MissingKey, match="NOT_SET_ANYWHERE"):
        await world.provider(api_key=None, api_key_env="NOT_SET_ANYWHERE")
    with pytest.raises(MissingKey, match=r"absent\.txt"):
        await world.provider(api_key=None, api_key_file="absent.txt")


async def test_a_key_may_stand_in_a_file_beside_the_configuration(world, tmp_path):
    (tmp_path / "key.txt").write_text("file-key-123456\n")
    world.deps = Deps(http=world.deps.http, config_dir=tmp_path)
    await (await world.provider(api_key=None, api_key_file="key.txt")).complete(asking())
    assert world.server.seen[0].key == "file-key-123456"


async def test_a_service_without_a_model_is_refused_when_opening(world):
    with pytest.raises(ConfigError):
        await world.provider(model="")


@pytest.mark.parametrize(
    "options",
    [
        {"parameters": {"messages": []}},
        {"timeout": 0},
        {"colour": "red"},
        {"endpoint": "ftp://x"},
        {"endpoint": "http://["},
    ],
)
async def test_wrong_options_are_refused_by_their_schema(world, options):
    with pytest.raises(ValueError, match="validation error"):
        await world.provider(**options)


async def test_every_option_is_described(world):
    schema = Plugins().load("providers", world.kind).Options.model_json_schema()
    assert all(option.get("description") for option in schema["properties"].values())


# -- the formats themselves ----------------------------------------------------------------------------------


async def test_the_openai_sdk_accepts_the_same_server(server):
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0) as client:
        server.script = [Scenario(calls=TWO_CALLS)]
        ask: Any = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        whole = await client.chat.completions.create(**ask)
        assert [c.function.arguments for c in whole.choices[0].message.tool_calls or ()] == [
            '{"query": "a"}',
            '{"query": "b"}',
        ]
        assert whole.usage is not None
        assert whole.usage.prompt_tokens_details.cached_tokens == 8
        texts, usage = "", None
        async for chunk in await client.chat.completions.create(
            **ask, stream=True, stream_options={"include_usage": True}
        ):
            usage = chunk.usage or usage
            texts += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        assert texts == "Hello, world."
        assert usage is not None
        server.script = [Scenario(status=429)]
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(**ask)


async def test_the_openai_sdk_reads_the_same_responses(server):
    """The SDK's types take every event as it is, and what our provider sends as arguments."""
    ask: Any = {"model": "m", "input": [{"role": "user", "content": "Hi"}], "store": False}
    scenario = Scenario(calls=TWO_CALLS)
    event_type: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for raw in ResponsesSpeaker().events(scenario, {}):
        data = raw.partition(b"data: ")[2]
        event_type.validate_json(data, strict=True, extra="forbid")
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0) as client:
        server.script = [scenario]
        whole = await client.responses.create(**ask)
        assert [item.type for item in whole.output] == [
            "reasoning",
            "message",
            "function_call",
            "function_call",
        ]
        async with client.responses.stream(**ask) as stream:
            texts = "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])
            final = await stream.get_final_response()
        assert (texts, final.output_text, final.usage) == ("Hello, world.", "Hello, world.", whole.usage)
        server.script = [Scenario(status=429)]
        with pytest.raises(openai.RateLimitError):
            await client.responses.create(**ask)


async def test_boto3_accepts_the_same_server(server, monkeypatch):
    """It reads whole answers and streams, and its signatures pass the check that ours pass."""
    import boto3  # as below: of all workers one needs it

    signs_with(monkeypatch, KEY)
    config = Config(retries={"max_attempts": 1}, connect_timeout=5, read_timeout=10)
    client = boto3.client("bedrock-runtime", "eu-central-1", endpoint_url=server.url, config=config)
    ask: Any = {"modelId": "eu.m-1:0", "messages": [{"role": "user", "content": [{"text": "Hi"}]}]}
    server.script = [Scenario(calls=TWO_CALLS, thought=THOUGHT)]
    whole = await asyncio.to_thread(client.converse, **ask)
    assert [next(iter(block)) for block in whole["output"]["message"]["content"]] == [
        "reasoningContent", "text", "toolUse", "toolUse",
    ]  # fmt: skip
    assert whole["usage"]["cacheReadInputTokens"] == 8

    def events() -> list[dict[str, Any]]:
        with closing(client.converse_stream(**ask)["stream"]) as incoming:
            return [*incoming]

    stream = await asyncio.to_thread(events)
    deltas = [event["contentBlockDelta"]["delta"] for event in stream if "contentBlockDelta" in event]
    assert "".join(delta.get("text", "") for delta in deltas) == "Hello, world."
    assert stream[-1]["metadata"]["usage"] == whole["usage"]
    assert [seen.key for seen in server.seen] == [KEY, KEY]
    for scenario in (Scenario(status=429), Scenario(then="error", after=1)):
        server.script = [scenario]
        with pytest.raises(ClientError):
            await asyncio.to_thread(events)
    client.close()


async def test_googles_sdk_for_vertex_accepts_the_same_server_and_calls_it_where_we_do(server, tmp_path):
    from google import genai

    write_account(tmp_path / "account.json", server.url)
    account = service_account.Credentials.from_service_account_file(tmp_path / "account.json")
    client = genai.Client(
        enterprise=True, project="p-1", location="global", credentials=account.with_scopes(["x"]),
        http_options=genai.types.HttpOptions(base_url=server.url, api_version="v1"),
    )  # fmt: skip
    server.script = [Scenario(calls=TWO_CALLS)]
    whole: Any = await asyncio.to_thread(client.models.generate_content, model="m-1", contents="Hi")
    assert [call.args for call in whole.function_calls] == [{"query": "a"}, {"query": "b"}]
    assert whole.usage_metadata.cached_content_token_count == 8
    parts = await asyncio.to_thread(
        lambda: [*client.models.generate_content_stream(model="m-1", contents="Hi")]
    )
    assert "".join(part.text or "" for part in parts) == "Hello, world."
    client.close()
    async with Http() as http:
        provider = await World("vertex", server, Deps(http=http, config_dir=tmp_path), "vertex").provider()
        await provider.complete(asking())
        await streamed(provider, asking())
    assert server.paths[:2] == server.paths[2:]
    assert server.paths[0] == "/v1/projects/p-1/locations/global/publishers/google/models/m-1:generateContent"
    assert [seen.key for seen in server.seen] == [KEY] * 4


async def test_the_anthropic_sdk_accepts_the_same_server(server):
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        server.script = [Scenario(calls=TWO_CALLS)]
        ask: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
        whole = await client.messages.create(**ask)
        assert [block.type for block in whole.content] == ["text", "tool_use", "tool_use"]
        assert whole.usage.cache_read_input_tokens == 8
        async with client.messages.stream(**ask) as stream:
            texts = "".join([text async for text in stream.text_stream])
            final = await stream.get_final_message()
        assert texts == "Hello, world."
        assert [block.input for block in final.content if block.type == "tool_use"] == [
            {"query": "a"},
            {"query": "b"},
        ]
        server.script = [Scenario(status=429)]
        with pytest.raises(anthropic.RateLimitError):
            await client.messages.create(**ask)


# -- who calls -----------------------------------------------------------------------------------------------


@pytest.fixture
async def deps(server, tmp_path) -> AsyncIterator[Deps]:
    async with Http() as http:
        made = Deps(http=http, config_dir=tmp_path)
        yield made
        await made.resources.close()


async def test_bedrock_signs_with_a_profile_and_with_the_role_of_its_container(
    server, deps, monkeypatch, tmp_path
):
    """The test's server, which runs on this loop, gives the role: botocore asks it from another thread."""
    signs_with(monkeypatch, "wrong")
    world = World("bedrock", server, deps, "bedrock")
    await (await world.provider()).complete(asking())
    (tmp_path / "credentials").write_text(f"[team]\naws_access_key_id=A\naws_secret_access_key={KEY}\n")
    (tmp_path / "config").write_text("[profile team]\nregion=eu-west-1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    await (await world.provider(profile="team", region="", model="eu.m-1:0")).complete(asking())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url + "/role")
    world.deps = replace(deps, resources=Resources())
    provider = await world.provider()
    asked_before = server.roles
    await streamed(provider, asking())
    await world.deps.resources.close()
    assert [seen.key == KEY for seen in server.seen] == [False, True, True]
    assert server.roles == asked_before + 1, "what expires soon is renewed"
    assert server.paths[1] == "/model/eu.m-1%3A0/converse"


async def test_bedrock_without_credentials_or_region_says_what_to_set(server, deps, monkeypatch):
    signs_with(monkeypatch, KEY)
    world = World("bedrock", server, deps, "bedrock")
    with pytest.raises(ConfigError, match="set `region` or AWS_REGION"):
        await world.provider(region="")
    with pytest.raises(MissingKey, match="nobody"):
        await world.provider(profile="nobody")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    world.deps = replace(deps, resources=Resources())
    with pytest.raises(MissingKey, match="Set AWS_ACCESS_KEY_ID"):
        await world.provider()
    await (await world.provider(api_key="bedrock-api-key-1")).complete(asking())
    assert server.seen[0].key == "bedrock-api-key-1"
    await world.deps.resources.close()


@pytest.mark.parametrize(
    ("status", "name", "kind"),
    [(400, "ServiceQuotaExceededException", ProviderRateLimited), (424, "", ProviderUnavailable)],
)
async def test_errors_of_bedrock_have_our_kinds(server, deps, monkeypatch, status, name, kind):
    signs_with(monkeypatch, KEY)
    headers = {"x-amzn-errortype": f"{name}:http://x/", "retry-after": "7"} if name else {}
    server.script = [Scenario(status=status, headers=headers)]
    provider = await World("bedrock", server, deps, "bedrock").provider()
    error, _ = await refused(provider, asking(), stream=False)
    assert (type(error), error.retry_after) == (kind, 7 if name else 0)


async def test_vertex_asks_for_one_token_and_for_a_new_one_when_it_is_refused(
    server, deps, monkeypatch, tmp_path
):
    write_account(tmp_path / "account.json", server.url)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "")
    world = World("vertex", server, deps, "vertex")
    providers = [await world.provider(), await world.provider(credentials_file="", location="europe-west4")]
    await asyncio.gather(*(provider.complete(asking()) for provider in (*providers, *providers)))
    assert len(server.tokens) == 2, "one for each account"
    assert "/v1/projects/p-1/locations/europe-west4/" in str(server.paths)
    server.script = [Scenario(status=401), Scenario()]
    await refused(providers[0], asking(), stream=False)
    await providers[0].complete(asking())
    assert len(server.tokens) == 3
    assert {token["grant_type"] for token in server.tokens} == {"urn:ietf:params:oauth:grant-type:jwt-bearer"}


async def test_vertex_without_credentials_or_project_says_what_to_set(server, deps, monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    (tmp_path / "odd.json").write_text('{"type": "odd"}')
    (tmp_path / "account.json").write_text("{")
    world = World("vertex", server, deps, "vertex")
    for file, words in (("", "Default Credentials"), ("odd.json", "its `type`"), ("account.json", "account")):
        with pytest.raises(MissingKey, match=words):
            await world.provider(credentials_file=file)
    write_account(tmp_path / "account.json", server.url, project="")
    with pytest.raises(ConfigError, match="set `project` or GOOGLE_CLOUD_PROJECT"):
        await world.provider()
    await (await world.provider(api_key="express-key")).complete(asking())
    assert (server.paths, server.seen[0].key) == (
        ["/v1/publishers/google/models/m-1:generateContent"], "express-key",
    )  # fmt: skip
    write_account(tmp_path / "gone.json", "http://127.0.0.1:9")
    error, _ = await refused(await world.provider(credentials_file="gone.json"), asking(), stream=False)
    assert type(error) is ProviderUnavailable


ENTRA = {"api_key": None, "entra_tenant": "t-1", "entra_client": "c-1"}


@pytest.mark.parametrize("how", ["client_credentials", "workload_identity", "managed_identity"])
async def test_azure_is_called_with_tokens_of_entra(server, deps, monkeypatch, tmp_path, how):
    (tmp_path / "workload.txt").write_text("signed-by-kubernetes\n")
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", server.url)
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "workload.txt"))
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "secret-of-c-1")
    monkeypatch.setenv("IDENTITY_ENDPOINT", server.url + "/identity")
    monkeypatch.setenv("IDENTITY_HEADER", "of-this-app")
    azure = World("openai", server, deps, "azure")
    responses = World("openai_responses", server, deps, "openai_responses")
    for world in (azure, responses):
        provider = await world.provider(**ENTRA, entra=how)
        await provider.complete(asking())
        await streamed(provider, asking())
    assert [seen.key for seen in server.seen] == [KEY] * 4
    (token,) = server.tokens  # one for all of them
    shown = {
        "client_credentials": {"client_secret": "secret-of-c-1", "grant_type": "client_credentials"},
        "workload_identity": {"client_assertion": "signed-by-kubernetes"},
        "managed_identity": {
            "resource": "https://cognitiveservices.azure.com",
            "x-identity-header": "of-this-app",
        },
    }[how]
    assert shown.items() <= token.items()
    assert token["client_id"] == "c-1"
    path = "/identity" if how == "managed_identity" else "/t-1/oauth2/v2.0/token"
    assert (token["path"], "secret" in str(token)) == (path, how == "client_credentials")


async def test_a_token_that_entra_refuses_is_no_fault_of_the_request(server, deps, monkeypatch):
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", server.url)
    world = World("openai", server, deps, "azure")
    provider = await world.provider(**{**ENTRA, "api_key": "wrong-secret"}, entra="client_credentials")
    server.refuses_tokens = True
    error, _ = await refused(provider, asking(), stream=True)
    assert type(error) is ProviderUnauthorized
    assert "invalid_client" in str(error) and "wrong-secret" not in str(error)
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", "http://127.0.0.1:9")
    provider = await world.provider(**{**ENTRA, "api_key": "other-secret"}, entra="client_credentials")
    error, _ = await refused(provider, asking(), stream=False)
    assert (type(error), error.retryable) == (ProviderUnavailable, True)


async def test_entra_without_what_it_needs_says_what_to_set(server, deps, monkeypatch):
    for name in ("TENANT_ID", "CLIENT_ID", "CLIENT_SECRET", "FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(f"AZURE_{name}", raising=False)
    world = World("openai", server, deps, "azure")
    for how, options, words in (
        ("client_credentials", {**ENTRA, "entra_tenant": ""}, "`entra_tenant` or AZURE_TENANT_ID"),
        ("workload_identity", {**ENTRA, "entra_client": ""}, "`entra_client` or AZURE_CLIENT_ID"),
        ("client_credentials", ENTRA, "AZURE_CLIENT_SECRET"),
        ("workload_identity", ENTRA, "AZURE_FEDERATED_TOKEN_FILE"),
        ("managed_identity", {**ENTRA, "endpoint": ""}, "needs the `endpoint`"),
    ):
        with pytest.raises((ConfigError, ValueError), match=words):
            await world.provider(**options, entra=how)


def test_a_virtual_machine_is_asked_at_its_own_address(monkeypatch):
    monkeypatch.delenv("IDENTITY_ENDPOINT", raising=False)
    made = token_request(OpenAIOptions(model="m", endpoint="https://x", entra="managed_identity"), "")
    assert made.url == "http://169.254.169.254/metadata/identity/oauth2/token"
    assert (made.method, dict(made.headers)) == ("GET", {"metadata": "true"})
    assert dict(made.fields) == {
        "api-version": "2018-02-01",
        "resource": "https://cognitiveservices.azure.com",
    }


# -- what is one service's own -------------------------------------------------------------------------------


async def test_azure_is_called_by_deployment_and_version(server):
    async with Http() as http:
        world = World("openai", server, Deps(http=http), "azure")
        for endpoint in (server.url, server.url + "/openai/"):
            await (await world.provider(endpoint=endpoint)).complete(asking())
        await streamed(await world.provider(), asking())
    assert set(server.paths) == {"/openai/deployments/m-1/chat/completions?api-version=2024-10-21"}
    assert len(server.paths) == 3


async def test_the_openai_sdk_for_azure_accepts_the_same_server(server):
    client = openai.AsyncAzureOpenAI(
        azure_endpoint=server.url, api_version="2024-10-21", api_key=KEY, max_retries=0
    )
    async with client:
        answer = await client.chat.completions.create(
            model="m-1", messages=[{"role": "user", "content": "Hi"}]
        )
    assert answer.choices[0].message.content == "Hello, world."
    assert server.seen[0].key == KEY
    client = openai.AsyncAzureOpenAI(
        azure_endpoint=server.url, api_version="2024-10-21", azure_ad_token_provider=lambda: "entra-token"
    )
    async with client:
        await client.chat.completions.create(model="m-1", messages=[{"role": "user", "content": "Hi"}])
    assert server.seen[1].key == "entra-token"


@both
async def test_gemini_gets_the_signature_of_its_own_calls_back(server, stream):
    """Gemini 3 refuses calls without them; a call from elsewhere says that nobody has one."""
    server.script = [Scenario(calls=TWO_CALLS), Scenario()]
    async with Http() as http:
        provider = await World("gemini", server, Deps(http=http), "gemini").provider()
        said = (
            (await streamed(provider, asking(tools=(SEARCH,))))[1]
            if stream
            else await provider.complete(asking(tools=(SEARCH,)))
        )
        elsewhere = (ToolCall("other", "search", "{}"),)
        await provider.complete(
            asking(
                Message("user", "Find a."),
                Message("assistant", "", said.tool_calls),
                Message("tool", "found", tool_call_id="call_1", name="search"),
                Message("assistant", "", elsewhere),
                Message("tool", "found", tool_call_id="other", name="search"),
            )
        )
    parts = [part for turn in server.seen[1].body["contents"] for part in turn["parts"]]
    signed = [part.get("thoughtSignature") for part in parts if "functionCall" in part]
    assert signed == ["s-call_1", "s-call_2", None]


async def test_a_gemini_key_that_is_wrong_is_the_operators_fault(server):
    raw = (
        b'{"error": {"code": 400, "status": "INVALID_ARGUMENT", "details": [{"reason": "API_KEY_INVALID"}]}}'
    )
    server.script = [Scenario(then="raw", after=1, raw=raw)]
    async with Http() as http:
        provider = await World("gemini", server, Deps(http=http), "gemini").provider()
        error, _ = await refused(provider, asking(), stream=False)
    assert type(error) is ProviderUnauthorized
