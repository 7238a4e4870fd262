"""What went wrong at a model service, as `ProviderError`s: the one table."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime

import orjson

from astromesh.errors import (
    NetError,
    NetTimeout,
    ProviderError,
    ProviderRateLimited,
    ProviderRejected,
    ProviderTimeout,
    ProviderUnauthorized,
    ProviderUnavailable,
)

#: statuses that differ from their class: 4xx is the request's fault, everything else the service's
_STATUS: dict[int, type[ProviderError]] = {
    401: ProviderUnauthorized,
    402: ProviderUnauthorized,
    403: ProviderUnauthorized,
    404: ProviderUnavailable,  # no such model or path: the operator's fault, not the caller's
    405: ProviderUnavailable,
    407: ProviderUnavailable,
    408: ProviderTimeout,
    409: ProviderUnavailable,
    410: ProviderUnavailable,
    425: ProviderUnavailable,
    429: ProviderRateLimited,
    504: ProviderTimeout,
}
#: what stays as it is until the operator mends it; so do redirects, which are not followed
_LASTING = frozenset({404, 405, 407, 410, 501, 505})
#: what the services call their errors, where an error comes inside a 200 answer or a stream
_NAMED: dict[str, int] = {
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "overloaded_error": 529,
    "authentication_error": 401,
    "permission_error": 403,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "request_too_large": 413,
    "timeout_error": 504,
    "RESOURCE_EXHAUSTED": 429,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
}
_SAYS: dict[type[ProviderError], str] = {
    ProviderUnauthorized: "refuses the key or the account",
    ProviderRateLimited: "asks for fewer calls",
    ProviderTimeout: "did not finish in time",
    ProviderRejected: "refuses the request",
    ProviderUnavailable: "cannot answer",
}
#: the service's own words may repeat the key to us
_QUIET = (ProviderUnauthorized, ProviderRateLimited)
_KEY_LIKE = re.compile(r"\b(sk|pk|key|Bearer)[-_ ][\w*.\-]{6,}")
#: the services' words are cut where they are shown: half a secret would be none to output rules
_LONGEST_DETAIL = 10_000
#: a wait beyond this is taken for a mistake of the service
_LONGEST_WAIT = 3600.0


def from_status(
    status: int, headers: Mapping[str, str], body: bytes, secrets: Sequence[str] = ()
) -> ProviderError:
    """The error of an answer that is not 200.

    Args:
        status: HTTP status.
        headers: of the answer, for Retry-After.
        body: of the answer; what it says is passed on where it is about the request.
        secrets: taken out of what the service said.
    """
    if status == 400 and b"API_KEY_INVALID" in body:  # Gemini's word for a wrong key
        status = 401
    rejected = 400 <= status < 500
    kind = _STATUS.get(status, ProviderRejected if rejected else ProviderUnavailable)
    detail = _detail(body, secrets) if rejected and kind not in _QUIET else ""
    lasting = status in _LASTING or status < 400
    return kind(
        f"answered {status}: {_SAYS[kind]}",
        status=status,
        retry_after=retry_after(headers),
        retryable=not lasting,
        quote=detail,
    )


def from_body(error: object, secrets: Sequence[str] = ()) -> ProviderError:
    """The error inside a 200 answer or a stream, e.g. `{"type": "overloaded_error"}`."""
    fields = error if isinstance(error, dict) else {"message": error}
    code = fields.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 0
    for name in (fields.get("type"), code, fields.get("status")):
        status = status or _NAMED.get(str(name), 0)
    return from_status(status or 500, {}, orjson.dumps({"error": fields}, default=str), secrets)


def from_net(error: NetError) -> ProviderError:
    kind = ProviderTimeout if isinstance(error, NetTimeout) else ProviderUnavailable
    return kind(str(error))


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that the service asks to wait (RFC 9110, 10.2.3: seconds or a date), 0.0 where it does not."""
    if milliseconds := _number(headers.get("retry-after-ms", "")):
        return min(milliseconds / 1000, _LONGEST_WAIT)
    asked = headers.get("retry-after", "")
    return min(_number(asked) or _until(asked), _LONGEST_WAIT)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if 0 < number < float("inf") else 0.0


def _until(date: str) -> float:
    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return 0.0


def _detail(body: bytes, secrets: Sequence[str]) -> str:
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    error = said.get("error", said) if isinstance(said, dict) else said
    message = error.get("message") if isinstance(error, dict) else error
    if not isinstance(message, str):
        return ""
    for secret in secrets:
        message = message.replace(secret, "***")
    return _KEY_LIKE.sub("***", " ".join(message.split()))[:_LONGEST_DETAIL]
