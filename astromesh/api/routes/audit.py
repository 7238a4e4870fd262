"""The audit log."""

from __future__ import annotations

import asyncio
from typing import Annotated, cast

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from astromesh.api.access import caller_of
from astromesh.api.declared import scope
from astromesh.runtime.audit import AuditLog, Wanted
from astromesh.types import JsonObject

router = APIRouter(tags=["observability"])


class ActOut(BaseModel):
    """Who did what to what, and how it ended."""

    at: float = Field(description="Seconds since the epoch.")
    action: str
    object: str
    outcome: str = Field(description="done, refused or failed.")
    detail: str
    principal: str
    tenant: str
    key: str = Field(description="The id of the API key.")


class ActsOut(BaseModel):
    acts: list[ActOut]


@router.get("/v1/audit", summary="Audit log", response_model=ActsOut, dependencies=[scope("audit:read")])
async def acts(
    request: Request,
    action: str = "",
    principal: str = "",
    object: str = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
) -> JsonObject:
    """What was done in the caller's tenant, the newest first."""
    log = cast(AuditLog, request.app.state.audit)
    wanted = Wanted(action, principal, object, limit)
    return {"acts": await asyncio.to_thread(log.read, caller_of(request).tenant_id, wanted)}
