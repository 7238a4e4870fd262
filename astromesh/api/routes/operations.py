"""What operators look at: budgets, channels, faults of the configuration."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from astromesh.api.dependencies import LongLimit, PageCursor, page, scope
from astromesh.api.requests import caller_of, runtime_of, viewer_of
from astromesh.api.routes.channels import inbox_worker_of
from astromesh.channels.base import ChannelBacklog
from astromesh.durable.base import BudgetAccount, BudgetAmounts
from astromesh.runtime.agent import Agent
from astromesh.runtime.configuration_faults import ListedFault, configuration_faults
from astromesh.types import JsonObject

router = APIRouter(tags=["operations"])
#: accounts of budgets that a list has, at most; of more, the newest count
_MAX_ACCOUNTS = 10_000


class _Page(BaseModel):
    next: str | None = Field(description="`after` of the next page; null: there is none.")


class AmountsOut(BaseModel):
    tokens: float | None
    cost_usd: float | None
    tool_calls: float | None
    wall_seconds: float | None


class BudgetOut(BaseModel):
    """The budget of a session, or of a principal on one day."""

    agent: str
    kind: Literal["session", "day"]
    name: str = Field(description="Id of the session, or date and principal.")
    principal: str
    used: AmountsOut = Field(description="What is spent, and what active runs have reserved.")
    limits: AmountsOut = Field(description="As the agent has them now; null: no limit.")


class BudgetsOut(_Page):
    budgets: list[BudgetOut]


@router.get(
    "/v1/budgets", summary="List budgets", response_model=BudgetsOut, dependencies=[scope("runs:read")]
)
async def budgets(
    request: Request, cursor: PageCursor, agent: str = "", limit: LongLimit = 1000
) -> JsonObject:
    """Lists what budgets of sessions and principals have used; of more than 10000, the newest."""
    runtime = runtime_of(request)
    if not any(one.limits for one in runtime.agents.values()):
        return {"budgets": [], "next": None}
    found = await runtime.runner.budgets.accounts(*viewer_of(request), _MAX_ACCOUNTS)
    wanted = [one for one in found if agent in ("", one[0].agent)]
    listed, more = page(wanted, _account_name, limit, cursor)
    return {"budgets": [_budget(*one, runtime.agents.get(one[0].agent)) for one in listed], "next": more}


def _account_name(listed: tuple[BudgetAccount, BudgetAmounts]) -> str:
    account, _ = listed
    return f"{account.agent} {account.kind} {account.name}"


def _budget(account: BudgetAccount, used: BudgetAmounts, agent: Agent | None) -> JsonObject:
    caps = [limit.caps for limit in agent.limits if limit.kind == account.kind] if agent else []
    limits = caps[0]._asdict() if caps else dict.fromkeys(BudgetAmounts._fields)
    names = {"agent": account.agent, "kind": account.kind, "name": account.name}
    return {**names, "principal": account.owner, "used": used._asdict(), "limits": limits}


class ChannelOut(BaseModel):
    """A messenger whose messages agents answer."""

    channel: str
    agents: list[str] = Field(description="The agents that answer, the default one first.")
    webhook: str = Field(description="Path that the messenger calls.")
    waiting: int = Field(description="Messages without an answer.")
    retried: int = Field(description="People whose answer has failed and is tried again.")


class ChannelsOut(_Page):
    channels: list[ChannelOut]


@router.get(
    "/v1/channels", summary="List channels", response_model=ChannelsOut, dependencies=[scope("agents:read")]
)
async def channels(request: Request, cursor: PageCursor, limit: LongLimit = 10_000) -> JsonObject:
    """Lists the channels of the caller's tenant by name."""
    blocks = runtime_of(request).state.configuration.channels.spec.channels
    tenant, worker = caller_of(request).tenant_id, inbox_worker_of(request)
    backlog = {} if worker is None else await worker.backlog()
    own = [(name, block) for name, block in blocks.items() if block.tenant == tenant]
    listed, more = page(own, lambda one: one[0], limit, cursor)
    return {
        "channels": [
            {
                "channel": name,
                "agents": list(dict.fromkeys((block.default_agent, *block.agents.values()))),
                "webhook": f"/v1/channels/{name}/webhook",
                **backlog.get(name, ChannelBacklog())._asdict(),
            }
            for name, block in listed
        ],
        "next": more,
    }


class FaultOut(BaseModel):
    """A fault of a file of the configuration, as `astromesh validate` reports it."""

    severity: Literal["error", "warning"]
    file: str = Field(description="Relative to the folder of the configuration; empty: of no file.")
    line: int = Field(description="0: the fault has no place in the file.")
    column: int
    key: str
    message: str
    hint: str


class FaultsOut(_Page):
    faults: list[FaultOut]


@router.get(
    "/v1/faults", summary="List faults", response_model=FaultsOut, dependencies=[scope("agents:read")]
)
async def faults(request: Request, cursor: PageCursor, limit: LongLimit = 10_000) -> JsonObject:
    """Lists the faults that the server has found in its configuration, by file and place."""
    found = configuration_faults(runtime_of(request))
    listed, more = page(list(enumerate(found)), lambda one: f"{one[0]:08}", limit, cursor)
    return {"faults": [fault_json(one) for _, one in listed], "next": more}


def fault_json(listed: ListedFault) -> JsonObject:
    """Returns a fault as `FaultOut` describes it."""
    names = ("file", "line", "column", "key", "message", "hint")
    return {"severity": listed.severity, **{name: getattr(listed.fault, name) for name in names}}
