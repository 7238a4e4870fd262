"""What stands between a model's tool call and the tool, one layer per rule.

A layer takes the rest of the way and returns it guarded, or as it was where its rule does not apply. The
order, outermost first, is document 001's (step 9):

    permission → rate limit → arguments (read, checked) → approval → identity → what else was given →
    idempotency → intent (of durable runs) → timeout → tool
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from astromesh.abc.clock import Clock
from astromesh.abc.tool import Asked, Tool, ToolContext, ToolPolicy, ToolSource
from astromesh.core.rate_limit import SlidingWindow
from astromesh.errors import (
    InvalidToolCall,
    ToolDenied,
    ToolFailed,
    ToolPermissionError,
    ToolRateLimitError,
)
from astromesh.node.tool_results import argument_validator, misfit, parse_arguments, too_slow
from astromesh.types import Effect, JsonObject, ToolCall, ToolSpec

#: the way to a tool: arguments as the model wrote them (JSON text) or as an object, and the call's context
Invoke: TypeAlias = Callable[[Any, ToolContext], Awaitable[Any]]
Layer: TypeAlias = Callable[[Invoke, "DeclaredTool"], Invoke]


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool as an agent declares it.

    Args:
        spec: what the model sees; name, description, parameters and effect as declared.
        tool: what does the work.
        policy: how it may be used.
    """

    spec: ToolSpec
    tool: Tool
    policy: ToolPolicy = field(default_factory=ToolPolicy)


@dataclass(frozen=True, slots=True)
class DeclaredSource:
    """Several tools that one block of an agent stands for, e.g. those of an MCP server.

    Args:
        name: the block's; a permission for it permits all of its tools.
        effect: as the block says, for each of them; None leaves it to the tool.
    """

    name: str
    source: ToolSource
    policy: ToolPolicy = field(default_factory=ToolPolicy)
    effect: Effect | None = None

    def declared(self) -> tuple[DeclaredTool, ...]:
        """What is offered now."""
        return tuple(self._declare(tool) for tool in self.source.current())

    def _declare(self, tool: Tool) -> DeclaredTool:
        spec = replace(tool.spec, effect=self.effect) if self.effect else tool.spec
        if self.policy.idempotency == "key":
            spec = replace(spec, repeatable=True)
        return DeclaredTool(spec, tool, self.policy)


def layered(tool: DeclaredTool, layers: Sequence[Layer]) -> Invoke:
    """The way to the tool through all layers, the first one outermost."""
    invoke: Invoke = tool.tool.call
    for layer in reversed(layers):
        invoke = layer(invoke, tool)
    return invoke


def permission(agent: str, permitted: Collection[str] | None) -> Layer:
    """Refuses tools that the agent's `permissions` do not name; None permits all."""

    def layer(invoke: Invoke, tool: DeclaredTool) -> Invoke:
        if permitted is None or tool.spec.name in permitted:
            return invoke

        async def refuse(arguments: Any, context: ToolContext) -> Any:
            raise ToolPermissionError(tool.spec.name, agent)

        return refuse

    return layer


def rate_limit(clock: Clock) -> Layer:
    """Refuses calls beyond the tool's limit, counted by tenant and caller: nobody uses up another's share."""
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


def arguments(invoke: Invoke, tool: DeclaredTool) -> Invoke:
    """Reads the JSON and checks it against the tool's schema, compiled once."""
    name, validator = tool.spec.name, argument_validator(tool.spec)

    async def checked(given: str | JsonObject, context: ToolContext) -> Any:
        read = parse_arguments(ToolCall(context.call_id, name, given)) if isinstance(given, str) else given
        if not validator.is_valid(read):
            raise InvalidToolCall(misfit(name, validator, read))
        return await invoke(read, context)

    return checked


def idempotency(invoke: Invoke, tool: DeclaredTool) -> Invoke:
    """Gives a call its key, the same when a run is taken up again, by which the other side knows a repeat."""
    if tool.policy.idempotency == "none":
        return invoke

    async def keyed(given: Any, context: ToolContext) -> Any:
        key = f"{context.run_id}/{context.call_id}"
        return await invoke(given, replace(context, idempotency_key=key))

    return keyed


