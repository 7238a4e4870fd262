"""Limits on requests: head (413, 414), body (413, text 422), how many are open at once (503) or start."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import MutableMapping
from itertools import chain
from time import monotonic
from typing import Any, NamedTuple

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from astromesh.api.errors import NOT_UTF_8, error_response
from astromesh.api.middleware.response import BODY_STATE
from astromesh.api.requests import headers_of
from astromesh.durable.queue import Load, LoadLimit, shed_for
from astromesh.errors import AstromeshError, InvalidInput, Overloaded, PayloadTooLarge, UriTooLong
from astromesh.text import has_long_integer

#: bytes of all header lines together, and of path and query
MAX_HEADER_BYTES, MAX_TARGET_BYTES = 32_768, 8_192
#: where the state of a request says that its body has not arrived in full
BODY_INCOMPLETE = "body_incomplete"
#: no limit holds for these: an orchestrator that gets no answer here kills a busy server
HEALTH_PATHS = ("/health", "/health/live", "/health/ready")
#: requests that start in one turn of the event loop
MAX_STARTS = 8
#: seconds that a request may wait for its start; while one waits longer, further ones are refused
MAX_START_WAIT_SECONDS = 1.0
#: seconds since its last request for which a tenant counts when the room is shared
TENANT_SECONDS = 60.0
#: where the state of a request has the `TenantLoad` of its process, and the tenant that it counts for
TENANT_LOAD, _COUNTED_TENANT = "tenant_load", "counted_tenant"
#: nested lists and objects in a request; the server puts it into others before it writes it to a store
MAX_DEPTH, _ORJSON_DEPTH = 64, 254
#: digits of a content-length; int() of a longer text takes too long
_MAX_LENGTH_DIGITS = 18
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_TOO_DEEP = f"The JSON has more than {MAX_DEPTH} levels of nested lists and objects."
_TOO_LONG = "The JSON has an integer beyond 64 bits, which would be rounded. Send it as text."


class ConcurrencyLimits(NamedTuple):
    """How many requests and sockets one process serves at once."""

    requests: int = 1_000
    sockets: int = 10_000


DEFAULT_LIMITS = ConcurrencyLimits()


class FairStart:
    """Starts concurrent requests in arrival order, at most `MAX_STARTS` per turn of one event loop.

    An event loop that starts all of them at once moves them on in step: all call their models, all responses
    arrive together, and the processor idles in between. In order, the first ones wait for their models while
    the next ones start, and the work spreads out. For requests of similar size, first come, first served has
    a smaller mean time than equal shares (Kleinrock, Queueing Systems, volume 2, 1976, chapter 4). A request
    that arrives alone never waits.
    """

    def __init__(self) -> None:
        #: the starts that wait, each with the time of its arrival
        self.waiting: deque[tuple[asyncio.Future[None], float]] = deque()
        self._started = 0

    def waited(self) -> float:
        """Returns the seconds that the first of the waiting requests waits."""
        return monotonic() - self.waiting[0][1] if self.waiting else 0.0

    def enter(self) -> asyncio.Future[None] | None:
        """Returns None where the request may start now, else a future to await before it starts."""
        loop = asyncio.get_running_loop()
        if self._started < MAX_STARTS and not self.waiting:
            if not self._started:
                loop.call_soon(self._start_next)
            self._started += 1
            return None
        turn = loop.create_future()
        self.waiting.append((turn, monotonic()))
        return turn

    async def wait_for_earlier(self) -> None:
        """Returns when all requests that wait now have started."""
        if (turn := self.enter()) is not None:
            await turn

    def _start_next(self) -> None:
        self._started = 0
        while self.waiting and self._started < MAX_STARTS:
            turn, _ = self.waiting.popleft()
            if not turn.done():  # a cancelled request leaves its future behind
                turn.set_result(None)
                self._started += 1
        if self._started:
            asyncio.get_running_loop().call_soon(self._start_next)


class TenantLoad:
    """The active requests of each tenant in this process.

    A tenant may use all of the room while it is alone. While half of the room is in use, it gets no more than
    an equal share among the tenants of the last minute, so that it cannot shut out the others.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._active: Counter[str] = Counter()
        self._seen: dict[str, float] = {}
        self._expires = 0.0

    def enter(self, state: MutableMapping[str, Any], tenant: str) -> None:
        """Counts a request for its tenant until `leave`. Raises: Overloaded: the tenant has its share."""
        now = monotonic()
        self._seen[tenant] = now
        if now >= self._expires:
            self._seen = {one: at for one, at in self._seen.items() if now - at < TENANT_SECONDS}
            self._expires = now + TENANT_SECONDS / 60
        if state.get(_COUNTED_TENANT) is not None:  # a request that is authorised twice
            return
        active = sum(self._active.values())
        if 2 * active >= self._limit and self._active[tenant] >= tenant_share(self._limit, len(self._seen)):
            raise Overloaded(
                f"{self._active[tenant]} requests of your tenant are active, its share of "
                "spec.api.max_requests. Try again later."
            )
        self._active[tenant] += 1
        state[_COUNTED_TENANT] = tenant

    def leave(self, state: MutableMapping[str, Any]) -> None:
        if (tenant := state.pop(_COUNTED_TENANT, None)) is not None:
            self._active[tenant] -= 1
            if not self._active[tenant]:
                del self._active[tenant]


