"""Every request gets one answer: with an upgrade that is not taken, with trailers, beside what is no HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest
from websockets.asyncio.client import connect

from astromesh.api.middleware.limits import MAX_HEADER_BYTES, MAX_TARGET_BYTES, ConcurrencyLimits
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import manifest, runtime_of, served, write
from tests.integration.api.test_slow_senders import BODY, Hasty, Patient, Wires, serving, told

RUN = b"POST /v1/agents/helper/run HTTP/1.1\r\nhost: x\r\n"
LIVE = b"GET /health/live HTTP/1.1\r\nhost: x\r\n"
MOST_HEAD = MAX_HEADER_BYTES + MAX_TARGET_BYTES
LENGTH = b"content-length: %d\r\n\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
WEBSOCKET = (
    b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
OFFERS = {
    "h2c": b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQ\r\n",
    "websocket": WEBSOCKET,
    "unheard of": b"connection: upgrade\r\nupgrade: TLS/1.0, x\r\n",
}


async def rest(wires: Wires) -> bytes:
    """Whatever comes until the server hangs up."""
    async with asyncio.timeout(30):
        return await wires[0].read()


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("cut", [None, -5, 40], ids=["at once", "body cut", "head cut"])
async def test_an_upgrade_that_is_not_taken_is_passed_over(
    tmp_path: Path, offer: str, cut: int | None
) -> None:
    """RFC 9110, 7.8: the request is answered as without it, body and all, and so is the next one."""
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        for framing, body in ((LENGTH, BODY), (CHUNKED, CHUNKS)):
            request = RUN + OFFERS[offer] + framing + body
            wires = await clients.sent(request[:cut] if cut else request)
            if cut:
                await asyncio.sleep(0.01)
                wires[1].write(request[cut:])
            first = await told(wires)
            wires[1].write(RUN + LENGTH + BODY + LIVE + OFFERS["h2c"] + b"\r\n")
            second, third = await told(wires), await told(wires)
            assert [(status, answer["response"]) for status, answer in (first, second)] == [
                (200, "hello"),
                (200, "hello"),
            ]
            assert third[0] == 200


async def test_many_offers_on_one_connection_are_all_answered(tmp_path: Path) -> None:
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        wires = await clients.sent((LIVE + OFFERS["h2c"] + b"\r\n") * 300)
        for _ in range(300):
            assert (await told(wires))[0] == 200


async def test_a_post_that_asks_for_a_websocket_has_a_deadline(tmp_path: Path) -> None:
    """It is a request like any other: its body is waited for, and not for ever."""
    async with serving(tmp_path, Hasty, ConcurrencyLimits()) as clients:
        wires = await clients.sent(RUN + WEBSOCKET + LENGTH)
        status, body = await told(wires)
        assert await rest(wires) == b""
    assert (status, body["code"]) == (408, "request_timeout")


async def test_a_websocket_behind_an_answer_that_is_still_coming_is_a_plain_request(tmp_path: Path) -> None:
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        socket = b"GET /v1/ws/agent/helper HTTP/1.1\r\nhost: x\r\n" + WEBSOCKET + b"\r\n"
        wires = await clients.sent(RUN + LENGTH + BODY + socket)
        first, second = await told(wires), await told(wires)
    assert (first[0], first[1]["response"]) == (200, "hello")
    assert (second[0], second[1]["code"]) == (404, "not_found")


async def test_a_websocket_is_taken_as_before(tmp_path: Path) -> None:
    runtime = runtime_of(write(tmp_path, manifest()), ScriptedProvider("hello"))
    async with served(runtime) as at, connect(f"ws://{at}/v1/ws/agent/helper", open_timeout=60) as socket:
        await socket.send('{"type": "ping"}')
        assert orjson.loads(await asyncio.wait_for(socket.recv(), 30)) == {"type": "pong"}


async def test_trailers_without_end_are_refused_once(tmp_path: Path) -> None:
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        wires = await clients.sent(RUN + b"expect: 100-continue\r\n" + CHUNKED + b"0\r\n")
        async with asyncio.timeout(30):
            await wires[0].readuntil(b"100 Continue\r\n\r\n")
        line = b"T: x\r\n"
        wires[1].write(line * (MOST_HEAD // len(line) + 1))
        status, body = await told(wires)
        assert await rest(wires) == b""
    assert (status, body["code"]) == (413, "payload_too_large")


async def test_trailers_are_no_headers(tmp_path: Path) -> None:
    """RFC 9110, 6.5.1: who reads headers must not find what a proxy has never seen as one."""
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        chunks = CHUNKS[:-2] + b"accept: text/event-stream\r\n\r\n"
        status, body = await told(await clients.sent(RUN + CHUNKED + chunks))
    assert (status, body["response"]) == (200, "hello")


async def test_what_goes_on_behind_a_refusal_gets_no_second_one(tmp_path: Path) -> None:
    """The body is too large: that is answered at once, whatever its rest looks like."""
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        wires = await clients.sent(RUN + CHUNKED + b"200000\r\n" + b"x" * 0x200000)
        status, body = await told(wires)
        wires[1].write(b"\r\nno chunk at all\r\n")
        assert await rest(wires) == b""
    assert (status, body["code"]) == (413, "payload_too_large")


MALFORMED = {
    "no HTTP": b"GARBAGE\r\n\r\n",
    "HTTP/0.9": b"GET /health/live\r\n\r\n",
    "HTTP/2 as text": LIVE.replace(b"/1.1", b"/2.0") + b"\r\n",
    "no host": b"GET /health/live HTTP/1.1\r\n\r\n",
    "two hosts": LIVE + b"host: y\r\n\r\n",
    "the same host twice": LIVE + b"host: x\r\n\r\n",
    "two hosts in HTTP/1.0": LIVE.replace(b"/1.1", b"/1.0") + b"Host: y\r\n\r\n",
    "a websocket without a host": b"GET /v1/ws/agent/helper HTTP/1.1\r\n" + WEBSOCKET + b"\r\n",
    "an offer of h2c without a host": b"GET /health/live HTTP/1.1\r\n" + OFFERS["h2c"] + b"\r\n",
    "two lengths": RUN + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    "a target that is no ASCII": b"GET /v1/\xc3\xa4 HTTP/1.1\r\nhost: x\r\n\r\n",
    "a header without a name": b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    "CONNECT": b"CONNECT example.org:443 HTTP/1.1\r\nhost: x\r\n\r\n",
    "a chunk without a size": RUN + CHUNKED + b"xyz\r\n",
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_what_is_no_http_is_told_so_in_a_problem_document(tmp_path: Path, case: str) -> None:
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        wires = await clients.sent(MALFORMED[case])
        async with asyncio.timeout(30):
            head = await wires[0].readuntil(b"\r\n\r\n")
        content = await rest(wires)
    lines = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:-2])
    body = orjson.loads(content)
    assert head.startswith(b"HTTP/1.1 400 Bad request\r\n")
    assert lines[b"content-type"] == b"application/problem+json"
    assert (lines[b"connection"], lines[b"x-content-type-options"]) == (b"close", b"nosniff")
    assert (body["status"], body["code"], body["title"]) == (400, "malformed_request", "Bad request")
    assert body["trace_id"]


@pytest.mark.parametrize("case", MALFORMED)
async def test_what_was_asked_before_it_is_answered_first(tmp_path: Path, case: str) -> None:
    """An answer belongs to its request: the client takes the first for that of the first."""
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        wires = await clients.sent(RUN + LENGTH + BODY + MALFORMED[case])
        status, body = await told(wires)
        more = await rest(wires)
    assert (status, body["response"]) == (200, "hello")
    assert more.count(b"HTTP/1.1 ") <= 1
    assert not more or more.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("lines", [b"content-length: -5\r\n", b"host: y\r\n"])
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/models?x=1"])
async def test_openai_clients_are_told_in_their_format(tmp_path: Path, path: bytes, lines: bytes) -> None:
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        sent = b"POST %b HTTP/1.1\r\nhost: x\r\n%b\r\n" % (path, lines)
        status, body = await told(await clients.sent(sent))
    error = body["error"]
    assert isinstance(error, dict)
    assert (status, error["code"]) == (400, "malformed_request")


async def test_a_target_that_the_parser_cannot_split_is_too_long(tmp_path: Path) -> None:
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        sent = b"GET /v1/models?%b HTTP/1.1\r\nhost: x\r\n\r\n" % (b"x" * 2**16)
        status, body = await told(await clients.sent(sent))
    assert (status, body["code"]) == (414, "uri_too_long")


async def test_http_1_0_needs_no_host(tmp_path: Path) -> None:
    """RFC 9112, 3.2 demands it of HTTP/1.1."""
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        wires = await clients.sent(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert (await told(wires))[0] == 200


async def test_what_is_wrong_with_the_host_is_said(tmp_path: Path) -> None:
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        _, body = await told(await clients.sent(MALFORMED["no host"]))
    assert body["detail"] == "A request needs one Host header (RFC 9112, 3.2); this one has 0."


@pytest.mark.parametrize(
    "lines", [("application/json;q=0.5", "text/event-stream"), ("text/event-stream", "a/b")]
)
async def test_an_accept_of_two_lines_asks_for_both(tmp_path: Path, lines: tuple[str, str]) -> None:
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        accept = b"".join(b"accept: %b\r\n" % line.encode() for line in lines)
        wires = await clients.sent(RUN + b"connection: close\r\n" + accept + LENGTH + BODY)
        assert b"content-type: text/event-stream" in (await rest(wires)).lower()
