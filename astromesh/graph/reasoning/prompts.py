"""What the model is told and shown at each node that asks it.

Every prompt begins with the agent's own system message. What was gathered stands behind the task as data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from astromesh.graph.reasoning.reading import LEVELS, STEP_KINDS
from astromesh.graph.reasoning.state import Notes, ReasoningState
from astromesh.types import JsonObject, Message

#: characters of gathered material in one prompt, and of one piece of it
MATERIAL, PIECE = 24_000, 6_000
_JSON = "Answer with one JSON object and nothing else. Say results only, never how you thought."


#: by any of which a proposed step is known
STEP_FIELDS = ("kind", "next_step", "step")


class Purpose(NamedTuple):
    """What a node asks its model for.

    Args:
        role: who speaks: the role of `model.roles`, and of the events.
        told: the node's part of the system message.
        schema: of the answer; None where a text is wanted, or a tool call.
        fields: of the JSON that is read of the answer; none where it is a text for the user.
    """

    role: str
    told: str
    schema: JsonObject | None = None
    fields: tuple[str, ...] = ()


def _data(role: str, told: str, schema: JsonObject) -> Purpose:
    return Purpose(role, told, schema, tuple(schema["properties"]))


def _schema(title: str, properties: JsonObject) -> JsonObject:
    return {
        "title": title,
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_TEXT: JsonObject = {"type": "string"}
_TEXTS: JsonObject = {"type": "array", "items": _TEXT}
_FLAG: JsonObject = {"type": "boolean"}
_NUMBER: JsonObject = {"type": "number"}


def _one_of(names: Sequence[str]) -> JsonObject:
    return {"type": "string", "enum": list(names)}


ANALYZE = _data(
    "planner",
    "Profile the task of the user; do not answer it. `complexity`: simple (one step answers it), moderate or "
    "complex. `risk`: what a wrong answer would cost. `tool_needs`: names of the tools below that it needs. "
    "`evidence_needs`: what must be known. `needs_critique`: whether a draft must be checked. `subgoals`, "
    f"`assumptions`, `open_questions`: short lines, empty for a simple task. {_JSON}",
    _schema(
        "analyze_task",
        {
            "complexity": _one_of(("simple", "moderate", "complex")),
            "domain": _TEXT,
            "risk": _one_of(LEVELS),
            "tool_needs": _TEXTS,
            "evidence_needs": _TEXTS,
            "output_type": _TEXT,
            "needs_critique": _FLAG,
            "subgoals": _TEXTS,
            "assumptions": _TEXTS,
            "open_questions": _TEXTS,
        },
    ),
)
EXECUTE = _data(
    "worker",
    "Carry out the step that is given below, and only that. `summary`: one line for a reader. `conclusions`: "
    "what is now established, each a line with its number or source. `open_questions`: what is missing. "
    f"State nothing that the material or sound knowledge does not support. {_JSON}",
    _schema("execute_reasoning_step", {"summary": _TEXT, "conclusions": _TEXTS, "open_questions": _TEXTS}),
)
EVALUATE = _data(
    "judge",
    "Judge whether the task can be answered well from what is known so far. `confidence`: from 0 to 1. "
    "`gaps`: what is missing, empty if nothing is. `done`: no further step would help. `mismatch`: this way "
    f"of working does not fit the task. {_JSON}",
    _schema("evaluate_progress", {"confidence": _NUMBER, "gaps": _TEXTS, "done": _FLAG, "mismatch": _FLAG}),
)
DRAFT = Purpose(
    "writer",
    "Write the answer for the user now. Rest it on what is established above and below; say plainly what is "
    "not known. Keep to the constraints. Write the answer alone, without remarks on how it came about.",
)
CRITIQUE = _data(
    "critic",
    "Review the draft against the task, the constraints and what is known. `unsupported_claims`: the claims "
    "that nothing supports, word for word as they stand in the draft. `missing_constraints`: what the task "
    "or its constraints ask for and the draft lacks. `clarity_issues`: what a reader would stumble over. "
    f"`acceptable`: nothing of this. {_JSON}",
    _schema(
        "critique_answer",
        {
            "acceptable": _FLAG,
            "unsupported_claims": _TEXTS,
            "missing_constraints": _TEXTS,
            "clarity_issues": _TEXTS,
        },
    ),
)
REVISE = Purpose(
    "writer",
    "Revise the draft by the findings below: take out or qualify what is unsupported, add what is missing, "
    "make unclear parts clear. Add no new claims. Write the revised answer alone.",
)


def select(strategies: Sequence[str]) -> Purpose:
    """What the selector is asked: one of the strategies that have what they need."""
    told = (
        "Choose how to work on the task, by its profile. direct: one step is enough. decompose: it has "
        "several parts. react_tool_loop: tools must establish facts. critique_and_revise: an early draft, "
        f"criticised and revised. `reason`: one short line. {_JSON}"
    )
    schema = _schema("select_reasoning_strategy", {"strategy": _one_of(strategies), "reason": _TEXT})
    return _data("planner", told, schema)


def propose(told: str, *, tools: bool) -> Purpose:
    """What the planner is asked; where tools are offered it may call one instead."""
    kinds = ", ".join(STEP_KINDS)
    told = (
        f"{told} Propose the next step; do not answer the task. `kind`: {kinds}, or done where no step would "
        f"help any more. `step`: a name of a few words. {_JSON}"
    )
    if tools:
        return Purpose("planner", f"{told} To use a tool, call it instead.", None, STEP_FIELDS)
    properties = {"kind": _one_of((*STEP_KINDS, "done")), "step": _TEXT}
    return Purpose("planner", told, _schema("propose_next_step", properties), STEP_FIELDS)


# -- what is shown -----------------------------------------------------------------------------------------


def conversation(
    messages: Sequence[Message], task: str, told: str, material: str, *, transcript: bool
) -> tuple[Message, ...]:
    """System message, history, task with its material, and the tool transcript where it is wanted."""
    last = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
    before, since = messages[: max(last, 0)], messages[last + 1 :]
    system = "\n\n".join([*(m.content for m in before if m.role == "system"), told])
    history = [m for m in before if m.role != "system"]
    asked = messages[last] if last >= 0 else Message("user")
    question = replace(asked, content=f"{task}\n\n{material}" if material else task)
    called = [m for m in since if m.role == "tool" or m.tool_calls] if transcript else []
    return (Message("system", system), *history, question, *called)


def material_of(rc: ReasoningState, notes: Notes, messages: Sequence[Message] = (), **more: Any) -> str:
    """What is known so far, as data behind the task.

    Args:
        messages: their tool results are written out; for calls that are not shown the transcript itself.
        more: further parts by title: the step, the draft, the findings.
    """
    memory = rc.working_memory
    task = rc.normalized_input
    subgoals = [goal for goal in memory.get("subgoals", ()) if not task.startswith(goal.rstrip("…"))]
    parts: dict[str, Any] = {
        "Constraints": rc.constraints or None,
        "Subgoals": subgoals,
        "Assumptions": memory.get("assumptions"),
        "Established so far": memory.get("partial_conclusions"),
        "Open questions": list(dict.fromkeys([*rc.knowledge_gaps, *memory.get("open_questions", ())])),
        **{f"Evidence from {source}": text for source, text in notes.evidence},
        **_tool_results(messages),
        **{title.replace("_", " ").capitalize(): part for title, part in more.items()},
    }
    shown = [f"{title}:\n{_shown(part)}" for title, part in parts.items() if part]
    return "\n\n".join(shown)[:MATERIAL]


def _tool_results(messages: Sequence[Message]) -> Mapping[str, str]:
    last = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
    results = [m for m in messages[last + 1 :] if m.role == "tool"]
    return {f"Result {i} of {m.name}": m.content for i, m in enumerate(results, 1)}


def _shown(part: Any) -> str:
    if isinstance(part, list | tuple):
        return "\n".join(f"- {item}" for item in part)
    text = part if isinstance(part, str) else orjson.dumps(part, default=str).decode()
    return text[:PIECE]
