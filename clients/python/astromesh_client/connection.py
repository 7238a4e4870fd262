"""Connections to a server: credentials, errors as exceptions, retries of requests that are safe to repeat."""

from __future__ import annotations

import asyncio
import random
import re
import time
from typing import Any
from uuid import uuid4

import httpx

from astromesh_client.client import AuthenticatedClient, Client

#: paths of POST requests that take an `Idempotency-Key`
IDEMPOTENT = re.compile(
    r"/v1/(agents|workflows)/[^/]+/runs?$|/v1/(runs|tasks)/[^/]+/fork$|/v1/(chat/completions|responses)$"
)
#: the server has not begun: it says when to try again
_RETRIED_STATUSES = frozenset({429, 503})
#: without a `code`, it is a proxy that has not reached the server, or has lost it
_PROXY_STATUSES = frozenset({502, 503, 504})
_KEY = "Idempotency-Key"


class ApiError(Exception):
    """The server has answered with an error: its `code` stays, its `detail` is for people."""

    def __init__(self, status: int, problem: dict[str, Any], retry_after: float | None = None) -> None:
        self.status = status
        self.code: str = problem.get("code", "")
        self.detail: str = problem.get("detail", "")
        self.problem = problem
        self.retry_after = retry_after
        super().__init__(f"{status} {self.code}: {self.detail}")

    @property
    def is_of_proxy(self) -> bool:
        """Whether a proxy has answered in place of the server, as after a broken connection."""
        return self.status in _PROXY_STATUSES and not self.code


def connect(
    base_url: str,
    key: str | None = None,
    *,
    retries: int = 3,
    timeout: float | None = 120.0,
    transport: httpx.HTTPTransport | None = None,
    async_transport: httpx.AsyncBaseTransport | None = None,
) -> Client:
    """Returns a client for the functions of `astromesh_client.api` and the streams.

    A request that starts something gets an `Idempotency-Key`, so that a repeat is the same run.

    Args:
        key: An API key or a JSON Web Token. None: the server needs none.
        retries: How often a request is repeated after a broken connection, 429 or 503, or a 502 or 504 of a
            proxy. Only requests that are safe to repeat are.
        timeout: Seconds without an answer.
        transport, async_transport: In place of those of httpx.
    """
    wrapped = RetryTransport(retries, transport, async_transport)
    options: dict[str, Any] = {
        "base_url": base_url,
        "timeout": None if timeout is None else httpx.Timeout(timeout),
        "httpx_args": {"transport": wrapped},
    }
    if key is None:
        return Client(**options)
    return AuthenticatedClient(token=key, **options)  # type: ignore[return-value]


class RetryTransport(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Repeats requests that are safe to repeat, and raises `ApiError` for answers that are errors."""

    def __init__(
        self,
        retries: int,
        transport: httpx.BaseTransport | None = None,
        async_transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._retries = retries
        self._sync, self._async = transport, async_transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._sync = self._sync or httpx.HTTPTransport()
        repeatable = _make_repeatable(request)
        for attempt in range(self._retries + 1):
            wait: float | None = None
            try:
                response = self._sync.handle_request(request)
                if not _is_stream(response):  # a connection may break within the body, too
                    response.read()
            except httpx.TransportError:
                if not repeatable or attempt == self._retries:
                    raise
            else:
                if response.status_code < 400:
                    return response
                error = _error(response)
                if not _is_retried(error, repeatable) or attempt == self._retries:
                    raise error
                wait = error.retry_after
            time.sleep(_pause(attempt, wait))
        raise AssertionError

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._async = self._async or httpx.AsyncHTTPTransport()
        repeatable = _make_repeatable(request)
        for attempt in range(self._retries + 1):
            wait: float | None = None
            try:
                response = await self._async.handle_async_request(request)
                if not _is_stream(response):
                    await response.aread()
            except httpx.TransportError:
                if not repeatable or attempt == self._retries:
                    raise
            else:
                if response.status_code < 400:
                    return response
                error = _error(response)
                if not _is_retried(error, repeatable) or attempt == self._retries:
                    raise error
                wait = error.retry_after
            await asyncio.sleep(_pause(attempt, wait))
        raise AssertionError

    def close(self) -> None:
        if self._sync is not None:
            self._sync.close()

    async def aclose(self) -> None:
        if self._async is not None:
            await self._async.aclose()


def _make_repeatable(request: httpx.Request) -> bool:
    """Gives a request a key if it takes one. Returns whether it is safe to repeat."""
    if request.method == "POST" and IDEMPOTENT.search(request.url.path):
        request.headers.setdefault(_KEY, uuid4().hex)
    return request.method in ("GET", "DELETE") or _KEY in request.headers


def _is_stream(response: httpx.Response) -> bool:
    """Whether a body is to be read as it comes: events, or lines of JSON."""
    kind = response.headers.get("content-type", "")
    return response.status_code < 400 and kind.startswith(("text/event-stream", "application/x-ndjson"))


def _is_retried(error: ApiError, repeatable: bool) -> bool:
    is_late = error.status in _RETRIED_STATUSES and error.retry_after is not None
    return repeatable and (is_late or error.is_of_proxy)


def _pause(attempt: int, wait: float | None) -> float:
    """Returns the seconds before the next attempt: those that the server asks for, else more each time."""
    return wait if wait is not None else min(0.2 * 2**attempt, 5.0) * random.uniform(0.5, 1.0)  # noqa: S311


def _error(response: httpx.Response) -> ApiError:
    try:
        problem = response.json()
    except ValueError:
        problem = {}
    after = response.headers.get("retry-after", "")
    seconds = float(after) if after.isdigit() else None
    return ApiError(response.status_code, problem if isinstance(problem, dict) else {}, seconds)
