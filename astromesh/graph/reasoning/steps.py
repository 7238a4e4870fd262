"""The nodes of the loop: propose, execute, run a tool, evaluate, switch."""

from __future__ import annotations

import orjson

from astromesh.errors import InvalidToolCall
from astromesh.graph.config import NodeConfig
from astromesh.graph.reasoning import prompts
from astromesh.graph.reasoning.asking import MOST_FAILURES, Reply, ask, ask_object
from astromesh.graph.reasoning.decisions import Facts, Route, by_rule, eligible, route, stalls
from astromesh.graph.reasoning.hidden import object_in
from astromesh.graph.reasoning.reading import (
    DONE,
    LINES,
    TOOL,
    analysis_step,
    confidence_of,
    lines,
    short,
    shown_arguments,
    step_of,
)
from astromesh.graph.reasoning.setup import means_of
from astromesh.graph.reasoning.state import notes_of, rc_of
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.node.tool_results import parse_arguments
from astromesh.types import JsonObject, Message, ToolCall, ToolResult, ToolSpec

#: characters of a tool's result in the observations, and in the trace
OBSERVED, TRACED = 1_000, 160
_DIRECT: JsonObject = {"kind": "analysis", "step": "answer the question"}
_MOST_CONCLUSIONS = 4 * LINES


# -- proposing ---------------------------------------------------------------------------------------------


async def propose_next_step(state: GraphState, config: NodeConfig) -> JsonObject:
    """Decides on the next step; a refused, exhausted or needless one goes straight to the evaluation."""
    rc, notes = rc_of(state), notes_of(state)
    notes.refused, rc.next_step = "", None
    if not notes.budgets.left("steps"):
        return {"rd": "evaluate"}
    if rc.strategy.tool_mode == "none":
        rc.next_step = dict(_DIRECT)
        return {"rd": "continue"}
    if not notes.budgets.models_left or notes.failures >= MOST_FAILURES:
        return {"rd": "evaluate"}
    rc.next_step = await _proposed(state, config)
    if rc.next_step["kind"] == DONE:
        notes.done = True
        return {"rd": "evaluate"}
    if rc.next_step["kind"] == TOOL:
        return {"rd": _admit_tool(state, rc.next_step)}
    return {"rd": "continue"}


async def _proposed(state: GraphState, config: NodeConfig) -> JsonObject:
    rc = rc_of(state)
    tools = _offered(state, config)
    material = prompts.material_of(rc, notes_of(state), () if tools else state.messages)
    purpose = prompts.propose(rc.strategy.propose_prompt, tools=bool(tools))
    reply = await ask(state, config, purpose, material, tools=tools)
    step, fault = _step_of(reply, offered=bool(tools))
    rc.note_error(fault if not fault or fault.startswith("propose") else f"propose_next_step: {fault}")
    for call in reply.tool_calls[1:]:
        args = shown_arguments(_arguments(call)[0])
        rc.tool_requests.append({"tool": short(call.name, 64), "args": args, "decision": "one at a time"})
    return step


def _offered(state: GraphState, config: NodeConfig) -> tuple[ToolSpec, ...]:
    """Allowed tools, while the budget has calls for them."""
    usable = rc_of(state).engine_config["tools"]
    if not notes_of(state).budgets.left("tool_calls"):
        return ()
    return tuple(spec for spec in config.specs() if spec.name in usable)


def _step_of(reply: Reply, *, offered: bool) -> tuple[JsonObject, str]:
    if not reply.ok:
        return analysis_step() if reply.fault else {"kind": DONE, "step": DONE}, reply.fault
    if reply.tool_calls:
        call = reply.tool_calls[0]
        args, fault = _arguments(call)
        name = short(call.name, 64)
        return {"kind": TOOL, "step": name, "tool": name, "args": args}, fault
    found = object_in(reply.text, prompts.STEP_FIELDS)
    if found is None and offered:  # a model that is offered tools and writes prose needs none of them
        return {"kind": DONE, "step": DONE}, ""
    return step_of(found)


