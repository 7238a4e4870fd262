"""What the flags of a node do (document 000), in two ordered tables: before the node runs, and after it.

    before  SKIP_ON_ERROR CACHEABLE NO_HISTORY ISOLATED_CONTEXT LIGHTWEIGHT REQUIRES_HUMAN READONLY
    after   SUMMARIZE_OUTPUT VALIDATE_OUTPUT CRITICAL NO_HISTORY ISOLATED_CONTEXT CACHEABLE STATEFUL
            VERBOSE OBSERVABLE

SUMMARIZE_OUTPUT and VALIDATE_OUTPUT come first, so that nothing is written or cached before. LIGHTWEIGHT
restores nothing: it replaces the model in the config of this execution alone. RETRYABLE wraps all of this
(`policies`). The other flags work elsewhere: ENTRY and TERMINAL in the plan, INJECT_TOOLS in the tools of the
node, PARALLEL_SAFE in `together`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from astromesh.errors import (
    described,
    is_failure,
    text_of,
)
from astromesh.graph.base import BaseNode
from astromesh.graph.flags import BIT, NodeFlag
from astromesh.graph.hooks import HookSet, NodeMetrics
from astromesh.graph.model_output import output_schema
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.nodes.guard import as_guards, run_guards
from astromesh.graph.records import NO_USAGE, OUTPUT_SUFFIX, NodeResult, as_text, canonical_json
from astromesh.graph.runner import Call, Wrapper
from astromesh.graph.state import (
    AWAITING_HUMAN,
    NODE_CACHE,
    NODE_LISTS,
    GraphState,
    read_only_view,
)
from astromesh.graph.transitions import DECIDING_KEYS
from astromesh.types import CompletionRequest, Message

log = logging.getLogger("astromesh.graph")

NodeCall = Call[GraphState, NodeConfig, NodeResult]
NodeWrapper = Wrapper[GraphState, NodeConfig, NodeResult]


@dataclass(slots=True)
class Visit:
    """One execution of a flagged node, as the effects of its flags see and change it.

    Args:
        base: The state at this level.
        state: What the node sees: `base`, or a view of it.
        result: Set by the node, or by an effect that answers instead.
        visible_count: The number of messages that NO_HISTORY has left visible.
        cache_key: The key of the result of a CACHEABLE node. Empty if it cannot be cached.
        context_before, lengths_before: What the state held before a CACHEABLE node ran.
    """

    node: BaseNode
    hooks: HookSet
    base: GraphState
    config: NodeConfig
    state: GraphState
    result: NodeResult | None = None
    has_run: bool = False
    visible_count: int = 0
    cache_key: bytes = b""
    context_before: Mapping[str, Any] | None = None
    lengths_before: Mapping[str, int] | None = None

    @property
    def outcome(self) -> NodeResult:
        """The result, for effects that run after the node."""
        return self.result or NodeResult(self.node.name)

    @property
    def succeeded(self) -> bool:
        """Whether the node has run and ended, neither failed nor in the middle of a tool loop."""
        return self.has_run and not self.outcome.error and not self.outcome.wants_tools


Effect: TypeAlias = Callable[[Visit], Awaitable[None] | None]


# -- CACHEABLE and STATEFUL: results by what their nodes read ----------------------------------------------
#
# Results stand in `context["_node_cache"]`. The key is canonical JSON. An input without that form cannot be
# compared: the node runs every time, and the log says why. Stored and returned values are copies.


class CachedResult(NamedTuple):
    """A cached result.

    Args:
        reads: Names in the context that the node declares to read.
        result: The result after SUMMARIZE_OUTPUT.
        context, lists: What the node itself wrote to the state. A hit repeats it.
    """

    reads: frozenset[str]
    result: NodeResult
    context: Mapping[str, Any]
    lists: Mapping[str, list[Any]]


def look_up(visit: Visit) -> None:
    """Answers with an earlier result for the same inputs, at no cost, and repeats its writes."""
    state = visit.base
    try:
        visit.cache_key = _cache_key(visit)
    except (TypeError, RecursionError) as error:
        _log_not_cached(visit, "its input", error)
        return
    entry = _cached_results(state).get(visit.cache_key)
    if entry is None:
        visit.context_before = dict(state.context)
        visit.lengths_before = {name: len(getattr(state, name)) for name in NODE_LISTS}
        return
    # the messages are added once more, so they must be copies too
    _, result, context, lists = deepcopy(entry)
    state.context.update(context)
    for name, added in lists.items():
        getattr(state, name).extend(added)
    visit.result = replace(result, usage=NO_USAGE, duration_ms=0.0, transition_reason="cached")


def store(visit: Visit) -> None:
    """Stores a final result. A step of a tool loop is never stored."""
    before, lengths, state = visit.context_before, visit.lengths_before, visit.base
    if before is None or lengths is None or not visit.succeeded:
        return
    context = {
        key: value
        for key, value in state.context.items()
        if key != NODE_CACHE and (key not in before or before[key] is not value)
    }
    lists = {name: getattr(state, name)[length:] for name, length in lengths.items()}
    entry = CachedResult(
        frozenset(declared_names(visit.node)), replace(visit.outcome, exception=None), context, lists
    )
    try:
        entry = deepcopy(entry)
    except BaseException as error:  # copying runs foreign code; the node has succeeded all the same
        if not is_failure(error):
            raise
        _log_not_cached(visit, "its output", error)
        return
    state.context.setdefault(NODE_CACHE, {})[visit.cache_key] = entry


def forget_readers(visit: Visit) -> None:
    """STATEFUL: removes the results that were computed from the output of this node."""
    if visit.has_run and not visit.outcome.error:
        written = {visit.node.output_key, visit.node.name + OUTPUT_SUFFIX}
        entries = _cached_results(visit.base)
        for stale in [key for key, entry in entries.items() if entry.reads & written]:
            del entries[stale]


def _cache_key(visit: Visit) -> bytes:
    """Returns path and declared inputs, and without declared inputs what the node sees of the conversation.

    Raises:
        TypeError: Part of it has no canonical JSON.
    """
    node, state = visit.node, visit.base
    parts: list[Any] = [visit.config.path, declared_inputs(node, state.context)]
    if not node.input_keys and not node.pure:
        no_history = NodeFlag.NO_HISTORY in node.flags
        messages = without_history(state, hidden_loop=False) if no_history else list(state.messages)
        parts += [messages, state.plan, state.observations, state.reflections]
    return canonical_json(parts)


def _cached_results(state: GraphState) -> dict[bytes, CachedResult]:
    entries: dict[bytes, CachedResult] = state.context.get(NODE_CACHE, {})
    return entries


def _log_not_cached(visit: Visit, what: str, error: BaseException) -> None:
    log.info("%s is not cached: %s: %s", visit.config.path, what, text_of(error))


def declared_names(node: BaseNode) -> tuple[str, ...]:
    """Returns the names in the context that a node declares to read."""
    if node.inherit_context_from:
        return (*node.input_keys, node.inherit_context_from + OUTPUT_SUFFIX)
    return node.input_keys


def declared_inputs(node: BaseNode, context: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the declared inputs of a node that exist, with their values."""
    return {name: context[name] for name in declared_names(node) if name in context}


