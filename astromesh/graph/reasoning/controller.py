"""The graph of the controller: 13 nodes, 21 edges, a finalizer. Code alone decides which node follows.

The nodes of the loop (propose, execute, run a tool, evaluate, switch) and of the answer (draft, critique,
revise, finalize) stand below the graph. Those that start a run stand in `setup`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from astromesh.errors import InvalidToolCall, LimitReached
from astromesh.graph.base import BaseNode
from astromesh.graph.flags import NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.nodes.function import FunctionNode
from astromesh.graph.reasoning import prompts, setup
from astromesh.graph.reasoning.parsing import (
    DONE,
    MAX_LINES,
    TOOL,
    analysis_step,
    answer_in,
    confidence_of,
    critique_of,
    mark_claims,
    object_in,
    one_line,
    step_of,
    text_list,
    visible_arguments,
    without_claims,
)
from astromesh.graph.reasoning.prompts import MAX_FAILURES, Reply, ask, ask_object
from astromesh.graph.reasoning.rules import (
    SCHEMA,
    Facts,
    Route,
    by_rule,
    eligible,
    fallback_answer,
    final_output,
    is_stalled,
    route,
)
from astromesh.graph.reasoning.settings import ReasoningSettings
from astromesh.graph.reasoning.setup import resources_of
from astromesh.graph.reasoning.state import KEY, NOTES, Budgets, Notes, ReasoningState, notes_of, rc_of
from astromesh.graph.records import END, NodeResult
from astromesh.graph.state import GraphState
from astromesh.tools.results import parse_arguments
from astromesh.types import JsonObject, Message, ToolCall, ToolResult, ToolSpec

FINALIZE = "finalize_response"
_STOP = ("stop", True)


def reasoning_controller(
    settings: ReasoningSettings | Mapping[str, Any] | None = None, *, name: str = "reasoning"
) -> PromptGraph:
    """Returns the reasoning controller as a graph.

    The run's fields are `result.context["rc"]`, its final_output is `result.output`. The context may hold
    `reasoning`, with which a request narrows: constraints, evidence, allowed_tools, available_strategies,
    budget. If budgets are above the defaults, an engine of its own needs
    `max_iterations=settings.max_iterations`.

    Args:
        settings: `ReasoningSettings`, or a mapping with the keys of the YAML. None for the defaults.
        name: The name of the graph.

    Raises:
        InvalidSettings: A setting is invalid.
    """
    valid = ReasoningSettings.of(settings)
    graph = PromptGraph(name, nodes=_nodes(valid), routing="edges_only")
    for source, target, key, value, priority in EDGES:
        graph.on_output(source, target, key, value, priority=priority)
    for source, target in STRAIGHT:
        graph.always(source, target)
    return graph.set_entry("prepare_task").set_finalizer(FINALIZE)


#: Source, target, field of the output, its value, priority.
EDGES: tuple[tuple[str, str, str, Any, int], ...] = (
    ("prepare_task", FINALIZE, *_STOP, 2),
    ("prepare_task", "analyze_task", "rd", "continue", 1),
    ("analyze_task", "select_reasoning_strategy", "rd", "continue", 1),
    ("select_reasoning_strategy", FINALIZE, *_STOP, 2),
    ("select_reasoning_strategy", "prepare_working_memory", "rd", "continue", 1),
    ("prepare_working_memory", "propose_next_step", "rd", "continue", 1),
    ("propose_next_step", "run_tool_action", "rd", "use_tool", 3),
    ("propose_next_step", "execute_reasoning_step", "rd", "continue", 2),
    ("propose_next_step", "evaluate_progress", "rd", "evaluate", 1),
    ("execute_reasoning_step", "evaluate_progress", "rd", "evaluate", 1),
    ("run_tool_action", "evaluate_progress", "rd", "evaluate", 1),
    ("evaluate_progress", "draft_answer", "rd", "draft", 4),
    ("evaluate_progress", FINALIZE, *_STOP, 3),
    ("evaluate_progress", "switch_strategy", "rd", "switch_strategy", 2),
    ("evaluate_progress", "propose_next_step", "rd", "continue", 1),
    ("switch_strategy", "propose_next_step", "rd", "continue", 1),
    ("draft_answer", "critique_answer", "rd", "critique", 1),
    ("critique_answer", "revise_answer", "rd", "revise", 2),
    ("critique_answer", FINALIZE, "rd", "finalize", 1),
    ("revise_answer", FINALIZE, "rd", "finalize", 1),
)
STRAIGHT = ((FINALIZE, END),)


def _nodes(settings: ReasoningSettings) -> list[BaseNode]:
    stateful, observable = {NodeFlag.STATEFUL}, {NodeFlag.OBSERVABLE}
    # CycleDetectionHook ignores nodes with a limit of their own
    most = settings.max_iterations
    # after a failure in a node or a change by a hook the run still ends in the report
    last: Any = {"default_next": FINALIZE}
    return [
        setup.PrepareTask("prepare_task", settings.to_json(), inject_tools=True, **last),
        FunctionNode("analyze_task", setup.analyze_task, flags={NodeFlag.LIGHTWEIGHT}, **last),
        FunctionNode(
            "select_reasoning_strategy", setup.select_reasoning_strategy, flags={NodeFlag.LIGHTWEIGHT}, **last
        ),
        FunctionNode("prepare_working_memory", setup.prepare_working_memory, flags=stateful, **last),
        FunctionNode(
            "propose_next_step",
            propose_next_step,
            flags=stateful,
            inject_tools=True,
            max_iterations=most,
            **last,
        ),
        FunctionNode(
            "execute_reasoning_step",
            execute_reasoning_step,
            flags=stateful,
            max_iterations=most,
            **last,
        ),
        FunctionNode(
            "run_tool_action",
            run_tool_action,
            flags=stateful,
            inject_tools=True,
            max_iterations=most,
            **last,
        ),
        FunctionNode("evaluate_progress", evaluate_progress, flags=observable, max_iterations=most, **last),
        FunctionNode("switch_strategy", switch_strategy, flags=observable, max_iterations=most, **last),
        FunctionNode("draft_answer", draft_answer, flags=stateful, inject_tools=True, **last),
        FunctionNode(
            "critique_answer",
            critique_answer,
            flags={NodeFlag.READONLY, NodeFlag.OBSERVABLE},
            **last,
        ),
        FunctionNode("revise_answer", revise_answer, flags=stateful, **last),
        FunctionNode(
            FINALIZE,
            finalize_response,
            flags={NodeFlag.VALIDATE_OUTPUT},
            output_schema=SCHEMA,
            is_terminal=True,
        ),
    ]


#: Characters of a tool's result in the observations, and in the trace.
MAX_OBSERVATION, MAX_TRACE = 1_000, 160
_DIRECT: JsonObject = {"kind": "analysis", "step": "answer the question"}
_MAX_CONCLUSIONS = 4 * MAX_LINES


# -- proposing ---------------------------------------------------------------------------------------------
async def propose_next_step(state: GraphState, config: NodeConfig) -> JsonObject:
    """Decides on the next step. A refused, exhausted or needless one leads straight to the evaluation."""
    rc, notes = rc_of(state), notes_of(state)
    notes.refusal, rc.next_step = "", None
    if not notes.budgets.has_left("steps"):
        return {"rd": "evaluate"}
    if rc.strategy.tool_mode == "none":
        rc.next_step = dict(_DIRECT)
        return {"rd": "continue"}
    if not notes.budgets.has_model_calls_left or notes.failures >= MAX_FAILURES:
        return {"rd": "evaluate"}
    rc.next_step = await _propose(state, config)
    if rc.next_step["kind"] == DONE:
        notes.done = True
        return {"rd": "evaluate"}
    if rc.next_step["kind"] == TOOL:
        return {"rd": _admit_tool(state, rc.next_step)}
    return {"rd": "continue"}


async def _propose(state: GraphState, config: NodeConfig) -> JsonObject:
    rc = rc_of(state)
    tools = _offered_tools(state, config)
    material = prompts.material_of(rc, notes_of(state), () if tools else state.messages)
    purpose = prompts.propose(rc.strategy.propose_prompt, tools=bool(tools))
    reply = await ask(state, config, purpose, material, tools=tools)
    step, fault = _step_of(reply, offered=bool(tools))
    rc.note_error(fault if not fault or fault.startswith("propose") else f"propose_next_step: {fault}")
    for call in reply.tool_calls[1:]:
        args = visible_arguments(_arguments(call)[0])
        rc.tool_requests.append({"tool": one_line(call.name, 64), "args": args, "decision": "one at a time"})
    return step


def _offered_tools(state: GraphState, config: NodeConfig) -> tuple[ToolSpec, ...]:
    """Returns the allowed tools, while the budget has calls for them."""
    usable = rc_of(state).engine_config["tools"]
    if not notes_of(state).budgets.has_left("tool_calls"):
        return ()
    return tuple(spec for spec in config.specs() if spec.name in usable)


def _step_of(reply: Reply, *, offered: bool) -> tuple[JsonObject, str]:
    if not reply.ok:
        return analysis_step() if reply.error else {"kind": DONE, "step": DONE}, reply.error
    if reply.tool_calls:
        call = reply.tool_calls[0]
        args, fault = _arguments(call)
        name = one_line(call.name, 64)
        return {"kind": TOOL, "step": name, "tool": name, "args": args}, fault
    found = object_in(reply.text, prompts.STEP_FIELDS)
    if found is None and offered:  # a model that answers in prose needs none of the tools
        return {"kind": DONE, "step": DONE}, ""
    return step_of(found)


def _arguments(call: ToolCall) -> tuple[JsonObject, str]:
    try:
        return parse_arguments(call), ""
    except InvalidToolCall as error:
        return {}, str(error)


def _admit_tool(state: GraphState, step: JsonObject) -> str:
    """Returns the next route: a tool call must be allowed, registered and within the budget."""
    rc, notes = rc_of(state), notes_of(state)
    request = {"tool": step["tool"], "args": visible_arguments(step["args"]), "decision": "accepted"}
    rc.tool_requests.append(request)
    if step["tool"] not in rc.engine_config["tools"]:
        notes.refusal = "tool_unavailable"
        error = f"The tool {step['tool']!r} is not allowed here or does not exist; it was not called."
    elif not notes.budgets.has_left("tool_calls"):
        notes.refusal = "budget_exhausted"
        error = f"The tool {step['tool']!r} was not called: the budget of tool calls is used up."
    else:
        return "use_tool"
    request["decision"] = "refused"
    rc.note_error(error)
    rc.step_trace.append({"step": f"tool {step['tool']}", "result": "refused"})
    return "evaluate"


# -- executing ---------------------------------------------------------------------------------------------
async def execute_reasoning_step(state: GraphState, config: NodeConfig) -> JsonObject:
    """Carries out a reasoning step and stores its result."""
    rc, notes = rc_of(state), notes_of(state)
    rc.route_decision = "continue"
    step = rc.next_step or analysis_step()
    if not notes.budgets.try_spend("steps"):
        return {"rd": "evaluate"}
    notes.strategy_steps, notes.needs_evaluation = notes.strategy_steps + 1, True
    material = prompts.material_of(rc, notes, state.messages, step=f"{step['kind']}: {step['step']}")
    found, fault = await ask_object(state, config, prompts.EXECUTE, material)
    rc.note_error(fault)
    result = "The step gave no usable result."
    if found is not None:
        concluded = text_list(found.get("conclusions") or [])
        memory = rc.working_memory
        memory["partial_conclusions"] = _merge_lines(memory["partial_conclusions"], concluded)
        memory["open_questions"] = text_list(found.get("open_questions") or memory["open_questions"])
        result = one_line(found.get("summary")) or "; ".join(concluded)[:MAX_TRACE] or result
    rc.step_trace.append({"step": step["step"], "result": result})
    return {"rd": "evaluate"}


def _merge_lines(known: list[str], more: list[str]) -> list[str]:
    return list(dict.fromkeys([*known, *more]))[-_MAX_CONCLUSIONS:]


async def run_tool_action(state: GraphState, config: NodeConfig) -> NodeResult:
    """Calls an allowed tool and stores its result or failure."""
    rc, notes = rc_of(state), notes_of(state)
    rc.route_decision = "use_tool"
    step = rc.next_step or {}
    result = NodeResult(config.node.name, {"rd": "evaluate"})
    if not notes.budgets.try_spend("steps"):
        return result
    notes.strategy_steps, notes.needs_evaluation = notes.strategy_steps + 1, True
    # unique in the run and the same after a resume: every proposal was a model call
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
    args = visible_arguments(step["args"])
    observation: JsonObject = {"source": "tool", "tool": step["tool"], "args": args, "success": answer.ok}
    if answer.ok:
        observation["result"] = one_line(answer.content, MAX_OBSERVATION)
        traced = f"answered: {_trace_text(answer.content)}"
    else:
        observation["error"] = one_line(answer.content)
        traced = f"failed: {one_line(answer.content, MAX_TRACE)}"
        rc.note_error(f"The tool {step['tool']!r} failed ({answer.error}): {one_line(answer.content)}")
    rc.observations.append(observation)
    rc.step_trace.append({"step": f"tool {step['tool']}", "result": traced})


def _trace_text(content: str) -> str:
    """Returns the start of a text. Of data it returns the size, because its start says nothing."""
    is_data = content.lstrip().startswith(("{", "["))
    return f"data, {len(content)} characters" if is_data else one_line(content, MAX_TRACE)


# -- evaluating --------------------------------------------------------------------------------------------
async def evaluate_progress(state: GraphState, config: NodeConfig) -> JsonObject:
    """Judges what is known and decides on the route, by the table of `rules`."""
    rc, notes = rc_of(state), notes_of(state)
    if notes.needs_evaluation and not notes.refusal:
        await _judge(state, config)
    decided = route(_facts(state))
    rc.route_decision = decided.name
    rc.termination_reason = decided.reason or None
    gaps = f", {len(rc.knowledge_gaps)} open" if rc.knowledge_gaps else ""
    rc.step_trace.append(
        {"step": config.node.name, "result": f"{decided.name}: confidence {rc.confidence:.2f}{gaps}"}
    )
    return {"rd": decided.name, "stop": _ends_run(decided)}


def _ends_run(decided: Route) -> bool:
    return bool(decided.reason)


async def _judge(state: GraphState, config: NodeConfig) -> None:
    rc, notes = rc_of(state), notes_of(state)
    material = prompts.material_of(rc, notes, state.messages)
    found, fault = await ask_object(state, config, prompts.EVALUATE, material)
    rc.note_error(fault)
    before = rc.confidence
    notes.needs_evaluation, notes.mismatch = False, False
    if found is not None:
        rc.confidence, fault = confidence_of(found.get("confidence"), before)
        rc.note_error(f"evaluate_progress: {fault}" if fault else "")
        rc.knowledge_gaps = text_list(found.get("gaps") or [])
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
        draft_now=spec.draft_after is not None and taken >= spec.draft_after,
        has_steps=budgets.has_left("steps"),
        has_model_calls=budgets.has_model_calls_left,
        model_failing=notes.failures >= MAX_FAILURES,
        blocked=notes.refusal,
        stalled=is_stalled(notes.gains, settings["stall_delta"], settings["stall_evaluations"]),
        mismatch=notes.mismatch,
        strategy_exhausted=spec.max_steps is not None and taken >= spec.max_steps,
        can_switch=budgets.has_left("strategy_switches") and _next_strategy(state) is not None,
    )


# -- switching ---------------------------------------------------------------------------------------------
def _next_strategy(state: GraphState) -> tuple[str, str] | None:
    """Returns an untried eligible strategy and the reason for it."""
    rc = rc_of(state)
    tried = {entry["strategy"] for entry in rc.strategy_history}
    untried = [name for name in rc.available_strategies if name not in tried]
    return by_rule(eligible(untried, rc.task_profile, resources_of(state)), rc.task_profile)


def switch_strategy(state: GraphState) -> JsonObject:
    """Switches to another strategy. Knowledge stays, and tried strategies are not tried again."""
    rc, notes = rc_of(state), notes_of(state)
    chosen = _next_strategy(state)
    if chosen is not None and notes.budgets.try_spend("strategy_switches"):
        left = rc.selected_strategy
        rc.choose(chosen[0], f"{left} made no progress. {chosen[1]}")
        notes.gains, notes.strategy_steps, notes.mismatch = [], 0, False
    return {"rd": "continue"}


# -- the answer --------------------------------------------------------------------------------------------

#: The factor of the confidence if a draft could not be criticised.
UNREVIEWED_FACTOR = 0.8
#: Where the engine stores the output of critique_answer, which may not write itself (READONLY).
_CRITIQUE_KEY = "critique_answer_output"


async def draft_answer(state: GraphState, config: NodeConfig) -> JsonObject:
    """Writes the answer from working memory and observations.

    Without a model it states what is established.
    """
    rc, notes = rc_of(state), notes_of(state)
    called = any(m.role == "tool" for m in state.messages)
    tools = tuple(s for s in config.specs() if s.name in rc.engine_config["tools"]) if called else ()
    material = prompts.material_of(rc, notes, () if tools else state.messages)
    # not in the role `assistant`: a draft may hold thinking, which is removed before anybody reads it
    reply = await ask(state, config, prompts.DRAFT, material, tools=tools, tool_choice="none")
    rc.note_error(reply.error)
    rc.draft_answer = answer_in(reply.text)
    if not rc.draft_answer:
        notes.is_fallback = True
        rc.draft_answer = fallback_answer(rc)
    return {"rd": "critique"}


async def critique_answer(state: GraphState, config: NodeConfig) -> JsonObject:
    """Reviews the draft. The findings are its output, which revise and finalize read."""
    rc, notes = rc_of(state), notes_of(state)
    if (
        notes.is_fallback
        or not notes.budgets.has_model_calls_left
        or not notes.budgets.try_spend("critique_rounds")
    ):
        return {"rd": "finalize"}
    material = prompts.material_of(rc, notes, state.messages, draft=rc.draft_answer)
    found, fault = await ask_object(state, config, prompts.CRITIQUE, material)
    critique = critique_of(found) if found is not None else None
    if critique is None:
        fault = fault or f"{config.node.name}: the model's answer is not a critique."
        return {"rd": "finalize", "error": f"{fault} The draft was not criticised."}
    return {"rd": "finalize" if critique["acceptable"] else "revise", "critique": critique}


def _apply_critique(state: GraphState, rc: ReasoningState) -> None:
    """Copies the findings of the critique to the state."""
    found = state.context.pop(_CRITIQUE_KEY, None) or {}
    rc.critique = found.get("critique", rc.critique)
    if found.get("error"):
        rc.note_error(found["error"])
        rc.confidence *= UNREVIEWED_FACTOR


async def revise_answer(state: GraphState, config: NodeConfig) -> JsonObject:
    """Removes or marks what is unsupported and resolves the other findings."""
    rc, notes = rc_of(state), notes_of(state)
    _apply_critique(state, rc)
    critique = rc.critique or {}
    claims = critique.get("unsupported_claims", [])
    findings = {key: value for key, value in critique.items() if key != "acceptable" and value}
    material = prompts.material_of(rc, notes, state.messages, draft=rc.draft_answer, findings=findings)
    reply = await ask(state, config, prompts.REVISE, material)
    rc.note_error(reply.error)
    revised = answer_in(reply.text)
    # the draft states a claim as a fact, so it goes; the reviser may have qualified it, so it is marked
    rc.revised_answer = (
        mark_claims(revised, claims) if revised else without_claims(rc.draft_answer or "", claims)
    )
    return {"rd": "finalize"}


def finalize_response(state: GraphState) -> NodeResult:
    """Builds final_output without a model. It also runs when the engine had to stop the run."""
    rc, notes = _state_or_empty(state)
    _apply_critique(state, rc)
    rc.budget_used = notes.budgets.used()
    finished = _is_finished(state, rc)
    rc.final_output = final_output(rc, notes, finished=finished, cut_short=_early_end_reason(state))
    notes.budgets.close()  # the report has read what is left
    answer = Message("assistant", rc.final_output["answer"])
    return NodeResult("finalize_response", rc.final_output, messages_added=(answer,))


def _is_finished(state: GraphState, rc: ReasoningState) -> bool:
    """Whether the draft was fully processed. A run that was stopped before its revision loses the claims."""
    claims = (rc.critique or {}).get("unsupported_claims")
    unrevised = rc.revised_answer is None and rc.critique is not None and not rc.critique["acceptable"]
    if unrevised and claims:
        rc.revised_answer = without_claims(rc.draft_answer or "", claims)
    return rc.draft_answer is not None and "critique_answer" in state.visited and not unrevised


def _early_end_reason(state: GraphState) -> str:
    """Returns why a run ended without a decision: a node failed, or a limit of the run was reached."""
    last = state.last_result
    broke = last is not None and last.error and not isinstance(last.exception, LimitReached)
    return "error" if broke else "budget_exhausted"


def _state_or_empty(state: GraphState) -> tuple[ReasoningState, Notes]:
    """Returns the state, also of a run that was stopped before its first node."""
    rc = state.context.setdefault(KEY, ReasoningState(input=state.question))
    if NOTES not in state.context:
        state.context[NOTES] = Notes(Budgets(state.ledger, {}))
    return rc, state.context[NOTES]
