"""What operators look at: callbacks, channels with their webhooks, budgets, faults of the configuration.

Webhooks of messengers are public, because each is signed; messages are on disk before the 200.
"""

from __future__ import annotations

from typing import Annotated, Literal, cast

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from astromesh.api.dependencies import Limit, LongLimit, PageCursor, audited, page, scope
from astromesh.api.requests import caller_of, runtime_of, viewer_of
from astromesh.api.schemas import Described, ReceivedOut, answers, problems
from astromesh.channels.base import ChannelBacklog, InboxWorker, WebhookRequest
from astromesh.durable.base import DeliveryQuery
from astromesh.durable.budgets import BudgetAccount, BudgetAmounts
from astromesh.durable.callbacks import delivery_json
from astromesh.errors import CallbackNotFound, ChannelNotFound
from astromesh.runtime.agent import Agent
from astromesh.runtime.monitoring import ListedFault, configuration_faults
from astromesh.types import JsonObject

callbacks_router = APIRouter(tags=["callbacks"])
#: of the databases
_MAX_ID = 2**63 - 1
DeliveryState = Literal["pending", "delivered", "dead"]


class DeliveryOut(Described):
    """A call about a run or a Task."""

    id: int
    run_id: str | None = Field(description="null: it is about a Task.")
    agent: str | None
    task_id: str | None = Field(description="null: it is about a run.")
    workflow: str | None
    event: Literal["completed", "failed", "cancelled", "waiting"]
    url: str
    state: DeliveryState = Field(description="`dead`: the receiver failed for 24 hours, or is gone.")
    attempts: int
    first_attempt_at: str | None
    next_attempt_at: str | None
    http_status: int | None = Field(description="Of the last attempt; null: there was no response.")
    error: str | None


class DeliveriesOut(Described):
    callbacks: list[DeliveryOut]
    next: str | None = Field(description="`after` of the next page; null: there is none.")


@callbacks_router.get(
    "/v1/callbacks",
    summary="List callbacks",
    response_model=DeliveriesOut,
    dependencies=[scope("runs:read")],
)
async def callbacks(
    request: Request,
    cursor: PageCursor,
    state: Literal["", DeliveryState] = "",
    run: Annotated[str, Query(pattern=r"^[^\x00]*$")] = "",
    task: Annotated[str, Query(pattern=r"^[^\x00]*$")] = "",
    limit: Limit = 50,
) -> JsonObject:
    """Lists the sent and the pending calls about the caller's Tasks, then about their runs, newest first."""
    sender = runtime_of(request).runner.callbacks
    query = DeliveryQuery(*viewer_of(request), state, run or task, cursor.number, limit + 1)
    found = () if sender is None else await sender.list(query)
    listed, more = cursor.page(found, limit, lambda one: one.id)
    return {"callbacks": [delivery_json(one) for one in listed], "next": more}


@callbacks_router.post(
    "/v1/callbacks/{id}/retry",
    summary="Retry a dead callback",
    status_code=204,
    responses=problems(401, 403, 404, 422),
    dependencies=[audited("callbacks.retry", "id"), scope("runs:write")],
)
async def retry(id: Annotated[int, Path(ge=1, le=_MAX_ID)], request: Request) -> None:
    """Sends a dead callback again, for another 24 hours."""
    sender = runtime_of(request).runner.callbacks
    if sender is None or not await sender.retry(id, *viewer_of(request)):
        raise CallbackNotFound(f"There is no dead callback {id}. GET /v1/callbacks?state=dead lists them.")


channels_router = APIRouter(prefix="/v1/channels", tags=["channels"])


@channels_router.get("/{channel}/webhook", summary="Verify a webhook", response_class=PlainTextResponse)
async def verification(channel: str, request: Request) -> Response:
    """Answers the messenger's challenge as plain text; a wrong verify token is 403."""
    webhook = WebhookRequest("GET", dict(request.query_params), dict(request.headers))
    return PlainTextResponse(_inbox(request).challenge(channel, webhook))


@channels_router.post(
    "/{channel}/webhook", summary="Receive messages", response_model=None,
    responses={**answers(ReceivedOut), **problems(401, 404, 413, 422)},
)  # fmt: skip
async def messages(channel: str, request: Request) -> JsonObject:
    """Stores the messages and answers 200; a wrong or missing signature is 401. Replies are sent later."""
    webhook = WebhookRequest("POST", dict(request.query_params), dict(request.headers), await request.body())
    return {"status": "received", **await _inbox(request).receive(channel, webhook)}


def _inbox(request: Request) -> InboxWorker:
    worker = inbox_worker_of(request)
    if worker is None:
        raise ChannelNotFound("channels.yaml configures no channel.")
    return worker


def inbox_worker_of(request: Request) -> InboxWorker | None:
    """Returns the worker of the configured channels; None: there is none."""
    return cast("InboxWorker | None", getattr(request.app.state, "inbox_worker", None))


router = APIRouter(tags=["operations"])
#: accounts of budgets that a list has, at most; of more, the newest count
_MAX_ACCOUNTS = 10_000


class _Page(Described):
    next: str | None = Field(description="`after` of the next page; null: there is none.")


class AmountsOut(Described):
    tokens: float | None
    cost_usd: float | None
    tool_calls: float | None
    wall_seconds: float | None


class BudgetOut(Described):
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
    filtered = [one for one in found if agent in ("", one[0].agent)]
    listed, more = page(filtered, _account_name, limit, cursor)
    return {"budgets": [_budget(*one, runtime.agents.get(one[0].agent)) for one in listed], "next": more}


def _account_name(listed: tuple[BudgetAccount, BudgetAmounts]) -> str:
    account, _ = listed
    return f"{account.agent} {account.kind} {account.name}"


def _budget(account: BudgetAccount, used: BudgetAmounts, agent: Agent | None) -> JsonObject:
    caps = [limit.caps for limit in agent.limits if limit.kind == account.kind] if agent else []
    limits = caps[0]._asdict() if caps else dict.fromkeys(BudgetAmounts._fields)
    names = {"agent": account.agent, "kind": account.kind, "name": account.name}
    return {**names, "principal": account.owner, "used": used._asdict(), "limits": limits}


class ChannelOut(Described):
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


class FaultOut(Described):
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
