"""The personal data of one principal: show it, erase it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from astromesh.access.scopes import ADMIN
from astromesh.api.dependencies import Limit, PageCursor, audited, page, scope
from astromesh.api.errors import public_failure
from astromesh.api.middleware.audit import pseudonymise
from astromesh.api.requests import caller_of, runtime_of
from astromesh.api.schemas import ErasedOut, FactOut, FactsOut, problems
from astromesh.errors import AstromeshError, NotFound
from astromesh.runtime.personal_data import erase_principal, facts_about, forget_fact, principal_data
from astromesh.types import JsonObject

router = APIRouter(tags=["principals"])


#: bytes that one write sends, about
_CHUNK_BYTES = 65_536
_LINES = "application/x-ndjson"
_EACH_LINE = {"schema": {"type": "string", "description": "A JSON object in each line."}}


@router.get(
    "/v1/principals/{principal:path}/data",
    summary="Show a principal's data",
    response_class=StreamingResponse,
    responses={
        200: {"content": {_LINES: _EACH_LINE}},
        **problems(404, 503),
    },
    dependencies=[audited("principal.show", "principal"), scope("sessions:read")],
)
async def show(principal: str, request: Request) -> StreamingResponse:
    """Sends all stored data of a principal, one JSON object a line; the last line has the kind `end`."""
    tenant = _authorised_tenant(request, principal)
    records = principal_data(runtime_of(request), tenant, principal)
    first = await anext(records, None)  # before the status is sent: an unavailable store is a 503
    return StreamingResponse(
        _chunks(_lines(first, records)), media_type=_LINES, headers={"cache-control": "no-store"}
    )


@router.delete(
    "/v1/principals/{principal:path}/data",
    summary="Erase a principal's data",
    responses=problems(404, 503),
    dependencies=[audited("principal.erase", "principal"), scope("sessions:write")],
)
async def erase(principal: str, request: Request) -> ErasedOut:
    """Deletes all stored data of a principal, at the request of that principal or an admin.

    The audit log still shows that somebody was erased, and by whom, under a pseudonym.
    """
    tenant = _authorised_tenant(request, principal)
    count = await erase_principal(runtime_of(request), tenant, principal)
    await pseudonymise(request, tenant, principal)
    return ErasedOut(principal=principal, erased=count)


@router.get(
    "/v1/principals/{principal:path}/facts",
    summary="Show the facts about a principal",
    responses=problems(404, 503),
    dependencies=[audited("principal.facts", "principal"), scope("sessions:read")],
)
async def facts(principal: str, request: Request, cursor: PageCursor, limit: Limit = 100) -> FactsOut:
    """Returns what agents with `memory.semantic.facts` have learned of a principal, by agent."""
    tenant = _authorised_tenant(request, principal)
    found = await facts_about(runtime_of(request), tenant, principal)
    listed, after = page(found, lambda one: f"{one['agent']}/{one['id']}", limit, cursor)
    return FactsOut(principal=principal, facts=[FactOut.model_validate(one) for one in listed], next=after)


@router.delete(
    "/v1/principals/{principal:path}/facts/{fact}",
    summary="Erase a fact about a principal",
    responses=problems(404, 503),
    dependencies=[audited("principal.forget", "principal"), scope("sessions:write")],
)
async def forget(principal: str, fact: str, request: Request) -> ErasedOut:
    """Deletes one fact, with every agent that has it, at the request of that principal or an admin."""
    tenant = _authorised_tenant(request, principal)
    count = await forget_fact(runtime_of(request), tenant, principal, fact)
    if not count:
        raise NotFound(f"There is no fact {fact!r} about {principal!r}.")
    return ErasedOut(principal=principal, erased=count)


def _authorised_tenant(request: Request, principal: str) -> str:
    """Returns the tenant. Raises: NotFound: the caller is neither that principal nor an admin."""
    caller = caller_of(request)
    if principal != caller.user_id and ADMIN not in caller.scopes:
        raise NotFound(f"You have no access to data of {principal!r}. Only the principal and admins have it.")
    return caller.tenant_id


async def _lines(first: JsonObject | None, others: AsyncIterator[JsonObject]) -> AsyncIterator[bytes]:
    count = 0
    try:
        if first is not None:
            count = 1
            yield orjson.dumps(first)
        async for record in others:
            count += 1
            yield orjson.dumps(record)
    except AstromeshError as error:  # the status is sent, so only this line shows that the data is incomplete
        yield orjson.dumps({"kind": "error", **public_failure({"code": error.code, "detail": str(error)})})
    else:
        yield orjson.dumps({"kind": "end", "records": count})


async def _chunks(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    portion = bytearray()
    async for line in lines:
        portion += line + b"\n"
        if len(portion) >= _CHUNK_BYTES:
            yield bytes(portion)
            portion.clear()
    yield bytes(portion)
