"""The nodes that set a run up: they prepare, analyze, select a strategy and seed the working memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from astromesh.graph.base import BaseNode, NodeKeywords
from astromesh.graph.config import NodeConfig
from astromesh.graph.reasoning import prompts
from astromesh.graph.reasoning.asking import ask_object
from astromesh.graph.reasoning.budgets import Budgets, narrowed
from astromesh.graph.reasoning.decisions import Means, by_rule, eligible
from astromesh.graph.reasoning.reading import CONSERVATIVE, LINES, lines, profile_of, short
from astromesh.graph.reasoning.settings import STRATEGIES, ReasoningSettings
from astromesh.graph.reasoning.state import KEY, NOTES, Notes, ReasoningState, notes_of, rc_of
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.types import JsonObject

#: in the context: what a request says about its reasoning, and a task that stands for the question
REQUEST, INPUT = "reasoning", "input"
_KEYS = ("constraints", "evidence", "allowed_tools", "available_strategies", "budget")
#: characters of one piece of evidence
_EVIDENCE = 6_000


class PrepareTask(BaseNode):
    """Validates the input and sets every field of the state.

    Args:
        settings: those of `ReasoningSettings`, as plain data.
        keywords: see `NodeKeywords`.
    """

    own = ("settings",)

    def __init__(
        self, name: str, settings: Mapping[str, Any] | None = None, **keywords: Unpack[NodeKeywords]
    ) -> None:
        super().__init__(name, **keywords)
        self.settings = dict(settings or {})
        self._valid = ReasoningSettings.of(self.settings)

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        rc = state.context[KEY] = ReasoningState(input=state.context.get(INPUT, state.question))
        request = _request(state.context.get(REQUEST), rc)
        rc.engine_config = self._valid.to_json()
        rc.constraints = _constraints(request, rc)
        caps, errors = narrowed(self._valid.caps, request.get("budget"), rc.constraints.get("budget"))
        rc.reasoning_budget = caps
        state.context[NOTES] = notes = Notes(Budgets(state.ledger, caps))
        rc.budget_used = notes.budgets.used()
        for error in errors:
            rc.note_error(error)
        rc.available_strategies = _strategies(request, rc)
        rc.engine_config["tools"] = _tools(request, config, rc)
        notes.evidence = _evidence(request, rc)
        return NodeResult(self.name, _begun(rc))


def _begun(rc: ReasoningState) -> JsonObject:
    """Whether there is a task at all."""
    if not isinstance(rc.input, str):
        rc.note_error(f"The input must be a text, not {type(rc.input).__name__}.")
        rc.input = ""
    rc.normalized_input = " ".join(rc.input.split())
    if rc.normalized_input:
        return {"rd": "continue", "stop": False}
    rc.route_decision, rc.termination_reason = "fail", "invalid_input"
    return {"rd": "fail", "stop": True}


def _request(given: Any, rc: ReasoningState) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        rc.note_error("context.reasoning must be an object; it is ignored.")
        return {}
    for key in given.keys() - set(_KEYS):
        rc.note_error(f"context.reasoning has no key {short(str(key), 40)!r}; it is ignored.")
    return given


def _constraints(request: Mapping[str, Any], rc: ReasoningState) -> JsonObject:
    given = request.get("constraints")
    if isinstance(given, Mapping):
        return {str(key): value for key, value in given.items()}
    if given is not None:
        rc.note_error("The constraints must be an object; they are ignored.")
    return {}


def _strategies(request: Mapping[str, Any], rc: ReasoningState) -> list[str]:
    configured: list[str] = rc.engine_config["strategies"]
    wanted = request.get("available_strategies")
    if wanted is None:
        return list(configured)
    kept = []
    for name in _names(wanted, "available_strategies", rc):
        if name in configured:
            kept.append(name)
        else:
            why = "is not available here" if name in STRATEGIES else "does not exist"
            rc.note_error(f"The strategy {short(name, 40)!r} {why}; it is ignored.")
    return list(dict.fromkeys(kept))


def _tools(request: Mapping[str, Any], config: NodeConfig, rc: ReasoningState) -> dict[str, str]:
    """Tools that are registered, allowed by the operator and by the request, with their descriptions."""
    tools = {spec.name: short(spec.description) for spec in config.specs()}
    allowed, wanted = rc.engine_config["allowed_tools"], request.get("allowed_tools")
    if allowed is not None:
        tools = {name: tools[name] for name in tools if name in allowed}
    if wanted is not None:
        names = _names(wanted, "allowed_tools", rc)
        tools = {name: tools[name] for name in tools if name in names}
    return tools


def _evidence(request: Mapping[str, Any], rc: ReasoningState) -> list[tuple[str, str]]:
    """Evidence as pairs of source and text: a text, an object by source, or a list of texts and records."""
    given = request.get("evidence")
    if isinstance(given, Mapping):
        given = [{"source": key, "content": value} for key, value in given.items()]
    if not isinstance(given, str | list | tuple):
        rc.note_error("" if given is None else "The evidence must be a text, an object or a list.")
        return []
    found = []
    for place, item in enumerate([given] if isinstance(given, str) else given, 1):
        record = item if isinstance(item, Mapping) else {"content": item}
        text = next((record[key] for key in ("content", "text", "result") if record.get(key)), None)
        if text is None:
            rc.note_error(f"Evidence {place} has no content; it is ignored.")
            continue
        found.append((short(record.get("source"), 120) or f"evidence {place}", str(text)[:_EVIDENCE]))
    return found


def _names(given: Any, key: str, rc: ReasoningState) -> list[str]:
    """A list of names; what is none narrows to nothing, which is the cautious reading."""
    if isinstance(given, list | tuple) and all(isinstance(name, str) for name in given):
        return list(given)
    rc.note_error(f"context.reasoning.{key} must be a list of names.")
    return []


# -- analysis ----------------------------------------------------------------------------------------------


async def analyze_task(state: GraphState, config: NodeConfig) -> JsonObject:
    """Classifies complexity, risk, evidence needs, tool needs and the kind of output."""
    rc, notes = rc_of(state), notes_of(state)
    tools = [f"{name}: {described}" for name, described in rc.engine_config["tools"].items()]
    material = prompts.material_of(rc, notes, available_tools=tools)
    found, fault = await ask_object(state, config, prompts.ANALYZE, material)
    rc.note_error(fault)
    profile = dict(CONSERVATIVE)
    if found is not None:
        profile, fault = profile_of(found)
        rc.note_error(f"analyze_task: {fault}" if fault else "")
    rc.task_profile = profile
    rc.working_memory = _seeds(rc, found or {})
    return {"rd": "continue"}


def _seeds(rc: ReasoningState, found: JsonObject) -> JsonObject:
    return {
        "subgoals": lines(found.get("subgoals") or []) or [short(rc.normalized_input)],
        "assumptions": lines(found.get("assumptions") or []),
        "open_questions": lines(found.get("open_questions") or []),
        "partial_conclusions": [],
        "open_decisions": [],
    }


# -- selection ---------------------------------------------------------------------------------------------


def means_of(state: GraphState) -> Means:
    """What strategies can count on now."""
    budgets = notes_of(state).budgets
    tools = rc_of(state).engine_config["tools"]
    return Means(tuple(tools), budgets.left("tool_calls"), budgets.left("critique_rounds"))


async def select_reasoning_strategy(state: GraphState, config: NodeConfig) -> JsonObject:
    """Chooses the first strategy: the selector's word, where it names one that has what it needs."""
    rc = rc_of(state)
    names = eligible(rc.available_strategies, rc.task_profile, means_of(state))
    if len(names) == 1:
        rc.choose(names[0], "It is the only strategy that is available and has what it needs.")
    elif names:
        await _selected(state, config, names)
    if rc.selected_strategy is not None:
        return {"rd": "continue", "stop": False}
    rc.note_error("select_reasoning_strategy: no strategy is available for this task.")
    rc.termination_reason = "strategy_unavailable"
    fails = rc.engine_config["on_strategy_unavailable"] == "fail"
    rc.route_decision = "fail" if fails else "partial"
    return {"rd": rc.route_decision, "stop": True}


