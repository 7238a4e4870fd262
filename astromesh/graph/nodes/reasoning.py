"""The reasoning nodes: PromptNodes with a purpose, default flags (document 002), a place for what they find.

They speak with their own role, not as the assistant, and leave the conversation as it is: what they found
stands in the state, in their output and in `output_key`. SynthesizeNode writes the answer, as the assistant.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, ClassVar, Unpack

from astromesh.graph.base import NodeKeywords
from astromesh.graph.extract import extract_object, extract_values
from astromesh.graph.flags import NodeFlag
from astromesh.graph.nodes.prompt import PromptNode
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState

_NUMBERED = re.compile(r"^\s*(?:\d+[.)]|[-*•])\s+", re.MULTILINE)
SEVERITIES = ("none", "low", "medium", "high")


class ReasoningNode(PromptNode):
    """A PromptNode that thinks for the graph and not for the reader.

    Args:
        keywords: see `NodeKeywords`; `instructions` come after the node's own purpose.
    """

    voice: ClassVar[str] = "reasoning"
    own: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, **keywords: Unpack[NodeKeywords]) -> None:
        super().__init__(name, role=self.voice, **keywords)

    def _finish(self, result: NodeResult, state: GraphState) -> NodeResult:
        result.messages_added = ()
        if not result.error:
            self._found(result, state)
        return result

    def _found(self, result: NodeResult, state: GraphState) -> None:
        """Puts what was found where it belongs and may choose the next node."""


class ThinkNode(ReasoningNode):
    """Analyses what is known, what is missing and what to do next. Output: the thought, a text."""

    voice = "think"
    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.READONLY, NodeFlag.LIGHTWEIGHT})
    purpose = (
        "Think about the task: what is asked, what is known, what is missing, and what should happen next. "
        "Be brief. Do not answer the task yet."
    )


class ReflectNode(ReasoningNode):
    """Looks back on the work so far. Output: the reflection, also appended to `state.reflections`."""

    voice = "reflect"
    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.STATEFUL, NodeFlag.OBSERVABLE})
    purpose = (
        "Look back on the work so far: what went well, what is wrong or missing, and what to do differently. "
        "Be brief and concrete."
    )

    def _found(self, result: NodeResult, state: GraphState) -> None:
        state.reflections.append(result.output)


class ObserveNode(ReasoningNode):
    """Notes what the conversation establishes.

    Output: `{"entities": {...}, "facts": [...]}`; both are merged into the context under these names, and the
    facts are appended to `state.observations`.
    """

    voice = "observe"
    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.STATEFUL})
    purpose = (
        "Extract what the conversation and its tool results establish. Answer with one JSON object: "
        '{"entities": {"NAME": "WHAT IT IS"}, "facts": ["FACT"]}. State only what is supported.'
    )

    def _found(self, result: NodeResult, state: GraphState) -> None:
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
    """Gives the reasons for a decision, for an audit. Output: the justification, a text."""

    voice = "justify"
    default_flags: ClassVar[frozenset[Hashable]] = frozenset(
        {NodeFlag.READONLY, NodeFlag.OBSERVABLE, NodeFlag.VERBOSE}
    )
    purpose = (
        "Justify the decision or answer so far for an auditor: the evidence, the assumptions, the "
        "alternatives that were rejected and why. Refer only to what stands in the conversation."
    )


class CritiqueNode(ReasoningNode):
    """Looks for faults in the work so far.

    Output: `{"severity": "none | low | medium | high", "issues": [...]}`.

    Args:
        revise: the node to go to when the critique is at least as severe as `threshold`.
        threshold: `low`, `medium` or `high`.
        keywords: see `NodeKeywords`.
    """

    voice = "critic"
    own: ClassVar[tuple[str, ...]] = ("revise", "threshold")
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
                f"Node {name!r}: threshold is one of {', '.join(SEVERITIES)}, not {threshold!r}."
            )
        super().__init__(name, **_also_to(keywords, revise))
        self.revise, self.threshold = revise, threshold

    def given(self, key: str) -> Any:
        return _without(self.routes, self.revise) if key == "routes" else super().given(key)

    def _found(self, result: NodeResult, state: GraphState) -> None:
        found = _object(result) or {"issues": [result.raw_output]}
        said = str(found.get("severity", "")).lower()
        # a critique that does not say how severe it is has issues all the same
        severity = said if said in SEVERITIES else "medium"
        result.output = {**found, "severity": severity, "issues": _list(found.get("issues"))}
        if self.revise and SEVERITIES.index(severity) >= SEVERITIES.index(self.threshold):
            result.next_node = self.revise


class PlanNode(ReasoningNode):
    """Breaks the task into steps. Output: the list of steps, also written to `state.plan`."""

    voice = "planner"
    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.STATEFUL, NodeFlag.OBSERVABLE})
    purpose = (
        "Break the task into as few steps as it needs, each of which one worker can carry out by itself. "
        'Answer with one JSON array of short texts: ["STEP", "STEP"].'
    )

    def _found(self, result: NodeResult, state: GraphState) -> None:
        result.output = steps_of(result.output)
        state.plan[:] = result.output


class SynthesizeNode(ReasoningNode):
    """Writes the final answer from everything that was found. Output: the answer, a text."""

    voice = ""
    default_flags: ClassVar[frozenset[Hashable]] = frozenset({NodeFlag.OBSERVABLE})
    purpose = (
        "Write the final answer for the reader from everything found so far. Answer the question itself; "
        "do not describe how it was worked on. Say what could not be found out."
    )

    def _finish(self, result: NodeResult, state: GraphState) -> NodeResult:
        return result


class ValidateNode(ReasoningNode):
    """Judges whether the work so far meets its requirements.

    Output: `{"valid": bool, "problems": [...]}`, checked against that schema.

    Args:
        on_valid: the node to go to when it does.
        on_invalid: the node to go to when it does not.
        keywords: see `NodeKeywords`; `instructions` are the requirements.
    """

    voice = "validate"
    own: ClassVar[tuple[str, ...]] = ("on_valid", "on_invalid")
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
        super().__init__(name, **_also_to(keywords, on_valid, on_invalid))
        self.on_valid, self.on_invalid = on_valid, on_invalid

    def given(self, key: str) -> Any:
        if key == "routes":
            return _without(self.routes, self.on_valid, self.on_invalid)
        return super().given(key)

    def _found(self, result: NodeResult, state: GraphState) -> None:
        valid = isinstance(result.output, dict) and result.output.get("valid") is True
        result.next_node = self.on_valid if valid else self.on_invalid


def _also_to(keywords: NodeKeywords, *targets: str) -> NodeKeywords:
    """With the targets that the node itself may choose declared, so that they are checked and drawn."""
    return {**keywords, "routes": (*keywords.get("routes", ()), *filter(None, targets))}


def _without(routes: tuple[str, ...], *targets: str) -> tuple[str, ...]:
    return routes[: len(routes) - sum(map(bool, targets))]


def steps_of(output: Any) -> list[Any]:
    """A plan as a list: a JSON array, an object with `steps` or `plan`, or the lines of a list in words."""
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
    """The JSON object in an answer, also one with prose around it."""
    if isinstance(result.output, dict):
        return result.output
    return extract_object(str(result.output or "")) or {}


def _list(value: Any) -> list[Any]:
    if value is None or value == "":
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
