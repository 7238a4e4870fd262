"""Agents: list, describe, draw and run them; their tools and providers."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field

from astromesh.api.dependencies import LongLimit, PageCursor, page, scope
from astromesh.api.fast_routes import RUN_PATH, RUN_SCOPE, run
from astromesh.api.requests import RunBody, runtime_of, viewer_of
from astromesh.api.routes.operations import FaultOut, fault_json
from astromesh.api.routes.runs import WaitingOut
from astromesh.api.schemas import (
    AgentOut,
    AgentsOut,
    ProvidersOut,
    RunOut,
    ToolsOut,
    answers,
    event_stream,
    problems,
    request_body,
)
from astromesh.runtime.agent import Agent, agent_diagram
from astromesh.runtime.agent_directory import describe_tools
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.monitoring import agent_manifest
from astromesh.telemetry.clock import iso_time
from astromesh.types import JsonObject

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


class VersionOut(BaseModel):
    """A manifest of an agent, and its durable runs that the caller may see."""

    source: str
    runs: int
    first_run_at: str
    last_run_at: str


class AgentManifestOut(BaseModel):
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
    shown = agent_manifest(runtime, name)
    versions = await runtime.runs.versions(name, viewer_of(request))
    return {
        "agent": name,
        "file": shown.file,
        "source": shown.source,
        "faults": list(map(fault_json, shown.faults)),
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
