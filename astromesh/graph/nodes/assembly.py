"""What a PromptNode's system prompt is put together from (document 000, step 2), as pure functions.

What is static in it is made once per invocation; what depends on the state is made anew on every entry and
stands behind it, so that the caches of model providers hit the static beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from astromesh.graph.records import as_json
from astromesh.graph.state import GraphState
from astromesh.types import Message, ToolSpec

#: newest observations and reflections that a prompt shows; older ones would crowd out the rest
NEWEST = 20
#: characters of one value in a prompt
LONGEST = 20_000


def join(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part)


def as_text(value: Any) -> str:
    """A value as the model reads it: text as it is, everything else as JSON."""
    text = value if isinstance(value, str) else as_json(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} [cut: {len(text)} characters]"


def inputs(state: GraphState, keys: Sequence[str]) -> str:
    """The values that the node declares as its inputs; missing ones are left out."""
    context = state.context
    return join(f"## {key}\n{as_text(context[key])}" for key in keys if key in context)


def inherited(state: GraphState, node: str) -> str:
    """The output of the node whose work this one continues."""
    value = state.context.get(f"{node}_output") if node else None
    return "" if value is None else f"## Result of {node}\n{as_text(value)}"


def observations(state: GraphState) -> str:
    """What was observed so far, without the tool results that stand in the visible messages anyway."""
    if not state.observations:
        return ""
    visible = {message.tool_call_id for message in state.messages if message.role == "tool"}
    unseen = [
        seen for seen in state.observations if not (isinstance(seen, dict) and seen.get("call_id") in visible)
    ]
    return _listed("Observations", unseen)


def plan(state: GraphState) -> str:
    if not state.plan:
        return ""
    return "## Plan\n" + "\n".join(f"{n}. {as_text(step)}" for n, step in enumerate(state.plan, 1))


def reflections(state: GraphState) -> str:
    return _listed("Reflections", state.reflections)


def _listed(title: str, values: Sequence[Any]) -> str:
    return f"## {title}\n" + "\n".join(f"- {as_text(v)}" for v in values[-NEWEST:]) if values else ""


def tool_section(specs: Sequence[ToolSpec]) -> str:
    """The tools in one line each: name, arguments (`?`: optional), first line of the description."""
    return "## Tools\n" + "\n".join(map(_tool_line, specs)) if specs else ""


def _tool_line(spec: ToolSpec) -> str:
    required = spec.parameters.get("required", ())
    arguments = ", ".join(
        f"{name}{'' if name in required else '?'}: {_type_of(schema)}"
        for name, schema in spec.parameters.get("properties", {}).items()
    )
    return f"- {spec.name}({arguments}): {spec.description.partition(chr(10))[0]}"


def _type_of(schema: Any) -> str:
    kind = schema.get("type", "any") if isinstance(schema, dict) else "any"
    return "|".join(kind) if isinstance(kind, list) else str(kind)


def with_system(messages: Sequence[Message], system: Message) -> tuple[Message, ...]:
    """The conversation with the text of a system message added to its own one, which comes first."""
    if not system.content:
        return tuple(messages)
    if messages and messages[0].role == "system":
        return (Message("system", f"{messages[0].content}\n\n{system.content}"), *messages[1:])
    return (system, *messages)


_GO_ON = Message("user", "Go on with your task as the instructions say.")


def ready(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """A conversation that models accept: every tool call is answered, and the model did not speak last.

    A graph's nodes speak one after another, so that the last message may be another node's; several models
    would go on writing that message instead of answering, or refuse.
    """
    if not messages or (last := messages[-1]).role != "assistant":
        return messages
    if last.tool_calls:
        return (*messages, *(_not_called(call.id, call.name) for call in last.tool_calls))
    return (*messages, _GO_ON)


def _not_called(call_id: str, name: str) -> Message:
    return Message("tool", "This call was not carried out.", tool_call_id=call_id, name=name)
