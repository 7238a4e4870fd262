"""Runs: accept, list, follow, cancel, decide, rate; the full text of long tool results.

Decisions of every protocol about runs that wait for a person are made here, with one scope.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from astromesh.access.audit import AuditEntry, AuditLog
from astromesh.access.scopes import DECIDE, RUN, Viewer, permits, principal_of, require_scope
from astromesh.api.auth import ANY_SCOPE, RequiredScope
from astromesh.api.dependencies import LastEventId, Limit, PageCursor, audited, page, scope
from astromesh.api.errors import public_failure
from astromesh.api.event_streams import EventBuffer, EventStreamResponse, stream_or_complete
from astromesh.api.fast_routes import json_response, links_of
from astromesh.api.middleware.audit import add_detail, record_act
from astromesh.api.requests import (
    DurableRunBody,
    caller_of,
    idempotency_key,
    read_durable_run_request,
    runtime_of,
    viewer_of,
)
from astromesh.api.schemas import (
    STREAM_COMPLETE,
    TEXT,
    Described,
    LinksOut,
    RunsOut,
    RunStateOut,
    event_stream,
    problems,
    request_body,
)
from astromesh.durable.approvals import open_questions
from astromesh.durable.base import RunQuery, RunRow, RunStatus
from astromesh.errors import EventsGone, InvalidInput, RunNotFound
from astromesh.runtime.client_tools import open_calls, screened_answer
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.runs import Decision
from astromesh.telemetry import ids
from astromesh.tools.base import CLIENT_TOOL
from astromesh.tools.results import LongResults
from astromesh.types import CallerContext, JsonObject, SessionKey


def may_decide(caller: CallerContext) -> bool:
    return permits(caller.scopes, DECIDE)


def require_decide(caller: CallerContext) -> None:
    """Raises: Forbidden: the caller may not decide."""
    require_scope(caller.scopes, DECIDE)


class DecisionScope(RequiredScope):
    """`runs:decide`. Without it, who may run the agent may send results of the tools of their own client."""

    def __init__(self) -> None:
        super().__init__(DECIDE)

    async def __call__(self, request: Request) -> None:
        await RequiredScope(ANY_SCOPE)(request)
        caller = caller_of(request)
        if not may_decide(caller) and not await _awaits_results(request, caller):
            require_decide(caller)


async def _awaits_results(request: Request, caller: CallerContext) -> bool:
    """Whether the run in the path is the caller's own, and waits for their client."""
    with suppress(RunNotFound):
        row = await runtime_of(request).runs.row(request.path_params["run_id"], Viewer(*principal_of(caller)))
        return bool(open_calls(row.waiting_for)) and permits(caller.scopes, RUN, row.agent)
    return False


async def decide(
    runtime: AgentRuntime,
    row: RunRow,
    decisions: Mapping[str, JsonObject],
    caller: CallerContext,
    log: AuditLog | None,
) -> RunRow:
    """Stores decisions about a run that waits, and continues it. Results of client tools need no scope.

    Args:
        decisions: as `RunWorker.decide` takes them.
        log: where the act is recorded; None over stdio, and for a route that is audited itself.

    Raises:
        Forbidden: the caller may not decide. Else as `RunWorker.decide`.
    """
    durable = runtime.runner.durable
    if _are_results(row, decisions):
        return await durable.decide(row, decisions, caller)
    outcome = "refused"
    try:
        require_decide(caller)
        decided = await durable.decide(row, decisions, caller)
        outcome = "done"
        return decided
    finally:
        if log is not None:
            words = ", ".join(sorted({one["decision"] for one in decisions.values()}))
            await record_act(log, caller, AuditEntry("run.decide", row.run_id, outcome, words))


def _are_results(row: RunRow, decisions: Mapping[str, JsonObject]) -> bool:
    """Whether all decisions are results of the client's own tools."""
    calls = {one.get("id", "") for one in open_questions(row) if one["kind"] == CLIENT_TOOL}
    return bool(decisions) and decisions.keys() <= calls


router = APIRouter(tags=["runs"])
_PROBLEMS = problems(401, 403, 404, 410)
#: what a run's state answers with: fields without a value are absent
_STATE: dict[str, Any] = {"response_model": RunStateOut, "response_model_exclude_unset": True}
#: open questions that a list looks at, those of runs and those of Tasks
_MAX_OPEN = 5000
#: tags, and keys of the metadata, by which one list is filtered
_MAX_FILTERS = 16
#: a name without NUL, which PostgreSQL refuses to search for
Name = Annotated[str, Query(pattern=r"^[^\x00]*$")]


