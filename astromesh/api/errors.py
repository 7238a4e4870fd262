"""Errors to problem documents (RFC 9457): the one table of statuses."""

from __future__ import annotations

import math
from typing import Any

import orjson
import structlog
from starlette.requests import Request
from starlette.responses import Response

from astromesh.errors import AllProvidersFailed, AstromeshError, GuardrailBlocked, RunFailed
from astromesh.runtime.ids import trace_id as new_trace_id
from astromesh.types import JsonObject

log = structlog.get_logger("astromesh.api")

#: code -> HTTP status (api.md section 1, Errors)
STATUS: dict[str, int] = {
    "malformed_request": 400,
    "not_found": 404,
    "agent_not_found": 404,
    "run_not_found": 404,
    "session_not_found": 404,
    "task_not_found": 404,
    "workflow_not_found": 404,
    "pipeline_not_found": 404,
    "channel_not_found": 404,
    "trace_not_found": 404,
    "approval_not_found": 404,
    "method_not_allowed": 405,
    "invalid_input": 422,
    "guardrail_blocked": 422,
    "idempotency_conflict": 422,
    "provider_rejected": 422,
    "unauthorized": 401,
    "forbidden": 403,
    "conflict": 409,
    "session_busy": 409,
    "interrupted": 409,
    "not_waiting": 409,
    "not_durable": 409,
    "approval_required": 409,
    "events_gone": 410,
    "request_timeout": 408,
    "payload_too_large": 413,
    "rate_limited": 429,
    "budget_exhausted": 429,
    "all_providers_failed": 502,
    "invalid_output": 502,
    "agent_unavailable": 503,
    "workflow_unavailable": 503,
    "queue_full": 503,
    "overloaded": 503,
    "shutting_down": 503,
    "lease_lost": 503,
    "deadline_exceeded": 504,
}
#: what clients see instead of our finer codes
PUBLIC: dict[str, str] = {"provider_rejected": "invalid_input"}
TITLES: dict[int, str] = {
    400: "Bad request", 401: "Unauthorized", 403: "Forbidden", 404: "Not found", 405: "Method not allowed",
    408: "Request timeout", 409: "Conflict",
    410: "Gone", 413: "Payload too large", 422: "Invalid input", 429: "Too many requests",
    500: "Internal error", 502: "Upstream failed", 503: "Unavailable", 504: "Deadline exceeded",
}  # fmt: skip
INTERNAL = "Something went wrong inside the server; its log has the details under this trace_id."


def problem(error: AstromeshError) -> tuple[int, JsonObject]:
    """Status and body of an error; what is not in the table is 500 and says nothing of itself."""
    status = STATUS.get(error.code, 500)
    body = problem_body(
        status, PUBLIC.get(error.code, error.code) if status != 500 else "internal",
        str(error) if status != 500 else INTERNAL, error.trace_id,
    )  # fmt: skip
    if error.run_id:
        body["run_id"] = error.run_id
    if isinstance(error, GuardrailBlocked):
        body["guardrail"] = error.guardrail
    if isinstance(error, RunFailed):
        body |= error.more
    if isinstance(error, AllProvidersFailed):
        body["failures"] = [
            {"provider": f.provider, "code": f.code, "status": f.status} for f in error.failures
        ]
    return status, body


def public_failure(data: JsonObject) -> JsonObject:
    """Code and detail of a `run.failed` event as clients see them, the same as over plain HTTP."""
    code, detail = data["code"], data["detail"]
    if code not in STATUS:
        return {**data, "code": "internal", "detail": INTERNAL}
    return {**data, "code": PUBLIC.get(code, code), "detail": detail}


def answer(error: AstromeshError) -> Response:
    return problem_response(error, *problem(error))


def problem_response(error: AstromeshError, status: int, body: JsonObject) -> Response:
    """The answer; with `Retry-After` where trying again makes sense."""
    seconds = getattr(error, "retry_after", 0.0)
    # a session's budget that is used up stays so
    forever = error.code == "budget_exhausted" and not seconds
    return response_of(status, body, None if forever else seconds)


#: what pydantic says in words of its own
_SENTENCES = {
    "extra_forbidden": "unknown field",
    "missing": "required, but missing",
    "model_type": "it must be a JSON object",
    "model_attributes_type": "it must be a JSON object",
}
#: part of a pattern → what a text that does not fit it is told
_PATTERNS = {
    "\\x00-\\x1f": "it must hold no control characters, such as line ends or tabs",
    "\\S": "it must not be blank",
}


def invalid(errors: Any) -> str:
    """One sentence from pydantic's findings: which field, what is wrong."""
    found = []
    for error in errors:
        where = ".".join(str(p) for p in error["loc"] if p != "body")
        said = _said(error)
        found.append(f"{where}: {said}" if where else said)
    return "The request is not valid: " + "; ".join(found[:10]) + "."


def _said(error: Any) -> str:
    if error["type"] != "string_pattern_mismatch":
        return _SENTENCES.get(error["type"], str(error["msg"]))
    pattern = str(error["ctx"]["pattern"])
    return next((said for part, said in _PATTERNS.items() if part in pattern), str(error["msg"]))


async def told(request: Request, error: Exception) -> Response:
    """The answer to an error of ours; one that callers are not told is logged where no run has done so."""
    assert isinstance(error, AstromeshError)
    if STATUS.get(error.code, 500) == 500 and not error.run_id:
        error.trace_id = error.trace_id or new_trace_id()
        log.error("request_failed", path=request.url.path, trace_id=error.trace_id, exc_info=error)
    return answer(error)


async def left(request: Request, error: Exception) -> Response:
    """The client went away before its body was there: nobody reads this, and nothing of ours failed."""
    return Response(status_code=499)


async def crashed(request: Request, error: Exception) -> Response:
    """The answer to what nobody expected; the log has it."""
    trace_id = new_trace_id()
    log.error("request_crashed", path=request.url.path, trace_id=trace_id, exc_info=error)
    return response_of(500, problem_body(500, "internal", INTERNAL, trace_id))


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
