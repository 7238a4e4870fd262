"""The loop of document 000. Every graph and every node, nested or not, runs through `traverse`.

is there a node of this name?   no                             → unknown_node
turns left?                     no                             → max_iterations
visits left?                    no: the node's error transition, else `__error__`, else → stuck_node
the node                        in its hooks, flags and retries; then its writes
stopped meanwhile?              by a hook, CRITICAL, a budget  → that reason
graph actions                   on the run's own copy
the transition                  seven steps                    → the next node, or the end
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from time import perf_counter
from typing import Any, TypeAlias

from astromesh.graph import mutations
from astromesh.graph.flags import BIT, NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.node_config import NO_CONFIG, NodeConfig
from astromesh.graph.plan import Plan, compile_graph
from astromesh.graph.records import (
    END,
    GRAPH_ONLY_STOPS,
    LIMIT_STOPS,
    NO_USAGE,
    TOOL_CALLS_PRESENT,
    Mutation,
    NodeResult,
    StopReason,
)
from astromesh.graph.runner import is_failure
from astromesh.graph.state import GraphState, SharedState, engine_write
from astromesh.graph.step import CompileOptions, Step
from astromesh.graph.transitions import next_transition
from astromesh.telemetry.events import ms_since
from astromesh.types import Message


class RunProgress:
    """The counts of one run, over all levels of nesting.

    Attributes:
        options: What changed graphs are compiled with.
        max_iterations: The limit of node executions of the whole run.
        shared: What all states of the run share. It does not refer to the run: a reference cycle would leave
            every run to the garbage collector.
        visited: Paths in order.
        counts: Executions by path.
        emit: Emits an event. None without listeners.
        skipped: The indexes in `visited` of nodes that did not run. They count for the limit too.
    """

    max_iterations: int
    shared: SharedState
    visited: list[str]
    counts: dict[str, int]
    #: Whether nodes may change the graph, and how often.
    mutable = False
    max_mutations = 0
    emit: Callable[..., None] | None = None
    # A run that has any of these replaces the tuple.
    skipped: tuple[int, ...] = ()
    guards: tuple[str, ...] = ()
    mutations: tuple[Mutation, ...] = ()
    #: Plans made by graph actions, by the prefix of their level.
    changed_plans: dict[str, Plan] | None = None

    @property
    def options(self) -> CompileOptions:
        raise NotImplementedError

    def config_for(self, step: Step, path: str) -> NodeConfig:
        """Returns the config of one execution of a node."""
        raise NotImplementedError


log = logging.getLogger("astromesh.graph")
_new_without_init = object.__new__
#: The usual return types of functions. A value of another type may be awaitable.
_NEVER_AWAITABLE = frozenset({type(None), str, dict, list, bool, int, float, NodeResult})
_ISOLATED = BIT[NodeFlag.ISOLATED_CONTEXT]
#: The result of the last node or None, why the graph could not continue or an empty text, and the reason.
Ending: TypeAlias = tuple[NodeResult | None, str, StopReason]


# One long function: a call for each of its steps would double the cost of a node. It reads straight down, in
# the order of the table above.
async def traverse(  # noqa: C901, PLR0912, PLR0915
    run: RunProgress, plan: Plan, state: GraphState, prefix: str = ""
) -> Ending:
    """Runs a plan from entry to end: a graph, or a single child until its tool loop is over.

    Args:
        run: Counts, limits and listeners, over all levels.
        plan: What to run.
        state: The state of this level. A single child runs on the state of the node that runs it.
        prefix: For a nested graph the path of its node, with a slash. For a single child its path.
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
            name = target_when_stuck(plan, step, counts, prefix)
            continue
        counts[path] = visits + 1
        visited.append(path)
        if is_graph:
            state.current_node = name
            state.visited.append(name)
        config = NO_CONFIG if step.needs_no_config else run.config_for(step, path)
        message_count = len(state.messages)
        is_plain = False  # whether the result holds at most a text
        if emit is not None:
            emit("node.started", node=path)
        started = perf_counter()
        try:
            if not step.is_unwrapped:
                result = await step.call(state, config)
            else:
                try:
                    if step.function is not None:
                        value = step.function(state)
                        if type(value) not in _NEVER_AWAITABLE and hasattr(value, "__await__"):
                            value = await value
                    else:
                        value = await (
                            step.body(state) if step.takes_state_only else step.body(state, config)
                        )
                except BaseException as error:  # the boundary of a node, as in its call
                    if not is_failure(error):
                        raise
                    result = step.fail(error, state, config, (perf_counter() - started) * 1000)
                else:
                    duration_ms = (perf_counter() - started) * 1000
                    if config.is_verbatim:
                        result, is_plain = value, True
                        result.duration_ms, result.usage = duration_ms, config.usage
                    elif config.usage is not NO_USAGE or isinstance(value, NodeResult):
                        result = step.settle(value, state, config, duration_ms)
                    else:
                        # defaults stand in the class: a third of the constructor's cost
                        result = _new_without_init(NodeResult)
                        result.node_name, result.output, result.duration_ms = name, value, duration_ms
                        is_plain = value is None or type(value) is str
        finally:
            if emit is not None:
                emit("node.finished", node=path, duration_ms=ms_since(started))
        if is_plain:
            stuck = ""
            state.node_history.append(result)
            if config.is_verbatim:
                state.messages.extend(result.messages_added)
            if value is not None or step.output_key:
                write_output(step, state, result.output, None)
        elif result.skipped:
            discount_skipped(run, state, path, is_graph=is_graph)
        else:
            stuck = ""
            state.node_history.append(result)
            if result.output is not None or result.messages_added or step.output_key:
                write_result(step, state, result, message_count)
            if result.guards_passed or result.guards_failed:
                record_guards(run, path, result)
        if shared.stop_reason is not None or state.current_node == END:
            shared.stop_reason = shared.stop_reason or "completed"  # by a hook that gave no reason
            break
        if not is_plain:
            output = result.output
            if type(output) is dict and mutations.ACTION_KEY in output:
                plan = await apply_mutations(run, plan, state, result, prefix)
                steps = plan.steps
                step = steps[name]
            is_plain = not (result.next_node or result.tool_calls or result.stop_reason) and (
                output is None or type(output) is str
            )
        transition = step.unconditional
        if transition is None or not is_plain:  # most results decide nothing
            transition = next_transition(step, result, state)
        name, reason = transition
        result.transition_reason = reason
        if state.loop or reason is TOOL_CALLS_PRESENT:
            state.loop = (*state.loop, *result.messages_added) if reason is TOOL_CALLS_PRESENT else ()
    else:
        if result is not None and (why := result.stop_reason):
            if prefix and why in GRAPH_ONLY_STOPS:  # of a nested graph: the node that runs it may lead on
                return result, "", why
            state.stop(why, result.error or limit_message(result))
    return result, stuck, "stuck_node" if stuck else "completed"


