"""Reads a model's text: hides the thinking before its answer, keeps known fields of the right type.

Show a model's text, streamed or not, through
`answer_in` (a text for the reader) or `fields_in` (the requested fields). Readers return what they could use
and what was wrong, never an exception. Fields that were not requested (`chain_of_thought`, `route`, `goto`)
are never read: they can neither leak nor steer. All functions are pure and linear in the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from astromesh.graph.model_output import extract_object, whole_object, without_thinking
from astromesh.types import JsonObject

#: The hidden fields of the controller's own schema, by their letters alone: `chainOfThought` is one of them.
_HIDDEN_FIELDS = frozenset({"chainofthought", "thought", "thoughts", "scratchpad", "raw"})
#: The keys of the report, which an envelope may have beside `answer`.
REPORT_KEYS = (
    "status", "answer", "reasoning_summary", "selected_strategy", "strategy_history", "termination_reason",
    "confidence", "knowledge_gaps", "trace_summary", "observations", "budget_used", "errors",
)  # fmt: skip
_NO_LETTER = re.compile(r"[\W_]+")


def answer_in(text: str) -> str:
    """Returns an answer for the reader, without the thinking before it.

    If the whole text is an envelope in the controller's own schema (`{"thoughts": …, "answer": …}`), the
    answer is the text in it. Any other JSON is the answer itself, and so is what stands in a code fence.
    """
    text = without_thinking(text)
    message = text.strip().removeprefix("\ufeff")
    whole = whole_object(message) if message.startswith("{") else None
    return whole["answer"] if whole is not None and _is_envelope(whole) else text


def _is_envelope(value: JsonObject) -> bool:
    others = value.keys() - set(REPORT_KEYS)
    hidden = {key for key in others if _NO_LETTER.sub("", key).casefold() in _HIDDEN_FIELDS}
    return isinstance(value.get("answer"), str) and bool(hidden) and hidden == others


# -- the requested fields ----------------------------------------------------------------------------------


def object_in(text: str, keys: Sequence[str]) -> JsonObject | None:
    """Returns the first JSON object of an answer that has one of the requested keys, or None."""
    text = without_thinking(text)
    found = (extract_object(text, key) for key in keys)
    return next((value for value in found if value is not None), None)


def fields_in(text: str, keys: Sequence[str]) -> str:
    """Returns the requested fields of the JSON object in an answer, as JSON, or an empty string.

    Args:
        keys: The requested fields. Of an object in a field, its fields of the same names are returned, too.
    """
    found = object_in(text, keys)
    requested = _requested(found, keys) if found else {}
    return orjson.dumps(requested).decode() if requested else ""


def _requested(found: Mapping[str, Any], keys: Sequence[str]) -> JsonObject:
    return {key: value for key in keys if key in found and (value := _shown(found[key], keys)) is not None}


def _shown(value: Any, keys: Sequence[str]) -> Any:
    """Returns what listeners may see of a field: texts, numbers, lists of them, and requested fields."""
    if isinstance(value, dict):
        return _requested(value, keys)
    if isinstance(value, list):
        return [_shown(item, keys) for item in value if not isinstance(item, list)]
    return without_thinking(value) if isinstance(value, str) else value


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
    """Returns a model's text in one line, cut. It is empty for what is neither text nor number."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return ""
    return cut(" ".join(without_thinking(str(value)).split()), limit)


def line_of(text: str, limit: int = MAX_LINE) -> str:
    """Returns the text of a tool in one line, cut."""
    return cut(" ".join(text.split()), limit)


def cut(text: str, limit: int) -> str:
    """Returns a text of at most `limit` characters. It is unchanged if it is short enough."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def text_list(value: Any) -> list[str]:
    """Returns a list of short, distinct texts. A single text is a list of one."""
    items = value if isinstance(value, list | tuple) else [value]
    texts = (text for item in items[: 4 * MAX_LINES] if (text := one_line(item)))
    return list(dict.fromkeys(texts))[:MAX_LINES]


def visible_arguments(arguments: JsonObject) -> JsonObject:
    """Returns a tool call's arguments as others may see them: cut if they are long."""
    text = orjson.dumps(arguments, default=str).decode()
    return arguments if len(text) <= _MAX_ARGUMENTS else {"cut": text[:_MAX_ARGUMENTS]}


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
    word_sets = [words for claim in claims if (words := _words(claim))]
    parts = [part for part in _SENTENCE.split(text) if part is not None]
    found: set[int] = set()
    for place, part in enumerate(parts):
        hits = {i for i, claim in enumerate(word_sets) if _states_claim(_words(part), claim)}
        found |= hits
        if hits and UNVERIFIED_MARK not in part:
            parts[place] = edit(part)
    whole = _words(text)
    # a claim that covers several sentences is named at the end
    rest = [
        claims[i] for i, claim in enumerate(word_sets) if i not in found and _contains_words(claim, whole)
    ]
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
