"""The parts of a system prompt: blocks, perspectives, strategies, inputs (document 000, step 2).

The static part is made once per invocation. The part that depends on the state is made again at every entry
and follows it, so that the caches of model providers can use the static beginning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

from astromesh.graph.records import as_json
from astromesh.graph.state import GraphState
from astromesh.types import Message, ToolSpec

#: The newest observations and reflections that a prompt shows. Older ones would crowd out the rest.
MAX_ITEMS = 20
#: Characters of one value in a prompt.
MAX_VALUE_CHARACTERS = 20_000


def join(parts: Iterable[str]) -> str:
    """Joins the parts that are not empty."""
    return "\n\n".join(part for part in parts if part)


def as_text(value: Any) -> str:
    """Returns a value as the model reads it: text unchanged, everything else as JSON."""
    text = value if isinstance(value, str) else as_json(value)
    return (
        text
        if len(text) <= MAX_VALUE_CHARACTERS
        else f"{text[:MAX_VALUE_CHARACTERS]} [cut: {len(text)} characters]"
    )


def inputs(state: GraphState, keys: Sequence[str]) -> str:
    """Returns the declared inputs of a node. Missing ones are left out."""
    context = state.context
    return join(f"## {key}\n{as_text(context[key])}" for key in keys if key in context)


def inherited(state: GraphState, node: str) -> str:
    """Returns the output of the node whose work this one continues."""
    value = state.context.get(f"{node}_output") if node else None
    return "" if value is None else f"## Result of {node}\n{as_text(value)}"


def observations(state: GraphState) -> str:
    """Returns the observations, without tool results that stand in the visible messages."""
    if not state.observations:
        return ""
    visible = {message.tool_call_id for message in state.messages if message.role == "tool"}
    unseen = [
        seen for seen in state.observations if not (isinstance(seen, dict) and seen.get("call_id") in visible)
    ]
    return _bullet_list("Observations", unseen)


def plan(state: GraphState) -> str:
    if not state.plan:
        return ""
    return "## Plan\n" + "\n".join(f"{n}. {as_text(step)}" for n, step in enumerate(state.plan, 1))


def reflections(state: GraphState) -> str:
    return _bullet_list("Reflections", state.reflections)


def _bullet_list(title: str, values: Sequence[Any]) -> str:
    return f"## {title}\n" + "\n".join(f"- {as_text(v)}" for v in values[-MAX_ITEMS:]) if values else ""


def tool_section(specs: Sequence[ToolSpec]) -> str:
    """Returns one line per tool: name, arguments (`?`: optional), first line of the description."""
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
    """Returns the conversation with a system text added to its own system message, which comes first."""
    if not system.content:
        return tuple(messages)
    if messages and messages[0].role == "system":
        return (Message("system", f"{messages[0].content}\n\n{system.content}"), *messages[1:])
    return (system, *messages)


_CONTINUE = Message("user", "Go on with your task as the instructions say.")


def complete_conversation(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Returns a conversation that models accept: each tool call has a result, and the model is not the last.

    The nodes of a graph write one after another, so that the last message may be another node's. Several
    models would continue that message instead of answering, or refuse.
    """
    if not messages or (last := messages[-1]).role != "assistant":
        return messages
    if last.tool_calls:
        return (*messages, *(_not_called(call.id, call.name) for call in last.tool_calls))
    return (*messages, _CONTINUE)


def _not_called(call_id: str, name: str) -> Message:
    return Message("tool", "This call was not carried out.", tool_call_id=call_id, name=name)


# -- blocks: pieces of the system prompt after the instructions --------------------------------------------
#
# A block is a text, or anything with `render(state) -> str`. A block whose text depends on the state sets
# `dynamic = True`. All others are rendered once per invocation.


@runtime_checkable
class Block(Protocol):
    """A piece of a system prompt."""

    @property
    def dynamic(self) -> bool:
        """Whether the text depends on the state and is rendered again for every call."""

    def render(self, state: Any) -> str: ...


@dataclass(frozen=True, slots=True)
class Text:
    """A text under a heading.

    Args:
        title: The heading, or empty.
    """

    text: str
    title: str = ""
    dynamic: ClassVar[bool] = False

    def render(self, state: Any) -> str:
        return f"## {self.title}\n{self.text}" if self.title else self.text


