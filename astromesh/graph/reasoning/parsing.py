"""Cleans the text of a model: removes its thinking, keeps known fields of the right type, shortens them.

One table of marks finds thinking. Show a model's text, streamed or not, through `answer_in` (a text for the
reader) or `fields_in` (the requested fields). Readers return what they could use and what was wrong,
never an exception. Fields that were not requested (`chain_of_thought`, `route`, `goto`) are never read: they
can neither leak nor steer. All functions are pure and linear in the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from astromesh.graph.structured_output import extract_object, placed_values, whole_object
from astromesh.types import JsonObject


class ThinkingMark(NamedTuple):
    """How thinking begins and ends in a text.

    Args:
        closing_suffices: An end without a beginning hides the text before it: the beginning was part of the
            prompt.
    """

    opening: re.Pattern[str]
    closing: re.Pattern[str]
    closing_suffices: bool = True


_THINKING_NAMES = (
    "think", "thinking", "thought", "thoughts", "reasoning", "scratchpad", "chain_of_thought",
    "analysis", "reflection", "reflect", "deliberation", "inner_monologue", "inner_thoughts",
)  # fmt: skip

#: Names that also mark thinking in brackets. `[analysis]` may be a headline or a link.
_BRACKETED_NAMES = _THINKING_NAMES[:7]


def _mark(opening: str, closing: str, *, closing_suffices: bool = True) -> ThinkingMark:
    return ThinkingMark(re.compile(opening, re.I | re.M), re.compile(closing, re.I | re.M), closing_suffices)


_ANSWER = r"^[*_# ]{0,4}(?:final )?answer[*_]{0,2} ?:[*_]{0,2}"

MARKS = (
    # <think>, <thinking depth="2">, <seed:think>
    *(_mark(rf"<(?:\w{{1,20}}:)?{n}(?:\s[^<>]*)?>", rf"</(?:\w{{1,20}}:)?{n}\s*>") for n in _THINKING_NAMES),
    *(_mark(rf"\[{n}\](?!\()", rf"\[/{n}\]") for n in _BRACKETED_NAMES),
    _mark("◁think▷", "◁/think▷"),
    _mark(
        r"<\|(?:start|begin)_(?:of_)?(?:think\w*|thought\w*|reasoning)\|>",
        r"<\|end_(?:of_)?(?:think\w*|thought\w*|reasoning)\|>",
    ),
    _mark(r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),
    _mark(r"<\|channel>\s*thought", r"<channel\|>", closing_suffices=False),
    # harmony (gpt-oss): everything but the channel `final`; then the same without its marks
    _mark(r"<\|channel\|>(?!\s*final\b)", r"<\|channel\|>\s*final\b[^<]*(?:<\|message\|>)?"),
    _mark(r"\A\s*analysis(?=[\s\S]*assistantfinal)", "assistantfinal", closing_suffices=False),
    # ReAct in words
    _mark(
        rf"\A\s*[*_#]{{0,4}} ?(?:thoughts?|thinking|reasoning|scratchpad)[*_]{{0,2}} ?:(?=[\s\S]*{_ANSWER})",
        _ANSWER,
        closing_suffices=False,
    ),
)

#: A text without any of these has no mark.
_ANY_MARK = re.compile(
    r"[<\[◁]|\A\s*(?:analysis|[*_#]{0,4} ?(?:th(?:ought|inking)|reasoning|scratchpad))", re.I
)
#: The rest of harmony's frame around a final message.
_HARMONY_FRAME = re.compile(r"<\|(?:start\|>assistant|(?:end|return|call)\|>)")

#: Fields by their letters alone: `chain_of_thought` equals `chainOfThought`.
_THINKING_FIELDS = frozenset(
    {
        *(name.replace("_", "") for name in _THINKING_NAMES if name not in ("analysis", "reflect")),
        "raw", "cot", "internalreasoning", "hiddenreasoning", "reasoningcontent", "thoughtprocess",
    }
)  # fmt: skip

_NO_LETTER = re.compile(r"[\W_]+")

#: Fields that no proper answer uses, in data that is not complete JSON (cut off, or Python syntax).
_THINKING_FIELD = re.compile(
    r"[\"'](?:thoughts?|thinking|thought[ _-]?process|chain[ _-]?of[ _-]?thought|scratchpad|inner[ _-]?\w+|"
    r"(?:internal|hidden)[ _-]?reasoning)[\"']\s*:",
    re.I,
)

_BRACES = re.compile(r"\{[^{}]*\}")
_CODE_FENCE = re.compile(r"```\w*\s*\Z"), re.compile(r"\A\s*```")
#: Levels of JSON that are shown. Deeper ones are left out.
_MAX_DEPTH = 50


def without_thinking(text: str) -> str:
    """Returns a model's text without marked thinking. An unclosed mark hides everything after it."""
    if not _ANY_MARK.search(text):
        return text
    for mark in MARKS:
        first, *others = mark.opening.split(text)
        closed = _after_last_closing(first, mark) if mark.closing_suffices else ""
        text = closed or ("" if mark.closing_suffices and mark.closing.search(first) else first)
        text += "".join(_after_last_closing(after, mark) for after in others)
    return _HARMONY_FRAME.sub("", text)


