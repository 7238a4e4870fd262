"""The nodes of the loop and of the answer. Those that start a run stand in `setup`.

The loop proposes a step, carries it out or calls a tool, evaluates, and may switch the strategy.
Then the answer is drafted, criticised, revised and reported.
"""

from __future__ import annotations

import orjson

from astromesh.errors import InvalidToolCall, LimitReached
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.reasoning import prompts
from astromesh.graph.reasoning.parsing import (
    DONE,
    MAX_LINES,
    TOOL,
    analysis_step,
    answer_in,
    confidence_of,
    critique_of,
    cut,
    line_of,
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
    Facts,
    by_rule,
    eligible,
    fallback_answer,
    final_output,
    is_stalled,
    route,
)
from astromesh.graph.reasoning.setup import resources_of
from astromesh.graph.reasoning.state import KEY, NOTES, Budgets, Notes, ReasoningState, notes_of, rc_of
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.tools.json_schema import parse_arguments
from astromesh.types import JsonObject, Message, ToolCall, ToolResult, ToolSpec

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
        merged = list(dict.fromkeys([*memory["partial_conclusions"], *concluded]))
        memory["partial_conclusions"] = merged[-_MAX_CONCLUSIONS:]
        memory["open_questions"] = text_list(found.get("open_questions") or memory["open_questions"])
        result = one_line(found.get("summary")) or "; ".join(concluded)[:MAX_TRACE] or result
    rc.step_trace.append({"step": step["step"], "result": result})
    return {"rd": "evaluate"}


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
        observation["result"] = cut(answer.content, MAX_OBSERVATION)
        traced = f"answered: {_trace_text(answer.content)}"
    else:
        observation["error"] = cut(answer.content, MAX_OBSERVATION)
        traced = f"failed: {line_of(answer.content, MAX_TRACE)}"
        rc.note_error(f"The tool {step['tool']!r} failed ({answer.error}): {line_of(answer.content)}")
    rc.observations.append(observation)
    rc.step_trace.append({"step": f"tool {step['tool']}", "result": traced})


def _trace_text(content: str) -> str:
    """Returns the start of a text. Of data it returns the size, because its start says nothing."""
    is_data = content.lstrip().startswith(("{", "["))
    return f"data, {len(content)} characters" if is_data else line_of(content, MAX_TRACE)


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
    return {"rd": decided.name, "stop": bool(decided.reason)}


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
    steps = notes.strategy_steps
    return Facts(
        supported=rc.confidence >= settings["threshold"] and not rc.knowledge_gaps,
        done=notes.done,
        draft_now=spec.draft_after is not None and steps >= spec.draft_after,
        has_steps=budgets.has_left("steps"),
        has_model_calls=budgets.has_model_calls_left,
        model_failing=notes.failures >= MAX_FAILURES,
        blocked=notes.refusal,
        stalled=is_stalled(notes.gains, settings["stall_delta"], settings["stall_evaluations"]),
        mismatch=notes.mismatch,
        strategy_exhausted=spec.max_steps is not None and steps >= spec.max_steps,
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
    has_results = any(m.role == "tool" for m in state.messages)
    tools = tuple(s for s in config.specs() if s.name in rc.engine_config["tools"]) if has_results else ()
    material = prompts.material_of(rc, notes, () if tools else state.messages)
    # not in the role `assistant`: a draft may hold thinking, which is removed before anybody reads it
    reply = await ask(state, config, prompts.DRAFT, material, tools=tools, tool_choice="none")
    rc.note_error(reply.error)
    rc.draft_answer = answer_in(reply.text)
    if not rc.draft_answer.strip():
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
        mark_claims(revised, claims) if revised.strip() else without_claims(rc.draft_answer or "", claims)
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
    criticised = any(result.node_name == "critique_answer" for result in state.node_history)
    return rc.draft_answer is not None and criticised and not unrevised


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
