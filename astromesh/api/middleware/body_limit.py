"""Limits request bodies: at most `max_bytes` bytes (413) and 64 levels of JSON (422)."""

from __future__ import annotations

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astromesh.api.errors import error_response
from astromesh.api.requests import BODY_STATE, headers_of
from astromesh.errors import AstromeshError, InvalidInput, PayloadTooLarge

#: nested lists and objects in a request; the server puts it into others before it writes it to a store
MAX_DEPTH, _ORJSON_DEPTH = 64, 254
#: digits of a content-length; int() of a longer text takes too long
_MAX_LENGTH_DIGITS = 18
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
TOO_DEEP = f"The JSON has more than {MAX_DEPTH} levels of nested lists and objects."


class BodyLimit:
    """ASGI middleware that reads a body in full and checks its size and depth before any route runs.

    Routes find the body in the request's state, or receive it as if nobody had read it.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = headers_of(scope)
            may_follow = scope["method"] in _WITH_BODY or "transfer-encoding" in headers
            length = headers.get("content-length", "" if may_follow else "0")
            if length != "0":
                try:
                    body = await self._receive_body(length, receive)
                except AstromeshError as refused:
                    await error_response(refused, scope)(scope, receive, send)
                    return
                scope.setdefault("state", {})[BODY_STATE] = body
                receive = _replay(body, receive)
        await self._app(scope, receive, send)

    async def _receive_body(self, length: str, receive: Receive) -> bytes | Message:
        """Returns the body, or the message `http.disconnect` where the client leaves before its end.

        Args:
            length: the declared one, empty for a chunked body.

        Raises:
            AstromeshError: the body is too large or nests too deep, or `receive` refuses it.
        """
        if length and (
            not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS or int(length) > self._max_bytes
        ):
            raise self._too_large()
        pieces: list[bytes] = []
        size = 0
        while (message := await receive())["type"] == "http.request":
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > self._max_bytes:
                raise self._too_large()
            if not message.get("more_body"):
                body = b"".join(pieces)
                if nests_too_deep(body):
                    raise InvalidInput(TOO_DEEP)
                return body
        return message

    def _too_large(self) -> AstromeshError:
        return PayloadTooLarge(f"The body is larger than {self._max_bytes} bytes (spec.api.max_body_bytes).")


def _replay(body: bytes | Message, receive: Receive) -> Receive:
    """Returns a `receive` that gives what was read, then whatever comes."""
    is_replayed = False

    async def replayed() -> Message:
        nonlocal is_replayed
        if is_replayed:
            return await receive()
        is_replayed = True
        return {"type": "http.request", "body": body} if isinstance(body, bytes) else body

    return replayed


def nests_too_deep(raw: bytes) -> bool:
    """Whether JSON nests lists and objects deeper than `MAX_DEPTH`; False where the text is not JSON.

    orjson writes 254 levels. Wrapped in the levels that are left, a deeper value fails at the speed of C.
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
    except orjson.JSONEncodeError:  # orjson writes whatever it reads, unless it is too deep
        return True
    return False
