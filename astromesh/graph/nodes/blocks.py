"""Blocks: the pieces that a PromptNode's system prompt is put together from, after its instructions.

A block is a text, or anything with `render(state) -> str`. A block whose text depends on the state says so by
`dynamic = True`; the others are rendered once per invocation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable


@runtime_checkable
class Block(Protocol):
    """A piece of a system prompt."""

    @property
    def dynamic(self) -> bool:
        """Whether the text depends on the state and is rendered again on every call."""

    def render(self, state: Any) -> str: ...


@dataclass(frozen=True, slots=True)
class Text:
    """A text under a heading.

    Args:
        title: heading, or empty for none.
    """

    text: str
    title: str = ""
    dynamic: ClassVar[bool] = False

    def render(self, state: Any) -> str:
        return f"## {self.title}\n{self.text}" if self.title else self.text


@dataclass(frozen=True, slots=True)
class Rules:
    """Numbered rules that the model has to keep to."""

    rules: Sequence[str]
    title: str = "Rules"
    dynamic: ClassVar[bool] = False

    def render(self, state: Any) -> str:
        return f"## {self.title}\n" + "\n".join(f"{n}. {rule}" for n, rule in enumerate(self.rules, 1))


@dataclass(frozen=True, slots=True)
class Examples:
    """Pairs of input and wanted output."""

    examples: Sequence[tuple[str, str]]
    title: str = "Examples"
    dynamic: ClassVar[bool] = False

    def render(self, state: Any) -> str:
        return f"## {self.title}\n" + "\n\n".join(f"Input: {a}\nOutput: {b}" for a, b in self.examples)


@dataclass(frozen=True, slots=True)
class FromState:
    """A text that a function makes of the state, anew on every call.

    Args:
        function: takes the GraphState; an empty answer leaves the block out.
    """

    function: Callable[[Any], str] = field(repr=False)
    title: str = ""
    dynamic: ClassVar[bool] = True

    def render(self, state: Any) -> str:
        text = self.function(state)
        return f"## {self.title}\n{text}" if self.title and text else text


def as_block(block: Any) -> Block:
    """A block as it is; a text or a function of the state as the block it stands for."""
    if isinstance(block, str):
        return Text(block)
    if isinstance(block, Block):
        return block
    if callable(block):
        return FromState(block)
    raise TypeError(
        f"{block!r} is no block: give a text, a function of the state or something with render()."
    )
