"""Agents: what is loaded, and runs."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.responses import PlainTextResponse

from astromesh.api.access import runtime_of
from astromesh.api.asked import RunBody
from astromesh.api.declared import scope
from astromesh.api.routes.durable import WaitingOut
from astromesh.api.running import MAY_RUN, RUN, run
from astromesh.api.schemas import RunOut, problems, takes
from astromesh.runtime.agent import Agent
from astromesh.runtime.drawing import mermaid_of
from astromesh.runtime.engine import AgentRuntime
from astromesh.types import JsonObject

router = APIRouter(tags=["agents"])


router.post(
    RUN,
    summary="Run an agent",
    openapi_extra=takes(RunBody),
    response_model=None,
    responses={
        200: {"model": RunOut, "content": {"text/event-stream": {}}},
        202: {"model": WaitingOut, "description": "The run waits for a person."},
        **problems(401, 403, 404, 409, 413, 422, 429, 502, 503, 504),
    },
    dependencies=[Depends(MAY_RUN)],
)(run)


@router.get("/v1/agents", summary="List the agents", dependencies=[scope("agents:read")])
async def agents(request: Request) -> JsonObject:
    """Every agent of the configuration, those with faults too."""
    runtime = runtime_of(request)
    good = [_line(a) for a in runtime.agents.values()]
    broken = [_broken(runtime, name) for name in runtime.broken]
    return {"agents": sorted(good + broken, key=lambda a: str(a["name"]))}


@router.get(
    "/v1/agents/{name}",
    summary="Describe an agent",
    responses=problems(404),
    dependencies=[scope("agents:read")],
)
async def agent(name: str, request: Request) -> JsonObject:
    """What an agent is made of, without secrets and prompts."""
    runtime = runtime_of(request)
    if name in runtime.broken:
        return _broken(runtime, name)
    return _line(runtime.agent(name)) | _details(runtime.agent(name))


@router.get(
    "/v1/agents/{name}/graph",
    summary="Draw an agent",
    response_class=PlainTextResponse,
    responses=problems(404, 422, 503),
    dependencies=[scope("agents:read")],
)
async def graph(name: str, request: Request) -> str:
    """What an agent does, as a Mermaid diagram."""
    return mermaid_of(runtime_of(request).agent(name))


def _line(agent: Agent) -> JsonObject:
    meta, identity = agent.manifest.metadata, agent.manifest.spec.identity
    return {
        "name": agent.name,
        "version": meta.version,
        "namespace": meta.namespace,
        "labels": meta.labels,
        "display_name": identity.display_name,
        "description": identity.description,
        "pattern": agent.pattern_name,
        **_status(agent.tools.missing()),
    }


def _status(missing: tuple[str, ...]) -> JsonObject:
    """An agent some of whose tools are missing runs without them."""
    return {"status": "degraded", "missing": list(missing)} if missing else {"status": "ready"}


def _details(agent: Agent) -> JsonObject:
    return {
        "models": list(agent.needs),
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
