"""The nodes that answer: draft, critique, revise, finalize."""

from __future__ import annotations

from astromesh.errors import LimitReached
from astromesh.graph.config import NodeConfig
from astromesh.graph.reasoning import prompts, report
from astromesh.graph.reasoning.asking import ask, ask_object
from astromesh.graph.reasoning.budgets import Budgets
from astromesh.graph.reasoning.hidden import answer_in
from astromesh.graph.reasoning.reading import critique_of, flagged, without_claims
from astromesh.graph.reasoning.state import KEY, NOTES, Notes, ReasoningState, notes_of, rc_of
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.types import JsonObject, Message

#: what is left of the confidence when a draft could not be criticised
DOUBT = 0.8
#: where the engine keeps what critique_answer found: the node itself may not write (READONLY)
_FOUND = "critique_answer_output"


async def draft_answer(state: GraphState, config: NodeConfig) -> JsonObject:
    """Writes the answer from working memory and observations; without a model, from what is established."""
    rc, notes = rc_of(state), notes_of(state)
    called = any(m.role == "tool" for m in state.messages)
    tools = tuple(s for s in config.specs() if s.name in rc.engine_config["tools"]) if called else ()
    material = prompts.material_of(rc, notes, () if tools else state.messages)
    # never the run's own voice: a draft may hold thinking, which is taken out before anybody reads it
    reply = await ask(state, config, prompts.DRAFT, material, tools=tools, tool_choice="none")
    rc.note_error(reply.fault)
    rc.draft_answer = answer_in(reply.text)
    if not rc.draft_answer:
        notes.makeshift = True
        rc.draft_answer = report.synthesis(rc)
    return {"rd": "critique"}


async def critique_answer(state: GraphState, config: NodeConfig) -> JsonObject:
    """Reviews the draft; what it finds is its output, which revise and finalize take over."""
    rc, notes = rc_of(state), notes_of(state)
    if notes.makeshift or not notes.budgets.models_left or not notes.budgets.try_spend("critique_rounds"):
        return {"rd": "finalize"}
    material = prompts.material_of(rc, notes, state.messages, draft=rc.draft_answer)
    found, fault = await ask_object(state, config, prompts.CRITIQUE, material)
    critique = critique_of(found) if found is not None else None
    if critique is None:
        fault = fault or f"{config.node.name}: the model's answer is no critique."
        return {"rd": "finalize", "error": f"{fault} The draft was not criticised."}
    return {"rd": "finalize" if critique["acceptable"] else "revise", "critique": critique}


def _take_over(state: GraphState, rc: ReasoningState) -> None:
    """What the critique found becomes part of the state."""
    found = state.context.pop(_FOUND, None) or {}
    rc.critique = found.get("critique", rc.critique)
    if found.get("error"):
        rc.note_error(found["error"])
        rc.confidence *= DOUBT


async def revise_answer(state: GraphState, config: NodeConfig) -> JsonObject:
    """Removes or marks what is unsupported and resolves what else the critique found."""
    rc, notes = rc_of(state), notes_of(state)
    _take_over(state, rc)
    critique = rc.critique or {}
    claims = critique.get("unsupported_claims", [])
    findings = {key: value for key, value in critique.items() if key != "acceptable" and value}
    material = prompts.material_of(rc, notes, state.messages, draft=rc.draft_answer, findings=findings)
    reply = await ask(state, config, prompts.REVISE, material)
    rc.note_error(reply.fault)
    revised = answer_in(reply.text)
    # the draft states a claim as a fact: out with it; the reviser may have qualified it: mark it
    rc.revised_answer = flagged(revised, claims) if revised else without_claims(rc.draft_answer or "", claims)
    return {"rd": "finalize"}


def finalize_response(state: GraphState) -> NodeResult:
    """Builds final_output. Asks no model: it is also what runs when the engine had to stop the run."""
    rc, notes = _whatever_there_is(state)
    _take_over(state, rc)
    rc.budget_used = notes.budgets.used()
    finished = _is_finished(state, rc)
    rc.final_output = report.final_output(rc, notes, finished=finished, cut_short=_cut_short(state))
    notes.budgets.close()  # the report still asks what is left
    answer = Message("assistant", rc.final_output["answer"])
    return NodeResult("finalize_response", rc.final_output, messages_added=(answer,))


def _is_finished(state: GraphState, rc: ReasoningState) -> bool:
    """Whether the draft went all its way. A run that was stopped before its revision loses the claims."""
    claims = (rc.critique or {}).get("unsupported_claims")
    unrevised = rc.revised_answer is None and rc.critique is not None and not rc.critique["acceptable"]
    if unrevised and claims:
        rc.revised_answer = without_claims(rc.draft_answer or "", claims)
    return rc.draft_answer is not None and "critique_answer" in state.visited and not unrevised


def _cut_short(state: GraphState) -> str:
    """Why a run ended that had not decided to: a node broke, or a limit of the run was reached."""
    last = state.last_result
    broke = last is not None and last.error and not isinstance(last.exception, LimitReached)
    return "error" if broke else "budget_exhausted"


def _whatever_there_is(state: GraphState) -> tuple[ReasoningState, Notes]:
    """The state also of a run that was stopped before its first node."""
    rc = state.context.setdefault(KEY, ReasoningState(input=state.question))
    if NOTES not in state.context:
        state.context[NOTES] = Notes(Budgets(state.ledger, {}))
    return rc, state.context[NOTES]
