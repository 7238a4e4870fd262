"""The first nodes: they prepare, analyze, select a strategy and seed the working memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from astromesh.graph.base import BaseNode, NodeKeywords
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.reasoning import prompts
from astromesh.graph.reasoning.parsing import DEFAULT_PROFILE, MAX_LINES, cut, one_line, profile_of, text_list
from astromesh.graph.reasoning.prompts import ask_object
from astromesh.graph.reasoning.rules import Resources, by_rule, eligible
from astromesh.graph.reasoning.state import (
    KEY,
    NOTES,
    RESTORES,
    STRATEGIES,
    Budgets,
    Notes,
    ReasoningSettings,
    ReasoningState,
    narrow_caps,
    notes_of,
    rc_of,
)
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.types import JsonObject

#: Keys of the context: the request's reasoning options, and a task that replaces the question.
REQUEST, INPUT = "reasoning", "input"
_REQUEST_KEYS = ("constraints", "evidence", "allowed_tools", "available_strategies", "budget")
#: Characters of one piece of evidence.
_MAX_EVIDENCE = 6_000


class PrepareTask(BaseNode):
    """Validates the input and sets every field of the state.

    Args:
        settings: Those of `ReasoningSettings`, as plain data.
        keywords: See `NodeKeywords`.
    """

    constructor_keys = ("settings",)
    restores = RESTORES

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
        caps, errors = narrow_caps(
            self._valid.budgets.model_dump(), request.get("budget"), rc.constraints.get("budget")
        )
        rc.reasoning_budget = caps
        state.context[NOTES] = notes = Notes(Budgets(state.ledger, caps))
        rc.budget_used = notes.budgets.used()
        for error in errors:
            rc.note_error(error)
        rc.available_strategies = _strategies(request, rc)
        rc.engine_config["tools"] = _tools(request, config, rc)
        notes.evidence = _evidence(request, rc)
        return NodeResult(self.name, _normalize_input(rc))


def _normalize_input(rc: ReasoningState) -> JsonObject:
    """Decides whether there is a task at all."""
    if not isinstance(rc.input, str):
        rc.note_error(f"The input must be a text, not {type(rc.input).__name__}.")
        rc.input = ""
    rc.normalized_input = " ".join(rc.input.split())
    if rc.normalized_input:
        return {"rd": "continue", "stop": False}
    rc.route_decision, rc.termination_reason = "fail", "invalid_input"
    return {"rd": "fail", "stop": True}


def _request(value: Any, rc: ReasoningState) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        rc.note_error("context.reasoning must be an object; it is ignored.")
        return {}
    for key in value.keys() - set(_REQUEST_KEYS):
        rc.note_error(f"context.reasoning has no key {one_line(str(key), 40)!r}; it is ignored.")
    return value


def _constraints(request: Mapping[str, Any], rc: ReasoningState) -> JsonObject:
    value = request.get("constraints")
    if isinstance(value, Mapping):
        return {str(key): value for key, value in value.items()}
    if value is not None:
        rc.note_error("The constraints must be an object; they are ignored.")
    return {}


def _strategies(request: Mapping[str, Any], rc: ReasoningState) -> list[str]:
    configured: list[str] = rc.engine_config["strategies"]
    requested = request.get("available_strategies")
    if requested is None:
        return list(configured)
    names = []
    for name in _names(requested, "available_strategies", rc):
        if name in configured:
            names.append(name)
        else:
            why = "is not available here" if name in STRATEGIES else "does not exist"
            rc.note_error(f"The strategy {one_line(name, 40)!r} {why}; it is ignored.")
    return list(dict.fromkeys(names))


def _tools(request: Mapping[str, Any], config: NodeConfig, rc: ReasoningState) -> dict[str, str]:
    """Returns the tools that are registered and allowed by operator and request, with their descriptions."""
    tools = {spec.name: one_line(spec.description) for spec in config.specs()}
    allowed, requested = rc.engine_config["allowed_tools"], request.get("allowed_tools")
    if allowed is not None:
        tools = {name: tools[name] for name in tools if name in allowed}
    if requested is not None:
        names = _names(requested, "allowed_tools", rc)
        tools = {name: tools[name] for name in tools if name in names}
    return tools


def _evidence(request: Mapping[str, Any], rc: ReasoningState) -> list[tuple[str, str]]:
    """Returns pairs of source and text, from a text, an object by source, or a list of texts and records."""
    value = request.get("evidence")
    if isinstance(value, Mapping):
        value = [{"source": key, "content": value} for key, value in value.items()]
    if not isinstance(value, str | list | tuple):
        rc.note_error("" if value is None else "The evidence must be a text, an object or a list.")
        return []
    found = []
    for place, item in enumerate([value] if isinstance(value, str) else value, 1):
        record = item if isinstance(item, Mapping) else {"content": item}
        text = next((record[key] for key in ("content", "text", "result") if record.get(key)), None)
        if text is None:
            rc.note_error(f"Evidence {place} has no content; it is ignored.")
            continue
        found.append((one_line(record.get("source"), 120) or f"evidence {place}", str(text)[:_MAX_EVIDENCE]))
    return found


def _names(value: Any, key: str, rc: ReasoningState) -> list[str]:
    """Returns a list of names. An invalid value narrows to nothing, which is the cautious reading."""
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return list(value)
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
    profile = dict(DEFAULT_PROFILE)
    if found is not None:
        profile, fault = profile_of(found)
        rc.note_error(f"analyze_task: {fault}" if fault else "")
    rc.task_profile = profile
    rc.working_memory = _seeds(rc, found or {})
    return {"rd": "continue"}


def _seeds(rc: ReasoningState, found: JsonObject) -> JsonObject:
    return {
        "subgoals": text_list(found.get("subgoals") or []) or [one_line(rc.normalized_input)],
        "assumptions": text_list(found.get("assumptions") or []),
        "open_questions": text_list(found.get("open_questions") or []),
        "partial_conclusions": [],
        "open_decisions": [],
    }


# -- selection ---------------------------------------------------------------------------------------------


def resources_of(state: GraphState) -> Resources:
    """Returns the resources that strategies have now."""
    budgets = notes_of(state).budgets
    tools = rc_of(state).engine_config["tools"]
    return Resources(tuple(tools), budgets.has_left("tool_calls"), budgets.has_left("critique_rounds"))


async def select_reasoning_strategy(state: GraphState, config: NodeConfig) -> JsonObject:
    """Selects the first strategy: that of the model, if it names an eligible one."""
    rc = rc_of(state)
    names = eligible(rc.available_strategies, rc.task_profile, resources_of(state))
    if len(names) == 1:
        rc.choose(names[0], "It is the only available strategy that has its resources.")
    elif names:
        await _select_by_model(state, config, names)
    if rc.selected_strategy is not None:
        return {"rd": "continue", "stop": False}
    rc.note_error("select_reasoning_strategy: no strategy is available for this task.")
    rc.termination_reason = "strategy_unavailable"
    fails = rc.engine_config["on_strategy_unavailable"] == "fail"
    rc.route_decision = "fail" if fails else "partial"
    return {"rd": rc.route_decision, "stop": True}


async def _select_by_model(state: GraphState, config: NodeConfig, names: Sequence[str]) -> None:
    rc = rc_of(state)
    material = prompts.material_of(rc, notes_of(state), profile=rc.task_profile)
    found, fault = await ask_object(state, config, prompts.select(names), material)
    rc.note_error(fault)
    strategy = one_line((found or {}).get("strategy") or (found or {}).get("selected_strategy"), 40)
    if strategy in names:
        reason = one_line((found or {}).get("reason"))
        rc.choose(strategy, reason or "The selector chose it.")
        return
    if found is not None:
        rc.note_error(f"select_reasoning_strategy: {strategy!r} is not an available strategy.")
    # without its tool or critique, an available strategy is skipped, which is not a failure
    _select_by_rule(state, names, failed=strategy not in rc.available_strategies)


def _select_by_rule(state: GraphState, names: Sequence[str], *, failed: bool) -> None:
    """Selects by rule. If the model failed on a complex task, the run can be partial at best."""
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
        {"source": source, "result": cut(text, 1000), "success": True}
        for source, text in notes.evidence[: 4 * MAX_LINES]
    ]
    needs = rc.task_profile["evidence_needs"]
    rc.working_memory["open_decisions"] = [f"How to establish: {need}" for need in needs]
    return {"rd": "continue"}
