"""Principals: who calls, the API keys of a tenant, and the personal data of one principal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal, cast

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from astromesh.access.keys import MAX_DAYS, ApiKeyRequest, ApiKeyStore, key_json
from astromesh.access.scopes import ADMIN, limit_to_agents
from astromesh.api.auth import ANY_SCOPE, Auth
from astromesh.api.dependencies import Limit, LongLimit, PageCursor, audited, page, scope
from astromesh.api.errors import public_failure
from astromesh.api.middleware.audit import add_detail, name_object, pseudonymise
from astromesh.api.requests import caller_of, runtime_of
from astromesh.api.schemas import Described, ErasedOut, FactOut, FactsOut, problems
from astromesh.errors import AstromeshError, Conflict, NotFound
from astromesh.runtime.personal_data import erase_principal, facts_about, forget_fact, principal_data
from astromesh.types import JsonObject

keys_router = APIRouter(tags=["keys"])
_Name = Annotated[str, Field(max_length=200)]


class KeyOut(Described):
    """An API key without its secret."""

    id: str
    name: str
    state: Literal["active", "expired", "revoked"]
    user: str = Field(description="The principal that calls with it.")
    tenant: str
    scopes: list[str]
    created_at: str | None
    expires_at: str | None = Field(description="null: never.")
    revoked_at: str | None
    last_used_at: str | None = Field(description="To the minute; null: it was not used yet.")


class KeysOut(Described):
    keys: list[KeyOut]
    next: str | None = Field(description="`after` of the next page; null: there is none.")


class CreatedKeyOut(KeyOut):
    token: str = Field(description="Send it as `Authorization: Bearer TOKEN`. No route shows it again.")


class KeyBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: _Name = Field(min_length=1, description="Tells people what the key is for.")
    scopes: list[_Name] = Field([], max_length=100, description="Empty: those of `astromesh keys create`.")
    agents: list[_Name] = Field([], max_length=1000, description="The key can run only these; empty: all.")
    user: _Name = Field("", description="Its principal; empty: that of earlier keys of its name.")
    expires_days: float = Field(0, ge=0, le=MAX_DAYS, description="0: it does not expire.")


class CallerOut(Described):
    """Who calls, and what they may do."""

    user: str
    tenant: str
    scopes: list[str]


@keys_router.get("/v1/caller", summary="Who calls", response_model=CallerOut, dependencies=[scope(ANY_SCOPE)])
async def caller(request: Request) -> JsonObject:
    """Returns the principal of the credential and its scopes. Every valid credential may ask."""
    who = caller_of(request)
    return {"user": who.user_id, "tenant": who.tenant_id, "scopes": sorted(who.scopes)}


@keys_router.get(
    "/v1/keys",
    summary="List API keys",
    response_model=KeysOut,
    responses=problems(409),
    dependencies=[scope(ADMIN)],
)
async def keys(request: Request, cursor: PageCursor, limit: LongLimit = 10_000) -> JsonObject:
    """Lists the keys of the caller's tenant by id, revoked ones too."""
    tenant, now = caller_of(request).tenant_id, runtime_of(request).clock.now()
    own = [key for key in await _store(request).list() if key.tenant_id == tenant]
    listed, more = page(own, lambda key: key.id, limit, cursor)
    return {"keys": [key_json(key, now) for key in listed], "next": more}


@keys_router.post(
    "/v1/keys",
    summary="Create an API key",
    status_code=201,
    response_model=CreatedKeyOut,
    responses=problems(409, 422),
    dependencies=[audited("key.create"), scope(ADMIN)],
)
async def create(body: KeyBody, request: Request) -> JsonObject:
    """Creates a key in the caller's tenant. Only this response has its token."""
    store, tenant = _store(request), caller_of(request).tenant_id
    scopes = limit_to_agents(body.scopes, body.agents)
    key, token = await store.create(ApiKeyRequest(body.name, scopes, body.user, tenant, body.expires_days))
    name_object(request, key.id)
    add_detail(request, " ".join(sorted(scopes)))
    return {**key_json(key, runtime_of(request).clock.now()), "token": token}


@keys_router.delete(
    "/v1/keys/{key_id}",
    summary="Revoke an API key",
    status_code=204,
    responses=problems(404, 409),
    dependencies=[audited("key.revoke", "key_id"), scope(ADMIN)],
)
async def revoke(key_id: str, request: Request) -> None:
    """Makes a key of the caller's tenant invalid. Every process refuses it within two seconds."""
    store, tenant = _store(request), caller_of(request).tenant_id
    if not any(key.id == key_id and key.tenant_id == tenant for key in await store.list()):
        raise NotFound(f"There is no key {key_id!r}. GET /v1/keys lists the keys.")
    await store.revoke(key_id)


def _store(request: Request) -> ApiKeyStore:
    """Raises: Conflict: the server does not accept keys; one that it made would be valid on a later day."""
    store = cast(Auth, request.app.state.auth).keys
    if store is None:
        raise Conflict(
            "This server accepts no API keys. Set `spec.auth.mode: api_key` in runtime.yaml first."
        )
    return store


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
