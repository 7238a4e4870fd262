"""Encodes errors as problem documents (RFC 9457). `astromesh.errors` defines their codes and statuses.

Clients of other protocols read other forms, by path.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson
from starlette.datastructures import URL, State
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from astromesh.access.scopes import RUN
from astromesh.api.middleware.response import BODY_STATE, request_id_of
from astromesh.errors import AstromeshError, InvalidCursor, InvalidInput, details_of, error_class
from astromesh.logs import get_logger
from astromesh.net.http import is_http
from astromesh.telemetry.ids import trace_id as new_trace_id
from astromesh.types import JsonObject

PROBLEM_JSON, JSON = "application/problem+json", "application/json"
#: of bodies that are no JSON
NOT_UTF_8 = "The body is not UTF-8, as JSON must be."
NOT_JSON = "The body is not JSON"


#: codes of input that OpenAI, JSON-RPC and google.rpc call a bad request
_INVALID = frozenset({InvalidInput.code, InvalidCursor.code})


class FormattedError(NamedTuple):
    status: int
    body: JsonObject
    media_type: str = PROBLEM_JSON


Format = Callable[[FormattedError, Scope], FormattedError]


# -- OpenAI --------------------------------------------------------------------------------------------------

_OPENAI_TYPES: Mapping[int, str] = {
    401: "authentication_error", 403: "permission_error", 429: "rate_limit_error",
}  # fmt: skip


def openai_error(status: int, failure: JsonObject) -> JsonObject:
    """Returns the `error` object of OpenAI's API for a problem document or the data of a failed run."""
    kind = "server_error" if status >= 500 else _OPENAI_TYPES.get(status, "invalid_request_error")
    return {
        "message": failure["detail"],
        "type": kind,
        "param": failure.get("param"),
        "code": failure["code"],
    }


def _for_openai(error: FormattedError, scope: Scope) -> FormattedError:
    """The document has the member `error`. Invalid input in UTF-8 is 400."""
    status, body = error.status, error.body
    if body["code"] in _INVALID and body["detail"] != NOT_UTF_8:
        status = 400
    return FormattedError(status, {**body, "status": status, "error": openai_error(status, body)})


# -- AG-UI ---------------------------------------------------------------------------------------------------


def run_error(message: str, code: str) -> JsonObject:
    """Returns AG-UI's event of a failed run, which is also the body of a refused request."""
    return {"type": "RUN_ERROR", "message": message, "code": code}


def _for_agui(error: FormattedError, scope: Scope) -> FormattedError:
    """The event `RUN_ERROR` with the members of the document."""
    body = error.body
    return error._replace(body={**body, **run_error(body["detail"], body["code"])})


# -- JSON-RPC: MCP and A2A -----------------------------------------------------------------------------------

#: codes of JSON-RPC 2.0; -32000 is free for servers, and means nothing else in MCP and A2A
_PARSE_ERROR, _INVALID_REQUEST, _INTERNAL_ERROR, _REFUSED = -32700, -32600, -32603, -32000


def _for_json_rpc(error: FormattedError, scope: Scope) -> FormattedError:
    """A JSON-RPC error with the document as its data. Invalid input is 400."""
    status = _protocol_status(error)
    code = _json_rpc_code(status, error.body["detail"])
    about = {"code": code, "message": error.body["detail"], "data": {**error.body, "status": status}}
    return FormattedError(status, {"jsonrpc": "2.0", "id": _request_id(scope), "error": about}, JSON)


def _protocol_status(error: FormattedError) -> int:
    return 400 if error.body["code"] in _INVALID else error.status


def _json_rpc_code(status: int, detail: str) -> int:
    if status == 400:
        return _PARSE_ERROR if detail.startswith((NOT_UTF_8, NOT_JSON)) else _INVALID_REQUEST
    return _INTERNAL_ERROR if status == 500 else _REFUSED


def _request_id(scope: Scope) -> str | int | None:
    """Returns the id of a JSON-RPC request, None where its body is not read or has none."""
    raw = scope.get("state", {}).get(BODY_STATE)
    if not isinstance(raw, bytes):
        return None
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    found = body.get("id") if isinstance(body, dict) else None
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None


