"""The prompts of the nodes, and the one budgeted model call that uses them.

Every prompt begins with the agent's own system message. Gathered material follows the task as data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from msgspec.structs import replace

from astromesh.errors import AstromeshError, BudgetExhausted, is_failure
from astromesh.graph.calls import ASSISTANT
from astromesh.graph.node_config import NodeConfig
from astromesh.graph.reasoning.parsing import LEVELS, STEP_KINDS, answer_in, fields_in, object_in, one_line
from astromesh.graph.reasoning.state import Notes, ReasoningState, notes_of, rc_of
from astromesh.graph.state import GraphState
from astromesh.types import CompletionRequest, CompletionResult, JsonObject, Message, ToolCall, ToolSpec

#: Characters of gathered material in one prompt, and of one piece of it.
MAX_MATERIAL, MAX_PIECE = 24_000, 6_000
_JSON = "Answer with one JSON object and nothing else. Say results only, never how you thought."
#: A proposed step has one of these fields.
STEP_FIELDS = ("kind", "next_step", "step")


class Purpose(NamedTuple):
    """The request of a node to its model.

    Args:
        role: The role of `model.roles` and of the events.
        instructions: The node's part of the system message.
        schema: The schema of the answer. None for a text or a tool call.
        fields: The fields that are read from the answer. None for a text for the user.
    """

    role: str
    instructions: str
    schema: JsonObject | None = None
    fields: tuple[str, ...] = ()


def _json_purpose(role: str, instructions: str, schema: JsonObject) -> Purpose:
    return Purpose(role, instructions, schema, tuple(schema["properties"]))


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


ANALYZE = _json_purpose(
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

EXECUTE = _json_purpose(
    "worker",
    "Carry out the step that is given below, and only that. `summary`: one line for a reader. `conclusions`: "
    "what is now established, each a line with its number or source. `open_questions`: what is missing. "
    f"State nothing that the material or sound knowledge does not support. {_JSON}",
    _schema("execute_reasoning_step", {"summary": _TEXT, "conclusions": _TEXTS, "open_questions": _TEXTS}),
)

EVALUATE = _json_purpose(
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

CRITIQUE = _json_purpose(
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
    """Returns the question to the selector: one of the eligible strategies."""
    instructions = (
        "Choose how to work on the task, by its profile. direct: one step is enough. decompose: it has "
        "several parts. react_tool_loop: tools must establish facts. critique_and_revise: an early draft, "
        f"criticised and revised. `reason`: one short line. {_JSON}"
    )
    schema = _schema("select_reasoning_strategy", {"strategy": _one_of(strategies), "reason": _TEXT})
    return _json_purpose("planner", instructions, schema)


def propose(instructions: str, *, tools: bool) -> Purpose:
    """Returns the question to the planner. If tools are offered, it may call one instead."""
    kinds = ", ".join(STEP_KINDS)
    instructions = (
        f"{instructions} Propose the next step; do not answer the task. `kind`: {kinds}, or done where no "
        f"step would help any more. `step`: a name of a few words. {_JSON}"
    )
    if tools:
        return Purpose("planner", f"{instructions} To use a tool, call it instead.", None, STEP_FIELDS)
    properties = {"kind": _one_of((*STEP_KINDS, "done")), "step": _TEXT}
    return Purpose("planner", instructions, _schema("propose_next_step", properties), STEP_FIELDS)


# -- the material -----------------------------------------------------------------------------------------
def conversation(
    messages: Sequence[Message], task: str, instructions: str, material: str, *, transcript: bool
) -> tuple[Message, ...]:
    """Returns system message, history, the task with its material, and optionally the tool transcript."""
    last = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
    before, since = messages[: max(last, 0)], messages[last + 1 :]
    system = "\n\n".join([*(m.content for m in before if m.role == "system"), instructions])
    history = [m for m in before if m.role != "system"]
    request = messages[last] if last >= 0 else Message("user")
    question = replace(request, content=f"{task}\n\n{material}" if material else task)
    tool_messages = [m for m in since if m.role == "tool" or m.tool_calls] if transcript else []
    return (Message("system", system), *history, question, *tool_messages)


def material_of(rc: ReasoningState, notes: Notes, messages: Sequence[Message] = (), **more: Any) -> str:
    """Returns what is known so far, as data after the task.

    Args:
        messages: Their tool results are written out, for calls that do not show the transcript itself.
        more: Further parts by title: the step, the draft, the findings.
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
    sections = [f"{title}:\n{_part_text(part)}" for title, part in parts.items() if part]
    return "\n\n".join(sections)[:MAX_MATERIAL]