@dataclass(frozen=True, slots=True)
class Rules:
    """Numbered rules for the model."""

    rules: Sequence[str]
    title: str = "Rules"
    dynamic: ClassVar[bool] = False

    def render(self, state: Any) -> str:
        return f"## {self.title}\n" + "\n".join(f"{n}. {rule}" for n, rule in enumerate(self.rules, 1))


@dataclass(frozen=True, slots=True)
class Examples:
    """Pairs of input and expected output."""

    examples: Sequence[tuple[str, str]]
    title: str = "Examples"
    dynamic: ClassVar[bool] = False

    def render(self, state: Any) -> str:
        return f"## {self.title}\n" + "\n\n".join(f"Input: {a}\nOutput: {b}" for a, b in self.examples)


@dataclass(frozen=True, slots=True)
class FromState:
    """A text that a function makes from the state, again for every call.

    Args:
        function: Takes the GraphState. An empty text leaves the block out.
    """

    function: Callable[[Any], str] = field(repr=False)
    title: str = ""
    dynamic: ClassVar[bool] = True

    def render(self, state: Any) -> str:
        text = self.function(state)
        return f"## {self.title}\n{text}" if self.title and text else text


def as_block(block: Any) -> Block:
    """Returns a block unchanged; a text or a function of the state as the block that it stands for."""
    if isinstance(block, str):
        return Text(block)
    if isinstance(block, Block):
        return block
    if callable(block):
        return FromState(block)
    raise TypeError(
        f"{block!r} is not a block. Pass a text, a function of the state or an object with render()."
    )


# -- perspectives: the point of view of a PromptNode -------------------------------------------------------


@runtime_checkable
class Perspective(Protocol):
    """A point of view. `apply` takes the system prompt and returns it with the point of view."""

    def apply(self, prompt: str) -> str: ...


@dataclass(frozen=True, slots=True)
class TextPerspective:
    """A point of view in a few sentences.

    Args:
        name: Its name in YAML.
        text: Who the model is and what it looks at.
    """

    name: str
    text: str

    def apply(self, prompt: str) -> str:
        return f"{self.text}\n\n{prompt}" if prompt else self.text


analyst = TextPerspective(
    "analyst", "You are an analyst. Rest on evidence, name your assumptions, tell fact from guess."
)
critic = TextPerspective(
    "critic", "You are a critic. Look for errors, gaps and weak reasons, and say how bad each one is."
)
advisor = TextPerspective(
    "advisor", "You are an advisor. Weigh the options for the reader and recommend what to do."
)
PERSPECTIVES: Mapping[str, Perspective] = MappingProxyType({v.name: v for v in (analyst, critic, advisor)})
# -- strategies: how the model is asked to think, and how the answer is taken out of its text --------------
ANSWER_MARKER = "Answer:"
_ANSWER_MARKER = re.compile(r"^[ \t>*_#]*(?:final )?answer[ \t*_]*:[ \t*_]*", re.IGNORECASE | re.MULTILINE)


@runtime_checkable
class Strategy(Protocol):
    """A way to think. `wrap` takes the assembled system prompt, `parse` the model's final text."""

    def wrap(self, prompt: str) -> str: ...

    def parse(self, output: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class AnswerAfterMarker:
    """Asks for work first and for the answer after a marker. Only the answer is the output.

    Args:
        name: Its name in YAML.
        request: What the model does before it answers.
    """

    name: str
    request: str

    def wrap(self, prompt: str) -> str:
        instruction = (
            f"{self.request} Then write the answer for the reader on a new line that starts with "
            f"`{ANSWER_MARKER}`."
        )
        return f"{prompt}\n\n{instruction}" if prompt else instruction

    def parse(self, output: Any) -> Any:
        """Returns the text after the last marker, or the whole text if there is none."""
        if not isinstance(output, str):
            return output
        marks = list(_ANSWER_MARKER.finditer(output))
        answer = output[marks[-1].end() :].strip() if marks else ""
        return answer or output


chain_of_thought = AnswerAfterMarker("chain_of_thought", "Think step by step and write your reasoning down.")
plan_then_answer = AnswerAfterMarker(
    "plan_then_answer", "First write a short numbered plan and work through it."
)
self_critique = AnswerAfterMarker(
    "self_critique", "First draft an answer, then list what is wrong or missing in it and correct it."
)
STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {s.name: s for s in (chain_of_thought, plan_then_answer, self_critique)}
)
