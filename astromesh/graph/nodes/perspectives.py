"""Perspectives: from whose point of view a PromptNode speaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, runtime_checkable


@runtime_checkable
class Perspective(Protocol):
    """A point of view. `apply` gets the system prompt and answers it with the point of view in it."""

    def apply(self, prompt: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Voice:
    """A point of view that is said in a few sentences.

    Args:
        name: what YAML calls it.
        text: who the model is and what it looks at.
    """

    name: str
    text: str

    def apply(self, prompt: str) -> str:
        return f"{self.text}\n\n{prompt}" if prompt else self.text


analyst = Voice(
    "analyst", "You are an analyst. Rest on evidence, name your assumptions, tell fact from guess."
)
critic = Voice(
    "critic", "You are a critic. Look for errors, gaps and weak reasons, and say how bad each one is."
)
advisor = Voice("advisor", "You are an advisor. Weigh the options for the reader and recommend what to do.")

PERSPECTIVES: Mapping[str, Perspective] = MappingProxyType({v.name: v for v in (analyst, critic, advisor)})
