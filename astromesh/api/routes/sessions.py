"""Sessions of an agent: list, history, erase."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from astromesh.access.scopes import Viewer, principal_of
from astromesh.api.dependencies import Limit, PageCursor, audited, scope
from astromesh.api.requests import caller_of, runtime_of, viewer_of
from astromesh.api.schemas import HistoryOut, SessionOut, SessionsOut, TurnOut, problems
from astromesh.errors import AmbiguousSession, Forbidden, SessionNotFound
from astromesh.memory.base import ConversationStore, SessionInfo
from astromesh.telemetry.clock import iso_time
from astromesh.types import SessionKey, Turn

router = APIRouter(tags=["sessions"])
Principal = Annotated[str, Query(max_length=256, description="Whose session; needs `sessions:any`.")]
#: what separates a session's id from its principal in `SessionKey.columns`, and a place behind all of them
_SEPARATOR, _AFTER_EVERY_PRINCIPAL = "\x1e", "\x1e\U0010ffff"


@router.get("/v1/agents/{name}/sessions", summary="List sessions", dependencies=[scope("sessions:read")])
async def sessions(
    name: str,
    request: Request,
    cursor: PageCursor,
    limit: Limit = 50,
    principal: Principal = "",
) -> SessionsOut:
    """Lists the caller's sessions with this agent, by session_id; with `sessions:any` those of all."""
    viewer = _viewer(request, principal)
    store = runtime_of(request).agent(name).memory.conversations
    if store is None:
        return SessionsOut(agent=name, sessions=[], next=None)
    # an id alone is in front of every session of that id
    after = cursor.after
    place = after if not after or _SEPARATOR in after else after + _AFTER_EVERY_PRINCIPAL
    found = await store.sessions(viewer.tenant, name, owner=viewer.owner, after=place, limit=limit + 1)
    page = found[:limit]
    more = cursor.next(_place_of(page[-1], viewer) if len(found) > limit else None)
    return SessionsOut(agent=name, sessions=[_session(s) for s in page], next=more)


@router.get(
    "/v1/agents/{name}/sessions/{session_id:path}",
    summary="History",
    responses=problems(401, 403, 404, 409),
    dependencies=[scope("sessions:read")],
)
async def history(
    name: str,
    session_id: str,
    request: Request,
    cursor: PageCursor,
    limit: Limit = 50,
    principal: Principal = "",
) -> HistoryOut:
    """Lists the turns of a session, oldest first."""
    viewer = _viewer(request, principal)
    store = runtime_of(request).agent(name).memory.conversations
    owners = await _owners(store, viewer, name, session_id)
    if store is None or not owners:
        raise _no_session(name, session_id)
    key = SessionKey(viewer.tenant, name, session_id, _only(owners, session_id))
    found = await store.page(key, after=cursor.number, limit=limit + 1)
    page = found[:limit]
    more = cursor.next(page[-1].seq if len(found) > limit else None)
    return HistoryOut(agent=name, session_id=session_id, turns=[_turn(t) for t in page], next=more)


@router.delete(
    "/v1/agents/{name}/sessions/{session_id:path}",
    summary="Erase a session",
    status_code=204,
    responses=problems(401, 403, 404, 409),
    dependencies=[audited("session.erase", "name", "session_id"), scope("sessions:write")],
)
async def erase(name: str, session_id: str, request: Request, principal: Principal = "") -> Response:
    """Ends the runs of a session and deletes it with everything that is stored of it."""
    runtime = runtime_of(request)
    agent, viewer = runtime.agent(name), _viewer(request, principal)
    stored = await _owners(agent.memory.conversations, viewer, name, session_id)
    active = await runtime.runs.open_of_session(viewer, name, session_id)
    own = viewer.owner or principal_of(caller_of(request))[1]
    owner = _only({*stored, *(run.owner for run in active)} or {own}, session_id)
    for run in active:
        await runtime.runs.cancel(run.run_id, viewer)
    key = SessionKey(viewer.tenant, name, session_id, owner)
    if not await runtime.runner.erase_session(agent, key) and not active:
        raise _no_session(name, session_id)
    return Response(status_code=204)


def _viewer(request: Request, principal: str) -> Viewer:
    """Returns whose sessions the caller asks for.

    Raises:
        Forbidden: those of another principal.
    """
    viewer = viewer_of(request)
    if principal and viewer.owner not in (None, principal):
        raise Forbidden("The sessions of other principals need the scope 'sessions:any'.")
    return Viewer(viewer.tenant, principal or viewer.owner)


async def _owners(
    store: ConversationStore | None, viewer: Viewer, agent: str, session_id: str
) -> frozenset[str]:
    """Returns up to two principals of the viewer that have a stored session of this id."""
    if store is None:
        return frozenset()
    place = session_id + _SEPARATOR
    found = await store.sessions(viewer.tenant, agent, owner=viewer.owner, after=place, limit=2)
    return frozenset(info.owner for info in found if info.session_id == session_id)


def _only(owners: Collection[str], session_id: str) -> str:
    """Raises: AmbiguousSession: several principals have a session of this id."""
    if len(owners) > 1:
        names = ", ".join(map(repr, sorted(owners)))
        raise AmbiguousSession(
            f"Several principals have a session {session_id!r}, e.g. {names}. Name one: ?principal=NAME."
        )
    return next(iter(owners))


def _no_session(agent: str, session_id: str) -> SessionNotFound:
    return SessionNotFound(f"The agent {agent!r} has no session {session_id!r}.")


def _place_of(info: SessionInfo, viewer: Viewer) -> str:
    if viewer.owner is not None:
        return info.session_id
    return SessionKey("", "", info.session_id, info.owner).columns[2]


def _turn(turn: Turn) -> TurnOut:
    partial = {"status": turn.status} if turn.status != "complete" else {}
    return TurnOut(
        seq=turn.seq, role=turn.role, content=turn.content, created_at=iso_time(turn.created_at), **partial
    )


def _session(info: SessionInfo) -> SessionOut:
    return SessionOut(
        session_id=info.session_id,
        principal=info.owner,
        turns=info.turns,
        created_at=iso_time(info.created_at),
        updated_at=iso_time(info.updated_at),
    )
