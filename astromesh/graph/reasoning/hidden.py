"""What models mark, or name, as their thinking, and how it is taken out of a text.

One table of marks; whoever shows a model's text goes through `answer_in` (a text for the reader) or
`fields_in` (what was asked for), streamed or not. Pure functions, linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from astromesh.graph.extract import extract_object, placed_objects, whole_object
from astromesh.types import JsonObject


class Mark(NamedTuple):
    """How thinking begins and ends in a text.

    Args:
        alone: an end without a beginning hides what stands before it: the beginning was part of the prompt.
    """

    opening: re.Pattern[str]
    closing: re.Pattern[str]
    alone: bool = True


_NAMES = (
    "think", "thinking", "thought", "thoughts", "reasoning", "scratchpad", "chain_of_thought",
    "analysis", "reflection", "reflect", "deliberation", "inner_monologue", "inner_thoughts",
)  # fmt: skip
#: also in brackets, where `analysis` is a headline or a link
_BRACKETED = _NAMES[:7]


def _row(opening: str, closing: str, *, alone: bool = True) -> Mark:
    return Mark(re.compile(opening, re.I | re.M), re.compile(closing, re.I | re.M), alone)


_ANSWER = r"^[*_# ]{0,4}(?:final )?answer[*_]{0,2} ?:[*_]{0,2}"
MARKS = (
    # <think>, <thinking depth="2">, <seed:think>
    *(_row(rf"<(?:\w{{1,20}}:)?{n}(?:\s[^<>]*)?>", rf"</(?:\w{{1,20}}:)?{n}\s*>") for n in _NAMES),
    *(_row(rf"\[{n}\](?!\()", rf"\[/{n}\]") for n in _BRACKETED),
    _row("◁think▷", "◁/think▷"),
    _row(
        r"<\|(?:start|begin)_(?:of_)?(?:think\w*|thought\w*|reasoning)\|>",
        r"<\|end_(?:of_)?(?:think\w*|thought\w*|reasoning)\|>",
    ),
    _row(r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),
    _row(r"<\|channel>\s*thought", r"<channel\|>", alone=False),
    # harmony (gpt-oss): everything but the channel `final`; then the same with its marks lost on the way
    _row(r"<\|channel\|>(?!\s*final\b)", r"<\|channel\|>\s*final\b[^<]*(?:<\|message\|>)?"),
    _row(r"\A\s*analysis(?=[\s\S]*assistantfinal)", "assistantfinal", alone=False),
    # ReAct in words
    _row(
        rf"\A\s*[*_#]{{0,4}} ?(?:thoughts?|thinking|reasoning|scratchpad)[*_]{{0,2}} ?:(?=[\s\S]*{_ANSWER})",
        _ANSWER,
        alone=False,
    ),
)
#: where none of these is, there is no mark
_SUSPECT = re.compile(
    r"[<\[◁]|\A\s*(?:analysis|[*_#]{0,4} ?(?:th(?:ought|inking)|reasoning|scratchpad))", re.I
)
#: what is left of harmony's frame around a final message
_FRAME = re.compile(r"<\|(?:start\|>assistant|(?:end|return|call)\|>)")

#: fields by their letters alone: `chain_of_thought` and `chainOfThought` are one
_FIELDS = frozenset(
    {
        *(name.replace("_", "") for name in _NAMES if name not in ("analysis", "reflect")),
        "raw", "cot", "internalreasoning", "hiddenreasoning", "reasoningcontent", "thoughtprocess",
    }
)  # fmt: skip
_NO_LETTER = re.compile(r"[\W_]+")
#: those that no honest answer uses, in data that is no whole JSON: cut off, or Python's
_FIELD = re.compile(
    r"[\"'](?:thoughts?|thinking|thought[ _-]?process|chain[ _-]?of[ _-]?thought|scratchpad|inner[ _-]?\w+|"
    r"(?:internal|hidden)[ _-]?reasoning)[\"']\s*:",
    re.I,
)
_BRACES = re.compile(r"\{[^{}]*\}")
_FENCE = re.compile(r"```\w*\s*\Z"), re.compile(r"\A\s*```")
#: levels of JSON that are shown; what lies deeper is left out
_LEVELS = 50


def without_hidden(text: str) -> str:
    """A model's text without what it marks as its thinking; an open mark hides everything behind it."""
    if not _SUSPECT.search(text):
        return text
    for mark in MARKS:
        first, *others = mark.opening.split(text)
        closed = _behind(first, mark) if mark.alone else ""
        text = closed or ("" if mark.alone and mark.closing.search(first) else first)
        text += "".join(_behind(after, mark) for after in others)
    return _FRAME.sub("", text)


def _behind(text: str, mark: Mark) -> str:
    """What stands behind the last mark that closes; empty where there is none."""
    _, *closed = mark.closing.split(text)
    return closed[-1] if closed else ""


def shown(value: Any, levels: int = _LEVELS) -> Any:
    """JSON without the fields, on any level, in which models write down what they think."""
    if isinstance(value, str):
        return without_hidden(value)
    if not isinstance(value, dict | list):
        return value
    if not levels:
        return "…"
    if isinstance(value, list):
        return [shown(item, levels - 1) for item in value]
    said = {
        key: item for key, item in value.items() if _NO_LETTER.sub("", str(key)).casefold() not in _FIELDS
    }
    return {key: shown(item, levels - 1) for key, item in said.items()}


def object_in(text: str, keys: Sequence[str]) -> JsonObject | None:
    """The first JSON object of an answer that has one of the keys that were asked for, or None."""
    text = without_hidden(text)
    found = (extract_object(text, key) for key in keys)
    return next((value for value in found if value is not None), None)


def fields_in(text: str, keys: Sequence[str]) -> str:
    """Of the JSON object of an answer, what was asked for, as JSON; empty where there is none.

    Args:
        keys: the fields that were asked for.
    """
    found = object_in(text, keys)
    asked = {key: found[key] for key in keys if key in found} if found else {}
    return orjson.dumps(shown(asked)).decode() if asked else ""


def answer_in(text: str) -> str:
    """An answer for the reader: without thinking, also where the model wrapped both into JSON."""
    text = without_hidden(text).strip()
    whole = whole_object(text)
    if whole is not None:
        kept = shown(whole)
        return text if kept == whole else _said(kept)
    return _without_data(text) if "{" in text else text


def _said(kept: JsonObject) -> str:
    answer = kept.get("answer")
    if isinstance(answer, str):
        return answer.strip()
    return orjson.dumps(kept).decode() if kept else ""


def _without_data(text: str) -> str:
    """A text around JSON: objects that hold thinking give way to what else they say."""
    text = "".join(_pieces(text))
    while field := _FIELD.search(text):
        start = max(text.rfind("{", 0, field.start()), text.rfind("}", 0, field.start()) + 1)
        group = _BRACES.match(text, start)
        text = text[:start] + (text[group.end() :] if group else "")
    return text.strip()


def _pieces(text: str) -> Iterator[str]:
    end = 0
    for start, stop, value in placed_objects(text):
        kept = shown(value)
        if kept == value:
            continue
        opening, closing = _FENCE[0].search(text[end:start]), _FENCE[1].match(text[stop:])
        fenced = opening is not None and closing is not None
        yield text[end : end + opening.start()] if opening and fenced else text[end:start]
        yield _said(kept)
        end = stop + closing.end() if closing and fenced else stop
    yield text[end:]
