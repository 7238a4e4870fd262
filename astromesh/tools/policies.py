"""The policies between a model's tool call and the tool, one wrapper each.

A layer wraps the call of a tool, or returns it unchanged if its rule does not apply. The order, outermost
first, is that of document 001, step 9:

    permission → run limit → rate limit → arguments → approval → identity → further layers → idempotency →
    intent (of durable runs) → timeout → tool

The layer `arguments` is in `tools.json_schema`. `call_layers` returns all but `permission`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from astromesh.errors import (
    InvalidToolCall,
    ToolCallLimitReached,
    ToolDenied,
    ToolFailed,
    ToolPermissionError,
    ToolRateLimitError,
)
from astromesh.telemetry.clock import Clock, TimeLimit
from astromesh.tools.base import DeclaredTool, HumanQuestion, Invoke, ToolContext, ToolPolicy
from astromesh.tools.json_schema import argument_error, argument_validator, arguments
from astromesh.tools.rate_limit import SlidingWindow
from astromesh.tools.results import timeout_error
from astromesh.types import JsonObject

Layer: TypeAlias = Callable[[Invoke, DeclaredTool], Invoke]


def apply_layers(tool: DeclaredTool, layers: Sequence[Layer]) -> Invoke:
    """Wraps a tool in all policies, the first one outermost."""
    invoke: Invoke = tool.tool.call
    for layer in reversed(layers):
        invoke = layer(invoke, tool)
    return invoke


def permission(agent: str, permitted: Collection[str] | None) -> Layer:
    """Rejects tools that the agent's `permissions` do not name; None permits all."""

    def layer(invoke: Invoke, tool: DeclaredTool) -> Invoke:
        if permitted is None or tool.spec.name in permitted:
            return invoke

        async def refuse(arguments: Any, context: ToolContext) -> Any:
            raise ToolPermissionError(tool.spec.name, agent)

        return refuse

    return layer


def run_limit(invoke: Invoke, tool: DeclaredTool) -> Invoke:
    """Rejects calls beyond the tool's limit for one run."""
    name, most = tool.spec.name, tool.policy.max_calls_per_run
    if most is None:
        return invoke

    async def limited(arguments: Any, context: ToolContext) -> Any:
        if context.run is not None and not context.run.take_tool_call(name, most):
            raise ToolCallLimitReached(name, most)
        return await invoke(arguments, context)

    return limited


def rate_limit(clock: Clock) -> Layer:
    """Rejects calls beyond the tool's limit, counted by tenant and caller."""
    windows: dict[str, SlidingWindow] = {}  # a source's tools are layered anew when its list changes

    def layer(invoke: Invoke, tool: DeclaredTool) -> Invoke:
        if tool.policy.rate_limit is None:
            return invoke
        window = windows.setdefault(tool.spec.name, SlidingWindow(tool.policy.rate_limit))

        async def limited(arguments: Any, context: ToolContext) -> Any:
            who = (context.session.tenant, context.caller.user_id if context.caller else "")
            wait = window.take(who, clock.monotonic())
            if wait > 0.0:
                raise ToolRateLimitError(tool.spec.name, wait)
            return await invoke(arguments, context)

        return limited

    return layer


def idempotency(invoke: Invoke, tool: DeclaredTool) -> Invoke:
    """Sets the idempotency key of a call, which stays the same when a run resumes."""
    if tool.policy.idempotency == "none":
        return invoke

    async def keyed(arguments: Any, context: ToolContext) -> Any:
        key = f"{context.run_id}/{context.call_id}"
        return await invoke(arguments, replace(context, idempotency_key=key))

    return keyed


def approval(if_tainted: bool) -> Layer:
    """Asks a person before a call; they may change its arguments, or answer in place of the tool.

    Args:
        if_tainted: also before a call with an external effect in a turn that has read untrusted text.
    """

    def layer(invoke: Invoke, tool: DeclaredTool) -> Invoke:
        taints = if_tainted and tool.spec.effect == "external"
        # calls of agents have no effect by themselves, and the calls in them are asked for
        acts = tool.spec.effect != "read" and (not tool.spec.repeatable or tool.policy.idempotency == "key")
        if tool.policy.approval == "none" and not (acts or taints):
            return invoke
        name, validator = tool.spec.name, argument_validator(tool.spec)

        async def approved(arguments: JsonObject, context: ToolContext) -> Any:
            in_fork = acts and context.step is not None and context.step.is_fork
            if not (in_fork or _needs_approval(tool.policy, arguments) or (taints and _is_tainted(context))):
                return await invoke(arguments, context)
            if context.step is None:
                raise ToolFailed(
                    f"A person must approve a call of {name!r}, and this run cannot wait for one: give the "
                    "graph (its engine) or the agent a `store`, or start a durable run."
                )
            why = _taint_reason(context) if taints else ""
            why = why or (_FORKED if in_fork else "")
            question = HumanQuestion("approval", name, arguments, why, parameters=dict(tool.spec.parameters))
            decision = await context.step.ask(question)
            if decision["decision"] == "answer":
                return decision.get("answer")
            if decision["decision"] != "approve":
                raise ToolDenied(_denial(name, decision))
            changed = decision.get("arguments", arguments)
            if not validator.is_valid(changed):
                raise InvalidToolCall(argument_error(name, validator, changed))
            return await invoke(changed, context)

        return approved

    return layer


