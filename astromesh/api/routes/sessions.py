"""Sessions of an agent: list, history, erase."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from astromesh.api.dependencies import Limit, audited, scope
from astromesh.api.requests import MAX_SEQ, runtime_of, viewer_of
from astromesh.api.schemas import HistoryOut, SessionOut, SessionsOut, TurnOut
from astromesh.errors import SessionNotFound
from astromesh.memory.base import ConversationStore, SessionInfo
from astromesh.telemetry.clock import iso_time
from astromesh.types import SessionKey, Turn

router = APIRouter(tags=["sessions"])
After = Annotated[int, Query(ge=0, le=MAX_SEQ)]


@router.get("/v1/agents/{name}/sessions", summary="List sessions", dependencies=[scope("sessions:read")])
async def sessions(
    name: str, request: Request, limit: Limit = 50, after: Annotated[str, Query(max_length=256)] = ""
) -> SessionsOut:
    """Lists the caller's sessions with this agent, by session_id."""
    tenant, owner = viewer_of(request)
    store = runtime_of(request).agent(name).memory.conversations
    if store is None:
        return SessionsOut(agent=name, sessions=[], next=None)
    found = await store.sessions(tenant, name, owner=owner, after=after, limit=limit + 1)
    page = found[:limit]
    more = page[-1].session_id if len(found) > limit else None
    return SessionsOut(agent=name, sessions=[_session(s) for s in page], next=more)


@router.get(
    "/v1/agents/{name}/sessions/{session_id:path}", summary="History", dependencies=[scope("sessions:read")]
)
async def history(
    name: str,
    session_id: str,
    request: Request,
    limit: Limit = 50,
    after: After = 0,
) -> HistoryOut:
    """Lists the turns of a session, oldest first."""
    key, store = await _find_session(request, name, session_id)
    found = await store.page(key, after=after, limit=limit + 1)
    page = found[:limit]
    more = page[-1].seq if len(found) > limit else None
    return HistoryOut(agent=name, session_id=session_id, turns=[_turn(t) for t in page], next=more)


@router.delete(
    "/v1/agents/{name}/sessions/{session_id:path}",
    summary="Erase a session",
    status_code=204,
    dependencies=[audited("session.erase", "name", "session_id"), scope("sessions:write")],
)
async def erase(name: str, session_id: str, request: Request) -> Response:
    """Deletes a session with everything that is stored of it."""
    key, _ = await _find_session(request, name, session_id)
    await runtime_of(request).agent(name).memory.erase(key)
    return Response(status_code=204)


async def _find_session(request: Request, name: str, session_id: str) -> tuple[SessionKey, ConversationStore]:
    """Returns the session's key and store. Raises: SessionNotFound: also for a session of somebody else."""
    tenant, owner = viewer_of(request)
    store = runtime_of(request).agent(name).memory.conversations
    key = SessionKey(tenant, name, session_id)
    info = await store.info(key) if store else None
    if store is None or info is None or owner not in (None, info.owner):
        raise SessionNotFound(f"The agent {name!r} has no session {session_id!r}.")
    return key, store


def _turn(turn: Turn) -> TurnOut:
    partial = {"status": turn.status} if turn.status != "complete" else {}
    return TurnOut(
        seq=turn.seq, role=turn.role, content=turn.content, created_at=iso_time(turn.created_at), **partial
    )


def _session(info: SessionInfo) -> SessionOut:
    return SessionOut(
        session_id=info.session_id,
        turns=info.turns,
        created_at=iso_time(info.created_at),
        updated_at=iso_time(info.updated_at),
    )
