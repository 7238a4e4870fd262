"""What the flags do, in two ordered tables (document 000): before a node runs, and after it.

    before  SKIP_ON_ERROR CACHEABLE NO_HISTORY ISOLATED_CONTEXT LIGHTWEIGHT REQUIRES_HUMAN READONLY
    after   SUMMARIZE_OUTPUT VALIDATE_OUTPUT CRITICAL NO_HISTORY ISOLATED_CONTEXT CACHEABLE STATEFUL
            VERBOSE OBSERVABLE

SUMMARIZE_OUTPUT and VALIDATE_OUTPUT come first so that nothing is written or cached before. LIGHTWEIGHT has
nothing to restore: the model is replaced in the config of this execution alone. The other flags work
elsewhere: ENTRY and TERMINAL in the plan, RETRYABLE around the node, INJECT_TOOLS in its tools, PARALLEL_SAFE
in `together`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from astromesh.graph import cache
from astromesh.graph.base import BaseNode
from astromesh.graph.cache import Visit, declared_inputs, without_history
from astromesh.graph.flags import BIT, NodeFlag
from astromesh.graph.hooks import HookSet, NodeMetrics
from astromesh.graph.mutations import ACTION_KEY
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.nodes.guard import as_guards, run_guards
from astromesh.graph.records import NodeResult, as_json
from astromesh.graph.retry import NodeCall, NodeWrapper
from astromesh.graph.state import AWAITING_HUMAN, GraphState, read_only_view
from astromesh.graph.structured_output import output_schema
from astromesh.graph.transitions import ROUTE_FIELDS
from astromesh.types import CompletionRequest, Message

# -- SUMMARIZE_OUTPUT: the model shortens a long answer before anything is written -------------------------

log = logging.getLogger("astromesh.graph")
_DECIDING_KEYS = frozenset({*ROUTE_FIELDS, ACTION_KEY})
#: Characters. Longer answers are summarised (document 002).
MAX_OUTPUT_CHARACTERS = 1000

SUMMARY_PROMPT = (
    "Summarise the text of the user concisely. Keep every key fact, number, name and conclusion; leave out "
    "what is said twice. Answer with the summary alone."
)


def is_too_long(result: NodeResult) -> bool:
    """Whether the raw form of an output exceeds 1000 characters.

    An output that names the next node or changes the graph is never shortened.
    """
    output = result.output
    if output is None or (isinstance(output, Mapping) and not _DECIDING_KEYS.isdisjoint(output)):
        return False
    return len(_raw_text(result)) > MAX_OUTPUT_CHARACTERS


def _raw_text(result: NodeResult) -> str:
    """Returns the measured text: the text of the model, or the output, as JSON if it is data."""
    if isinstance(result.raw_output, str):
        return result.raw_output
    return result.output if isinstance(result.output, str) else as_json(result.output)


async def summarise(result: NodeResult, config: NodeConfig) -> None:
    """Replaces the output by a summary. The original stays in `raw_output`.

    The cost of the summary is part of the result. If the model fails, the answer keeps its length.
    """
    output = result.output
    text = output if isinstance(output, str) else _raw_text(result)
    try:
        answer = await config.complete(
            CompletionRequest((Message("system", SUMMARY_PROMPT), Message("user", text))), role="summary"
        )
    except Exception as error:  # noqa: BLE001 (the model may be anybody's code)
        log.warning("the output of %s could not be summarised: %s", config.path, error)
        return
    result.usage = config.usage
    if not answer.content:
        return
    if result.raw_output is None:
        result.raw_output = output
    texts = {text, output if isinstance(output, str) else as_json(output)}
    result.output = answer.content
    result.messages_added = [
        replace(m, content=answer.content) if m.role == "assistant" and m.content in texts else m
        for m in result.messages_added
    ]


Effect: TypeAlias = Callable[[Visit], Awaitable[None] | None]


# -- before ------------------------------------------------------------------------------------------------
def skip_on_error(visit: Visit) -> None:
    last = visit.base.last_result
    if last is not None and last.error:
        visit.result = NodeResult(visit.node.name, transition_reason="skipped", skipped=True)


def cached(visit: Visit) -> None:
    if (hit := cache.look_up(visit)) is not None:
        visit.result = hit
    else:
        cache.take_snapshot(visit)


def hide_history(visit: Visit) -> None:
    isolated = NodeFlag.ISOLATED_CONTEXT in visit.node.flags
    messages = without_history(visit.base, hidden_loop=isolated)
    visit.visible_count = len(messages)
    visit.show(visit.base.view(messages, visit.base.context))


def isolate(visit: Visit) -> None:
    node, context = visit.node, visit.base.context
    visible = declared_inputs(node, context)
    if AWAITING_HUMAN in context:
        visible[AWAITING_HUMAN] = context[AWAITING_HUMAN]
    own = visit.state.isolated(visible)
    if NodeFlag.NO_HISTORY not in node.flags:
        own.messages.extend(visit.base.loop)
    visit.show(own)


def use_lightweight(visit: Visit) -> None:
    lightweight = visit.config.lightweight_model
    if lightweight is None or visit.node.model_override is not None:
        return
    if isinstance(lightweight, str):
        visit.config.role = lightweight
    else:
        visit.config.model = lightweight


def require_human(visit: Visit) -> Awaitable[None]:
    name = visit.node.name
    visit.base.context[AWAITING_HUMAN] = visit.state.context[AWAITING_HUMAN] = name
    return visit.hooks.human_required(visit.node, visit.base)


def read_only(visit: Visit) -> None:
    visit.show(read_only_view(visit.state))


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
    result = visit.outcome
    if not visit.has_run or result.error or result.wants_tools:
        return None
    if visit.node.output_schema is not None and not isinstance(result.output, str):
        return None  # data with a schema keeps its form: prose would not fit
    return _summarize_checked(visit, result) if is_too_long(result) else None


async def _summarize_checked(visit: Visit, result: NodeResult) -> None:
    await summarise(result, visit.config)
    # the summary becomes the output, so the guards check it again
    checked = await run_guards(as_guards(visit.node.guards), result.output, visit.state)
    if checked.refused:
        result.guards_failed = (*result.guards_failed, *checked.failed)
        result.error = f"The summary of {visit.node.name!r} was {checked.error}"
        result.exception = checked.refusal(result.error)
        result.output, result.messages_added = None, ()


def validate_output(visit: Visit) -> None:
    result = visit.outcome
    schema = visit.node.output_schema
    if not visit.has_run or result.error or result.wants_tools or schema is None:
        return
    try:
        output_schema(schema).validate(result.output)
    except ValueError as error:
        result.guards_failed = (*result.guards_failed, f"output_schema: {error}")
        result.error = f"The output of {visit.node.name!r} does not fit its schema: {error}"
        if result.raw_output is None:
            result.raw_output = result.output
        result.output, result.messages_added = None, ()


def abort_when_critical(visit: Visit) -> None:
    if visit.outcome.error:
        visit.base.stop("critical_error", visit.outcome.error)


def restore_history(visit: Visit) -> None:
    if visit.has_run and NodeFlag.ISOLATED_CONTEXT not in visit.node.flags:
        visit.base.messages.extend(visit.state.messages[visit.visible_count :])


def merge_output_key(visit: Visit) -> None:
    own, context = visit.state.context, visit.base.context
    for key in (visit.node.output_key, AWAITING_HUMAN):
        if key in own:
            context[key] = own[key]
    if AWAITING_HUMAN not in own:
        context.pop(AWAITING_HUMAN, None)


def store(visit: Visit) -> None:
    if visit.has_run and not visit.outcome.error and not visit.outcome.wants_tools:
        cache.store(visit)


def forget_dependents(visit: Visit) -> None:
    if visit.has_run and not visit.outcome.error:
        cache.forget_readers(visit)


def log_in_full(visit: Visit) -> None:
    result = visit.outcome
    output = result.output if result.raw_output is None else result.raw_output
    log.debug("node %s: %s", visit.config.path, output)


def emit_metrics(visit: Visit) -> Awaitable[None]:
    result = visit.outcome
    metrics = NodeMetrics(
        visit.node.name,
        visit.config.path,
        result.duration_ms,
        result.usage,
        len(result.tool_calls),
        result.error,
    )
    return visit.hooks.metrics(visit.node, metrics)


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
    """Returns the effects of a node's flags, in the order of the table."""
    return tuple(effect for flag, effect in table if mask & BIT[flag])


