"""The handshake of a WebSocket is opened or refused at once: what HTTP takes it takes too, and none waits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from astromesh.api.middleware.limits import MAX_HEADER_BYTES, MAX_TARGET_BYTES, ConcurrencyLimits
from tests.integration.api.test_http_protocol import WEBSOCKET, rest
from tests.integration.api.test_slow_senders import Clients, Patient, serving, told

PATH = b"/v1/ws/agent/helper"
LONG = b"x" * 9_000


def handshake(more: bytes = b"", path: bytes = PATH, offer: bytes = WEBSOCKET) -> bytes:
    return b"GET %b HTTP/1.1\r\nhost: x\r\n%b%b\r\n" % (path, offer, more)


async def head(clients: Clients, sent: bytes) -> bytes:
    wires = await clients.sent(sent)
    async with asyncio.timeout(30):
        return await wires[0].readuntil(b"\r\n\r\n")


TAKEN = {
    "a cookie of 9000 bytes": handshake(b"cookie: a=" + LONG + b"\r\n"),
    "a bearer of 9000 bytes": handshake(b"authorization: Bearer " + LONG + b"\r\n"),
    "a subprotocol of 9000 bytes": handshake(b"sec-websocket-protocol: " + LONG + b"\r\n"),
    "headers up to the bound": handshake(b"x: " + b"x" * (MAX_HEADER_BYTES - 200) + b"\r\n"),
    "200 headers": handshake(b"".join(b"x%d: a\r\n" % n for n in range(200))),
    "5000 headers": handshake(b"a:\r\n" * 5_000),
    "a query up to the bound": handshake(path=PATH + b"?" + b"q" * (MAX_TARGET_BYTES - len(PATH))),
    "a header beyond ASCII": handshake(b"x-name: Andr\xe9\r\n"),
    "a length of 0": handshake(b"content-length: 0\r\n"),
}


@pytest.mark.parametrize("case", TAKEN)
async def test_what_http_takes_a_handshake_may_have(tmp_path: Path, case: str) -> None:
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        assert (await head(clients, TAKEN[case])).startswith(b"HTTP/1.1 101 ")


def _version(number: bytes) -> bytes:
    return WEBSOCKET.replace(b"version: 13", b"version: " + number)


KEY = b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
LINE = b"x" * 20 + b": " + b"y" * 20 + b"\r\n"
TOO_LARGE = {
    "a header beyond the bound": handshake(b"cookie: " + b"x" * MAX_HEADER_BYTES + b"\r\n"),
    "headers beyond the bound": handshake(
        (b"x" * 20 + b": " + b"y" * 20 + b"\r\n") * (MAX_HEADER_BYTES // 40 + 1)
    ),
}
TOO_LONG = {"a query beyond the bound": handshake(path=PATH + b"?" + b"q" * MAX_TARGET_BYTES)}
MALFORMED = {
    "a body of a length": handshake(b"content-length: 5\r\n"),
    "a body of a length that is there": handshake(b"content-length: 5\r\n") + b"hello",
    "a body in chunks": handshake(b"transfer-encoding: chunked\r\n"),
    "a path that is no ASCII": handshake(path=PATH + b"\xc3\xa4"),
    "no key": handshake(offer=WEBSOCKET.replace(KEY, b"")),
    "two keys": handshake(KEY),
    "a key of another length": handshake(offer=WEBSOCKET.replace(b"dGhl", b"")),
    "an unknown version": handshake(offer=_version(b"8")),
    "a name with a slash": handshake(b"a/b: c\r\n"),
}
REFUSED = {
    **{case: (sent, 413, "payload_too_large") for case, sent in TOO_LARGE.items()},
    **{case: (sent, 414, "uri_too_long") for case, sent in TOO_LONG.items()},
    **{case: (sent, 400, "malformed_request") for case, sent in MALFORMED.items()},
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_cannot_be_opened_is_told_so_and_hung_up_on(tmp_path: Path, case: str) -> None:
    sent, *expected = REFUSED[case]
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        wires = await clients.sent(sent)
        status, body = await told(wires)
        assert await rest(wires) == b""
    assert [status, body["code"]] == expected
    assert body["status"] == status


async def test_the_refusal_of_a_body_says_what_is_wrong(tmp_path: Path) -> None:
    async with serving(tmp_path, Patient, ConcurrencyLimits()) as clients:
        _, body = await told(await clients.sent(MALFORMED["a body of a length"]))
    assert body["detail"] == "The handshake of a WebSocket must not have a body (RFC 6455, 4.1)."


async def test_refused_handshakes_take_no_room_of_others(tmp_path: Path) -> None:
    async with serving(tmp_path, Patient, ConcurrencyLimits(sockets=1)) as clients:
        for _ in range(3):
            await told(await clients.sent(handshake(b"content-length: 5\r\n")))
        assert (await head(clients, handshake())).startswith(b"HTTP/1.1 101 ")
        status, body = await told(await clients.sent(handshake()))
    assert (status, body["code"]) == (503, "overloaded")


async def test_a_handshake_that_is_denied_is_no_fault_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever comes with a wrong key, or too many at once, would fill the log with errors."""
    async with serving(tmp_path, Patient, ConcurrencyLimits(sockets=0)) as clients:
        wires = await clients.sent(handshake())
        assert (await told(wires))[0] == 503
        assert await rest(wires) == b""
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]
