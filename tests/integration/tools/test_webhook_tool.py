"""Webhook tools against a real HTTP server: what goes out, what comes back, and every way it can go wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from astromesh.core.tools import ToolRegistry
from astromesh.errors import ToolFailed
from astromesh.graph.scope import Scope
from astromesh.net.http import Http
from astromesh.plugins import Deps
from astromesh.tools.base import DeclaredTool, ToolContext, ToolPolicy
from astromesh.tools.kinds.webhook import WebhookTool
from astromesh.types import ToolCall

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """A server on this machine that answers everything with one handler; gives its address."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def webhook(handler: Handler, path: str = "/hook", **options) -> AsyncIterator[WebhookTool]:
    async with serving(handler) as address, Http() as http:
        yield await WebhookTool.open(WebhookTool.Options(endpoint=address + path, **options), Deps(http=http))


async def echo(request: web.Request) -> web.Response:
    return web.json_response(
        {
            "method": request.method,
            "query": list(request.query.items()),
            "body": await request.text(),
            "headers": {name.lower(): value for name, value in request.headers.items()},
        }
    )


async def test_arguments_go_out_as_json_with_the_operators_headers():
    """POST and a JSON body unless the block says otherwise; the answer's JSON is the value."""
    async with webhook(echo, headers={"X-Tenant": "acme"}) as tool:
        sent = await tool.call({"title": "ä", "n": 1}, ToolContext())
    assert (sent["method"], sent["body"]) == ("POST", '{"title":"ä","n":1}')
    assert sent["headers"]["content-type"] == "application/json"
    assert sent["headers"]["x-tenant"] == "acme"
    assert "idempotency-key" not in sent["headers"]


@pytest.mark.parametrize("asked", [True, False])
async def test_metadata_and_tags_of_the_run_are_sent_on_request(asked: bool) -> None:
    """As JSON in ASCII: headers have no other letters."""
    scope = Scope("run_1")
    scope.metadata, scope.tags = {"plan": "gölden", "seats": 5}, ("beta",)
    async with webhook(echo, send_metadata=asked) as tool:
        sent = (await tool.call({}, scope.tool_context("c1")))["headers"]
    if asked:
        assert json.loads(sent["x-astromesh-metadata"]) == scope.metadata
        assert json.loads(sent["x-astromesh-tags"]) == ["beta"]
    else:
        assert not [name for name in sent if name.startswith("x-astromesh")]


async def test_get_sends_a_query_beside_the_endpoints_own():
    """Lists repeat, booleans and objects are JSON, null is left out, text is escaped."""
    arguments = {"q": "a&b=c", "tags": ["x", "y"], "deep": {"k": 1}, "on": True, "no": None}
    async with webhook(echo, path="/hook?v=2", method="GET") as tool:
        sent = await tool.call(arguments, ToolContext())
    assert sent["method"] == "GET"
    assert sent["body"] == ""
    assert sent["query"] == [
        ["v", "2"], ["q", "a&b=c"], ["tags", "x"], ["tags", "y"], ["deep", '{"k":1}'], ["on", "true"],
    ]  # fmt: skip


async def test_the_idempotency_key_of_the_call_is_sent():
    """A tool with `idempotency: key` can be called again without harm."""
    async with webhook(echo) as tool:
        port = ToolRegistry().bind("bot", [DeclaredTool(tool.spec, tool, ToolPolicy(idempotency="key"))])
        result = await port.execute(
            ToolCall("c9", "webhook", "{}"), ToolContext(run_id="run_1", call_id="c9")
        )
    assert result.value["headers"]["idempotency-key"] == "run_1/c9"


async def test_secret_headers_that_a_server_echoes_are_not_shown_to_the_model():
    """What the operator wrote into a header never comes back as text."""
    async with webhook(echo, headers={"Authorization": "Bearer sesame-open-1234"}) as tool:
        sent = await tool.call({}, ToolContext())
    assert sent["headers"]["authorization"] == "***"
    assert "sesame" not in repr(WebhookTool.Options(endpoint="http://x/", headers={"A": "sesame-open"}))


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (web.Response(text="plain words"), "plain words"),
        (web.Response(status=204), {"status": 204}),
        (web.Response(body="grün".encode("latin-1"), content_type="text/plain", charset="latin-1"), "grün"),
        (web.Response(body=b'{"a": 1}', content_type="application/problem+json"), {"a": 1}),
        (web.Response(body=b"ok", content_type="application/json"), "ok"),
    ],
)
async def test_answers_of_many_kinds_become_values(answer, value):
    """JSON, text of any charset, nothing at all, and words that call themselves JSON."""

    async def handler(request: web.Request) -> web.Response:
        return answer

    async with webhook(handler) as tool:
        assert await tool.call({}, ToolContext()) == value


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (web.Response(status=500, text="boom " * 1000), "answered HTTP 500. boom boom"),
        (web.json_response({"error": "title is missing"}, status=422), "title is missing"),
        (
            web.Response(body=b"\xff\xfe\x00\x81", content_type="image/png"),
            "4 bytes of image/png, which is not text",
        ),
        (web.Response(body=b"x" * 2000), "more than 1000 bytes"),
    ],
)
async def test_answers_that_are_errors_are_told_to_the_model(answer, says):
    """Status and message in a bounded text; binaries and floods are refused."""

    async def handler(request: web.Request) -> web.Response:
        return answer

    async with webhook(handler, max_response_bytes=1000 if answer.status == 200 else 10_000) as tool:
        with pytest.raises(ToolFailed, match=says) as failed:
            await tool.call({}, ToolContext())
    assert len(str(failed.value)) < 1200


