"""Formats of errors: problem documents, and what clients of other protocols read, by path."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import orjson
from starlette.types import Scope

from astromesh.api.middleware.response import BODY_STATE
from astromesh.errors import InvalidCursor, InvalidInput
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
    405: "UNIMPLEMENTED", 408: "DEADLINE_EXCEEDED", 409: "ABORTED", 413: "INVALID_ARGUMENT",
    414: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
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
