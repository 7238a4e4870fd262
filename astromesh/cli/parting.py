"""The answer after which a connection is closed, where no application can give it."""

from __future__ import annotations

import orjson

from astromesh.api.border import with_headers
from astromesh.api.errors import problem
from astromesh.errors import AstromeshError


def parting(error: AstromeshError) -> bytes:
    """A whole HTTP/1.1 answer: the problem document of an error."""
    status, body = problem(error)
    content = orjson.dumps(body)
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(content)),
        (b"connection", b"close"),
    ]
    lines = b"".join(b"%b: %b\r\n" % line for line in with_headers(headers))
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, body["title"].encode(), lines, content)