#: a point in time; UTC where it names no zone


def _is_moment(text: Any) -> Any:
    """Refuses numbers, which pydantic takes for seconds."""
    if isinstance(text, str) and not re.match(r"\d{4}-", text):
        raise ValueError("it must be a time as in ISO 8601, e.g. 2026-12-24T18:00:00Z")
    return text


Moment = Annotated[
    datetime | None,
    BeforeValidator(_is_moment),
    Query(description="ISO 8601, UTC where it names no zone."),
]


class AcceptedOut(Described):
    """A run that is on disk."""

    run_id: str
    status: RunStatus
    links: LinksOut


class WaitingOut(Described):
    """A run that pauses while its caller waits for the answer."""

    run_id: str
    status: Literal["waiting"]
    waiting_for: dict[str, Any] = Field(description="The oldest question, with the `others`.")
    links: LinksOut


_HAS_DECISION: JsonObject = {
    "anyOf": [
        {"required": ["decision"], "properties": {"decision": {"enum": ["approve", "deny"]}}},
        {"required": ["answer"]},
    ]
}


class DecisionBody(BaseModel):
    """A decision about what a run waits for."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_HAS_DECISION)

    decision: Literal["approve", "deny", "answer"] | None = Field(
        None, description="Absent: `answer`, which `answer` then gives."
    )
    arguments: dict[str, Any] | None = Field(
        None, description="For an approved call, in place of the model's."
    )
    answer: Any = Field(
        None, description="Required for the decision `answer`; null only as the result of a client's tool."
    )
    question: str = Field("", description="Id of the question; empty: the oldest one of the run.")
    id: str = Field("", description="As `question`.")
    note: str = Field(
        "", max_length=2000, description="Why; shown with the decision, and to the model with a denied call."
    )

    def made(self) -> Decision:
        """Raises: InvalidInput: it has neither a decision nor an answer."""
        has_answer = "answer" in self.model_fields_set
        if self.decision is None and not has_answer:
            raise InvalidInput("decision: set it, or set answer.", param="decision")
        decision = self.decision or "answer"
        if decision == "answer" and not has_answer:
            raise InvalidInput("answer: the decision 'answer' needs it.", param="answer")
        return Decision(
            decision, self.arguments, self.answer, self.id or self.question or None, self.note or None
        )


class ApprovalOut(Described):
    model_config = ConfigDict(extra="allow")

    run_id: str
    agent: str
    session_id: str
    asking_agent: str = Field(description="Owner of the call or node: the run's agent, or a nested one.")
    id: str = Field("", description="Names the question in `POST /v1/runs/{run_id}/resume`.")
    kind: Literal["approval", "unknown_outcome", "human", "interrupt", "identity"]
    name: str = Field(description="Name of the tool or node.")
    arguments: Any
    asked_at: float
    expires_at: float


class TaskApprovalOut(Described):
    """A question of a stage of a workflow."""

    model_config = ConfigDict(extra="allow")

    task_id: str
    workflow: str
    id: str = Field(description="Names the question in `POST /v1/tasks/{task_id}/decide`.")
    task: str = Field(description="Path of the descendant that asks; empty: the Task itself.")
    stage: str
    kind: Literal["approval", "unknown_outcome", "human", "interrupt"]
    name: str = Field(description="Name of the tool or node.")
    arguments: Any
    question: str = Field(description="What the person has to do.")
    asked_at: float
    expires_at: float


class ApprovalsOut(Described):
    approvals: list[ApprovalOut | TaskApprovalOut]
    next: str | None = Field(description="`after` of the next page; null: there is none.")


class FeedbackBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    rating: Literal[-1, 0, 1] = Field(description="-1 bad, 0 neither, 1 good.")
    comment: str = Field("", max_length=2_000, description="Free text; the agent's input rules check it.")


@router.post(
    "/v1/agents/{name}/runs",
    summary="Accept a durable run",
    status_code=202,
    response_model=AcceptedOut,
    openapi_extra=request_body(DurableRunBody),
    responses=problems(401, 403, 404, 413, 422, 503),
    dependencies=[scope("agents:run", "name")],
)
async def accept(name: str, request: Request) -> Response:
    """Responds once the run is on disk. The run then completes even if processes die."""
    runtime = runtime_of(request)
    agent = runtime.agent(name)
    body = await read_durable_run_request(request)
    key = await idempotency_key(request)
    row = await runtime.runner.accept(agent, body, caller=caller_of(request), key=key)
    # a repeated request gets the same answer, so the status is not the run's present one
    links = links_of(f"/v1/runs/{row.run_id}")
    return json_response({"run_id": row.run_id, "status": "queued", "links": links}, 202)


@router.get(
    "/v1/runs",
    summary="List runs",
    response_model=RunsOut,
    response_model_exclude_unset=True,
    dependencies=[scope("runs:read")],
)
async def runs(  # noqa: PLR0913 (a parameter for each filter)
    request: Request,
    cursor: PageCursor,
    agent: Name = "",
    session: Name = "",
    status: Literal["", RunStatus] = "",
    limit: Limit = 50,
    tag: Annotated[list[Name], Query(max_length=_MAX_FILTERS)] = [],  # noqa: B006 (FastAPI copies it)
    created_after: Moment = None,
    created_before: Moment = None,
    min_cost_usd: Annotated[float, Query(ge=0, allow_inf_nan=False, description="US dollars.")] = 0.0,
    min_duration_ms: Annotated[
        float, Query(ge=0, allow_inf_nan=False, description="Of runs that have ended.")
    ] = 0.0,
) -> JsonObject:
    """Lists the caller's runs, newest first, and their total usage.

    Of several `tag` and `metadata.KEY=VALUE`, all must match.
    """
    filters = tuple(filter(None, tag)), _metadata_filter(request)
    query = RunQuery(
        *viewer_of(request), agent, session, status, limit, *filters, cursor.after,
        _first_id(created_after), _first_id(created_before), min_cost_usd, min_duration_ms / 1000,
    )  # fmt: skip
    page = await runtime_of(request).runs.list(query)
    runs = [public_run(run) for run in page.runs]
    return {"runs": runs, "next": cursor.next(page.next), "usage": page.usage.to_json()}


@router.get(
    "/v1/runs/{run_id}", summary="One run", responses=_PROBLEMS, dependencies=[scope("runs:read")], **_STATE
)
async def run(run_id: str, request: Request) -> JsonObject:
    """Returns the state and outcome of a run."""
    return public_run(await runtime_of(request).runs.get(run_id, viewer_of(request)))


@router.get(
    "/v1/runs/{run_id}/events",
    summary="Events of a run",
    status_code=200,  # FastAPI cannot read it from the response class
    response_class=EventStreamResponse,
    responses={
        200: {"content": event_stream("RunEvents")},
        204: STREAM_COMPLETE,
        **_PROBLEMS,
        **problems(409, 422),
    },
    dependencies=[scope("runs:read")],
)
async def events(run_id: str, request: Request, last_event_id: LastEventId = 0) -> Response:
    """Sends the stored events after `Last-Event-ID`, then new ones until the run ends.

    A client that has every event of an ended run gets 204, so that an `EventSource` stops.
    """
    buffer = EventBuffer(close_at_end=True)
    request.app.state.followers.add(buffer)
    leave = await runtime_of(request).runs.follow(run_id, viewer_of(request), last_event_id, buffer)
    return stream_or_complete(buffer, leave, last_event_id)


@router.post(
    "/v1/runs/{run_id}/cancel",
    summary="Cancel a run",
    responses=_PROBLEMS,
    dependencies=[audited("run.cancel", "run_id"), scope("runs:write")],
    **_STATE,
)
async def cancel(run_id: str, request: Request) -> JsonObject:
    """Ends a run and all its nested runs, and answers when it has ended. An ended run stays as it is."""
    return public_run(await runtime_of(request).runs.cancel(run_id, viewer_of(request)))


@router.get(
    "/v1/approvals",
    summary="What waits for a person",
    response_model=ApprovalsOut,
    dependencies=[scope("runs:read")],
)
async def approvals(request: Request, cursor: PageCursor, limit: Limit = 100) -> JsonObject:
    """Lists the open questions of the caller's runs and Tasks, and those for its scopes, oldest first."""
    runtime, viewer = runtime_of(request), viewer_of(request)
    found = await runtime.runs.approvals(viewer, _MAX_OPEN)
    if runtime.has_workflows:
        found += await runtime.workflows.waits.open(viewer, caller_of(request), _MAX_OPEN)
    listed, more = page(found, _question_key, limit, cursor)
    return {"approvals": listed, "next": more}