def discount_skipped(run: RunProgress, state: GraphState, path: str, *, is_graph: bool) -> None:
    """Removes a skipped node from the visits.

    It counts for the limit, so that a cycle of skipped nodes ends.
    """
    run.skipped = (*run.skipped, len(run.visited) - 1 - run.visited[::-1].index(path))
    if is_graph:
        state.visited.pop()


def record_guards(run: RunProgress, path: str, result: NodeResult) -> None:
    """Adds the results of guards to the report."""
    run.guards += tuple(f"{path}: {guard} passed" for guard in result.guards_passed)
    run.guards += tuple(f"{path}: {guard} failed" for guard in result.guards_failed)


def write_result(step: Step, state: GraphState, result: NodeResult, message_count: int) -> None:
    """Writes the messages, `output_key` and `NAME_output` of a result. A failed node writes no output.

    Args:
        message_count: The number of messages before the node. Those that it appended itself are not added
            twice.
    """
    if result.messages_added and not step.mask & _ISOLATED:
        add_messages(state, result.messages_added, message_count)
    if not result.error and not result.tool_calls:
        write_output(step, state, result.output, result.raw_output)


def add_messages(state: GraphState, added: Sequence[Message], message_count: int) -> None:
    messages = state.messages
    if len(messages) > message_count:
        own = {id(message) for message in messages[message_count:]}
        added = [message for message in added if id(message) not in own]
    messages.extend(added)