def with_flags(node: BaseNode, hooks: HookSet, mask: int) -> NodeWrapper | None:
    """Returns the wrapper for a node's flags, or None if none of them needs one."""
    before, after = effects_of(mask, BEFORE), effects_of(mask, AFTER)
    if not before and not after:
        return None

    def wrap(call: NodeCall) -> NodeCall:
        async def run(state: GraphState, config: NodeConfig) -> NodeResult:
            visit = Visit(node, hooks, state, config)
            await _apply_before(visit, before)
            if visit.result is None:
                visit.has_run = True
                visit.result = await call(visit.state, config)
            for effect in after:
                await _apply_after(visit, effect)
            return visit.outcome

        return run

    return wrap


async def _apply_before(visit: Visit, effects: tuple[Effect, ...]) -> None:
    try:
        for effect in effects:
            if (work := effect(visit)) is not None:
                await work
            if visit.result is not None:
                return
    except Exception as error:  # noqa: BLE001 (boundary of a node: its input cannot be copied or compared)
        visit.result = NodeResult(visit.node.name, error=f"{type(error).__name__}: {error}", exception=error)


async def _apply_after(visit: Visit, effect: Effect) -> None:
    try:
        if (work := effect(visit)) is not None:
            await work
    except Exception as error:  # noqa: BLE001 (boundary of a node: code of a schema, a value that cannot be stored)
        result = visit.outcome
        result.error = result.error or f"{type(error).__name__}: {error}"
        result.exception, result.output, result.messages_added = error, None, ()
        visit.result = result
