"""The client side of one connection, so that whoever reads a body hears of bytes that are not HTTP."""

from __future__ import annotations

from functools import partial
from typing import Any

from aiohttp import BaseConnector, ClientPayloadError
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError


class Malformed(ClientPayloadError):
    """A body goes on with bytes that its framing does not allow, e.g. a chunk without a size."""


class Protocol(ResponseHandler):
    """aiohttp's, whose C parser drops a broken body together with its reader, who then waits for ever."""

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        super().set_exception(exc, *cause)
        body = self._payload
        if isinstance(exc, HttpProcessingError) and body is not None and not body.is_eof():
            body.set_exception(Malformed(str(exc)), exc)


def installed(connector: BaseConnector) -> None:
    """Makes a connector's new connections speak by `Protocol`; aiohttp has no public way to say so."""
    made: Any = partial(Protocol, loop=connector._loop)  # noqa: SLF001
    connector._factory = made  # noqa: SLF001
