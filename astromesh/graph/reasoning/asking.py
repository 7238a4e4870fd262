"""The controller's one seam to the model: budgeted, streamed under a role, never raising."""

from __future__ import annotations

from typing import NamedTuple

from astromesh.errors import AstromeshError, BudgetExhausted
from astromesh.graph.config import NodeConfig
from astromesh.graph.reasoning.hidden import answer_in, fields_in, object_in
from astromesh.graph.reasoning.prompts import Purpose, conversation
from astromesh.graph.reasoning.reading import short
from astromesh.graph.reasoning.state import notes_of, rc_of
from astromesh.graph.state import GraphState
from astromesh.node.calls import ASSISTANT
from astromesh.types import CompletionRequest, CompletionResult, JsonObject, ToolCall, ToolSpec

#: failed calls in a row after which the model is not asked any more
MOST_FAILURES = 3


class Reply(NamedTuple):
    """What came back.

    Args:
        fault: why there is nothing, for the errors of the run; empty where the budget was used up.
        ok: whether the model answered at all.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    fault: str = ""
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
    """One model call, or none where the budget is used up or the model has failed too often.

    Args:
        purpose: who is asked for what.
        material: what is known, shown behind the task.
        tools: offered ones; with them the transcript of earlier tool calls is shown as it is.
    """
    rc, notes = rc_of(state), notes_of(state)
    if not notes.budgets.models_left or notes.failures >= MOST_FAILURES:
        return Reply()
    # what answers or carries out sees the user's own words, with their line breaks
    task = str(rc.input).strip() if purpose.schema is None else rc.normalized_input
    told = f"{purpose.told}\n(node: {config.node.name})"
    request = CompletionRequest(
        conversation(state.messages, task, told, material, transcript=bool(tools)),
        tools=tools,
        tool_choice=tool_choice,
        output_schema=purpose.schema,
        role="" if purpose.role == ASSISTANT else purpose.role,
    )
    reply = await _called(config, request, purpose)
    notes.failures = 0 if reply.ok else notes.failures + 1
    return reply


async def _called(config: NodeConfig, request: CompletionRequest, purpose: Purpose) -> Reply:
    def shown(result: CompletionResult) -> str:
        """What listeners may see: what the report may, whatever else the model wrote."""
        return fields_in(result.content, purpose.fields) if purpose.fields else answer_in(result.content)

    try:
        result = await config.complete(request, role=purpose.role, shown=shown)
    except BudgetExhausted:  # of a surrounding run: tokens or money
        return Reply()
    except AstromeshError as error:
        return Reply(fault=f"{config.node.name}: the model call failed: {short(str(error))}")
    except Exception as error:  # noqa: BLE001 (part of the node's border: a model may raise anything, see behaviour 50)
        return Reply(fault=f"{config.node.name}: the model call failed: {type(error).__name__}.")
    return Reply(result.content, result.tool_calls, ok=True)


async def ask_object(
    state: GraphState, config: NodeConfig, purpose: Purpose, material: str = ""
) -> tuple[JsonObject | None, str]:
    """The JSON object that the model answers, or None and what went wrong (empty: the budget is used up)."""
    reply = await ask(state, config, purpose, material)
    if not reply.ok:
        return None, reply.fault
    found = object_in(reply.text, purpose.fields)
    if found is None:
        return None, f"{config.node.name}: the model's answer holds no JSON object of what was asked for."
    return found, ""