def _after_last_closing(text: str, mark: ThinkingMark) -> str:
    """Returns the text after the last closing mark, or an empty string."""
    _, *closed = mark.closing.split(text)
    return closed[-1] if closed else ""


def without_thinking_fields(value: Any, levels: int = _MAX_DEPTH) -> Any:
    """Returns JSON without the fields, at any level, in which models write down their thinking."""
    if isinstance(value, str):
        return without_thinking(value)
    if not isinstance(value, dict | list):
        return value
    if not levels:
        return "…"
    if isinstance(value, list):
        return [without_thinking_fields(item, levels - 1) for item in value]
    visible = {
        key: item
        for key, item in value.items()
        if _NO_LETTER.sub("", str(key)).casefold() not in _THINKING_FIELDS
    }
    return {key: without_thinking_fields(item, levels - 1) for key, item in visible.items()}


def object_in(text: str, keys: Sequence[str]) -> JsonObject | None:
    """Returns the first JSON object of an answer that has one of the requested keys, or None."""
    text = without_thinking(text)
    found = (extract_object(text, key) for key in keys)
    return next((value for value in found if value is not None), None)


def fields_in(text: str, keys: Sequence[str]) -> str:
    """Returns the requested fields of the JSON object in an answer, as JSON, or an empty string.

    Args:
        keys: The requested fields.
    """
    found = object_in(text, keys)
    requested = {key: found[key] for key in keys if key in found} if found else {}
    return orjson.dumps(without_thinking_fields(requested)).decode() if requested else ""


def answer_in(text: str) -> str:
    """Returns an answer for the reader: without thinking, even if the model wrapped both into JSON."""
    text = without_thinking(text).strip()
    whole = whole_object(text)
    if whole is not None:
        visible = without_thinking_fields(whole)
        return text if visible == whole else _answer_text(visible)
    return _without_thinking_objects(text) if "{" in text else text


def _answer_text(visible: JsonObject) -> str:
    answer = visible.get("answer")
    if isinstance(answer, str):
        return answer.strip()
    return orjson.dumps(visible).decode() if visible else ""


def _without_thinking_objects(text: str) -> str:
    """Returns a text around JSON, in which objects with thinking are replaced by their other content."""
    text = "".join(_visible_pieces(text))
    while field := _THINKING_FIELD.search(text):
        start = max(text.rfind("{", 0, field.start()), text.rfind("}", 0, field.start()) + 1)
        group = _BRACES.match(text, start)
        text = text[:start] + (text[group.end() :] if group else "")
    return text.strip()