# -- google.rpc: HTTP+JSON of A2A ----------------------------------------------------------------------------

_GRPC_STATUSES: Mapping[int, str] = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    405: "UNIMPLEMENTED", 408: "DEADLINE_EXCEEDED", 409: "ABORTED", 410: "NOT_FOUND",
    413: "INVALID_ARGUMENT", 414: "INVALID_ARGUMENT", 422: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL", 502: "UNAVAILABLE", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
_TYPES = "type.googleapis.com/google.rpc."


def _for_google_rpc(error: FormattedError, scope: Scope) -> FormattedError:
    """`google.rpc.Status` with the reason, and the faulty field. Invalid input is 400."""
    status, body = _protocol_status(error), error.body
    metadata = {key: str(body[key]) for key in ("trace_id", "run_id") if body.get(key)}
    details: list[JsonObject] = [
        {
            "@type": f"{_TYPES}ErrorInfo",
            "reason": body["code"].upper(),
            "domain": "astromesh",
            "metadata": metadata,
        }
    ]
    if param := body.get("param"):
        fault = {"field": param, "description": body["detail"]}
        details.append({"@type": f"{_TYPES}BadRequest", "fieldViolations": [fault]})
    about = {
        "code": status,
        "status": _GRPC_STATUSES.get(status, "UNKNOWN"),
        "message": body["detail"],
        "details": details,
    }
    return FormattedError(status, {"error": about}, JSON)


# -- by path -------------------------------------------------------------------------------------------------

_AGENT = r"/v1/agents/[^/]+"
_FORMATS: tuple[tuple[re.Pattern[str], Format], ...] = (
    (re.compile(r"/v1/(chat/completions|models|responses)(/.*)?"), _for_openai),
    (re.compile(_AGENT + "/agui"), _for_agui),
    (re.compile(f"/mcp|{_AGENT}/a2a"), _for_json_rpc),
    (re.compile(_AGENT + "/a2a/.*"), _for_google_rpc),
)


def formatted(error: FormattedError, scope: Scope | None) -> FormattedError:
    """Returns a problem document in the form that the clients of a path read."""
    if scope is None:
        return error
    path: str = scope.get("path", "").removeprefix(scope.get("root_path", ""))
    for pattern, encode in _FORMATS:
        if pattern.fullmatch(path):
            return encode(error, scope)
    return error


log = get_logger("astromesh.api")

# -- problem documents ---------------------------------------------------------------------------------------

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
        scope: of the request; its path decides the form of the body.
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
    "\\x00": "it must not contain U+0000",
    "\\S": "it must not be blank",
}

#: what pydantic adds to the place of an error in a union, e.g. `list[constrained-str]`
_UNION_BRANCH = re.compile(r"str|int|float|bool|constrained-str|[a-z-]+\[.*\]")


def validation_detail(errors: Any) -> str:
    """Returns one sentence from pydantic's errors: which field, what is wrong."""
    faults = []
    for error in errors:
        if error["type"] == "json_invalid":
            return f"{NOT_JSON}: {error['ctx']['error']} at character {error['loc'][-1]}."
        names = [str(part) for part in error["loc"] if not _UNION_BRANCH.fullmatch(str(part))]
        if error["type"] == "value_error" or len(names) > 1:  # our own messages name the place in the body
            names = [name for name in names if name != "body"]
        where = ".".join(names)
        message = _message_of(error)
        faults.append(f"{where}: {message}" if where else message)
    return "The request is not valid: " + "; ".join(faults[:10]) + "."


def _message_of(error: Any) -> str:
    if error["loc"] == ("body",) and isinstance(error.get("input"), bytes):  # FastAPI has not parsed it
        return "it is read as JSON only with the header `content-type: application/json`"
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
    parameters = f'error="insufficient_scope", scope="{RUN}", ' if status == 403 else ""
    return f'Bearer {parameters}resource_metadata="{url}"'


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
