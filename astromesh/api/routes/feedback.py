"""What a person thinks of an answer: kept as an event of the session, which later runs recall (step 4)."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from astromesh.api.access import caller_of, runtime_of
from astromesh.api.declared import scope
from astromesh.api.schemas import problems
from astromesh.runtime.engine import principal
from astromesh.runtime.registry import Viewer
from astromesh.types import SessionKey

router = APIRouter(tags=["runs"])


class FeedbackBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    rating: Literal[-1, 0, 1] = Field(description="-1 bad, 0 neither, 1 good.")
    comment: str = Field("", max_length=2_000, description="In words; the agent's input rules hold for it.")


@router.post(
    "/v1/runs/{run_id}/feedback",
    summary="Rate a run",
    status_code=204,
    responses=problems(401, 403, 404, 409, 422, 503),
    dependencies=[scope("runs:write")],
)
async def feedback(run_id: str, body: FeedbackBody, request: Request) -> None:
    """Keeps what the caller thinks of one of their own runs as the episodic event `user_feedback`."""
    runtime = runtime_of(request)
    tenant, owner = principal(caller_of(request))
    run = await runtime.runs.get(run_id, Viewer(tenant, owner))
    agent = runtime.agent(run["agent"])
    comment = agent.guardrails.check_input(body.comment).text if body.comment else ""
    said = {"event": "user_feedback", "rating": body.rating, "comment": comment, "run_id": run_id}
    await agent.memory.note(SessionKey(tenant, agent.name, run["session_id"]), owner, said)