def _needs_approval(policy: ToolPolicy, arguments: JsonObject) -> bool:
    return policy.approval == "required" and (policy.approve_if is None or policy.approve_if(arguments))


def _is_tainted(context: ToolContext) -> bool:
    # a question that was asked before the run resumed is asked again, even if a branch is slower now
    return bool(context.untrusted) or (context.step is not None and context.step.has_request("approval"))


def _taint_reason(context: ToolContext) -> str:
    """Returns the hint to a person about a call in a turn that has read untrusted text."""
    if not context.untrusted:
        return ""
    return f"The turn has read untrusted text of: {', '.join(context.untrusted)}."


_FORKED = "The run is a fork, and the run that it was forked from has not made this call."
_DENIED = {
    "deny": "A person has denied this call of {!r}. Do not repeat it.",
    "expired": "Nobody approved this call of {!r} in time.",
}


def _denial(name: str, decision: JsonObject) -> str:
    """Returns what the model reads of a call that a person did not approve."""
    note = f" The person says: {decision['note']}" if decision.get("note") else ""
    return _DENIED[decision["decision"]].format(name) + note


def identity(invoke: Invoke, tool: DeclaredTool) -> Invoke:
    """Waits for the caller's token if a resumed run has lost it."""
    if not tool.spec.as_caller:
        return invoke
    name = tool.spec.name

    async def identified(arguments: JsonObject, context: ToolContext) -> Any:
        # a token may be lost again; then the next question is a new one
        while context.step is not None and context.caller is not None and context.caller.lacks_token:
            question = identity_question(name, context.caller.user_id, arguments)
            decision = await context.step.ask(question)
            if decision["decision"] != "approve":
                raise ToolDenied(_denial(name, decision))
        return await invoke(arguments, context)

    return identified


def identity_question(name: str, user: str, arguments: JsonObject | None = None) -> HumanQuestion:
    """Returns the question for a caller's token. `name`: of the tool or source that needs it."""
    question = f"{name!r} acts on behalf of {user!r}, who must resume the run with their token."
    return HumanQuestion("identity", name, arguments, question)


def intent(invoke: Invoke, tool: DeclaredTool) -> Invoke:
    """Records the intent of a durable run before a call that may not happen twice."""
    if tool.spec.effect == "read":
        return invoke

    async def intended(arguments: Any, context: ToolContext) -> Any:
        if context.step is not None:
            await context.step.record_intent(tool.spec)
        return await invoke(arguments, context)

    return intended


def time_limit(invoke: Invoke, tool: DeclaredTool) -> Invoke:
    """Cancels a call that takes too long; a function that blocks its thread is abandoned."""
    name, seconds = tool.spec.name, tool.policy.timeout_seconds
    if seconds is None:
        return invoke

    async def timed(arguments: Any, context: ToolContext) -> Any:
        try:
            async with TimeLimit(seconds) as limit:
                return await invoke(arguments, context)
        except TimeoutError as error:
            if not limit.expired():  # raised by the tool itself
                raise
            raise timeout_error(
                error,
                f"The tool {name!r} did not answer within {seconds:g} s and was abandoned. "
                "Its effects may have happened.",
            ) from error

    return timed


def call_layers(
    clock: Clock, *, approve_if_tainted: bool = False, further: Sequence[Layer] = ()
) -> tuple[Layer, ...]:
    """Returns the layers of all tools, outermost first.

    Args:
        clock: for rate limits.
        approve_if_tainted: see `approval`.
        further: policies between the checked arguments and the timeout.
    """
    before = (run_limit, rate_limit(clock), arguments, approval(approve_if_tainted), identity)
    return (*before, *further, idempotency, intent, time_limit)