def _arguments(call: ToolCall) -> tuple[JsonObject, str]:
    try:
        return parse_arguments(call), ""
    except InvalidToolCall as error:
        return {}, str(error)


def _admit_tool(state: GraphState, step: JsonObject) -> str:
    """Whether a proposed tool call is made: requested, allowed, registered, and within the budget."""
    rc, notes = rc_of(state), notes_of(state)
    request = {"tool": step["tool"], "args": shown_arguments(step["args"]), "decision": "accepted"}
    rc.tool_requests.append(request)
    if step["tool"] not in rc.engine_config["tools"]:
        notes.refused = "tool_unavailable"
        error = f"The tool {step['tool']!r} is not allowed here or does not exist; it was not called."
    elif not notes.budgets.left("tool_calls"):
        notes.refused = "budget_exhausted"
        error = f"The tool {step['tool']!r} was not called: the budget of tool calls is used up."
    else:
        return "use_tool"
    request["decision"] = "refused"
    rc.note_error(error)
    rc.step_trace.append({"step": f"tool {step['tool']}", "result": "refused"})
    return "evaluate"


# -- executing ---------------------------------------------------------------------------------------------


async def execute_reasoning_step(state: GraphState, config: NodeConfig) -> JsonObject:
    """Carries out a reasoning step and notes what it came to."""
    rc, notes = rc_of(state), notes_of(state)
    rc.route_decision = "continue"
    step = rc.next_step or analysis_step()
    if not notes.budgets.try_spend("steps"):
        return {"rd": "evaluate"}
    notes.strategy_steps, notes.unjudged = notes.strategy_steps + 1, True
    material = prompts.material_of(rc, notes, state.messages, step=f"{step['kind']}: {step['step']}")
    found, fault = await ask_object(state, config, prompts.EXECUTE, material)
    rc.note_error(fault)
    result = "The step gave no usable result."
    if found is not None:
        concluded = lines(found.get("conclusions") or [])
        memory = rc.working_memory
        memory["partial_conclusions"] = _joined(memory["partial_conclusions"], concluded)
        memory["open_questions"] = lines(found.get("open_questions") or memory["open_questions"])
        result = short(found.get("summary")) or "; ".join(concluded)[:TRACED] or result
    rc.step_trace.append({"step": step["step"], "result": result})
    return {"rd": "evaluate"}


def _joined(known: list[str], more: list[str]) -> list[str]:
    return list(dict.fromkeys([*known, *more]))[-_MOST_CONCLUSIONS:]


async def run_tool_action(state: GraphState, config: NodeConfig) -> NodeResult:
    """Calls an allowed tool and notes what it answered, or how it failed."""
    rc, notes = rc_of(state), notes_of(state)
    rc.route_decision = "use_tool"
    step = rc.next_step or {}
    result = NodeResult(config.node.name, {"rd": "evaluate"})
    if not notes.budgets.try_spend("steps"):
        return result
    notes.strategy_steps, notes.unjudged = notes.strategy_steps + 1, True
    # unique within the run, and the same when it is taken up again: every proposal was a model call
    call_id = f"{config.path.replace('/', '_')}_{config.scope.steps[0]}"
    call = ToolCall(call_id, step["tool"], orjson.dumps(step["args"], default=str).decode())
    (answer,) = await config.call_tools([call], state)
    _observe(state, step, answer)
    result.messages_added = (
        Message("assistant", tool_calls=(call,)),
        Message("tool", answer.content, tool_call_id=call.id, name=call.name),
    )
    return result


def _observe(state: GraphState, step: JsonObject, answer: ToolResult) -> None:
    rc = rc_of(state)
    args = shown_arguments(step["args"])
    seen: JsonObject = {"source": "tool", "tool": step["tool"], "args": args, "success": answer.ok}
    if answer.ok:
        seen["result"] = short(answer.content, OBSERVED)
        traced = f"answered: {_traced(answer.content)}"
    else:
        seen["error"] = short(answer.content)
        traced = f"failed: {short(answer.content, TRACED)}"
        rc.note_error(f"The tool {step['tool']!r} failed ({answer.error}): {short(answer.content)}")
    rc.observations.append(seen)
    rc.step_trace.append({"step": f"tool {step['tool']}", "result": traced})