def _question_key(question: JsonObject) -> str:
    """Orders questions by time; digits before the point have one length for centuries.

    A run that an older version has left waiting has one question, without an id.
    """
    owner = question.get("run_id") or question["task_id"]
    return f"{question['asked_at']:017.6f} {owner} {question.get('id', '')}"


@router.post(
    "/v1/runs/{run_id}/resume",
    summary="Decide for a run that waits",
    responses=problems(401, 403, 404, 409, 422, 503),
    dependencies=[audited("run.decide", "run_id"), Depends(DecisionScope())],
    **_STATE,
)
async def resume(run_id: str, body: DecisionBody, request: Request) -> JsonObject:
    """Continues a run with a decision. The run's record holds who made it."""
    decision, runtime, viewer = body.made(), runtime_of(request), viewer_of(request)
    add_detail(request, decision.decision)
    row = await runtime.runs.row(run_id, viewer)
    if decision.answer is not None and open_calls(row.waiting_for):
        answer = screened_answer(runtime.agent(row.agent), decision.answer)
        decision = decision._replace(answer=answer)
    values = decision.to_json()
    question = values.pop("question", "")
    await decide(runtime, row, {question: values}, caller_of(request), None)
    return await runtime.runs.get(run_id, viewer)


@router.post(
    "/v1/runs/{run_id}/feedback",
    summary="Rate a run",
    status_code=204,
    responses=problems(401, 403, 404, 409, 422, 503),
    dependencies=[scope("runs:write")],
)
async def feedback(run_id: str, body: FeedbackBody, request: Request) -> None:
    """Stores the caller's rating of one of their own runs as the episodic event `user_feedback`."""
    runtime = runtime_of(request)
    tenant, owner = principal_of(caller_of(request))
    run = await runtime.runs.get(run_id, Viewer(tenant, owner))
    agent = runtime.agent(run["agent"])
    comment = agent.guardrails.check_input(body.comment).text if body.comment else ""
    event = {"event": "user_feedback", "rating": body.rating, "comment": comment, "run_id": run_id}
    await agent.memory.record_event(SessionKey(tenant, agent.name, run["session_id"], owner), owner, event)


