"""What the flags do, in two ordered tables (document 000): before a node runs, and after it.

    before  SKIP_ON_ERROR CACHEABLE NO_HISTORY ISOLATED_CONTEXT LIGHTWEIGHT REQUIRES_HUMAN READONLY
    after   SUMMARIZE_OUTPUT VALIDATE_OUTPUT CRITICAL NO_HISTORY ISOLATED_CONTEXT CACHEABLE STATEFUL
            VERBOSE OBSERVABLE

SUMMARIZE_OUTPUT and VALIDATE_OUTPUT come first so that nothing is written or cached before. LIGHTWEIGHT has
nothing to restore: the model is swapped in this execution's own config. The other flags work elsewhere: ENTRY
and TERMINAL in the plan, RETRYABLE around the node, INJECT_TOOLS in its tools, PARALLEL_SAFE in `together`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from astromesh.graph import cache
from astromesh.graph.config import NodeConfig
from astromesh.graph.flags import BIT, NodeFlag
from astromesh.graph.frozen import frozen
from astromesh.graph.hooks import NodeMetrics
from astromesh.graph.nodes.guards import as_guards, check_all
from astromesh.graph.output_schema import output_schema
from astromesh.graph.own_keys import AWAITING_HUMAN
from astromesh.graph.records import NodeResult
from astromesh.graph.retry import NodeCall, NodeWrapper
from astromesh.graph.state import GraphState
from astromesh.graph.summary import is_too_long, summarise
from astromesh.graph.visit import Compiled, Visit, declared_inputs, without_history

log = logging.getLogger("astromesh.graph")

Effect: TypeAlias = Callable[[Visit], Awaitable[None] | None]


# -- before ------------------------------------------------------------------------------------------------


def skip_on_error(visit: Visit) -> None:
    last = visit.base.last_result
    if last is not None and last.error:
        visit.result = NodeResult(visit.step.name, transition_reason="skipped", skipped=True)


def cached(visit: Visit) -> None:
    if (hit := cache.look_up(visit)) is not None:
        visit.result = hit
    else:
        cache.remember_before(visit)


def hide_history(visit: Visit) -> None:
    isolated = NodeFlag.ISOLATED_CONTEXT in visit.step.node.flags
    messages = without_history(visit.base, hidden_loop=isolated)
    visit.shown = len(messages)
    visit.show(visit.base.view(messages, visit.base.context))


def isolate(visit: Visit) -> None:
    node, context = visit.step.node, visit.base.context
    seen = declared_inputs(node, context)
    if AWAITING_HUMAN in context:
        seen[AWAITING_HUMAN] = context[AWAITING_HUMAN]
    own = visit.state.isolated(seen)
    if NodeFlag.NO_HISTORY not in node.flags:
        own.messages.extend(visit.base.loop)
    visit.show(own)


def use_lightweight(visit: Visit) -> None:
    lightweight = visit.config.lightweight_model
    if lightweight is None or visit.step.node.model_override is not None:
        return
    if isinstance(lightweight, str):
        visit.config.role = lightweight
    else:
        visit.config.model = lightweight


def require_human(visit: Visit) -> Awaitable[None]:
    name = visit.step.name
    visit.base.context[AWAITING_HUMAN] = visit.state.context[AWAITING_HUMAN] = name
    return visit.step.hooks.human_required(visit.step.node, visit.base)


def read_only(visit: Visit) -> None:
    visit.show(frozen(visit.state))


BEFORE: tuple[tuple[NodeFlag, Effect], ...] = (
    (NodeFlag.SKIP_ON_ERROR, skip_on_error),
    (NodeFlag.CACHEABLE, cached),
    (NodeFlag.NO_HISTORY, hide_history),
    (NodeFlag.ISOLATED_CONTEXT, isolate),
    (NodeFlag.LIGHTWEIGHT, use_lightweight),
    (NodeFlag.REQUIRES_HUMAN, require_human),
    (NodeFlag.READONLY, read_only),
)


# -- after -------------------------------------------------------------------------------------------------


def summarize_output(visit: Visit) -> Awaitable[None] | None:
    result = visit.done
    if not visit.ran or result.error or result.wants_tools:
        return None
    if visit.step.node.output_schema is not None and not isinstance(result.output, str):
        return None  # data that was promised a form keeps it: prose would not fit
    return _summarised(visit, result) if is_too_long(result) else None


async def _summarised(visit: Visit, result: NodeResult) -> None:
    await summarise(result, visit.config)
    # the summary is what is let out, so the guards have the last word on it
    checked = await check_all(as_guards(visit.step.node.guards), result.output, visit.state)
    if checked.refused:
        result.guards_failed = (*result.guards_failed, *checked.failed)
        result.error = f"The summary of {visit.step.name!r} was {checked.error}"
        result.exception = checked.refusal(result.error)
        result.output, result.messages_added = None, ()


def validate_output(visit: Visit) -> None:
    result = visit.done
    schema = visit.step.node.output_schema
    if not visit.ran or result.error or result.wants_tools or schema is None:
        return
    try:
        output_schema(schema).validate(result.output)
    except ValueError as error:
        result.guards_failed = (*result.guards_failed, f"output_schema: {error}")
        result.error = f"The output of {visit.step.name!r} does not fit its schema: {error}"
        if result.raw_output is None:
            result.raw_output = result.output
        result.output, result.messages_added = None, ()


def abort_when_critical(visit: Visit) -> None:
    if visit.done.error:
        visit.base.stop("critical_error", visit.done.error)


def restore_history(visit: Visit) -> None:
    if visit.ran and NodeFlag.ISOLATED_CONTEXT not in visit.step.node.flags:
        visit.base.messages.extend(visit.state.messages[visit.shown :])


def merge_output_key(visit: Visit) -> None:
    own, context = visit.state.context, visit.base.context
    for key in (visit.step.node.output_key, AWAITING_HUMAN):
        if key in own:
            context[key] = own[key]
    if AWAITING_HUMAN not in own:
        context.pop(AWAITING_HUMAN, None)


def store(visit: Visit) -> None:
    if visit.ran and not visit.done.error and not visit.done.wants_tools:
        cache.store(visit)


def forget_dependents(visit: Visit) -> None:
    if visit.ran and not visit.done.error:
        cache.forget_readers(visit)


def log_in_full(visit: Visit) -> None:
    result = visit.done
    output = result.output if result.raw_output is None else result.raw_output
    log.debug("node %s: %s", visit.config.path, output)


def emit_metrics(visit: Visit) -> Awaitable[None]:
    result = visit.done
    metrics = NodeMetrics(
        visit.step.name,
        visit.config.path,
        result.duration_ms,
        result.usage,
        len(result.tool_calls),
        result.error,
    )
    return visit.step.hooks.metrics(visit.step.node, metrics)


AFTER: tuple[tuple[NodeFlag, Effect], ...] = (
    (NodeFlag.SUMMARIZE_OUTPUT, summarize_output),
    (NodeFlag.VALIDATE_OUTPUT, validate_output),
    (NodeFlag.CRITICAL, abort_when_critical),
    (NodeFlag.NO_HISTORY, restore_history),
    (NodeFlag.ISOLATED_CONTEXT, merge_output_key),
    (NodeFlag.CACHEABLE, store),
    (NodeFlag.STATEFUL, forget_dependents),
    (NodeFlag.VERBOSE, log_in_full),
    (NodeFlag.OBSERVABLE, emit_metrics),
)


# -- around a node -----------------------------------------------------------------------------------------


def effects_of(mask: int, table: tuple[tuple[NodeFlag, Effect], ...]) -> tuple[Effect, ...]:
    """The effects of a node's flags, in the table's order."""
    return tuple(effect for flag, effect in table if mask & BIT[flag])


def flagged(step: Compiled, mask: int) -> NodeWrapper | None:
    """The wrapper that does what a node's flags say, or None where they say nothing here."""
    before, after = effects_of(mask, BEFORE), effects_of(mask, AFTER)
    if not before and not after:
        return None

    def wrap(call: NodeCall) -> NodeCall:
        async def run(state: GraphState, config: NodeConfig) -> NodeResult:
            visit = Visit(step, state, config)
            await _prepare(visit, before)
            if visit.result is None:
                visit.ran = True
                visit.result = await call(visit.state, config)
            for effect in after:
                await _follow(visit, effect)
            return visit.done

        return run

    return wrap


async def _prepare(visit: Visit, effects: tuple[Effect, ...]) -> None:
    try:
        for effect in effects:
            if (work := effect(visit)) is not None:
                await work
            if visit.result is not None:
                return
    except Exception as error:  # noqa: BLE001 (the node's border: its input cannot be copied or compared)
        visit.result = NodeResult(visit.step.name, error=f"{type(error).__name__}: {error}", exception=error)


async def _follow(visit: Visit, effect: Effect) -> None:
    try:
        if (work := effect(visit)) is not None:
            await work
    except Exception as error:  # noqa: BLE001 (the node's border: a schema's own code, a value that cannot be kept)
        result = visit.done
        result.error = result.error or f"{type(error).__name__}: {error}"
        result.exception, result.output, result.messages_added = error, None, ()
        visit.result = result