# -- before ------------------------------------------------------------------------------------------------


def skip_on_error(visit: Visit) -> None:
    last = visit.base.last_result
    if last is not None and last.error:
        visit.result = NodeResult(visit.node.name, transition_reason="skipped", skipped=True)


def hide_history(visit: Visit) -> None:
    isolated = NodeFlag.ISOLATED_CONTEXT in visit.node.flags
    messages = without_history(visit.base, hidden_loop=isolated)
    visit.visible_count = len(messages)
    visit.state = visit.base.view(messages, visit.base.context)


def without_history(state: GraphState, *, hidden_loop: bool) -> list[Message]:
    """Returns the system messages, the current question, and the node's own tool loop.

    Args:
        state: The state at the node's level.
        hidden_loop: Whether the messages of the loop stand apart from the state's (ISOLATED_CONTEXT).
    """
    own = {id(message) for message in state.loop}
    question = next((m for m in reversed(state.messages) if m.role == "user" and id(m) not in own), None)
    messages = [m for m in state.messages if m.role == "system" or m is question or id(m) in own]
    return [*messages, *state.loop] if hidden_loop else messages


def isolate(visit: Visit) -> None:
    node, context = visit.node, visit.base.context
    visible = declared_inputs(node, context)
    if AWAITING_HUMAN in context:
        visible[AWAITING_HUMAN] = context[AWAITING_HUMAN]
    visit.state = visit.state.isolated(visible)
    if NodeFlag.NO_HISTORY not in node.flags:
        visit.state.messages.extend(visit.base.loop)


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
    return visit.hooks.notify("on_human_required", visit.node, visit.base)


def read_only(visit: Visit) -> None:
    visit.state = read_only_view(visit.state)


BEFORE: tuple[tuple[NodeFlag, Effect], ...] = (
    (NodeFlag.SKIP_ON_ERROR, skip_on_error),
    (NodeFlag.CACHEABLE, look_up),
    (NodeFlag.NO_HISTORY, hide_history),
    (NodeFlag.ISOLATED_CONTEXT, isolate),
    (NodeFlag.LIGHTWEIGHT, use_lightweight),
    (NodeFlag.REQUIRES_HUMAN, require_human),
    (NodeFlag.READONLY, read_only),
)


# -- after -------------------------------------------------------------------------------------------------

#: Characters. SUMMARIZE_OUTPUT shortens longer answers (document 002).
MAX_OUTPUT_CHARACTERS = 1000
_SUMMARY_PROMPT = (
    "Summarise the text of the user concisely. Keep every key fact, number, name and conclusion; leave out "
    "what is said twice. Answer with the summary alone."
)


