"""Limits request bodies: at most `max_bytes` bytes (413) and 64 levels of JSON (422)."""

from __future__ import annotations

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astromesh.api.errors import error_response
from astromesh.api.requests import BODY_STATE, headers_of
from astromesh.errors import AstromeshError, InvalidInput, PayloadTooLarge

#: levels of lists and objects in a request; we put it into others and write it to stores
MAX_DEPTH, _ORJSON_DEPTH = 64, 254


#: of a declared length; int() of endless digits takes for ever
_MAX_LENGTH_DIGITS = 18


_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


TOO_DEEP = f"The JSON has more than {MAX_DEPTH} levels of lists and objects within each other."


class BodyLimit:
    """ASGI middleware: refuses bodies that are too large (413) or nest too deep (422), before any route.

    A body is taken in whole: every route reads it whole, and what was taken in can be looked at.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = _content_length(scope) if scope["type"] == "http" else "0"
        if declared == "0":
            await self._app(scope, receive, send)
            return
        body = None if declared and self._is_too_large(declared) else await self._receive_body(receive)
        if body is None:
            await error_response(self._too_large_error())(scope, receive, send)
        elif isinstance(body, bytes) and nests_too_deep(body):
            await error_response(InvalidInput(TOO_DEEP))(scope, receive, send)
        else:
            scope.setdefault("state", {})[BODY_STATE] = body
            await self._app(scope, _replay(body, receive), send)

    def _is_too_large(self, declared: str) -> bool:
        return not declared.isdigit() or len(declared) > _MAX_LENGTH_DIGITS or int(declared) > self._max_bytes

    async def _receive_body(self, receive: Receive) -> bytes | Message | None:
        """The body; None where it is too large; the message of its going where the client has gone."""
        pieces: list[bytes] = []
        seen = 0
        while (message := await receive())["type"] == "http.request":
            pieces.append(message.get("body", b""))
            seen += len(pieces[-1])
            if seen > self._max_bytes:
                return None
            if not message.get("more_body"):
                return b"".join(pieces)
        return message

    def _too_large_error(self) -> AstromeshError:
        return PayloadTooLarge(f"The body is larger than {self._max_bytes} bytes (spec.api.max_body_bytes).")


def _content_length(scope: Scope) -> str:
    """`content-length`, empty for a chunked body, `0` where there is none."""
    headers = headers_of(scope)
    unknown = scope["method"] in _WITH_BODY or "transfer-encoding" in headers
    return headers.get("content-length", "" if unknown else "0")


def _replay(body: bytes | Message, receive: Receive) -> Receive:
    """Says what was taken in, then whatever comes."""
    said = False

    async def again() -> Message:
        nonlocal said
        if said:
            return await receive()
        said = True
        return {"type": "http.request", "body": body} if isinstance(body, bytes) else body

    return again


def nests_too_deep(raw: bytes) -> bool:
    """Whether JSON has lists and objects within each other beyond `MAX_DEPTH`; False for what is no JSON.

    orjson writes 254 levels. Around so many of ours as are left it refuses what is deeper, at C's speed.
    """
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return False
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return "depth limit" in str(error)
    for _ in range(_ORJSON_DEPTH - MAX_DEPTH):
        value = [value]
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:  # what orjson has read it can write, unless it is too deep
        return True
    return False
