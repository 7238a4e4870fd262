"""Encodes errors as problem documents (RFC 9457). `astromesh.errors` defines their codes and statuses.

`error_formats` has the forms of other protocols.
"""

from __future__ import annotations

import math
from typing import Any

import orjson
from starlette.datastructures import URL, State
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from astromesh.access.scopes import RUN
from astromesh.api.error_formats import FormattedError, formatted
from astromesh.api.middleware.response import request_id_of
from astromesh.errors import AstromeshError, details_of, error_class
from astromesh.logs import get_logger
from astromesh.net.service_options import is_http
from astromesh.telemetry.ids import trace_id as new_trace_id
from astromesh.types import JsonObject

log = get_logger("astromesh.api")

TITLES: dict[int, str] = {
    400: "Bad request", 401: "Unauthorized", 403: "Forbidden", 404: "Not found", 405: "Method not allowed",
    408: "Request timeout", 409: "Conflict",
    410: "Gone", 413: "Payload too large", 414: "URI too long", 422: "Invalid input",
    429: "Too many requests",
    500: "Internal error", 502: "Upstream failed", 503: "Unavailable", 504: "Deadline exceeded",
}  # fmt: skip
INTERNAL_DETAIL = "An internal error occurred. The server's log has the details under this trace_id."


def problem(error: AstromeshError) -> tuple[int, JsonObject]:
    """Returns status and body of an error. The body of an error that is not public reveals nothing."""
    code, detail = _shown(error, str(error))
    body = problem_body(error.status, code, detail, error.trace_id)
    if error.run_id:
        body["run_id"] = error.run_id
    return error.status, body | details_of(error)


def public_failure(data: JsonObject) -> JsonObject:
    """Returns the data of a `run.failed` event with code and detail as a problem document has them."""
    kind = error_class(data["code"])
    code, detail = _shown(kind, data["detail"])
    return {**data, "code": code, "detail": detail}


def _shown(error: AstromeshError | type[AstromeshError], detail: str) -> tuple[str, str]:
    return (error.public_code or error.code, detail) if error.public else ("internal", INTERNAL_DETAIL)


def error_response(error: AstromeshError, scope: Scope | None = None) -> Response:
    """Returns the response to an error, with `Retry-After` where a retry can succeed.

    Args:
        scope: of the request; its path decides whether OpenAI clients read the error.
    """
    status, body = problem(error)
    seconds = getattr(error, "retry_after", 0.0)
    # a used-up budget of a session stays used up
    forever = error.code == "budget_exhausted" and not seconds
    return response_of(status, body, scope, None if forever else seconds)


#: by pydantic's error type, where its own message does not help a caller
_MESSAGES = {
    "extra_forbidden": "unknown field",
    "missing": "it is required",
    "model_type": "it must be a JSON object",
    "dict_type": "it must be a JSON object",
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
    if error["type"] == "value_error":
        return str(error["msg"]).removeprefix("Value error, ")
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
        log.error("request_failed", **_named(request, error.trace_id), exc_info=error)
    return error_response(error, request.scope)


def _named(request: Request, trace_id: str) -> JsonObject:
    """Returns what a log line says of a request."""
    request_id = request_id_of(request.scope).decode()
    return {"path": request.url.path, "trace_id": trace_id, "request_id": request_id}


async def handle_disconnect(request: Request, error: Exception) -> Response:
    """Answers a client that has disconnected. Nobody reads the response, and nothing failed."""
    return Response(status_code=499)


async def handle_crash(request: Request, error: Exception) -> Response:
    """Logs an unexpected exception and answers 500."""
    trace_id = new_trace_id()
    log.error("request_crashed", **_named(request, trace_id), exc_info=error)
    return response_of(500, problem_body(500, "internal", INTERNAL_DETAIL, trace_id), request.scope)


def problem_body(status: int, code: str, detail: str, trace_id: str = "") -> JsonObject:
    return {
        "type": f"urn:astromesh:error:{code}",
        "title": TITLES.get(status, "Error"),
        "status": status,
        "detail": detail,
        "code": code,
        "trace_id": trace_id or new_trace_id(),
    }


#: where clients of `/mcp` find who issues its tokens (RFC 9728)
MCP_METADATA = "/.well-known/oauth-protected-resource/mcp"


def _challenge(status: int, scope: Scope | None) -> str:
    """Returns the header of a 401. At `/mcp` it names the metadata, if tokens have an issuer.

    There, a 403 has one, too: clients get a token with the scope (RFC 6750, 3.1).
    """
    path = "" if scope is None else scope.get("path", "").removeprefix(scope.get("root_path", ""))
    if scope is None or path != "/mcp" or not issuer_of(scope["app"].state):
        return "Bearer" if status == 401 else ""
    url = URL(scope=scope).replace(path=scope.get("root_path", "") + MCP_METADATA, query="")
    wanted = f'error="insufficient_scope", scope="{RUN}", ' if status == 403 else ""
    return f'Bearer {wanted}resource_metadata="{url}"'


def issuer_of(state: State) -> str:
    """Returns the URL of the server that issues the tokens of this one; empty: none does."""
    auth = state.runtime.state.configuration.runtime.spec.auth
    issuer: str = auth.jwt.issuer if auth.mode in ("jwt", "both") else ""
    return issuer if is_http(issuer) else ""


def response_of(
    status: int, body: JsonObject, scope: Scope | None = None, retry_after: float | None = 0.0
) -> Response:
    """Returns a problem document, or what the clients of the path read in its place."""
    headers: dict[str, str] = {}
    if status in (429, 503) and retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(retry_after)))
    if status in (401, 403) and (challenge := _challenge(status, scope)):
        headers["www-authenticate"] = challenge
    made = formatted(FormattedError(status, body), scope)
    return Response(orjson.dumps(made.body), made.status, headers, made.media_type)
