"""Translates errors of model services to `ProviderError`s."""

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

#: statuses that differ from their group: 4xx is a fault of the request, all others of the service
_STATUS: dict[int, type[ProviderError]] = {
    401: ProviderUnauthorized,
    402: ProviderUnauthorized,
    403: ProviderUnauthorized,
    404: ProviderUnavailable,  # no such model or path: a fault of the operator, not of the caller
    405: ProviderUnavailable,
    407: ProviderUnavailable,
    408: ProviderTimeout,
    409: ProviderUnavailable,
    410: ProviderUnavailable,
    424: ProviderUnavailable,  # the model behind the service failed
    425: ProviderUnavailable,
    429: ProviderRateLimited,
    504: ProviderTimeout,
}
#: errors that persist until the operator fixes them, as do redirects, which are not followed
_PERMANENT = frozenset({404, 405, 407, 410, 501, 505})
#: names of errors inside a 200 response or a stream -> status
_ERROR_NAMES: dict[str, int] = {
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "overloaded_error": 529,
    "authentication_error": 401,
    "permission_error": 403,
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "invalid_image": 400,
    "invalid_image_url": 400,
    "invalid_image_format": 400,
    "unsupported_image_media_type": 400,
    "failed_to_download_image": 400,
    "image_parse_error": 400,
    "image_too_large": 400,
    "image_content_policy_violation": 400,
    "context_length_exceeded": 400,
    "request_too_large": 413,
    "timeout_error": 504,
    "RESOURCE_EXHAUSTED": 429,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "ThrottlingException": 429,
    "ServiceQuotaExceededException": 429,
    "ModelNotReadyException": 503,
    "ServiceUnavailableException": 503,
    "ModelStreamErrorException": 424,
    "ValidationException": 400,
}
_MESSAGES: dict[type[ProviderError], str] = {
    ProviderUnauthorized: "the key or the account is rejected",
    ProviderRateLimited: "too many calls",
    ProviderTimeout: "the service timed out",
    ProviderRejected: "the request is rejected",
    ProviderUnavailable: "the service is unavailable",
}
#: messages of these errors may repeat the key
_WITHOUT_DETAIL = (ProviderUnauthorized, ProviderRateLimited)
#: the characters of a bearer token (RFC 6750, 2.1), and the stars of one that is shown in part
_KEY_LIKE = re.compile(r"\b(sk|pk|key|Bearer)[-_ ][\w*.~+/=\-]{6,}")
#: messages are truncated only where they are shown: output rules do not recognize half a secret
_MAX_DETAIL = 10_000
#: a longer wait counts as a mistake of the service
_MAX_RETRY_AFTER = 3600.0


def from_status(
    status: int, headers: Mapping[str, str], body: bytes, secrets: Sequence[str] = ()
) -> ProviderError:
    """Returns the error of a response whose status is not 200.

    Args:
        status: HTTP status.
        headers: of the response, for Retry-After.
        body: of the response; its message is passed on if it is about the request.
        secrets: removed from the message.
    """
    if status == 400 and b"API_KEY_INVALID" in body:  # Gemini's code for a wrong key
        status = 401
    status = _ERROR_NAMES.get(headers.get("x-amzn-errortype", "").partition(":")[0], status)
    rejected = 400 <= status < 500
    kind = _STATUS.get(status, ProviderRejected if rejected else ProviderUnavailable)
    message = "the model or the path does not exist" if status == 404 else _MESSAGES[kind]
    detail = _detail(body, secrets) if rejected and kind not in _WITHOUT_DETAIL else ""
    lasting = status in _PERMANENT or status < 400
    return kind(
        f"answered {status}: {message}",
        status=status,
        retry_after=retry_after(headers),
        retryable=not lasting,
        quote=detail,
    )


def from_body(error: object) -> ProviderError:
    """Returns the error inside a 200 response or a stream, e.g. `{"type": "overloaded_error"}`."""
    fields = error if isinstance(error, dict) else {"message": error}
    code = fields.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 0
    for name in (fields.get("type"), code, fields.get("status")):
        status = status or _ERROR_NAMES.get(str(name), 0)
    return from_status(status or 500, {}, orjson.dumps({"error": fields}, default=str))


def from_net_error(error: NetError) -> ProviderError:
    kind = ProviderTimeout if isinstance(error, NetTimeout) else ProviderUnavailable
    return kind(str(error))


def retry_after(headers: Mapping[str, str]) -> float:
    """Returns the seconds of Retry-After (RFC 9110, 10.2.3: seconds or a date), 0.0 without one."""
    if milliseconds := _number(headers.get("retry-after-ms", "")):
        return min(milliseconds / 1000, _MAX_RETRY_AFTER)
    header = headers.get("retry-after", "")
    return min(_number(header) or _seconds_until(header), _MAX_RETRY_AFTER)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if 0 < number < float("inf") else 0.0


def _seconds_until(date: str) -> float:
    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return 0.0


def _detail(body: bytes, secrets: Sequence[str]) -> str:
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    error = content.get("error", content) if isinstance(content, dict) else content
    message = error.get("message") if isinstance(error, dict) else error
    if not isinstance(message, str):
        return ""
    for secret in secrets:
        message = message.replace(secret, "***")
    return _KEY_LIKE.sub("***", " ".join(message.split()))[:_MAX_DETAIL]