def _tool_results(messages: Sequence[Message]) -> Mapping[str, str]:
    last = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
    results = [m for m in messages[last + 1 :] if m.role == "tool"]
    return {f"Result {i} of {m.name}": m.content for i, m in enumerate(results, 1)}


def _part_text(part: Any) -> str:
    if isinstance(part, list | tuple):
        return "\n".join(f"- {item}" for item in part)
    text = part if isinstance(part, str) else orjson.dumps(part, default=str).decode()
    return text[:MAX_PIECE]


# -- the model call: budgeted, streamed under a role, never raising ----------------------------------------

#: After this many failed calls in a row the controller makes no more.
MAX_FAILURES = 3


class Reply(NamedTuple):
    """The answer of the model.

    Args:
        error: Why there is none, for the errors of the run. Empty if the budget was used up.
        ok: Whether the model answered at all.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    error: str = ""
    ok: bool = False


async def ask(
    state: GraphState,
    config: NodeConfig,
    purpose: Purpose,
    material: str = "",
    *,
    tools: tuple[ToolSpec, ...] = (),
    tool_choice: str = "auto",
) -> Reply:
    """Makes one model call, or none if the budget is used up or the model has failed too often.

    Args:
        purpose: The role, the instructions and the form of the answer.
        material: What is known, shown after the task.
        tools: The tools on offer. With them the transcript of earlier tool calls is shown.
    """
    rc, notes = rc_of(state), notes_of(state)
    if not notes.budgets.has_model_calls_left or notes.failures >= MAX_FAILURES:
        return Reply()
    # purposes without a schema see the user's own text, with its line breaks
    task = str(rc.input).strip() if purpose.schema is None else rc.normalized_input
    instructions = f"{purpose.instructions}\n(node: {config.node.name})"
    request = CompletionRequest(
        conversation(state.messages, task, instructions, material, transcript=bool(tools)),
        tools=tools,
        tool_choice=tool_choice,
        output_schema=purpose.schema,
        role="" if purpose.role == ASSISTANT else purpose.role,
    )
    reply = await _call_model(config, request, purpose)
    notes.failures = 0 if reply.ok else notes.failures + 1
    return reply


async def _call_model(config: NodeConfig, request: CompletionRequest, purpose: Purpose) -> Reply:
    def shown(result: CompletionResult) -> str:
        """Returns what listeners may see: the parts that the report may contain."""
        return fields_in(result.content, purpose.fields) if purpose.fields else answer_in(result.content)

    try:
        result = await config.complete(request, role=purpose.role, visible_text=shown)
    except BudgetExhausted:  # of a surrounding run: tokens or money
        return Reply()
    except AstromeshError as error:
        return Reply(error=f"{config.node.name}: the model call failed: {one_line(str(error))}")
    except BaseException as error:  # boundary of a node: a foreign model may raise anything
        if not is_failure(error):
            raise
        return Reply(error=f"{config.node.name}: the model call failed: {type(error).__name__}.")
    return Reply(result.content, result.tool_calls, ok=True)


async def ask_object(
    state: GraphState, config: NodeConfig, purpose: Purpose, material: str = ""
) -> tuple[JsonObject | None, str]:
    """Returns the JSON object of the answer, or None and the error. An empty one means a used-up budget."""
    reply = await ask(state, config, purpose, material)
    if not reply.ok:
        return None, reply.error
    found = object_in(reply.text, purpose.fields)
    if found is None:
        return None, f"{config.node.name}: the model's answer holds no JSON object with the requested fields."
    return found, ""