def approval(if_tainted: bool) -> Layer:
    """Asks a person before a call; they may change its arguments, or answer in the tool's place.

    Args:
        if_tainted: also before a call with an external effect in a turn that has read untrusted text.
    """

    def layer(invoke: Invoke, tool: DeclaredTool) -> Invoke:
        taints = if_tainted and tool.spec.effect == "external"
        if tool.policy.approval == "none" and not taints:
            return invoke
        name, validator = tool.spec.name, argument_validator(tool.spec)

        async def approved(given: JsonObject, context: ToolContext) -> Any:
            if not _asks(tool.policy, given) and not (taints and _tainted(context)):
                return await invoke(given, context)
            if context.step is None:
                raise ToolFailed(
                    f"The tool {name!r} needs a person's approval, which only durable runs can wait for."
                )
            why = _why(context) if taints else ""
            asked = Asked("approval", name, given, why, parameters=dict(tool.spec.parameters))
            said = await context.step.ask(asked)
            if said["decision"] == "answer":
                return said.get("answer")
            if said["decision"] != "approve":
                raise ToolDenied(_DENIED[said["decision"]].format(name))
            wanted = said.get("arguments", given)
            if not validator.is_valid(wanted):
                raise InvalidToolCall(misfit(name, validator, wanted))
            return await invoke(wanted, context)

        return approved

    return layer


def _asks(policy: ToolPolicy, given: JsonObject) -> bool:
    return policy.approval == "required" and (policy.approve_if is None or policy.approve_if(given))


def _tainted(context: ToolContext) -> bool:
    # what was asked before the run was taken up again is not done unasked because a branch is slower now
    return bool(context.untrusted) or (context.step is not None and context.step.asked("approval"))


def _why(context: ToolContext) -> str:
    """What a person should know about a call of a turn that has read what others wrote."""
    if not context.untrusted:
        return ""
    return f"The turn has read text that may mislead it, of: {', '.join(context.untrusted)}."


_DENIED = {
    "deny": "A person has refused this call of {!r}. Do not try it again.",
    "expired": "Nobody approved this call of {!r} in time.",
}


def identity(invoke: Invoke, tool: DeclaredTool) -> Invoke:
    """Waits for the caller's token where a run that was taken up again has lost it."""
    if not tool.spec.as_caller:
        return invoke
    name = tool.spec.name

    async def identified(given: JsonObject, context: ToolContext) -> Any:
        # a token that was shown may be lost again: then the next question is another one
        while context.step is not None and context.caller is not None and context.caller.lacks_token:
            said = await context.step.ask(identity_of(name, context.caller.user_id, given))
            if said["decision"] != "approve":
                raise ToolDenied(_DENIED[said["decision"]].format(name))
        return await invoke(given, context)

    return identified


def identity_of(name: str, user: str, arguments: JsonObject | None = None) -> Asked:
    """The question for a caller's token. `name`: what needs it."""
    question = f"{name!r} acts in the name of {user!r}: whoever that is resumes the run with their token."
    return Asked("identity", name, arguments, question)


def intent(invoke: Invoke, tool: DeclaredTool) -> Invoke:
    """Says on disk that a durable run is about to do what may not be done twice."""
    if tool.spec.effect == "read":
        return invoke

    async def intended(given: Any, context: ToolContext) -> Any:
        if context.step is not None:
            await context.step.intend(tool.spec)
        return await invoke(given, context)

    return intended


def time_limit(invoke: Invoke, tool: DeclaredTool) -> Invoke:
    """Cancels a call that takes too long; a function that blocks its thread is left behind."""
    name, seconds = tool.spec.name, tool.policy.timeout_seconds
    if seconds is None:
        return invoke

    async def timed(given: Any, context: ToolContext) -> Any:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await invoke(given, context)
        except TimeoutError as error:
            if not limit.expired():  # the tool's own TimeoutError
                raise
            raise too_slow(
                error,
                f"The tool {name!r} did not answer within {seconds:g} s and was given up; "
                "what it began may have happened.",
            ) from error

    return timed