def write_output(step: Step, state: GraphState, output: Any, raw: Any) -> None:
    context = state.context
    if step.output_key:
        engine_write(context, step.output_key, output)
    if output is not None:
        engine_write(context, step.output_name, output if raw is None or isinstance(output, str) else raw)


def outcome_of(
    history: Sequence[NodeResult], names: Container[str], unconfirmed: Container[str] = ()
) -> tuple[Any, str]:
    """Returns output and error of a graph: those of the last node that has one.

    A failure and a step of a tool loop leave no answer, whatever came before.

    Args:
        unconfirmed: Nodes whose output is no answer, because the run stopped before a guard or a human behind
            them.
    """
    error_counts = True
    for result in reversed(history):
        if result.node_name not in names:  # a child's result: its parent reports it
            continue
        if result.error:
            return None, result.error if error_counts else ""
        if result.tool_calls:
            break
        if result.is_answer and result.output is not None:
            return (None if result.node_name in unconfirmed else result.output), ""
        error_counts = False
    return None, ""


def limit_message(result: NodeResult) -> str:
    """Returns the error of a node that reached a limit of its own and has an output all the same."""
    limit = result.stop_reason in LIMIT_STOPS
    return f"The node {result.node_name!r} was stopped: {result.stop_reason}." if limit else ""


def cause_of(history: Sequence[NodeResult], names: Container[str]) -> BaseException | None:
    """Returns the exception of the last of a graph's nodes, if it raised one."""
    return next((result.exception for result in reversed(history) if result.node_name in names), None)


def target_when_stuck(plan: Plan, step: Step, counts: Mapping[str, int], prefix: str) -> str:
    """Returns the error transition of a stuck node, or `__error__`, or the end if that is stuck too."""
    target = plan.steps.get(step.on_error.target)
    if target is None or counts.get(prefix + target.name, 0) >= target.max_visits:
        return END
    return target.name


async def apply_mutations(
    run: RunProgress, plan: Plan, state: GraphState, result: NodeResult, prefix: str
) -> Plan:
    """Returns the plan with the graph actions of a result applied. The caller's graph does not change."""
    node, actions = result.node_name, mutations.requested_actions(result.output)
    graph, done = _mutated_graph(run, plan.graph, actions, node)
    result.graph_mutations = done
    run.mutations += tuple(done)
    for mutation in done:
        if run.emit is not None:
            run.emit("graph.mutated", node=node, op=mutation.op, rejected=mutation.rejected)
        if mutation.applied:
            await run.options.hooks.mutation(mutation, state)
    if graph is None or graph is plan.graph:
        return plan
    plan = compile_graph(graph, run.options, plan.ceiling)
    run.changed_plans = {**(run.changed_plans or {}), prefix: plan}
    return plan


def _mutated_graph(
    run: RunProgress, graph: PromptGraph | None, actions: list[Any], node: str
) -> tuple[PromptGraph | None, list[Mutation]]:
    if not run.mutable:
        return graph, mutations.reject_actions(actions, node, "The engine does not allow self-modification.")
    if graph is None:
        return graph, mutations.reject_actions(
            actions, node, "A node inside another one cannot change the graph."
        )
    if not graph.has_node(node):
        return graph, mutations.reject_actions(
            actions, node, "Nodes of a pool have no edges that could be changed."
        )
    if "edges_only" in (graph.routing, graph.get_node(node).routing):
        return graph, mutations.reject_actions(actions, node, "The routing is edges_only.")
    left = run.max_mutations - sum(m.applied for m in run.mutations)
    return mutations.apply_actions(graph, actions, node, left)
