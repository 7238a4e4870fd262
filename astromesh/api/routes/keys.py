"""API keys of the caller's tenant: list, create, revoke."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from astromesh.access.keys import MAX_DAYS, ApiKeyRequest, ApiKeyStore, key_json
from astromesh.access.scopes import ADMIN, limit_to_agents
from astromesh.api.auth import ANY_SCOPE, Auth
from astromesh.api.dependencies import LongLimit, PageCursor, audited, page, scope
from astromesh.api.middleware.audit import add_detail, name_object
from astromesh.api.requests import caller_of, runtime_of
from astromesh.api.schemas import problems
from astromesh.errors import Conflict, NotFound
from astromesh.types import JsonObject

router = APIRouter(tags=["keys"])
_Name = Annotated[str, Field(max_length=200)]


class KeyOut(BaseModel):
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


class KeysOut(BaseModel):
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


class CallerOut(BaseModel):
    """Who calls, and what they may do."""

    user: str
    tenant: str
    scopes: list[str]


@router.get("/v1/caller", summary="Who calls", response_model=CallerOut, dependencies=[scope(ANY_SCOPE)])
async def caller(request: Request) -> JsonObject:
    """Returns the principal of the credential and its scopes. Every valid credential may ask."""
    who = caller_of(request)
    return {"user": who.user_id, "tenant": who.tenant_id, "scopes": sorted(who.scopes)}


@router.get(
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


@router.post(
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


@router.delete(
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
