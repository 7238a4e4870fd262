"""Agents: list, describe, draw and run them; their tools, providers and sessions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field

from astromesh.access.scopes import Viewer, principal_of
from astromesh.api.dependencies import Limit, LongLimit, PageCursor, audited, page, scope
from astromesh.api.fast_routes import RUN_PATH, RUN_SCOPE, run
from astromesh.api.requests import RunBody, caller_of, runtime_of, viewer_of
from astromesh.api.routes.operations import FaultOut, fault_json
from astromesh.api.routes.runs import WaitingOut
from astromesh.api.schemas import (
    AgentOut,
    AgentsOut,
    Described,
    HistoryOut,
    ProvidersOut,
    RunOut,
    SessionOut,
    SessionsOut,
    ToolsOut,
    TurnOut,
    answers,
    event_stream,
    problems,
    request_body,
)
from astromesh.errors import AmbiguousSession, Forbidden, SessionNotFound
from astromesh.memory.base import ConversationStore, SessionInfo
from astromesh.runtime.agent import Agent, agent_diagram
from astromesh.runtime.agent_directory import describe_tools
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.monitoring import agent_manifest
from astromesh.telemetry.clock import iso_time
from astromesh.types import JsonObject, SessionKey, Turn

router = APIRouter(tags=["agents"])


router.post(
    RUN_PATH,
    summary="Run an agent",
    openapi_extra=request_body(RunBody),
    response_model=None,
    responses={
        200: {"model": RunOut, "content": event_stream("RunEvents")},
        202: {"model": WaitingOut, "description": "The run waits for a person."},
        **problems(401, 403, 404, 409, 413, 422, 429, 502, 503, 504),
    },
    dependencies=[Depends(RUN_SCOPE)],
)(run)


@router.get(
    "/v1/agents", summary="List the agents", response_model=None, responses=answers(AgentsOut),
    dependencies=[scope("agents:read")],
)  # fmt: skip
async def agents(request: Request, cursor: PageCursor, limit: LongLimit = 10_000) -> JsonObject:
    """Lists the configured agents by name, those with faults included."""
    runtime = runtime_of(request)
    sound = [_summary(a) for a in runtime.agents.values()]
    broken = [_broken(runtime, name) for name in runtime.broken]
    listed, more = page(sound + broken, lambda one: str(one["name"]), limit, cursor)
    return {"agents": listed, "next": more}


@router.get(
    "/v1/agents/{name}",
    summary="Describe an agent",
    response_model=None,
    responses={**answers(AgentOut), **problems(404)},
    dependencies=[scope("agents:read")],
)
async def agent(name: str, request: Request) -> JsonObject:
    """Returns what an agent consists of, without secrets and prompts."""
    runtime = runtime_of(request)
    if name in runtime.broken:
        return _broken(runtime, name)
    return _summary(runtime.agent(name)) | _details(runtime.agent(name))


@router.get(
    "/v1/agents/{name}/graph",
    summary="Draw an agent",
    response_class=PlainTextResponse,
    responses=problems(404, 422, 503),
    dependencies=[scope("agents:read")],
)
async def graph(name: str, request: Request) -> str:
    """Returns what an agent does as a Mermaid diagram."""
    return agent_diagram(runtime_of(request).agent(name))


class VersionOut(Described):
    """A manifest of an agent, and its durable runs that the caller may see."""

    source: str
    runs: int
    first_run_at: str
    last_run_at: str


class AgentManifestOut(Described):
    """The manifest of an agent with its faults."""

    agent: str
    file: str = Field(description="Relative to the configuration; empty: the agent is declared in Python.")
    source: str = Field(description="Its YAML as it was loaded, without literal API keys.")
    faults: list[FaultOut]
    versions: list[VersionOut] = Field(description="Of the newest 1000 runs, the newest version first.")


@router.get(
    "/v1/agents/{name}/manifest",
    summary="Show an agent's manifest",
    response_model=AgentManifestOut,
    responses=problems(404),
    dependencies=[scope("agents:manifest")],
)
async def manifest(name: str, request: Request) -> JsonObject:
    """Returns the YAML of an agent, prompts included, its faults, and the versions that its runs had."""
    runtime = runtime_of(request)
    agent = agent_manifest(runtime, name)
    versions = await runtime.runs.versions(name, viewer_of(request))
    return {
        "agent": name,
        "file": agent.file,
        "source": agent.source,
        "faults": list(map(fault_json, agent.faults)),
        "versions": [
            {
                "source": one.source,
                "runs": one.runs,
                "first_run_at": iso_time(one.first_run_at),
                "last_run_at": iso_time(one.last_run_at),
            }
            for one in versions
        ],
    }


def _summary(agent: Agent) -> JsonObject:
    meta, identity = agent.manifest.metadata, agent.manifest.spec.identity
    missing = agent.tools.missing_tools()
    return {
        "name": agent.name,
        "version": meta.version,
        "namespace": meta.namespace,
        "labels": meta.labels,
        "display_name": identity.display_name,
        "description": identity.description,
        "pattern": agent.pattern_name,
        # an agent runs without the tools that are missing
        **({"status": "degraded", "missing": list(missing)} if missing else {"status": "ready"}),
    }


def _details(agent: Agent) -> JsonObject:
    return {
        "models": list(agent.model_names),
        "tools": [t.name for t in agent.tools.specs()],
        "guardrails": {
            "input": [g.type for g in agent.guardrails.input_rules],
            "output": [g.type for g in agent.guardrails.output_rules],
        },
        "memory": agent.memory.describe(),
        "max_iterations": agent.max_iterations,
        "timeout_seconds": agent.timeout_seconds,
        "stream": agent.stream,
    }


def _broken(runtime: AgentRuntime, name: str) -> JsonObject:
    return {"name": name, "status": "unavailable", "errors": [str(f) for f in runtime.broken[name]]}


tools_router = APIRouter(tags=["tools"])


@tools_router.get(
    "/v1/tools", summary="List tools", response_model=None, responses=answers(ToolsOut),
    dependencies=[scope("tools:read")],
)  # fmt: skip
async def tools(request: Request, cursor: PageCursor, limit: LongLimit = 10_000) -> JsonObject:
    """Lists the tools of all agents by name, in function-calling form, with the agents that may call them."""
    found = describe_tools(runtime_of(request).agents.values())
    # agents may have different tools of one name
    listed, more = page(found, lambda one: f"{one['name']} {one['agents'][0]}", limit, cursor)
    return {"tools": listed, "next": more}


@tools_router.get(
    "/v1/providers", summary="List providers", response_model=None, responses=answers(ProvidersOut),
    dependencies=[scope("agents:read")],
)  # fmt: skip
async def providers(request: Request, cursor: PageCursor, limit: LongLimit = 10_000) -> JsonObject:
    """Lists the models of all agents by name, with the state of their circuit breakers and their latency."""
    found = runtime_of(request).state.health.snapshot()
    listed, more = page(found, lambda one: str(one["name"]), limit, cursor)
    return {"providers": listed, "next": more}


# -- sessions ------------------------------------------------------------------------------------------------

sessions_router = APIRouter(tags=["sessions"])
Principal = Annotated[str, Query(max_length=256, description="Whose session; needs `sessions:any`.")]
#: what separates a session's id from its principal in `SessionKey.columns`, and a place behind all of them
_SEPARATOR, _AFTER_EVERY_PRINCIPAL = "\x1e", "\x1e\U0010ffff"


@sessions_router.get(
    "/v1/agents/{name}/sessions", summary="List sessions", dependencies=[scope("sessions:read")]
)
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
    listed, more = cursor.page(found, limit, lambda one: _place_of(one, viewer))
    return SessionsOut(agent=name, sessions=[_session(s) for s in listed], next=more)


@sessions_router.get(
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
    listed, more = cursor.page(found, limit, lambda one: one.seq)
    return HistoryOut(agent=name, session_id=session_id, turns=[_turn(t) for t in listed], next=more)


@sessions_router.delete(
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
    owner = _only({*stored, *(one.owner for one in active)} or {own}, session_id)
    for one in active:
        await runtime.runs.cancel(one.run_id, viewer)
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
