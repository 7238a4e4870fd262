"""Which tool to call for a question: by the words that question and tool share.

A tool that reads is called when it fits: its words occur in the question, or it searches and takes any
question. A tool with an effect (`write`, `external`) is called only when the user's words ask for it by its
name: `Please create a ticket: …` for `create_ticket`; not in a question about it, and not after a `don't`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from uuid import uuid4

import orjson

from astromesh.providers.embedded.arguments import asks_for_text, fill
from astromesh.providers.embedded.words import name_stems, stems, words
from astromesh.types import ToolCall, ToolSpec

_SEARCH_STEMS = frozenset(
    stems(
        "search find lookup look retrieve knowledge document passage faq wiki article manual information "
        "query answer"
    )
)
#: words that say nothing about what a tool is for
_IDLE_STEMS = frozenset(
    stems("return result list show tool use user data value given number best new current get set")
)
_SEARCH_BONUS = 0.75
_NAME_WEIGHT = 2.0
_REQUEST = re.compile(
    r"^\W*(please\b|(can|could|would|will) you\b|i (want|would like|need) (you )?to\b|i'd like\b)", re.I
)
_ABOUT = re.compile(
    r"^\W*(how|what|why|when|where|who|whom|which|whose|do|does|did|is|are|was|were|should|can|could|may|will|would"
    r"|have|has|tell me|explain)\b",
    re.I,
)
_NEGATED = re.compile(r"\b(don't|do not|never|not|without|no need)\b", re.I)


def choose(
    question: str, tools: Sequence[ToolSpec], called: Collection[str] = (), tool_choice: str = "auto"
) -> ToolCall | None:
    """The call of the best fitting tool, or None.

    Args:
        question: the user's words.
        tools: what is offered.
        called: names that were called for this question already.
        tool_choice: of the request; a name or `required` asks for a call although nothing fits.
    """
    if tool_choice == "none":
        return None
    if tool_choice not in ("auto", "required"):
        tools = [tool for tool in tools if tool.name == tool_choice]
    forced = tool_choice != "auto"
    ranked: list[tuple[float, int, ToolSpec, str]] = []
    for index, tool in enumerate(tools):
        score = fit(question, tool)
        if tool.name in called or not (score > 0 or (forced and tool.effect == "read")):
            continue
        arguments = fill(tool.parameters, question, whole=searches(tool) or forced)
        if arguments is not None:
            ranked.append((-score, index, tool, orjson.dumps(arguments).decode()))
    if not ranked:
        return None
    _, _, tool, arguments_json = min(ranked, key=lambda r: r[:2])
    return ToolCall(f"call_{uuid4().hex[:24]}", tool.name, arguments_json)


def fit(question: str, tool: ToolSpec) -> float:
    """How well a tool fits a question; 0 where it must not be called."""
    if tool.effect != "read":
        return _NAME_WEIGHT * 2 if asked_for(question, tool) else 0.0
    asked = set(stems(question))
    if not asked:  # a greeting is no question
        return 0.0
    name = set(name_stems(tool.name)) - _IDLE_STEMS
    described = set(stems(tool.description)) - _IDLE_STEMS - name
    score = _NAME_WEIGHT * len(asked & name) + len(asked & described)
    return score + (_SEARCH_BONUS if searches(tool) else 0.0)


def searches(tool: ToolSpec) -> bool:
    """Whether a tool answers questions in general: it takes a text, and says that it finds things."""
    said = {*name_stems(tool.name), *stems(tool.description)}
    for name, schema in (tool.parameters.get("properties") or {}).items():
        said |= {
            *name_stems(name),
            *stems(str(schema.get("description", "")) if isinstance(schema, dict) else ""),
        }
    return bool(said & _SEARCH_STEMS) and asks_for_text(tool.parameters)


def asked_for(question: str, tool: ToolSpec) -> bool:
    """Whether a sentence of the user's asks for this tool by every word of its name."""
    named = set(name_stems(tool.name)) or set(words(tool.name))
    return any(
        named and named <= set(stems(sentence)) and _is_request(sentence)
        for sentence in re.split(r"(?<=[.!?])\s+|\n+", question)
    )


def _is_request(sentence: str) -> bool:
    if _NEGATED.search(sentence):
        return False
    return bool(_REQUEST.match(sentence)) or not (_ABOUT.match(sentence) or sentence.rstrip().endswith("?"))
