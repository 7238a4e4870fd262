"""The loop of document 000. Every graph and every node, nested or not, runs through `traverse`.

a node of this name?    no                                → unknown_node
turns left?             no                                → max_iterations
visits left?            no: the node's error transition, else `__error__`, else → stuck_node
the node                in its hooks, flags and retry; then its writes
stopped meanwhile?      by a hook, CRITICAL, a budget     → that reason
graph actions           on the run's own copy
the transition          seven steps                       → the next node, or the end
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from time import perf_counter
from typing import Any, TypeAlias

from astromesh.abc.clock import ms_since
from astromesh.graph import mutations
from astromesh.graph.containers import engine_write
from astromesh.graph.flags import BIT, NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.nothing import NO_CONFIG
from astromesh.graph.plan import Plan, compile_graph
from astromesh.graph.progress import Progress
from astromesh.graph.records import (
    END,
    LIMITS,
    LOCAL,
    TOOL_CALLS_PRESENT,
    ZERO,
    Mutation,
    NodeResult,
    StopReason,
)
from astromesh.graph.state import GraphState
from astromesh.graph.step import Step
from astromesh.graph.transitions import next_way
from astromesh.node.runner import is_failure
from astromesh.types import Message

log = logging.getLogger("astromesh.graph")

_blank = object.__new__
#: what functions mostly answer; of anything else it must be asked whether it has to be waited for
_READY = frozenset({type(None), str, dict, list, bool, int, float, NodeResult})
_ISOLATED = BIT[NodeFlag.ISOLATED_CONTEXT]


#: how a traversal ended: the result of the node that ran last (None where none did), why the graph could not
#: go on (or empty), and the reason
Ending: TypeAlias = tuple[NodeResult | None, str, StopReason]


# One function, though long: a call for each of its steps would double the time that a node costs. It reads
# straight down, in the order of the table above.
async def traverse(  # noqa: C901, PLR0912, PLR0915
    run: Progress, plan: Plan, state: GraphState, prefix: str = ""
) -> Ending:
    """Runs a plan from entry to end: a graph, or a child alone until its tool loop is over.

    Args:
        run: counts, limits and listeners, over all levels.
        plan: what to run.
        state: of this level; a child alone runs on the state of the node that asked for it.
        prefix: for a nested graph the path of the node it is in, with a slash; for a child alone its path.
    """
    steps, counts, visited, emit, is_graph = plan.steps, run.counts, run.visited, run.emit, plan.is_graph
    shared = run.shared
    name, stuck = plan.entry, ""
    result: NodeResult | None = None
    while name != END:
        step = steps.get(name)
        if step is None:
            missing = f"There is no node {name!r} in {plan.name!r}."
            log.error("%s", missing)
            return result, missing, "unknown_node"
        path = (prefix + name if prefix else name) if is_graph else prefix
        if len(visited) >= run.max_iterations:
            state.stop("max_iterations", f"The run was stopped after {run.max_iterations} node executions.")
            break
        visits = counts.get(path, 0)
        if visits >= step.max_visits:
            stuck = f"The node {path!r} is stuck after {visits} visits."
            name = detour(plan, step, counts, prefix)
            continue
        counts[path] = visits + 1
        visited.append(path)
        if is_graph:
            state.current_node = name
            state.visited.append(name)
        config = NO_CONFIG if step.plain else run.config_for(step, path)
        said = len(state.messages)
        quiet = False  # whether the result has nothing in it but perhaps a text
        if emit is not None:
            result = await _announced(emit, path, step.call(state, config))
        elif not step.bare:
            result = await step.call(state, config)
        else:
            started = perf_counter()
            try:
                if step.function is not None:
                    value = step.function(state)
                    if type(value) not in _READY and hasattr(value, "__await__"):
                        value = await value
                else:
                    value = await (step.body(state) if step.alone else step.body(state, config))
            except BaseException as error:  # the border of a node, as in its call
                if not is_failure(error):
                    raise
                result = step.fail(error, state, config, (perf_counter() - started) * 1000)
            else:
                spent = (perf_counter() - started) * 1000
                if config.said:
                    result, quiet = value, True
                    result.duration_ms, result.usage = spent, config.usage
                elif config.usage is not ZERO or isinstance(value, NodeResult):
                    result = step.settle(value, state, config, spent)
                else:
                    # most fields stand in the class: a third of the constructor's cost
                    result = _blank(NodeResult)
                    result.node_name, result.output, result.duration_ms = name, value, spent
                    quiet = value is None or type(value) is str
        if quiet:
            stuck = ""
            state.node_history.append(result)
            if config.said:
                add_messages(state, result.messages_added, said)
            if value is not None or step.output_key:
                write_output(step, state, result.output, None)
        elif result.skipped:
            take_back(run, state, path, is_graph=is_graph)
        else:
            stuck = ""
            state.node_history.append(result)
            if result.output is not None or result.messages_added or step.output_key:
                write(step, state, result, said)
            if result.guards_passed or result.guards_failed:
                note_guards(run, path, result)
        if shared.stop_reason is not None or state.current_node == END:
            shared.stop_reason = shared.stop_reason or "completed"  # by a hook that gave no reason
            break
        if not quiet:
            output = result.output
            if type(output) is dict and mutations.ACTION in output:
                plan = await mutate(run, plan, state, result, prefix)
                steps = plan.steps
                step = steps[name]
            quiet = not (result.next_node or result.tool_calls or result.stop_reason) and (
                output is None or type(output) is str
            )
        way = step.straight
        if way is None or not quiet:  # most results have nothing in them that decides anything
            way = next_way(step, result, state)
        name, reason = way
        result.transition_reason = reason
        if state.loop or reason is TOOL_CALLS_PRESENT:
            state.loop = (*state.loop, *result.messages_added) if reason is TOOL_CALLS_PRESENT else ()
    else:
        if result is not None and (why := result.stop_reason):
            if prefix and why in LOCAL:  # of a nested graph: what runs it may lead on
                return result, "", why
            state.stop(why, result.error or unfinished(result))
    return result, stuck, "stuck_node" if stuck else "completed"


async def _announced(emit: Callable[..., None], path: str, call: Awaitable[NodeResult]) -> NodeResult:
    emit("node.started", node=path)
    started = perf_counter()
    try:
        return await call
    finally:
        emit("node.finished", node=path, duration_ms=ms_since(started))


def take_back(run: Progress, state: GraphState, path: str, *, is_graph: bool) -> None:
    """A skipped node was not visited. Its turn counts, so that a circle of skipped nodes ends."""
    run.skipped = (*run.skipped, len(run.visited) - 1 - run.visited[::-1].index(path))
    if is_graph:
        state.visited.pop()


def note_guards(run: Progress, path: str, result: NodeResult) -> None:
    """What guards said, for the report."""
    run.guards += tuple(f"{path}: {guard} passed" for guard in result.guards_passed)
    run.guards += tuple(f"{path}: {guard} failed" for guard in result.guards_failed)


def write(step: Step, state: GraphState, result: NodeResult, said: int) -> None:
    """The engine's own writes: messages, `output_key`, `NAME_output`. A failed node writes no output.

    `said` is how many messages there were before the node; those that it appended itself are not added twice.
    """
    if result.messages_added and not step.mask & _ISOLATED:
        add_messages(state, result.messages_added, said)
    if not result.error and not result.tool_calls:
        write_output(step, state, result.output, result.raw_output)


def add_messages(state: GraphState, added: Sequence[Message], said: int) -> None:
    messages = state.messages
    if len(messages) > said:
        own = {id(message) for message in messages[said:]}
        added = [message for message in added if id(message) not in own]
    messages.extend(added)


def write_output(step: Step, state: GraphState, output: Any, raw: Any) -> None:
    context = state.context
    if step.output_key:
        engine_write(context, step.output_key, output)
    if output is not None:
        engine_write(context, step.output_name, output if raw is None or isinstance(output, str) else raw)


def harvest(
    history: Sequence[NodeResult], names: Container[str], unsure: Container[str] = ()
) -> tuple[Any, str]:
    """Output and error that a graph has come to: of the last of its nodes that had something to say.

    A failure, and a step on the way to an answer, leave no answer, however much was said before.

    Args:
        unsure: nodes whose output is no answer, for the run stopped before a guard or a human behind them.
    """
    error_counts = True
    for result in reversed(history):
        if result.node_name not in names:  # a child's: what it came to is its parent's to say
            continue
        if result.error:
            return None, result.error if error_counts else ""
        if result.tool_calls:
            break
        if result.is_answer and result.output is not None:
            return (None if result.node_name in unsure else result.output), ""
        error_counts = False
    return None, ""


def unfinished(result: NodeResult) -> str:
    """What is said of a node that has reached a bound of its own and has an output all the same."""
    limit = result.stop_reason in LIMITS
    return f"The node {result.node_name!r} was stopped: {result.stop_reason}." if limit else ""


def cause_of(history: Sequence[NodeResult], names: Container[str]) -> BaseException | None:
    """What the last of a graph's nodes raised, where it raised."""
    return next((result.exception for result in reversed(history) if result.node_name in names), None)