def _visible_pieces(text: str) -> Iterator[str]:
    end = 0
    for start, stop, value in placed_values(text):
        visible = without_thinking_fields(value)
        if visible == value:
            continue
        opening, closing = _CODE_FENCE[0].search(text[end:start]), _CODE_FENCE[1].match(text[stop:])
        fenced = opening is not None and closing is not None
        yield text[end : end + opening.start()] if opening and fenced else text[end:start]
        yield _answer_text(visible)
        end = stop + closing.end() if closing and fenced else stop
    yield text[end:]


# -- known fields of the right type, short ------------------------------------------------------------------

#: Characters of a line in trace, gaps and conclusions, and their number.
MAX_LINE, MAX_LINES = 240, 12
_MAX_ARGUMENTS = 1_000
LEVELS = ("low", "medium", "high")
STEP_KINDS = ("decomposition", "analysis", "comparison", "synthesis_preparation")
#: The planner's kinds of step for the end of the work and for a tool call.
DONE, TOOL = "done", "tool"

_STEP_KIND_ALIASES = {
    "use_tool": TOOL,
    "tool_call": TOOL,
    "synthesis": "synthesis_preparation",
    "finish": DONE,
    "draft": DONE,
}

DEFAULT_PROFILE: JsonObject = {
    "complexity": "complex",
    "domain": "general",
    "risk": "medium",
    "tool_needs": [],
    "evidence_needs": [],
    "output_type": "text",
    "needs_critique": False,
}


def one_line(value: Any, limit: int = MAX_LINE) -> str:
    """Returns one line of text, cut. It is empty for what is neither text nor number."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return ""
    text = " ".join(without_thinking(str(value)).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def text_list(value: Any, limit: int = MAX_LINES) -> list[str]:
    """Returns a list of short, distinct texts. A single text is a list of one."""
    items = value if isinstance(value, list | tuple) else [value]
    return list(dict.fromkeys(text for item in items[: 4 * limit] if (text := one_line(item))))[:limit]


def visible_arguments(arguments: JsonObject) -> JsonObject:
    """Returns a tool call's arguments as others may see them: cut if they are long."""
    visible: JsonObject = without_thinking_fields(arguments)
    text = orjson.dumps(visible, default=str).decode()
    return visible if len(text) <= _MAX_ARGUMENTS else {"cut": text[:_MAX_ARGUMENTS]}


def profile_of(found: JsonObject) -> tuple[JsonObject, str]:
    """Returns the profile and what was wrong with it.

    Without a known complexity it is the default profile.
    """
    complexity = one_line(found.get("complexity")).lower()
    if complexity not in ("simple", "moderate", "complex"):
        return dict(DEFAULT_PROFILE), f"the profile has an unknown complexity: {complexity[:40]!r}."
    risk = one_line(found.get("risk")).lower()
    needs = found.get("tool_needs")
    return {
        "complexity": complexity,
        "domain": one_line(found.get("domain"), 80) or "general",
        "risk": risk if risk in LEVELS else "medium",
        "tool_needs": ["any"] if needs is True else text_list(needs) if needs else [],
        "evidence_needs": text_list(found.get("evidence_needs") or []),
        "output_type": one_line(found.get("output_type"), 80) or "text",
        "needs_critique": found.get("needs_critique") is True,
    }, ""


def step_of(found: Any) -> tuple[JsonObject, str]:
    """Returns the proposed step and what was wrong with it. A malformed one becomes an analysis step."""
    if not isinstance(found, dict):
        return analysis_step(), "the proposed step is not a JSON object."
    if isinstance(found.get("next_step"), dict):
        found = found["next_step"]
    kind = re.sub(r"[\s-]+", "_", one_line(found.get("kind"), 60).lower())
    kind = _STEP_KIND_ALIASES.get(kind, kind)
    title = one_line(found.get("step") or found.get("title"), 100)
    if kind == TOOL:
        return _tool_step(found, title)
    if kind == DONE:
        return {"kind": DONE, "step": DONE}, ""
    if kind not in STEP_KINDS:
        return analysis_step(), f"the proposed step has an unknown kind: {kind[:40]!r}."
    return {"kind": kind, "step": title or kind}, ""


