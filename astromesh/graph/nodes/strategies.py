"""Strategies: how a PromptNode asks the model to think, and how the answer is taken out of what it wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

ANSWER = "Answer:"
_MARK = re.compile(r"^[ \t>*_#]*(?:final )?answer[ \t*_]*:[ \t*_]*", re.IGNORECASE | re.MULTILINE)


@runtime_checkable
class Strategy(Protocol):
    """A way to think. `wrap` gets the assembled system prompt, `parse` the model's final text."""

    def wrap(self, prompt: str) -> str: ...

    def parse(self, output: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class AnswerAfter:
    """Asks for work first and the answer behind a mark; only the answer goes on.

    Args:
        name: what YAML calls it.
        request: what the model is asked to do before it answers.
    """

    name: str
    request: str

    def wrap(self, prompt: str) -> str:
        asked = (
            f"{self.request} Then write the answer for the reader on a new line that starts with `{ANSWER}`."
        )
        return f"{prompt}\n\n{asked}" if prompt else asked

    def parse(self, output: Any) -> Any:
        """What stands behind the last mark; without a mark, or with nothing behind it, the whole text."""
        if not isinstance(output, str):
            return output
        marks = list(_MARK.finditer(output))
        answer = output[marks[-1].end() :].strip() if marks else ""
        return answer or output


chain_of_thought = AnswerAfter("chain_of_thought", "Think step by step and write your reasoning down.")
plan_then_answer = AnswerAfter("plan_then_answer", "First write a short numbered plan and work through it.")
self_critique = AnswerAfter(
    "self_critique", "First draft an answer, then list what is wrong or missing in it and correct it."
)

STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {s.name: s for s in (chain_of_thought, plan_then_answer, self_critique)}
)