def _traced(content: str) -> str:
    """A text's beginning; of data only how much it is: its beginning says nothing."""
    is_data = content.lstrip().startswith(("{", "["))
    return f"data, {len(content)} characters" if is_data else short(content, TRACED)


# -- evaluating --------------------------------------------------------------------------------------------


async def evaluate_progress(state: GraphState, config: NodeConfig) -> JsonObject:
    """Judges what is known and decides on the route, by the table of `decisions`."""
    rc, notes = rc_of(state), notes_of(state)
    if notes.unjudged and not notes.refused:
        await _judge(state, config)
    decided = route(_facts(state))
    rc.route_decision = decided.name
    rc.termination_reason = decided.reason or None
    gaps = f", {len(rc.knowledge_gaps)} open" if rc.knowledge_gaps else ""
    rc.step_trace.append(
        {"step": config.node.name, "result": f"{decided.name}: confidence {rc.confidence:.2f}{gaps}"}
    )
    return {"rd": decided.name, "stop": _ends(decided)}


def _ends(decided: Route) -> bool:
    return bool(decided.reason)


async def _judge(state: GraphState, config: NodeConfig) -> None:
    rc, notes = rc_of(state), notes_of(state)
    material = prompts.material_of(rc, notes, state.messages)
    found, fault = await ask_object(state, config, prompts.EVALUATE, material)
    rc.note_error(fault)
    before = rc.confidence
    notes.unjudged, notes.mismatch = False, False
    if found is not None:
        rc.confidence, fault = confidence_of(found.get("confidence"), before)
        rc.note_error(f"evaluate_progress: {fault}" if fault else "")
        rc.knowledge_gaps = lines(found.get("gaps") or [])
        notes.done = notes.done or found.get("done") is True
        notes.mismatch = found.get("mismatch") is True
    notes.gains.append(rc.confidence - before)


def _facts(state: GraphState) -> Facts:
    rc, notes = rc_of(state), notes_of(state)
    settings, spec, budgets = rc.engine_config, rc.strategy, notes.budgets
    taken = notes.strategy_steps
    return Facts(
        supported=rc.confidence >= settings["threshold"] and not rc.knowledge_gaps,
        done=notes.done,
        early=spec.draft_after is not None and taken >= spec.draft_after,
        steps=budgets.left("steps"),
        models=budgets.models_left,
        dead=notes.failures >= MOST_FAILURES,
        blocked=notes.refused,
        stalled=stalls(notes.gains, settings["stall_delta"], settings["stall_evaluations"]),
        mismatch=notes.mismatch,
        spent=spec.max_steps is not None and taken >= spec.max_steps,
        can_switch=budgets.left("strategy_switches") and _next_strategy(state) is not None,
    )


# -- switching ---------------------------------------------------------------------------------------------


def _next_strategy(state: GraphState) -> tuple[str, str] | None:
    """An untried strategy that has what it needs, and why it."""
    rc = rc_of(state)
    tried = {entry["strategy"] for entry in rc.strategy_history}
    untried = [name for name in rc.available_strategies if name not in tried]
    return by_rule(eligible(untried, rc.task_profile, means_of(state)), rc.task_profile)


def switch_strategy(state: GraphState) -> JsonObject:
    """Goes over to another strategy; what is known stays, what was tried is not tried again."""
    rc, notes = rc_of(state), notes_of(state)
    chosen = _next_strategy(state)
    if chosen is not None and notes.budgets.try_spend("strategy_switches"):
        left = rc.selected_strategy
        rc.choose(chosen[0], f"{left} made no progress. {chosen[1]}")
        notes.gains, notes.strategy_steps, notes.mismatch = [], 0, False
    return {"rd": "continue"}
