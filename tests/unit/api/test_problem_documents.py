"""Errors as clients see them: one table of statuses, the same codes everywhere, honest Retry-After."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from fastapi import FastAPI, Request

from astromesh import errors
from astromesh.api.errors import INTERNAL_DETAIL, error_response, problem, public_failure, response_of
from astromesh.api.fastapi_app import add_exception_handlers


@pytest.mark.parametrize(
    ("error", "status", "seconds"),
    [
        (errors.RateLimited("Slower.", 2.4), 429, "3"),
        (errors.BudgetExhausted("Used up.", 3600), 429, "3600"),
        (errors.BudgetExhausted("Used up."), 429, None),
        (errors.Overloaded("Full."), 503, "1"),
        (errors.ShuttingDown("Later."), 503, "1"),
        (errors.AgentUnavailable("Broken."), 503, "1"),
        (errors.StoreUnavailable("Locked."), 503, "1"),
        (errors.SessionBusy("Busy."), 409, None),
        (errors.AllProvidersFailed([]), 502, None),
        (errors.ProvidersRateLimited([], retry_after=7.2), 503, "8"),
        (errors.DeadlineExceeded("Late."), 504, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_retry_after_stands_where_trying_again_makes_sense(
    error: errors.AstromeshError, status: int, seconds: str | None
) -> None:
    response = error_response(error)
    assert (response.status_code, response.headers.get("retry-after")) == (status, seconds)


def test_what_the_provider_refused_because_of_the_request_is_invalid_input() -> None:
    status, body = problem(errors.ProviderRejected("The prompt is too long."))
    assert (status, body["code"], body["detail"]) == (422, "invalid_input", "The prompt is too long.")


def test_what_no_client_can_do_anything_about_says_nothing_of_itself() -> None:
    status, body = problem(errors.TemplateFailed("line 3 of the prompt: secret"))
    assert (status, body["code"], body["detail"]) == (500, "internal", INTERNAL_DETAIL)


def subclasses(kind: type[errors.AstromeshError]) -> set[type[errors.AstromeshError]]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def test_a2a_knows_every_status() -> None:
    scope = {"type": "http", "path": "/v1/agents/helper/a2a/message:send", "root_path": "", "headers": []}
    for kind in subclasses(errors.AstromeshError):
        body = {"code": kind.public_code or kind.code, "detail": "No."}
        answered = response_of(kind.status, body, scope)
        assert orjson.loads(answered.body)["error"]["status"] != "UNKNOWN", kind


def test_classes_of_one_code_have_one_status() -> None:
    for kind in subclasses(errors.AstromeshError) - {errors.RunFailed}:
        first = errors.error_class(kind.code)
        assert (kind.status, kind.public, kind.public_code) == (first.status, first.public, first.public_code)


def test_an_error_is_public_unless_its_status_is_500() -> None:
    """Faults of the agent's own graph and code are the exceptions: their caller sees them."""
    shown = {kind for kind in errors.error_classes() if kind.public}
    own = {errors.NodeFailed, errors.NondeterministicGraph, errors.RunCrashed}
    assert shown == {kind for kind in errors.error_classes() if kind.status != 500} | own


@pytest.mark.parametrize("code", [*(kind.code for kind in errors.error_classes()), "unknown"])
def test_events_have_the_codes_of_problem_documents(code: str) -> None:
    shown = public_failure({"code": code, "detail": "why"})
    _, body = problem(errors.RunFailed(code, "why"))
    assert shown == {"code": body["code"], "detail": body["detail"]}


async def test_a_client_that_leaves_before_its_body_is_there_is_no_crash() -> None:
    app, sent = FastAPI(), []
    add_exception_handlers(app)

    @app.post("/")
    async def read(request: Request) -> int:
        return len(await request.body())

    incoming = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(incoming)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(
        {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}, receive, send
    )
    assert sent[0]["status"] == 499


def test_a_run_that_lost_its_session_says_that_it_may_be_sent_again():
    """Nothing of ours is broken: another server has the session now."""
    answered = error_response(errors.LeaseLost("Taken over; send this message again."))
    assert (answered.status_code, answered.headers["retry-after"]) == (503, "1")
    assert public_failure({"code": "lease_lost", "detail": "Taken over."})["detail"] == "Taken over."