def detour(plan: Plan, step: Step, counts: Mapping[str, int], prefix: str) -> str:
    """Where a stuck node leads: its error transition or `__error__`, unless stuck as well; else the end."""
    target = plan.steps.get(step.on_error.target)
    if target is None or counts.get(prefix + target.name, 0) >= target.max_visits:
        return END
    return target.name


async def mutate(run: Progress, plan: Plan, state: GraphState, result: NodeResult, prefix: str) -> Plan:
    """The plan with the graph actions of a result applied; the caller's graph stays as it is."""
    node, actions = result.node_name, mutations.requested(result.output)
    graph, done = _changed(run, plan.graph, actions, node)
    result.graph_mutations = done
    run.mutations += tuple(done)
    for mutation in done:
        if run.emit is not None:
            run.emit("graph.mutated", node=node, op=mutation.op, rejected=mutation.rejected)
        if mutation.applied:
            await run.kit.hooks.mutation(mutation, state)
    if graph is None or graph is plan.graph:
        return plan
    plan = compile_graph(graph, run.kit, plan.ceiling)
    run.changed = {**(run.changed or {}), prefix: plan}
    return plan


def _changed(
    run: Progress, graph: PromptGraph | None, actions: list[Any], node: str
) -> tuple[PromptGraph | None, list[Mutation]]:
    if not run.mutable:
        return graph, mutations.refuse(actions, node, "The engine does not allow self-modification.")
    if graph is None:
        return graph, mutations.refuse(actions, node, "A node inside another one cannot change the graph.")
    if not graph.has_node(node):
        return graph, mutations.refuse(actions, node, "Nodes of a pool have no edges that could be changed.")
    if "edges_only" in (graph.routing, graph.get_node(node).routing):
        return graph, mutations.refuse(actions, node, "The routing is edges_only.")
    left = run.max_mutations - sum(m.applied for m in run.mutations)
    return mutations.apply(graph, actions, node, left)
