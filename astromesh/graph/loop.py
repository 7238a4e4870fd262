"""The loop of document 000: every graph runs through `traverse`, every node through `visit`, nested or not.

a node of this name?    no                                → unknown_node
turns left?             no                                → max_iterations
visits left?            no: the node's error transition, else `__error__`, else → stuck_node
the visit               hooks, flags, retry, the node, its writes
stopped meanwhile?      by a hook, CRITICAL, a budget     → that reason
graph actions           on the run's own copy
the transition          seven steps                       → the next node, or the end
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

from astromesh.graph import mutations
from astromesh.graph.flags import BIT, NodeFlag
from astromesh.graph.frozen import engine_write
from astromesh.graph.nothing import NO_CONFIG
from astromesh.graph.plan import Plan, Step, compile_graph
from astromesh.graph.progress import Progress
from astromesh.graph.records import END, TOOL_CALLS_PRESENT, Mutation, NodeResult, StopReason
from astromesh.graph.state import GraphState
from astromesh.graph.transitions import next_way

_ISOLATED = BIT[NodeFlag.ISOLATED_CONTEXT]


class Outcome(NamedTuple):
    """How a traversal ended: the answer, or why there is none."""

    output: Any = None
    error: str = ""
    reason: StopReason = "completed"


async def traverse(run: Progress, plan: Plan, state: GraphState, prefix: str = "") -> Outcome:
    """Runs a graph from entry to end. `prefix` is the path of the node that it is nested in, or empty."""
    steps, counts, shared = plan.steps, state.node_iterations, state.shared
    name, output, error = plan.entry, None, ""
    while name != END:
        step = steps.get(name)
        if step is None:
            return Outcome(
                None, f"There is no node {name!r} in the graph {plan.graph.name!r}.", "unknown_node"
            )
        if run.turns >= run.max_iterations:
            stop_at_limit(run, state)
            break
        visits = counts.get(name, 0)
        if visits >= step.max_visits:
            error = f"The node {name!r} is stuck after {visits} visits."
            name = detour(plan, step, counts)
            if name == END:
                return Outcome(None, error, "stuck_node")
            continue
        counts[name] = visits + 1
        state.current_node = name
        state.iteration += 1
        state.visited.append(name)
        result = await visit(run, step, state, prefix + name)
        if shared.stop_reason is not None:
            output, error = harvest(output, error, result)
            break
        if type(result.output) is dict and mutations.ACTION in result.output:
            plan = await mutate(run, plan, state, result)
            steps = plan.steps
            step = steps[name]
        name, reason = next_way(step, result, state)
        result.transition_reason = reason
        if reason == TOOL_CALLS_PRESENT:
            state.loop.extend(result.messages_added)
        elif state.loop:
            state.loop = []
        if result.stop_reason and name == END:
            state.stop(result.stop_reason, result.error)
        if error or result.error or result.skipped or result.tool_calls or not result.is_answer:
            output, error = harvest(output, error, result)
        elif result.output is not None:  # the plain case, without a call
            output = result.output
    return Outcome(output, error)


async def visit(run: Progress, step: Step, state: GraphState, path: str) -> NodeResult:
    """One execution of a node, with everything around it, and what it writes."""
    run.turns += 1
    run.visited.append(path)
    config = NO_CONFIG if step.plain else run.config_for(step, path)
    if run.emit is None:
        result = await step.call(state, config)
    else:
        result = await _announced(run.emit, step, state, config, path)
    if state.current_node == END and state.shared.stop_reason is None:
        state.shared.stop_reason = "completed"  # a hook or a node said so, without a reason
    if result.skipped:
        run.skipped.append(len(run.visited) - 1 - run.visited[::-1].index(path))
        return result
    state.node_history.append(result)
    if result.output is not None or result.messages_added or step.output_key:
        write(step, state, result)
    if result.guards_passed or result.guards_failed:
        run.guards += [f"{path}: {guard} passed" for guard in result.guards_passed]
        run.guards += [f"{path}: {guard} failed" for guard in result.guards_failed]
    return result


async def _announced(emit: Any, step: Step, state: GraphState, config: Any, path: str) -> NodeResult:
    emit("node.started", node=path)
    started = perf_counter()
    try:
        return await step.call(state, config)
    finally:
        emit("node.finished", node=path, duration_ms=round((perf_counter() - started) * 1000, 3))


def write(step: Step, state: GraphState, result: NodeResult) -> None:
    """The engine's own writes: messages, `output_key`, `NAME_output`. A failed node writes no output."""
    if result.messages_added and not step.mask & _ISOLATED:
        known = {id(message) for message in state.messages}
        state.messages.extend(m for m in result.messages_added if id(m) not in known)
    if result.error or result.tool_calls:
        return
    output = result.output
    if step.output_key:
        engine_write(state.context, step.output_key, output)
    if output is not None:
        raw = result.raw_output
        text = output if raw is None or isinstance(output, str) else raw
        engine_write(state.context, step.output_name, text)


def harvest(output: Any, error: str, result: NodeResult) -> tuple[Any, str]:
    """What a run has come to after a node: a failure leaves no answer, a silent node the one before."""
    if result.skipped:
        return output, error
    if result.error:
        return None, result.error
    if result.tool_calls:  # a step on the way, whatever was said with it
        return None, ""
    if not result.is_answer:
        return output, ""
    return (output if result.output is None else result.output), ""


def detour(plan: Plan, step: Step, counts: dict[str, int]) -> str:
    """Where a stuck node leads: its error transition or `__error__`, unless stuck as well; else the end."""
    target = plan.steps.get(step.on_error.target)
    if target is None or counts.get(target.name, 0) >= target.max_visits:
        return END
    return target.name


def stop_at_limit(run: Progress, state: GraphState) -> None:
    """Ends a run that has had all its turns."""
    state.stop("max_iterations", f"The run was stopped after {run.max_iterations} node executions.")


async def mutate(run: Progress, plan: Plan, state: GraphState, result: NodeResult) -> Plan:
    """The plan with the graph actions of a result applied; the caller's graph stays as it is."""
    node, actions = result.node_name, mutations.requested(result.output)
    if not run.mutable:
        done = mutations.refuse(actions, node, "The engine does not allow self-modification.")
    elif _edges_only(plan, node):
        done = mutations.refuse(actions, node, "The routing is edges_only.")
    else:
        plan, done = _apply(run, plan, actions, node)
    result.graph_mutations = done
    run.mutations += done
    for mutation in done:
        if run.emit is not None:
            run.emit("graph.mutated", node=node, op=mutation.op, rejected=mutation.rejected)
        if mutation.applied:
            await run.kit.hooks.mutation(mutation, state)
    return plan


def _edges_only(plan: Plan, node: str) -> bool:
    return "edges_only" in (plan.graph.routing, plan.graph.get_node(node).routing)


def _apply(run: Progress, plan: Plan, actions: list[Any], node: str) -> tuple[Plan, list[Mutation]]:
    graph = plan.graph
    done: list[Mutation] = []
    for action in actions:
        if sum(m.applied for m in (*run.mutations, *done)) >= run.max_mutations:
            done += mutations.refuse(
                [action], node, f"The run may change its graph {run.max_mutations} times."
            )
            break
        graph, mutation = mutations.apply(graph, action, node)
        done.append(mutation)
    return (plan if graph is plan.graph else compile_graph(graph, run.kit)), done