def summarize_output(visit: Visit) -> Awaitable[None] | None:
    if not visit.succeeded or not _is_too_long(visit.outcome):
        return None
    if visit.node.output_schema is not None and not isinstance(visit.outcome.output, str):
        return None  # data with a schema keeps its form: prose would not fit
    return _summarize_checked(visit, visit.outcome)


def _is_too_long(result: NodeResult) -> bool:
    """Whether an output has too long a text. One that decides about the graph is never shortened."""
    output = result.output
    if output is None or (isinstance(output, Mapping) and not DECIDING_KEYS.isdisjoint(output)):
        return False
    return len(_raw_text(result)) > MAX_OUTPUT_CHARACTERS


def _raw_text(result: NodeResult) -> str:
    """Returns the measured text: the text of the model, or the output, as JSON if it is data."""
    return result.raw_output if isinstance(result.raw_output, str) else as_text(result.output)


async def _summarize_checked(visit: Visit, result: NodeResult) -> None:
    await _summarize(result, visit.config)
    # the summary becomes the output, so the guards check it again
    checked = await run_guards(as_guards(visit.node.guards), result.output, visit.state)
    if checked.refused:
        result.guards_failed = (*result.guards_failed, *checked.failed)
        result.error = f"The summary of {visit.node.name!r} was {checked.error}"
        result.exception = checked.refusal(result.error)
        result.output, result.messages_added = None, ()


async def _summarize(result: NodeResult, config: NodeConfig) -> None:
    """Replaces the output by a summary. The original stays in `raw_output`.

    The cost of the summary is part of the result. If the model fails, the answer keeps its length.
    """
    output = result.output
    text = output if isinstance(output, str) else _raw_text(result)
    request = CompletionRequest((Message("system", _SUMMARY_PROMPT), Message("user", text)))
    try:
        answer = await config.complete(request, role="summary")
    except BaseException as error:  # a foreign model may raise anything
        if not is_failure(error):
            raise
        log.warning("the output of %s could not be summarised: %s", config.path, described(error))
        return
    result.usage = config.usage
    if answer.content:
        result.raw_output = output if result.raw_output is None else result.raw_output
        result.replace_output(answer.content, text)


def validate_output(visit: Visit) -> None:
    result, schema = visit.outcome, visit.node.output_schema
    if not visit.succeeded or schema is None:
        return
    try:
        output_schema(schema).validate(result.output)
    except ValueError as error:
        result.guards_failed = (*result.guards_failed, f"output_schema: {text_of(error)}")
        result.error = f"The output of {visit.node.name!r} does not fit its schema: {text_of(error)}"
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


def log_in_full(visit: Visit) -> None:
    result = visit.outcome
    output = result.output if result.raw_output is None else result.raw_output
    log.debug("node %s: %s", visit.config.path, output)


async def emit_metrics(visit: Visit) -> None:
    node, path, result = visit.node, visit.config.path, visit.outcome
    calls = len(result.tool_calls)
    metrics = NodeMetrics(node.name, path, result.duration_ms, result.usage, calls, result.error)
    for name in ("on_node_metrics", "on_observable_event"):
        await visit.hooks.notify(name, node, metrics)


AFTER: tuple[tuple[NodeFlag, Effect], ...] = (
    (NodeFlag.SUMMARIZE_OUTPUT, summarize_output),
    (NodeFlag.VALIDATE_OUTPUT, validate_output),
    (NodeFlag.CRITICAL, abort_when_critical),
    (NodeFlag.NO_HISTORY, restore_history),
    (NodeFlag.ISOLATED_CONTEXT, merge_output_key),
    (NodeFlag.CACHEABLE, store),
    (NodeFlag.STATEFUL, forget_readers),
    (NodeFlag.VERBOSE, log_in_full),
    (NodeFlag.OBSERVABLE, emit_metrics),
)


# -- around a node -----------------------------------------------------------------------------------------


def with_flags(node: BaseNode, hooks: HookSet, mask: int) -> NodeWrapper | None:
    """Returns the wrapper for a node's flags, or None if none of them needs one."""
    before = [effect for flag, effect in BEFORE if mask & BIT[flag]]
    after = [effect for flag, effect in AFTER if mask & BIT[flag]]
    if not before and not after:
        return None

    def wrap(call: NodeCall) -> NodeCall:
        async def run(state: GraphState, config: NodeConfig) -> NodeResult:
            visit = Visit(node, hooks, state, config, state)
            for effect in before:
                if visit.result is None:
                    await _apply(visit, effect)
            if visit.result is None:
                visit.has_run = True
                visit.result = await call(visit.state, config)
            for effect in after:
                await _apply(visit, effect)
            return visit.outcome

        return run

    return wrap


async def _apply(visit: Visit, effect: Effect) -> None:
    """Applies an effect. One that raises an exception fails the node."""
    try:
        if (work := effect(visit)) is not None:
            await work
    except BaseException as error:  # a value that cannot be copied, code of a schema
        if not is_failure(error):
            raise
        result = visit.result = visit.outcome
        result.error = result.error or described(error)
        result.exception, result.output, result.messages_added = error, None, ()
