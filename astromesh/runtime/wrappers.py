"""What wraps every run around the pipeline: report, session, limit of its agent, partial result, deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf

from astromesh.durable.budgets import BudgetAmounts
from astromesh.durable.queue import AgentSlots, SlotRequest
from astromesh.errors import (
    AstromeshError,
    ConfigError,
    DeadlineExceeded,
    Interrupted,
    is_failure,
)
from astromesh.logs import get_logger
from astromesh.memory.base import SessionLease, SessionLeases
from astromesh.runtime.agent import Agent
from astromesh.runtime.pipeline import remember_partial
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.runtime.request_checks import priority_of
from astromesh.runtime.run import (
    Handler,
    Run,
)
from astromesh.runtime.sessions import (
    SessionLeaseHolder,
    SessionLock,
    Sessions,
    require_newest,
)
from astromesh.telemetry.clock import TimeLimit
from astromesh.types import JsonObject

Wrapper = Callable[[Handler], Handler]
#: of a run whose caller says nothing about it
NO_LABELS: JsonObject = {}

log = get_logger("astromesh.run")


def compose(handler: Handler, *wrappers: Wrapper) -> Handler:
    """Wraps a handler; the first wrapper is the outermost."""
    for wrap in reversed(wrappers):
        handler = wrap(handler)
    return handler


def reported(handler: Handler) -> Handler:
    """Emits the run's first event and exactly one last event, and logs one line.

    Errors get the ids of the run that they end.
    """

    async def run_reported(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
        labels = _labels(run) if run.log.metadata or run.log.tags else NO_LABELS
        run.stream.emit(
            "run.started",
            run_id=run.id,
            agent=agent.name,
            session_id=request.session_id,
            trace_id=run.trace_id,
            parent=run.parent,
            **labels,
        )
        try:
            answer = await handler(agent, request, run)
        except asyncio.CancelledError:
            if run.is_suspended:
                raise
            run.stream.emit("run.cancelled", **_partial_result(agent, run))
            _log_run(agent, run, "cancelled", "cancelled", labels)
            raise
        except AstromeshError as error:
            error.run_id, error.trace_id = run.id, run.trace_id
            if isinstance(error, Interrupted) and run.policy is not None:
                # a durable run that is replaced is cancelled: nobody waits for its error
                reason = {"code": error.code, "detail": str(error)} if error.code != Interrupted.code else {}
                run.stream.emit("run.cancelled", **reason, **_partial_result(agent, run))
                _log_run(agent, run, "cancelled", error.code, labels)
                raise
            _emit_failed(agent, run, error)
            _log_run(agent, run, "failed", error.code, labels)
            if not error.public:
                _log_error(agent, run, error)
            else:
                # the frames refer to the run, and the run to its error: this circle would keep the run in
                # memory until the next garbage collection
                error.__traceback__ = None
            raise
        except BaseException as error:  # border of a run: what a plugin raises ends this run, not the server
            if not is_failure(error):
                raise
            failure = AstromeshError(
                "The run failed for an internal reason; the server's log has the details."
            )
            failure.run_id, failure.trace_id = run.id, run.trace_id
            _emit_failed(agent, run, failure)
            log.exception("run_crashed", agent=agent.name, run_id=run.id, trace_id=run.trace_id)
            raise failure from error
        run.stream.emit("run.completed", **answer.to_json())
        _log_run(agent, run, "completed", answer.metadata["stop_reason"], labels)
        return answer

    return run_reported


def for_writers(wrapper: Wrapper) -> Wrapper:
    """Wraps the runs that write to their session. A fork may do nothing but read it."""

    def wrap(handler: Handler) -> Handler:
        wrapped = wrapper(handler)

        def run_wrapped(agent: Agent, request: RunRequest, run: Run) -> Awaitable[RunAnswer]:
            only_reads = run.journal is not None and run.leaves_session
            return handler(agent, request, run) if only_reads else wrapped(agent, request, run)

        return run_wrapped

    return wrap


def within_session(sessions: Sessions, leases: SessionLeaseHolder) -> Wrapper:
    """Executes one run of a session at a time, by the agent's `spec.sessions`.

    Messages that `merge` merges are one run before they arrive here.
    """

    def wrap(handler: Handler) -> Handler:
        async def run_in_session(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
            spec, store = agent.manifest.spec.sessions, agent.memory.leases
            policy, place = run.policy or spec.concurrency, None
            if policy == "interrupt":
                place = sessions.order.place(run.key, run.accepted, store)
                policy = "enqueue" if place is None else policy
            lock = sessions.enter(run.key, policy, spec.queue_timeout_seconds)
            lock.place = place
            if store is None:
                async with lock:
                    return await handler(agent, request, run)
            if place is not None and store.shared:
                lock.newest = newest = await leases.lease_place(store, run.key, place)
                lock.place = place._replace(token=newest.token)
                run.accepted = run.accepted and run.accepted._replace(token=newest.token)
            try:
                async with lock:
                    return await run_under_lease(store, lock, agent, request, run)
            finally:
                if lock.newest is not None:
                    await leases.keep_place(store, lock.newest)

        async def run_under_lease(
            store: SessionLeases, lock: SessionLock, agent: Agent, request: RunRequest, run: Run
        ) -> RunAnswer:
            run.lock = lock
            locks = leases.sessions_under(store)
            locks.add(lock)
            lock.check_newest = partial(require_newest, store, lock)
            try:
                if store.shared:
                    await leases.take(store, lock)
                return await handler(agent, request, run)
            finally:
                locks.discard(lock)
                if lock.token:
                    await leases.release(store, SessionLease(lock.key, lock.token))

        return run_in_session

    return wrap


def within_agent_limit(slots: AgentSlots) -> Wrapper:
    """Executes at most `max_running` runs of an agent at once. A nested run belongs to the run above it."""

    def wrap(handler: Handler) -> Handler:
        async def run_in_slot(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
            spec = agent.manifest.spec
            accepted = run.is_durable
            request_of_slot = SlotRequest(
                run.key.tenant,
                priority_of(agent, request),
                # a durable run was counted when it was accepted
                1 << 62 if accepted else spec.queue.max_queued,
                None if accepted else spec.sessions.queue_timeout_seconds,
            )
            await slots.enter(agent.name, agent.max_running, request_of_slot)
            try:
                return await handler(agent, request, run)
            finally:
                slots.leave(agent.name)

        def run_if_limited(agent: Agent, request: RunRequest, run: Run) -> Awaitable[RunAnswer]:
            """Adds no coroutine to the runs of an agent without a limit: most agents have none."""
            if not agent.max_running or run.parent:
                return handler(agent, request, run)
            return run_in_slot(agent, request, run)

        return run_if_limited

    return wrap


def keeping_partial(handler: Handler) -> Handler:
    """Stores what a cancelled run has released. A run that fails or times out stores nothing."""

    async def run_keeping_partial(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
        try:
            return await handler(agent, request, run)
        except asyncio.CancelledError:
            if not run.is_suspended:
                await asyncio.shield(remember_partial(agent, request, run))
            raise

    return run_keeping_partial


def _move_deadline(run: Run, seconds: float) -> None:
    """Moves the deadline of a run in a stage that has waited for a person."""
    if run.scope.deadline is not None:
        run.scope.deadline += seconds
    if run.budget_ends is not None:
        run.budget_ends += seconds


def within_deadline(handler: Handler) -> Handler:
    """Ends a run at its deadline, and charges its time to the stored budgets.

    Step 7 ends by itself when a budget of `wall_seconds` is used up.

    The wait for its session and for a reservation does not count.
    """

    async def run_within_deadline(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
        scope, accounts, seconds = run.scope, run.accounts, agent.timeout_seconds
        reserved, granted = await accounts.for_time(seconds) if accounts is not None else ((), None)
        began = scope.clock.monotonic()
        own, budget = began + seconds, agent.budget.get("wall_seconds")
        ends = own if scope.deadline is None else min(own, scope.deadline)
        if budget is not None:
            run.budget_ends = began + budget
            if not scope.depth and budget <= seconds:  # a run that continues has what is left of its budget
                run.budget_ends, ends = min(ends, run.budget_ends), own
        if granted is not None and began + granted.seconds < (run.budget_ends or inf):
            run.budget_ends, run.time_account = began + granted.seconds, granted.account
        scope.common.deadline = min(ends, run.budget_ends or inf)
        try:
            async with TimeLimit(ends - began + agent.grace_seconds, partial(_move_deadline, run)):
                return await handler(agent, request, run)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"The run did not end within {seconds:g} s (spec.orchestration.timeout_seconds)."
            ) from error
        finally:
            if accounts is not None:
                spent = BudgetAmounts(wall_seconds=scope.clock.monotonic() - began)
                accounts.settle(reserved, spent)

    return run_within_deadline


def _emit_failed(agent: Agent, run: Run, error: AstromeshError) -> None:
    run.stream.emit("run.failed", code=error.code, detail=str(error), **_partial_result(agent, run))


def _partial_result(agent: Agent, run: Run) -> JsonObject:
    """Returns what a run without an answer leaves: the released text, its cost, nodes and their errors.

    Listeners are told what of the text that they have is none of it.
    """
    usage, text = run.scope.ledger.usage.to_json(), run.events.partial
    run.events.settle(text)
    result: JsonObject = {"response": text, "agent": agent.name, "usage": usage}
    if run.events.nodes or run.events.node_errors:
        result["metadata"] = {
            "errors": list(run.events.node_errors),
            "nodes_visited": run.events.nodes_visited,
        }
    return {**result, "uncancellable": list(run.scope.uncancelled)} if run.scope.uncancelled else result


def _labels(run: Run) -> JsonObject:
    """Returns the metadata and tags of a run as the caller gave them, without an empty one."""
    labels: JsonObject = {}
    if run.log.metadata:
        labels["metadata"] = dict(run.log.metadata)
    if run.log.tags:
        labels["tags"] = list(run.log.tags)
    return labels


def _log_run(agent: Agent, run: Run, status: str, reason: str, labels: JsonObject) -> None:
    log.info(
        "run",
        status=status,
        reason=reason,
        agent=agent.name,
        session_id=run.key.session_id,
        run_id=run.id,
        trace_id=run.trace_id,
        duration_ms=run.elapsed_ms(),
        tokens=run.scope.ledger.usage.total_tokens,
        cost_usd=run.scope.ledger.usage.cost_usd,
        tools=len(run.scope.tools_called),
        **({"link": run.link} if run.link else {}),
        **labels,
    )


def _log_error(agent: Agent, run: Run, error: AstromeshError) -> None:
    """Logs an error whose details callers do not see. A fault of a file needs no traceback."""
    log.error(
        "run_failed",
        agent=agent.name,
        error=str(error),
        run_id=run.id,
        trace_id=run.trace_id,
        **({"node": error.node} if error.node else {}),
        **({} if isinstance(error, ConfigError) else {"exc_info": error}),
    )