async def _selected(state: GraphState, config: NodeConfig, names: Sequence[str]) -> None:
    rc = rc_of(state)
    material = prompts.material_of(rc, notes_of(state), profile=rc.task_profile)
    found, fault = await ask_object(state, config, prompts.select(names), material)
    rc.note_error(fault)
    named = short((found or {}).get("strategy") or (found or {}).get("selected_strategy"), 40)
    if named in names:
        reason = short((found or {}).get("reason"))
        rc.choose(named, reason or "The selector chose it.")
        return
    if found is not None:
        rc.note_error(f"select_reasoning_strategy: {named!r} is no strategy that is available here.")
    # a strategy of the operator's that lacks its tool or its critique is no failure: another one does
    _fall_back(state, names, failed=named not in rc.available_strategies)


def _fall_back(state: GraphState, names: Sequence[str], *, failed: bool) -> None:
    """The rules choose; where the selector failed on a complex task, the run can be partial at best."""
    rc, notes = rc_of(state), notes_of(state)
    if failed and not rc.is_simple:
        notes.selection_failed = True
        if rc.engine_config["on_strategy_unavailable"] == "fail":
            return
    simple = failed and rc.is_simple and "direct" in names
    chosen = ("direct", "The task is simple.") if simple else by_rule(names, rc.task_profile)
    if chosen is not None:
        rc.choose(*chosen)


# -- working memory ----------------------------------------------------------------------------------------


def prepare_working_memory(state: GraphState) -> JsonObject:
    """Seeds subgoals, assumptions and open questions, and takes the request's evidence as observations."""
    rc, notes = rc_of(state), notes_of(state)
    rc.observations = [
        {"source": source, "result": short(text, 1000), "success": True}
        for source, text in notes.evidence[: 4 * LINES]
    ]
    needs = rc.task_profile["evidence_needs"]
    rc.working_memory["open_decisions"] = [f"How to establish: {need}" for need in needs]
    return {"rd": "continue"}
