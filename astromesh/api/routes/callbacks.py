"""Callbacks: what was told about runs and Tasks, and what could not be told."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field

from astromesh.api.dependencies import Limit, PageCursor, audited, scope
from astromesh.api.requests import runtime_of, viewer_of
from astromesh.api.schemas import problems
from astromesh.durable.base import DeliveryQuery
from astromesh.durable.callbacks import delivery_json
from astromesh.errors import CallbackNotFound
from astromesh.types import JsonObject

router = APIRouter(tags=["callbacks"])
#: of the databases
_MAX_ID = 2**63 - 1
DeliveryState = Literal["pending", "delivered", "dead"]


class DeliveryOut(BaseModel):
    """One thing that is told about a run or a Task."""

    id: int
    run_id: str | None = Field(description="null: it is about a Task.")
    agent: str | None
    task_id: str | None = Field(description="null: it is about a run.")
    workflow: str | None
    event: Literal["completed", "failed", "cancelled", "waiting"]
    url: str
    state: DeliveryState = Field(description="`dead`: the receiver failed for 24 hours, or is gone.")
    attempts: int
    first_attempt_at: str | None
    next_attempt_at: str | None
    http_status: int | None = Field(description="Of the last attempt; null: there was no response.")
    error: str | None


class DeliveriesOut(BaseModel):
    callbacks: list[DeliveryOut]
    next: str | None = Field(description="`after` of the next page; null: there is none.")


@router.get(
    "/v1/callbacks",
    summary="List callbacks",
    response_model=DeliveriesOut,
    dependencies=[scope("runs:read")],
)
async def callbacks(
    request: Request,
    cursor: PageCursor,
    state: Literal["", DeliveryState] = "",
    run: Annotated[str, Query(pattern=r"^[^\x00]*$")] = "",
    task: Annotated[str, Query(pattern=r"^[^\x00]*$")] = "",
    limit: Limit = 50,
) -> JsonObject:
    """Lists what was told and is to be told about the caller's Tasks, then about their runs, newest first."""
    sender = runtime_of(request).runner.callbacks
    query = DeliveryQuery(*viewer_of(request), state, run or task, cursor.number, limit + 1)
    found = () if sender is None else await sender.list(query)
    page = found[:limit]
    following = cursor.next(page[-1].id if len(found) > limit else None)
    return {"callbacks": [delivery_json(one) for one in page], "next": following}


@router.post(
    "/v1/callbacks/{id}/retry",
    summary="Retry a dead callback",
    status_code=204,
    responses=problems(401, 403, 404, 422),
    dependencies=[scope("runs:write"), audited("callbacks.retry")],
)
async def retry(id: Annotated[int, Path(ge=1, le=_MAX_ID)], request: Request) -> None:
    """Sends a dead callback again, for another 24 hours."""
    sender = runtime_of(request).runner.callbacks
    if sender is None or not await sender.retry(id, *viewer_of(request)):
        raise CallbackNotFound(f"There is no dead callback {id}. GET /v1/callbacks?state=dead lists them.")
