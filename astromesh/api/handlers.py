"""What FastAPI answers where a route raises: every error leaves as a problem document."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from astromesh.api.errors import answer, crashed, invalid, left, problem_body, response_of, told
from astromesh.errors import AstromeshError, NotFound


def register(app: FastAPI) -> None:
    """Every error leaves as a problem document, those of the framework too."""
    app.add_exception_handler(AstromeshError, told)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, left)
    app.add_exception_handler(Exception, crashed)


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return response_of(422, problem_body(422, "invalid_input", invalid(error.errors())))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return answer(
            NotFound(f"There is nothing at {request.url.path}. GET /openapi.json lists the routes.")
        )
    code = "method_not_allowed" if error.status_code == 405 else "invalid_input"
    allowed = (error.headers or {}).get("Allow", "")
    detail = f"{request.url.path} takes {allowed}, not {request.method}." if allowed else str(error.detail)
    response = response_of(error.status_code, problem_body(error.status_code, code, detail))
    response.headers.update(error.headers or {})
    return response
