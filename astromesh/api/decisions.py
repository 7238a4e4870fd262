"""Decisions about runs that wait for a person. Those of every door are made here, with one scope."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from starlette.requests import Request

from astromesh.access.audit import AuditEntry, AuditLog
from astromesh.access.scopes import DECIDE, RUN, Viewer, permits, principal_of
from astromesh.api.auth import ANY_SCOPE, RequiredScope
from astromesh.api.middleware.audit import record_act
from astromesh.api.requests import caller_of, runtime_of
from astromesh.durable.approvals import open_questions
from astromesh.durable.base import RunRow
from astromesh.errors import Forbidden, RunNotFound
from astromesh.runtime.client_tools import open_calls
from astromesh.runtime.engine import AgentRuntime
from astromesh.tools.client import CLIENT_TOOL
from astromesh.types import CallerContext, JsonObject


def may_decide(caller: CallerContext) -> bool:
    return permits(caller.scopes, DECIDE)


def require_decide(caller: CallerContext) -> None:
    """Raises: Forbidden: the caller may not decide."""
    if not may_decide(caller):
        raise Forbidden(f"A decision needs the scope {DECIDE!r}, which your key or token does not have.")


class DecisionScope(RequiredScope):
    """`runs:decide`. Without it, who may run the agent may send results of the tools of their own client."""

    def __init__(self) -> None:
        super().__init__(DECIDE)

    async def __call__(self, request: Request) -> None:
        await RequiredScope(ANY_SCOPE)(request)
        caller = caller_of(request)
        if not may_decide(caller) and not await _awaits_results(request, caller):
            require_decide(caller)


async def _awaits_results(request: Request, caller: CallerContext) -> bool:
    """Whether the run in the path is the caller's own, and waits for their client."""
    with suppress(RunNotFound):
        row = await runtime_of(request).runs.row(request.path_params["run_id"], Viewer(*principal_of(caller)))
        return bool(open_calls(row.waiting_for)) and permits(caller.scopes, RUN, row.agent)
    return False


async def decide(
    runtime: AgentRuntime,
    row: RunRow,
    decisions: Mapping[str, JsonObject],
    caller: CallerContext,
    log: AuditLog | None,
) -> RunRow:
    """Stores decisions about a run that waits, and continues it. Results of client tools need no scope.

    Args:
        decisions: as `RunWorker.decide` takes them.
        log: where the act is recorded; None over stdio, and for a route that is audited itself.

    Raises:
        Forbidden: the caller may not decide. Else as `RunWorker.decide`.
    """
    durable = runtime.runner.durable
    if _are_results(row, decisions):
        return await durable.decide(row, decisions, caller)
    outcome = "refused"
    try:
        require_decide(caller)
        decided = await durable.decide(row, decisions, caller)
        outcome = "done"
        return decided
    finally:
        if log is not None:
            words = ", ".join(sorted({one["decision"] for one in decisions.values()}))
            await record_act(log, caller, AuditEntry("run.decide", row.run_id, outcome, words))


def _are_results(row: RunRow, decisions: Mapping[str, JsonObject]) -> bool:
    """Whether all decisions are results of the client's own tools."""
    calls = {one.get("id", "") for one in open_questions(row) if one["kind"] == CLIENT_TOOL}
    return bool(decisions) and decisions.keys() <= calls