@router.get(
    "/v1/runs/{run_id}/results/{result_id}", summary="A long result", response_class=Response,
    responses={200: {"content": TEXT}, **_PROBLEMS}, dependencies=[scope("runs:read")],
)  # fmt: skip
async def result(run_id: str, result_id: str, request: Request) -> Response:
    """Returns the full text of a tool result of which the model saw only a part."""
    runtime = runtime_of(request)
    await runtime.runs.get(run_id, viewer_of(request))
    cache: LongResults = await runtime.state.resources.shared(LongResults, LongResults)
    found = cache.find(run_id, result_id)
    if found is None:
        raise EventsGone(f"This run has no stored result {result_id!r}, or it has expired.")
    return Response(found.text, media_type="text/plain; charset=utf-8")


def _first_id(at: datetime | None) -> str:
    """Returns the least id of a run of a time, or an empty text."""
    if at is None:
        return ""
    return ids.first_id("run_", max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()))


def _metadata_filter(request: Request) -> tuple[tuple[str, str], ...]:
    """Returns each key and value of `metadata.KEY=VALUE`.

    Raises:
        InvalidInput: there are too many, or one has a NUL.
    """
    prefix = "metadata."
    found = [(k[len(prefix) :], v) for k, v in request.query_params.multi_items() if k.startswith(prefix)]
    if len(found) > _MAX_FILTERS:
        raise InvalidInput(f"The list can be filtered by {_MAX_FILTERS} keys of the metadata at most.")
    if any("\0" in part for pair in found for part in pair):  # PostgreSQL refuses to search for it
        raise InvalidInput("The filter by metadata must not contain NUL.")
    return tuple(found)


def public_run(run: JsonObject) -> JsonObject:
    """Returns a run with its error as callers may read it."""
    return {**run, "error": public_failure(run["error"])} if run["error"] else run