def tenant_share(limit: int, tenants: int) -> int:
    """Returns how many of at most `limit` requests a tenant may have while half of them are active."""
    return max(1, limit // tenants)


class RequestLimits:
    """ASGI middleware that rejects what is too large or too much before any work is done for it.

    Args:
        limits: how many requests and sockets it serves at once.
        fair_start: decides when an accepted request starts.
    """

    def __init__(self, app: ASGIApp, limits: ConcurrencyLimits, fair_start: FairStart) -> None:
        self._app = app
        self._limits = limits
        self._fair_start = fair_start
        self._requests = self._starting = self._sockets = self._incomplete = 0
        self._tenants = TenantLoad(limits.requests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
            return
        state, is_health = scope["state"], scope["path"] in HEALTH_PATHS
        incomplete = state.get(BODY_INCOMPLETE)
        refused = head_fault(scope)
        if refused is None and incomplete:
            refused = self._too_many_incomplete()
        elif refused is None and not is_health:
            refused = self._too_many()
        if refused is not None:
            await error_response(refused, scope)(scope, receive, send)
            return
        if incomplete:
            receive = self._counted_receive(scope, receive)
            self._incomplete += 1
        else:
            self._requests += 1
        state[TENANT_LOAD] = self._tenants
        try:
            if not is_health and (turn := self._fair_start.enter()) is not None:
                refused = await self._wait_for_start(turn, incomplete)
            await (self._app if refused is None else error_response(refused, scope))(scope, receive, send)
        finally:
            self._tenants.leave(state)
            if state.get(BODY_INCOMPLETE):
                self._incomplete -= 1
            else:
                self._requests -= 1

    async def _wait_for_start(self, turn: asyncio.Future[None], incomplete: bool) -> AstromeshError | None:
        """Waits for the start of a request. Returns the error if there is no room by then.

        What waits is not active: else a tenant that sends many requests at once would have all of the room
        before anybody knows whose they are.
        """
        self._starting += 1
        try:
            await turn
        finally:
            self._starting -= 1
        return None if incomplete else self._too_many(this=1)

    def _counted_receive(self, scope: Scope, receive: Receive) -> Receive:
        """Counts a request as active once its body has arrived in full.

        The returned `receive` raises Overloaded where too many requests are active by then.
        """

        async def counted() -> Message:
            message = await receive()
            if not message.get("more_body") and scope["state"].get(BODY_INCOMPLETE):
                if (refused := self._too_many()) is not None:
                    raise refused
                scope["state"][BODY_INCOMPLETE] = False
                self._incomplete -= 1
                self._requests += 1
            return message

        return counted

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = head_fault(scope)
        if refused is None and self._sockets >= self._limits.sockets:
            refused = _overloaded(f"{self._sockets} sockets are open", "max_sockets")
        if refused is not None:
            await WebSocket(scope, receive, send).send_denial_response(error_response(refused))
            return
        self._sockets += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._sockets -= 1

    def _too_many_incomplete(self) -> AstromeshError | None:
        """Incomplete requests have the bound of sockets, because they, too, only wait for their clients."""
        if self._incomplete < self._limits.sockets:
            return None
        return _overloaded(f"{self._incomplete} requests are incomplete", "max_sockets")

    def _too_many(self, this: int = 0) -> AstromeshError | None:
        """Args: this: 1 for a request that is counted already, and has waited for its start."""
        active = self._requests - self._starting - this
        if not self._fair_start.waiting and active < self._limits.requests:  # most often
            return None
        load = Load(active, 0.0 if this else self._fair_start.waited())
        seconds = shed_for(load, LoadLimit(self._limits.requests, MAX_START_WAIT_SECONDS))
        if seconds is None and self._starting < self._limits.sockets:
            return None
        if load.size < self._limits.requests:
            return Overloaded(f"Requests wait {load.waited:.1f} s to start. Try again later.", seconds or 1.0)
        return _overloaded(f"{load.size} requests are active", "max_requests", seconds or 1.0)


def _overloaded(load: str, limit: str, seconds: float = 1.0) -> AstromeshError:
    return Overloaded(f"{load}, as many as spec.api.{limit} allows. Try again later.", seconds)


def head_fault(scope: Scope) -> AstromeshError | None:
    """Returns what is wrong with the size of a request's head, None where nothing is."""
    target = len(scope.get("raw_path") or scope["path"]) + len(scope.get("query_string", b""))
    if target > MAX_TARGET_BYTES:
        return UriTooLong(f"Path and query have {target} bytes; the limit is {MAX_TARGET_BYTES}.")
    size = sum(map(len, chain.from_iterable(scope["headers"])))
    if size > MAX_HEADER_BYTES:
        return PayloadTooLarge(f"The headers have {size} bytes; the limit is {MAX_HEADER_BYTES}.")
    return None


class BodyLimit:
    """ASGI middleware that reads a body in full and checks its size, text and depth before any route runs.

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
            AstromeshError: the body is too large, is not UTF-8, nests too deep, has an integer that would be
                rounded, or `receive` refuses it.
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
                if fault := json_fault(body):
                    raise InvalidInput(fault)
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


def json_fault(raw: bytes) -> str:
    """Returns why a JSON text is not accepted; empty where it is, and where it is not JSON."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return NOT_UTF_8
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _nests_too_deep(raw):
        return _TOO_DEEP
    return _TOO_LONG if has_long_integer(raw) else ""


def _nests_too_deep(raw: bytes) -> bool:
    """Whether JSON nests lists and objects deeper than `MAX_DEPTH`; False where the text is not JSON.

    orjson writes 254 levels. Wrapped in the levels that are left, a deeper value fails at the speed of C.
    """
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
