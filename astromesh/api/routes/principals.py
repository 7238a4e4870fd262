"""What was kept for one principal."""

from __future__ import annotations

from fastapi import APIRouter, Request

from astromesh.api.access import caller_of, runtime_of, scope
from astromesh.api.schemas import ErasedOut, ProblemOut
from astromesh.errors import NotFound
from astromesh.runtime.principals import erase_principal
from astromesh.runtime.scopes import ADMIN

router = APIRouter(tags=["principals"])
_PROBLEM = {"model": ProblemOut, "content": {"application/problem+json": {}}}


@router.delete(
    "/v1/principals/{principal:path}/data",
    summary="Erase a principal's data",
    responses={404: _PROBLEM, 503: _PROBLEM},
    dependencies=[scope("sessions:write")],
)
async def erase(principal: str, request: Request) -> ErasedOut:
    """Deletes everything that was kept for a principal of the caller's tenant: by itself, or by an admin."""
    caller = caller_of(request)
    if principal != caller.user_id and ADMIN not in caller.scopes:
        raise NotFound(f"There is nothing of {principal!r} that you may erase; it may itself, or an admin.")
    count = await erase_principal(runtime_of(request), caller.tenant_id, principal)
    return ErasedOut(principal=principal, erased=count)
