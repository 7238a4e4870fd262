"""The reasoning nodes: PromptNodes with a purpose, default flags (document 002) and a place for findings.

They ask in their own role, not as the assistant, and add nothing to the conversation: their findings stand in
the state, in their output and in `output_key`. SynthesizeNode writes the answer, as the assistant.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, ClassVar, Unpack

from astromesh.graph.base import NodeKeywords
from astromesh.graph.flags import NodeFlag
from astromesh.graph.model_output import extract_object, extract_values
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.nodes.prompt import PromptNode
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState

_NUMBERED = re.compile(r"^\s*(?:\d+[.)]|[-*•])\s+", re.MULTILINE)
SEVERITIES = ("none", "low", "medium", "high")


class ReasoningNode(PromptNode):
    """A PromptNode that thinks for the graph and not for the reader.

    Args:
        keywords: See `NodeKeywords`. `instructions` come after the node's own purpose.
    """

    event_role: ClassVar[str] = "reasoning"
    constructor_keys: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, **keywords: Unpack[NodeKeywords]) -> None:
        super().__init__(name, role=self.event_role, **keywords)

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        result = await super().execute(state, config)
        if not result.tool_calls:
            self._finish(result, state)
        return result

    def _finish(self, result: NodeResult, state: GraphState) -> None:
        result.messages_added = ()
        if not result.error:
            self._store(result, state)

    def _store(self, result: NodeResult, state: GraphState) -> None:
        """Stores the findings in the state. It may choose the next node."""


class ThinkNode(ReasoningNode):
    """Analyses what is known, what is missing and what to do next. The output is the thought, a text."""

    event_role = "think"
    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.READONLY, NodeFlag.LIGHTWEIGHT})
    purpose = (
        "Think about the task: what is asked, what is known, what is missing, and what should happen next. "
        "Be brief. Do not answer the task yet."
    )


class ReflectNode(ReasoningNode):
    """Reviews the work so far. The output is the reflection, which is appended to `state.reflections`."""

    event_role = "reflect"
    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.STATEFUL, NodeFlag.OBSERVABLE})
    purpose = (
        "Look back on the work so far: what went well, what is wrong or missing, and what to do differently. "
        "Be brief and concrete."
    )

    def _store(self, result: NodeResult, state: GraphState) -> None:
        state.reflections.append(result.output)


class ObserveNode(ReasoningNode):
    """Notes what the conversation establishes.

    The output is `{"entities": {...}, "facts": [...]}`. Both are merged into the context under these names,
    and the facts are appended to `state.observations`.
    """

    event_role = "observe"
    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.STATEFUL})
    purpose = (
        "Extract what the conversation and its tool results establish. Answer with one JSON object: "
        '{"entities": {"NAME": "WHAT IT IS"}, "facts": ["FACT"]}. State only what is supported.'
    )

    def _store(self, result: NodeResult, state: GraphState) -> None:
        found = _object(result) or {"facts": [result.raw_output]}
        entities, facts = found.get("entities"), found.get("facts")
        entities = entities if isinstance(entities, dict) else dict.fromkeys(_list(entities), "")
        facts = _list(facts)
        context = state.context
        context["entities"] = {**context.get("entities", {}), **entities}
        context["facts"] = [*context.get("facts", ()), *facts]
        state.observations.extend(facts)
        result.output = {"entities": entities, "facts": facts}


class JustifyNode(ReasoningNode):
    """Gives the reasons for a decision, for an audit. The output is the justification, a text."""

    event_role = "justify"
    default_flags: ClassVar[frozenset[Hashable]] = frozenset(
        {NodeFlag.READONLY, NodeFlag.OBSERVABLE, NodeFlag.VERBOSE}
    )
    purpose = (
        "Justify the decision or answer so far for an auditor: the evidence, the assumptions, the "
        "alternatives that were rejected and why. Refer only to what stands in the conversation."
    )


class CritiqueNode(ReasoningNode):
    """Looks for faults in the work so far.

    The output is `{"severity": "none | low | medium | high", "issues": [...]}`.

    Args:
        revise: The next node if the critique is at least as severe as `threshold`.
        threshold: `low`, `medium` or `high`.
        keywords: See `NodeKeywords`.
    """

    event_role = "critic"
    constructor_keys: ClassVar[tuple[str, ...]] = ("revise", "threshold")
    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.READONLY, NodeFlag.OBSERVABLE})
    purpose = (
        "Criticise the work so far: errors, unsupported claims, gaps, unclear parts. Answer with one JSON "
        'object: {"severity": "none | low | medium | high", "issues": ["ISSUE"]}.'
    )

    def __init__(
        self, name: str, *, revise: str = "", threshold: str = "medium", **keywords: Unpack[NodeKeywords]
    ) -> None:
        if threshold not in SEVERITIES:
            raise ValueError(
                f"Node {name!r}: threshold must be one of {', '.join(SEVERITIES)}, not {threshold!r}."
            )
        super().__init__(name, **keywords)
        self.add_routes(revise)
        self.revise, self.threshold = revise, threshold

    def _store(self, result: NodeResult, state: GraphState) -> None:
        found = _object(result) or {"issues": [result.raw_output]}
        level = str(found.get("severity", "")).lower()
        # a critique without a severity has issues all the same
        severity = level if level in SEVERITIES else "medium"
        result.output = {**found, "severity": severity, "issues": _list(found.get("issues"))}
        if self.revise and SEVERITIES.index(severity) >= SEVERITIES.index(self.threshold):
            result.next_node = self.revise


class PlanNode(ReasoningNode):
    """Splits the task into steps. The output is the list of steps, which is also written to `state.plan`."""

    event_role = "planner"
    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.STATEFUL, NodeFlag.OBSERVABLE})
    purpose = (
        "Break the task into as few steps as it needs, each of which one worker can carry out by itself. "
        'Answer with one JSON array of short texts: ["STEP", "STEP"].'
    )

    def _store(self, result: NodeResult, state: GraphState) -> None:
        result.output = steps_of(result.output)
        state.plan[:] = result.output


class SynthesizeNode(ReasoningNode):
    """Writes the final answer from all findings. The output is the answer, a text."""

    event_role = ""
    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.OBSERVABLE})
    purpose = (
        "Write the final answer for the reader from everything found so far. Answer the question itself; "
        "do not describe how it was worked on. Say what could not be found out."
    )

    def _finish(self, result: NodeResult, state: GraphState) -> None:
        """Leaves the answer in the conversation."""


class ValidateNode(ReasoningNode):
    """Judges whether the work so far meets its requirements.

    The output is `{"valid": bool, "problems": [...]}`, checked against that schema.

    Args:
        on_valid: The next node if it does.
        on_invalid: The next node if it does not.
        keywords: See `NodeKeywords`. `instructions` are the requirements.
    """

    event_role = "validate"
    constructor_keys: ClassVar[tuple[str, ...]] = ("on_valid", "on_invalid")
    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.READONLY, NodeFlag.VALIDATE_OUTPUT})
    purpose = (
        "Judge whether the work so far is correct, complete and meets the requirements. Answer with one JSON "
        'object: {"valid": true or false, "problems": ["PROBLEM"]}.'
    )
    schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "required": ["valid"],
        "properties": {
            "valid": {"type": "boolean"},
            "problems": {"type": "array", "items": {"type": "string"}},
        },
    }

    def __init__(
        self, name: str, *, on_valid: str = "", on_invalid: str = "", **keywords: Unpack[NodeKeywords]
    ) -> None:
        keywords.setdefault("output_schema", self.schema)
        super().__init__(name, **keywords)
        self.add_routes(on_valid, on_invalid)
        self.on_valid, self.on_invalid = on_valid, on_invalid

    def _store(self, result: NodeResult, state: GraphState) -> None:
        valid = isinstance(result.output, dict) and result.output.get("valid") is True
        result.next_node = self.on_valid if valid else self.on_invalid


def steps_of(output: Any) -> list[Any]:
    """Returns the steps of a plan: a JSON array, an object with `steps` or `plan`, or the lines of a list."""
    if not isinstance(output, str):
        return _steps_in(output) or []
    for value in extract_values(output):
        if (steps := _steps_in(value)) is not None:
            return steps
    lines = _NUMBERED.split(output) if _NUMBERED.search(output) else output.splitlines()
    return [line.strip() for line in lines if line.strip()]


def _steps_in(value: Any) -> list[Any] | None:
    if isinstance(value, dict):
        value = value.get("steps", value.get("plan"))
    if not isinstance(value, list):
        return None
    steps = [step for step in value if step and isinstance(step, str | dict)]
    # a list of numbers is a citation, no plan
    return steps if steps or not value else None


def _object(result: NodeResult) -> dict[str, Any]:
    """Returns the JSON object in an answer, also with prose around it."""
    if isinstance(result.output, dict):
        return result.output
    return extract_object(str(result.output or "")) or {}


def _list(value: Any) -> list[Any]:
    if value is None or value == "":
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
