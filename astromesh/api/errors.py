"""Encodes errors as problem documents (RFC 9457). `astromesh.errors` defines their codes and statuses."""

from __future__ import annotations

import math
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from astromesh.errors import (
    AllProvidersFailed,
    AstromeshError,
    GuardrailBlocked,
    NodeFailed,
    RunFailed,
    error_class,
)
from astromesh.logs import get_logger
from astromesh.telemetry.ids import trace_id as new_trace_id
from astromesh.types import JsonObject

log = get_logger("astromesh.api")

TITLES: dict[int, str] = {
    400: "Bad request", 401: "Unauthorized", 403: "Forbidden", 404: "Not found", 405: "Method not allowed",
    408: "Request timeout", 409: "Conflict",
    410: "Gone", 413: "Payload too large", 422: "Invalid input", 429: "Too many requests",
    500: "Internal error", 502: "Upstream failed", 503: "Unavailable", 504: "Deadline exceeded",
}  # fmt: skip
INTERNAL_DETAIL = "An internal error occurred. The server's log has the details under this trace_id."


def problem(error: AstromeshError) -> tuple[int, JsonObject]:
    """Returns status and body of an error. The body of an error that is not public reveals nothing."""
    code, detail = _shown(error, str(error))
    body = problem_body(error.status, code, detail, error.trace_id)
    if error.run_id:
        body["run_id"] = error.run_id
    if isinstance(error, GuardrailBlocked):
        body["guardrail"] = error.guardrail
    if isinstance(error, NodeFailed):
        body["node"] = error.path
    if isinstance(error, RunFailed):
        body |= error.details
    if isinstance(error, AllProvidersFailed):
        body["failures"] = [
            {"provider": f.provider, "code": f.code, "status": f.upstream_status} for f in error.failures
        ]
    return error.status, body


def public_failure(data: JsonObject) -> JsonObject:
    """Returns the data of a `run.failed` event with code and detail as a problem document has them."""
    kind = error_class(data["code"])
    code, detail = _shown(kind, data["detail"])
    return {**data, "code": code, "detail": detail}


def _shown(error: AstromeshError | type[AstromeshError], detail: str) -> tuple[str, str]:
    return (error.public_code or error.code, detail) if error.public else ("internal", INTERNAL_DETAIL)


def error_response(error: AstromeshError) -> Response:
    return problem_response(error, *problem(error))


def problem_response(error: AstromeshError, status: int, body: JsonObject) -> Response:
    """Returns the response, with `Retry-After` where a retry can succeed."""
    seconds = getattr(error, "retry_after", 0.0)
    # a used-up budget of a session stays used up
    forever = error.code == "budget_exhausted" and not seconds
    return response_of(status, body, None if forever else seconds)


#: by pydantic's error type, where its own message does not help a caller
_MESSAGES = {
    "extra_forbidden": "unknown field",
    "missing": "it is required",
    "model_type": "it must be a JSON object",
    "model_attributes_type": "it must be a JSON object",
}
#: by a part of the pattern that a text does not match
_PATTERN_MESSAGES = {
    "\\x00-\\x1f": "it must not contain control characters, such as line ends or tabs",
    "\\S": "it must not be blank",
}


def validation_detail(errors: Any) -> str:
    """Returns one sentence from pydantic's errors: which field, what is wrong."""
    faults = []
    for error in errors:
        where = ".".join(str(p) for p in error["loc"] if p != "body")
        message = _message_of(error)
        faults.append(f"{where}: {message}" if where else message)
    return "The request is not valid: " + "; ".join(faults[:10]) + "."


def _message_of(error: Any) -> str:
    if error["type"] != "string_pattern_mismatch":
        return _MESSAGES.get(error["type"], str(error["msg"]))
    pattern = str(error["ctx"]["pattern"])
    messages = (message for part, message in _PATTERN_MESSAGES.items() if part in pattern)
    return next(messages, str(error["msg"]))


async def handle_error(request: Request, error: Exception) -> Response:
    """Answers an error of astromesh, and logs it where callers may not see it and no run has logged it."""
    assert isinstance(error, AstromeshError)
    if not error.public and not error.run_id:
        error.trace_id = error.trace_id or new_trace_id()
        log.error("request_failed", path=request.url.path, trace_id=error.trace_id, exc_info=error)
    return error_response(error)


async def handle_disconnect(request: Request, error: Exception) -> Response:
    """Answers a client that has disconnected. Nobody reads the response, and nothing failed."""
    return Response(status_code=499)


async def handle_crash(request: Request, error: Exception) -> Response:
    """Logs an unexpected exception and answers 500."""
    trace_id = new_trace_id()
    log.error("request_crashed", path=request.url.path, trace_id=trace_id, exc_info=error)
    return response_of(500, problem_body(500, "internal", INTERNAL_DETAIL, trace_id))


def problem_body(status: int, code: str, detail: str, trace_id: str = "") -> JsonObject:
    return {
        "type": f"urn:astromesh:error:{code}",
        "title": TITLES.get(status, "Error"),
        "status": status,
        "detail": detail,
        "code": code,
        "trace_id": trace_id or new_trace_id(),
    }


def response_of(status: int, body: JsonObject, retry_after: float | None = 0.0) -> Response:
    headers: dict[str, str] = {}
    if status in (429, 503) and retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(retry_after)))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(orjson.dumps(body), status, headers, "application/problem+json")
