"""Hides the thinking that models write before their answers.

One table of marks finds thinking, and only where a text begins (controller.md, behaviour 49). The rest of a
text is the answer and stays as it is, whatever it is about. All functions are pure and linear in the text.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class ThinkingMark(NamedTuple):
    """How thinking begins at the start of a text, and how it ends.

    Args:
        nests: Thinking may hold the marks, too: it ends where as many ends as beginnings were read.
    """

    opening: re.Pattern[str]
    closing: re.Pattern[str]
    nests: bool = False


def _mark(opening: str, closing: str, *, nests: bool = False) -> ThinkingMark:
    return ThinkingMark(re.compile(opening, re.I | re.M), re.compile(closing, re.I | re.M), nests)


_TAG = r"(?:\w{1,20}:)?think(?:ing)?"
#: Another token follows a channel's name, unless the text was cut there.
_CHANNEL = r"<\|channel\|>\s*(?:\w+\s*)?(?:to=[^<\n]*)?(?:<\||\Z)"
_FINAL = r"<\|channel\|>\s*final\b[^<\n]*(?:<\|constrain\|>[^<\n]*)?<\|message\|>"
_ANSWER = r"^[*_# ]{0,4}Final Answer[*_]{0,3} ?:[*_]{0,3}"
_THOUGHT = r"[*_# ]{0,4}Thought(?: \d{1,3})?[*_]{0,3} ?:"

MARKS = (
    # <think>, <thinking depth="2">, <seed:think>
    _mark(rf"<{_TAG}(?:\s+[\w:-]+=[^<>]*)?\s*>", rf"</{_TAG}\s*>", nests=True),
    _mark(r"```think(?:ing)?[ \t]*\n", r"^[ \t]*```[ \t]*$"),
    # the special tokens of Magistral, Kimi, Cohere, Apertus, Gemma and gpt-oss (harmony, also without tokens)
    _mark(r"(?-i:\[THINK\](?=\S|\s*$|[\s\S]*?\[/THINK\]))", r"(?-i:\[/THINK\])"),
    _mark("◁think▷", "◁/think▷"),
    _mark(
        r"<\|(?:start|begin)_(?:of_)?(?:think\w*|thought\w*|reasoning)\|>",
        r"<\|end_(?:of_)?(?:think\w*|thought\w*|reasoning)\|>",
    ),
    _mark(r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),
    _mark(r"<\|channel>\s*thought", r"<channel\|>"),
    _mark(rf"(?=(?:<\|start\|>assistant)?{_CHANNEL})", _FINAL),
    _mark(r"analysis(?=\S[\s\S]*assistantfinal)", "assistantfinal"),
    # ReAct in words
    _mark(rf"{_THOUGHT}(?=[\s\S]*{_ANSWER})", _ANSWER),
)
_THOUGHT_LINES = re.compile(rf"(?:{_THOUGHT}[^\n]*(?:\n\s*|\Z))+", re.I)

#: The ends of thinking whose beginning was part of the prompt: a tag has a line of its own.
_ENDS_ALONE = re.compile(
    rf"^[ \t]*</{_TAG}>[ \t]*(?=\n|\Z)|<\|end\|><\|start\|>assistant{_FINAL}", re.I | re.M
)
_HARMONY_END = re.compile(r"<\|(?:end|return|call)\|>\s*\Z")
_SPACE, _GAP = re.compile(r"[\s\ufeff\u200b]*"), re.compile(r"(?:\s*\n|[ \t]+)?")


def without_thinking(text: str) -> str:
    """Returns a model's text without the thinking before its answer. An unclosed mark hides everything."""
    end = 0
    while (after := _end_of_thinking(text, end)) is not None:
        end = after
    end = end or _end_alone(text)
    if not end:
        return text
    start = _GAP.match(text, end)
    return _HARMONY_END.sub("", text[start.end() if start else end :])


def _end_of_thinking(text: str, start: int) -> int | None:
    """Returns the end of the thinking that begins here, or None if here is something else."""
    if space := _SPACE.match(text, start):
        start = space.end()
    for mark in MARKS:
        if opening := mark.opening.match(text, start):
            return _end_of_mark(text, mark, opening.end())
    lines = _THOUGHT_LINES.match(text, start)
    return lines.end() if lines else None


def _end_of_mark(text: str, mark: ThinkingMark, start: int) -> int:
    """Returns the end of the closing mark. Without one it is the end of the text."""
    depth, end, openings = 1, len(text), mark.opening.finditer(text, start) if mark.nests else iter(())
    inner = next(openings, None)
    for closing in mark.closing.finditer(text, start):
        end = closing.end()
        while inner is not None and inner.start() < closing.start():
            depth, inner = depth + 1, next(openings, None)
        depth -= 1
        if not depth:
            break
    return end


def _end_alone(text: str) -> int:
    """Returns the end of thinking that began in the prompt, or 0. A mark within code is text."""
    if (found := _ENDS_ALONE.search(text)) is None:
        return 0
    before = text[: found.start()]
    fences = before.count("```")
    return 0 if fences % 2 or before[before.rfind("\n") + 1 :].count("`") % 2 else found.end()
