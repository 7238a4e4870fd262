"""What wraps every run, composed once around the pipeline; the first wrapper is the outermost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from astromesh.durable.base import BudgetAmounts
from astromesh.durable.queue import AgentSlots
from astromesh.errors import AstromeshError, BudgetExhausted, ConfigError, DeadlineExceeded, Interrupted
from astromesh.runtime.agent import Agent
from astromesh.runtime.budgets import accounts_of
from astromesh.runtime.records import RunAnswer, RunRequest
from astromesh.runtime.run import Run
from astromesh.runtime.stages import remember_partial
from astromesh.types import JsonObject, calling_as

Handler = Callable[[Agent, RunRequest, Run], Awaitable[RunAnswer]]


Wrapper = Callable[[Handler], Handler]


log = structlog.get_logger("astromesh.run")


def compose(handler: Handler, wrappers: Sequence[Wrapper]) -> Handler:
    for wrap in reversed(wrappers):
        handler = wrap(handler)
    return handler


def reported(handler: Handler) -> Handler:
    """The run's first event, exactly one last event, and one log line. Errors learn which run they ended."""

    async def run_reported(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
        run.stream.emit(
            "run.started",
            run_id=run.id,
            agent=agent.name,
            session_id=request.session_id,
            trace_id=run.trace_id,
            parent=run.parent,
        )
        try:
            answer = await handler(agent, request, run)
        except asyncio.CancelledError:
            if run.is_suspended:
                raise
            run.stream.emit("run.cancelled", **_partial_result(agent, run))
            _log_run(agent, run, "cancelled", "cancelled")
            raise
        except AstromeshError as error:
            error.run_id, error.trace_id = run.id, run.trace_id
            if isinstance(error, Interrupted) and run.policy is not None:
                # nobody waits for an accepted run to be told why: it is cancelled, whoever replaces it
                run.stream.emit("run.cancelled", **_partial_result(agent, run))
                _log_run(agent, run, "cancelled", error.code)
                raise
            _emit_failed(agent, run, error)
            _log_run(agent, run, "failed", error.code)
            if not error.public:
                _explain(agent, run, error)
            else:
                # its frames know the run, and the run how it failed: such a circle would keep all that
                # was said until the garbage collector looks
                error.__traceback__ = None
            raise
        except Exception as error:  # border of a run: whatever a plugin raises ends this run, not the server
            failure = AstromeshError(
                "The run failed for an internal reason; the server's log has the details."
            )
            failure.run_id, failure.trace_id = run.id, run.trace_id
            _emit_failed(agent, run, failure)
            log.exception("run_crashed", agent=agent.name, run_id=run.id, trace_id=run.trace_id)
            raise failure from error
        run.stream.emit("run.completed", **answer.to_json())
        _log_run(agent, run, "completed", answer.metadata["stop_reason"])
        return answer

    return run_reported


def _explain(agent: Agent, run: Run, error: AstromeshError) -> None:
    """What callers are not told. A fault of a file is in its own words; of code the traceback says where."""
    log.error(
        "run_failed",
        agent=agent.name,
        error=str(error),
        run_id=run.id,
        trace_id=run.trace_id,
        **({"node": error.node} if error.node else {}),
        **({} if isinstance(error, ConfigError) else {"exc_info": error}),
    )


def _emit_failed(agent: Agent, run: Run, error: AstromeshError) -> None:
    run.stream.emit("run.failed", code=error.code, detail=str(error), **_partial_result(agent, run))


def _partial_result(agent: Agent, run: Run) -> JsonObject:
    """What a run without an answer leaves: the text that had left, and what it cost."""
    said, usage = run.events.partial, run.scope.ledger.usage
    left = {"response": said, "agent": agent.name, "usage": usage.to_json()}
    return {**left, "uncancellable": list(run.scope.uncancelled)} if run.scope.uncancelled else left


def as_caller(handler: Handler) -> Handler:
    """The caller in the context variable, for tools that ask who it is."""

    async def run_as_caller(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
        with calling_as(run.caller):
            return await handler(agent, request, run)

    return run_as_caller


def charging_time(handler: Handler) -> Handler:
    """The run's time is charged to the stored budgets; where nothing is left of one it does not begin."""

    async def run_charged(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
        accounts = accounts_of(run.scope)
        if accounts is None:
            return await handler(agent, request, run)
        clock = run.scope.clock
        held = await accounts.for_time(agent.timeout_seconds)
        began = clock.monotonic()
        try:
            return await handler(agent, request, run)
        finally:
            accounts.settle(held, BudgetAmounts(wall_seconds=clock.monotonic() - began))

    return run_charged


def within_deadline(handler: Handler) -> Handler:
    """The run's own deadline; the wait for its session stands outside and does not count."""

    async def run_within_deadline(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
        seconds = agent.timeout_seconds
        own = run.scope.clock.monotonic() + seconds
        run.scope.deadline = min(own, run.scope.deadline) if run.scope.deadline is not None else own
        try:
            async with asyncio.timeout(run.scope.deadline - run.scope.clock.monotonic()):
                return await handler(agent, request, run)
        except TimeoutError as error:
            if seconds == agent.budget.get("wall_seconds"):
                raise BudgetExhausted(
                    f"The run's budget of wall_seconds, {seconds:g}, is used up (spec.budgets.per_run)."
                ) from error
            raise DeadlineExceeded(
                f"The run did not end within {seconds:g} s (spec.orchestration.timeout_seconds)."
            ) from error

    return run_within_deadline


def keeping_partial(handler: Handler) -> Handler:
    """A cancelled run keeps what it had said; one that failed or ran out of time keeps nothing."""

    async def run_keeping_partial(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
        try:
            return await handler(agent, request, run)
        except asyncio.CancelledError:
            if not run.is_suspended:
                await asyncio.shield(remember_partial(agent, request, run))
            raise

    return run_keeping_partial


def _log_run(agent: Agent, run: Run, status: str, reason: str) -> None:
    usage = run.scope.ledger.usage
    log.info(
        "run",
        status=status,
        reason=reason,
        agent=agent.name,
        session_id=run.key.session_id,
        run_id=run.id,
        trace_id=run.trace_id,
        duration_ms=run.elapsed_ms(),
        tokens=usage.total_tokens,
        tools=len(run.scope.tools_called),
    )


def within_agent_limit(slots: AgentSlots) -> Wrapper:
    """Wraps a run so that no more of its agent go on here than may; what is nested goes with its run."""

    def wrap(handler: Handler) -> Handler:
        async def run_in_line(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
            spec = agent.manifest.spec
            accepted = run.journal is not None
            await slots.enter(
                agent.name,
                agent.max_running,
                # an accepted run was counted when it was accepted
                1 << 62 if accepted else spec.queue.max_queued,
                None if accepted else spec.sessions.queue_timeout_seconds,
            )
            try:
                return await handler(agent, request, run)
            finally:
                slots.leave(agent.name)

        def run_if_bounded(agent: Agent, request: RunRequest, run: Run) -> Awaitable[RunAnswer]:
            """No coroutine of its own: most agents have no bound."""
            if not agent.max_running or run.parent:
                return handler(agent, request, run)
            return run_in_line(agent, request, run)

        return run_if_bounded

    return wrap
