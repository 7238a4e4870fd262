"""What FastAPI answers where a route raises: every error leaves as a problem document."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from astromesh.api.errors import (
    error_response,
    handle_crash,
    handle_disconnect,
    handle_error,
    problem_body,
    response_of,
    validation_detail,
)
from astromesh.errors import AstromeshError, MethodNotAllowed, NotFound, RequestError


def add_exception_handlers(app: FastAPI) -> None:
    """Every error leaves as a problem document, those of the framework too."""
    app.add_exception_handler(AstromeshError, handle_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(ClientDisconnect, handle_disconnect)
    app.add_exception_handler(Exception, handle_crash)


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return response_of(422, problem_body(422, "invalid_input", validation_detail(error.errors())))


async def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(
            NotFound(f"There is nothing at {request.url.path}. GET /openapi.json lists the routes.")
        )
    code = (MethodNotAllowed if error.status_code == 405 else RequestError).code
    allowed = (error.headers or {}).get("Allow", "")
    detail = f"{request.url.path} takes {allowed}, not {request.method}." if allowed else str(error.detail)
    response = response_of(error.status_code, problem_body(error.status_code, code, detail))
    response.headers.update(error.headers or {})
    return response
