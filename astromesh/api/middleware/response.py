"""Completes responses: security headers, the request's id, an audit entry, a body in chunks, HEAD as GET."""

from __future__ import annotations

import asyncio
import math
import re

from starlette.types import Message, Receive, Scope, Send

from astromesh.api.middleware.audit import record_response
from astromesh.telemetry.ids import new_id

#: bytes that one write hands to a socket; between two writes other runs get their turn
CHUNK_BYTES = 256 * 1024
#: where the state of a request holds its body
BODY_STATE = "body"
#: where it says that its response has started
RESPONSE_STARTED = "response_started"
#: where it has the limit of the principal's calls, how many are left, and the seconds until all are
RATE_LIMIT = "rate_limit"
#: no page may sniff or frame a response (OWASP, REST Security Cheat Sheet)
_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
#: for responses that do not set these headers themselves
_DEFAULTS: tuple[tuple[bytes, bytes], ...] = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


REQUEST_ID = b"x-request-id"
#: what a client may choose as the id of its request
_CLIENT_ID = re.compile(rb"[\w.:/+=-]{1,128}")


def request_id_of(scope: Scope) -> bytes:
    """Returns the id of a request: the client's `x-request-id` where it is one, else a new one."""
    state = scope.setdefault("state", {})
    if REQUEST_ID not in state:
        client_id = dict(scope.get("headers", ())).get(REQUEST_ID, b"")
        state[REQUEST_ID] = client_id if _CLIENT_ID.fullmatch(client_id) else new_request_id()
    found: bytes = state[REQUEST_ID]
    return found


def new_request_id() -> bytes:
    return new_id("req_").encode()


def complete_headers(headers: list[tuple[bytes, bytes]], request_id: bytes) -> list[tuple[bytes, bytes]]:
    """Returns the headers of a response with those that protect it, and the id of its request."""
    present = dict(headers)
    headers = [*headers, *_HEADERS, (REQUEST_ID, request_id)]
    for name, value in _DEFAULTS:
        if name not in present:
            headers.append((name, value))
    return headers


#: messages that start a response; the second one refuses a WebSocket
_STARTS = ("http.response.start", "websocket.http.response.start")


def wrap_send(scope: Scope, send: Send) -> Send:
    """Returns a `send` that completes a response, also the refusal of a WebSocket.

    An audited request is on disk in the audit log before its response starts.
    """
    state = scope.setdefault("state", {})

    async def wrapped(message: Message) -> None:
        if message["type"] in _STARTS:
            state[RESPONSE_STARTED] = True
            if "audit" in state:
                await record_response(state, message["status"])
            headers = message.get("headers", ())
            if RATE_LIMIT in state:
                headers = [*headers, *_rate_limit_headers(*state[RATE_LIMIT])]
            message["headers"] = complete_headers(headers, request_id_of(scope))
        elif message["type"] == "websocket.accept":
            message["headers"] = [*message.get("headers", ()), (REQUEST_ID, request_id_of(scope))]
        elif len(message.get("body", b"")) > CHUNK_BYTES and message["type"] == "http.response.body":
            await _send_in_chunks(message, send)
            return
        await send(message)

    return wrapped


def _rate_limit_headers(limit: int, left: int, seconds: float) -> list[tuple[bytes, bytes]]:
    return [
        (b"x-ratelimit-limit", b"%d" % limit),
        (b"x-ratelimit-remaining", b"%d" % left),
        (b"x-ratelimit-reset", b"%d" % math.ceil(seconds)),
    ]


async def _send_in_chunks(message: Message, send: Send) -> None:
    """Sends a long body. Written at once, it would keep every other run waiting."""
    body = memoryview(message["body"])
    last = (len(body) - 1) // CHUNK_BYTES * CHUNK_BYTES
    for at in range(0, last, CHUNK_BYTES):
        await send({**message, "body": bytes(body[at : at + CHUNK_BYTES]), "more_body": True})
        await asyncio.sleep(0)
    await send({**message, "body": bytes(body[last:])})


def as_get(scope: Scope, receive: Receive, send: Send) -> tuple[Scope, Receive, Send]:
    """Returns a HEAD request as a GET request whose client leaves after the head: a stream ends there.

    HEAD is GET without the body (RFC 9110, 9.3.2).
    """
    response_sent, is_read = asyncio.Event(), False

    async def receive_nothing() -> Message:
        nonlocal is_read
        if is_read:
            await response_sent.wait()
            return {"type": "http.disconnect"}
        is_read = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send_head(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            response_sent.set()

    return {**scope, "method": "GET"}, receive_nothing, send_head