def analysis_step() -> JsonObject:
    """Returns the step for a proposal that cannot be used."""
    return {"kind": "analysis", "step": "analysis"}


def _tool_step(found: JsonObject, title: str) -> tuple[JsonObject, str]:
    name, args = (
        one_line(found.get("tool") or found.get("name"), 64),
        found.get("args", found.get("arguments")),
    )
    if not name:
        return analysis_step(), "the proposed step asks for a tool and names none."
    fault = "" if args is None or isinstance(args, dict) else f"the arguments of {name!r} are not an object."
    step = {"kind": TOOL, "step": title or name, "tool": name, "args": args if isinstance(args, dict) else {}}
    return step, fault


def confidence_of(value: Any, before: float) -> tuple[float, str]:
    """Returns a confidence in [0, 1], or the one before if the value is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return before, f"the confidence is not a number: {one_line(str(value), 40)!r}."
    return min(1.0, max(0.0, float(value))), ""


def critique_of(found: JsonObject) -> JsonObject | None:
    """Returns the findings, or None if the answer is not a critique."""
    keys = ("unsupported_claims", "missing_constraints", "clarity_issues")
    if not (found.keys() & {*keys, "acceptable"}):
        return None
    critique: JsonObject = {key: text_list(found.get(key) or []) for key in keys}
    findings = any(critique[key] for key in keys)
    if found.get("acceptable") is False and not findings:
        critique["clarity_issues"] = ["The draft was not accepted."]
        findings = True
    return {"acceptable": not findings, **critique}


# -- claims ------------------------------------------------------------------------------------------------
_SENTENCE = re.compile(r"(?<=[.!?])(\s+)|(\n+)")
_WORD = re.compile(r"\w+")
UNVERIFIED_MARK = "[unverified]"
#: The share of a claim's words that makes a sentence the same claim in other words.
_MIN_WORD_OVERLAP = 0.8


def mark_claims(text: str, claims: Sequence[str]) -> str:
    """Returns the text with a mark after every sentence that makes one of these claims."""
    return _edit_claims(text, claims, lambda sentence: f"{sentence} {UNVERIFIED_MARK}")


def without_claims(text: str, claims: Sequence[str]) -> str:
    """Returns the text without the sentences that make one of these claims.

    If nothing is left, they are marked.
    """
    left = _edit_claims(text, claims, lambda sentence: "").strip()
    return left if _WORD.search(left) else mark_claims(text, claims)


def _edit_claims(text: str, claims: Sequence[str], edit: Any) -> str:
    wanted = [words for claim in claims if (words := _words(claim))]
    parts = [part for part in _SENTENCE.split(text) if part is not None]
    found: set[int] = set()
    for place, part in enumerate(parts):
        hits = {i for i, claim in enumerate(wanted) if _states_claim(_words(part), claim)}
        found |= hits
        if hits and UNVERIFIED_MARK not in part:
            parts[place] = edit(part)
    whole = _words(text)
    # a claim that covers several sentences is named at the end
    rest = [claims[i] for i, claim in enumerate(wanted) if i not in found and _contains_words(claim, whole)]
    return "".join(parts) + "".join(f"\n{UNVERIFIED_MARK} {claim}" for claim in rest)


def _states_claim(sentence: list[str], claim: list[str]) -> bool:
    if _contains_words(claim, sentence):
        return True
    words = set(sentence)
    return len(claim) > 2 and sum(word in words for word in claim) >= _MIN_WORD_OVERLAP * len(claim)


def _contains_words(claim: list[str], words: list[str]) -> bool:
    return f" {' '.join(claim)} " in f" {' '.join(words)} "


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]