async def test_an_endless_answer_is_cut_off():
    """A server that streams for ever costs its bound and no more."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 1000)
        except (ConnectionError, asyncio.CancelledError):
            return response

    async with webhook(handler, max_response_bytes=50_000) as tool:
        with pytest.raises(ToolFailed, match="more than 50000 bytes"):
            await tool.call({}, ToolContext())


async def test_a_slow_endpoint_is_given_up_and_its_connection_closed():
    """The time limit cancels the call; the server sees the client go."""
    gone = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        while request.transport is not None and not request.transport.is_closing():
            await asyncio.sleep(0.01)
        gone.set()
        return web.Response()

    async with webhook(handler) as tool:
        port = ToolRegistry().bind("bot", [DeclaredTool(tool.spec, tool, ToolPolicy(timeout_seconds=0.2))])
        result = await port.execute(ToolCall("c1", "webhook", "{}"), ToolContext())
        assert (result.ok, result.error) == (False, "tool_timeout")
        await asyncio.wait_for(gone.wait(), 5)


async def test_an_endpoint_that_is_gone_is_a_failed_tool():
    """Nobody listens: the message names the host, and the next call may work."""
    async with serving(echo) as address:
        pass
    async with Http() as http:
        tool = WebhookTool(WebhookTool.Options(endpoint=f"{address}/secret-path"), http)
        with pytest.raises(ToolFailed, match=r"127\.0\.0\.1:\d+ refuses connections") as failed:
            await tool.call({}, ToolContext())
    assert "secret-path" not in str(failed.value)


async def test_half_an_answer_is_a_failed_tool():
    """The connection is cut in the middle of the body."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": "1000"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return response

    async with webhook(handler) as tool:
        with pytest.raises(ToolFailed, match=r"truncated its response|broke the connection"):
            await tool.call({}, ToolContext())


@pytest.mark.parametrize(
    "target",
    [
        "http://localhost:1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]:1/",
        "file:///etc/passwd",
    ],
)
async def test_a_redirect_may_not_lead_into_the_house(target):
    """S4: the operator wrote the endpoint, the redirect came from someone else."""

    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"location": target})

    async with webhook(handler, method="GET") as tool:
        with pytest.raises(ToolFailed, match=r"not a public address|(not|invalid) HTTP"):
            await tool.call({}, ToolContext())


async def test_a_redirect_on_the_same_host_is_followed():
    """Moved paths are no reason to fail."""

    async def handler(request: web.Request) -> web.Response:
        if request.path == "/hook":
            return web.Response(status=307, headers={"location": "/moved"})
        return await echo(request)

    async with webhook(handler) as tool:
        assert (await tool.call({"a": 1}, ToolContext()))["body"] == '{"a":1}'


async def test_a_redirect_to_another_origin_gets_no_header_of_the_operators():
    """Secrets stand in headers of any name; only those that cannot hold one go along."""
    async with serving(echo) as elsewhere:

        async def handler(request: web.Request) -> web.Response:
            return web.Response(status=307, headers={"location": elsewhere})

        async with webhook(handler, headers={"X-Acme-Secret": "sesame-open", "Accept": "text/x"}) as tool:
            sent = await tool.call({"a": 1}, ToolContext())
    assert sent["body"] == '{"a":1}'
    assert "x-acme-secret" not in sent["headers"]
    assert sent["headers"]["accept"] == "text/x"


@pytest.mark.parametrize("endpoint", ["ftp://x/", "/relative", "http://", "javascript:alert(1)"])
def test_an_endpoint_that_is_no_http_url_is_refused_at_load(endpoint):
    """The fault is found before the first call."""
    with pytest.raises(ValueError, match="http or https URL"):
        WebhookTool.Options(endpoint=endpoint)
