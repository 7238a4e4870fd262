"""What a model wrote, made safe: known fields of the right kind, short, and nothing of its deliberation.

Pure functions. Each reader answers what it could use and what was wrong, never an exception. Fields that
are not asked for (`chain_of_thought`, `route`, `goto`) are never looked at: they can neither leak nor steer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import orjson

from astromesh.graph.reasoning.hidden import shown, without_hidden
from astromesh.types import JsonObject

#: characters of a line in trace, gaps, conclusions; how many of them
LINE, LINES = 240, 12
_ARGUMENTS = 1_000
LEVELS = ("low", "medium", "high")
STEP_KINDS = ("decomposition", "analysis", "comparison", "synthesis_preparation")
#: what the planner says when nothing useful is left to do, and when it wants a tool
DONE, TOOL = "done", "tool"
_SAME = {
    "use_tool": TOOL,
    "tool_call": TOOL,
    "synthesis": "synthesis_preparation",
    "finish": DONE,
    "draft": DONE,
}
CONSERVATIVE: JsonObject = {
    "complexity": "complex",
    "domain": "general",
    "risk": "medium",
    "tool_needs": [],
    "evidence_needs": [],
    "output_type": "text",
    "needs_critique": False,
}


def short(value: Any, most: int = LINE) -> str:
    """One line of text, cut; empty for what is neither text nor number."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return ""
    text = " ".join(without_hidden(str(value)).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def lines(value: Any, most: int = LINES) -> list[str]:
    """A list of short texts, each once; one text is a list of one."""
    given = value if isinstance(value, list | tuple) else [value]
    return list(dict.fromkeys(text for item in given[: 4 * most] if (text := short(item))))[:most]


def shown_arguments(arguments: JsonObject) -> JsonObject:
    """A tool call's arguments as others may see them: cut where they are long."""
    kept: JsonObject = shown(arguments)
    text = orjson.dumps(kept, default=str).decode()
    return kept if len(text) <= _ARGUMENTS else {"cut": text[:_ARGUMENTS]}


def profile_of(found: JsonObject) -> tuple[JsonObject, str]:
    """The profile and what was wrong with it; without a known complexity it is the conservative one."""
    complexity = short(found.get("complexity")).lower()
    if complexity not in ("simple", "moderate", "complex"):
        return dict(CONSERVATIVE), f"the profile has no known complexity: {complexity[:40]!r}."
    risk = short(found.get("risk")).lower()
    needs = found.get("tool_needs")
    return {
        "complexity": complexity,
        "domain": short(found.get("domain"), 80) or "general",
        "risk": risk if risk in LEVELS else "medium",
        "tool_needs": ["any"] if needs is True else lines(needs) if needs else [],
        "evidence_needs": lines(found.get("evidence_needs") or []),
        "output_type": short(found.get("output_type"), 80) or "text",
        "needs_critique": found.get("needs_critique") is True,
    }, ""


def step_of(found: Any) -> tuple[JsonObject, str]:
    """The proposed step and what was wrong with it; a malformed one becomes an analysis step."""
    if not isinstance(found, dict):
        return analysis_step(), "the proposed step is no JSON object."
    if isinstance(found.get("next_step"), dict):
        found = found["next_step"]
    kind = re.sub(r"[\s-]+", "_", short(found.get("kind"), 60).lower())
    kind = _SAME.get(kind, kind)
    title = short(found.get("step") or found.get("title"), 100)
    if kind == TOOL:
        return _tool_step(found, title)
    if kind == DONE:
        return {"kind": DONE, "step": DONE}, ""
    if kind not in STEP_KINDS:
        return analysis_step(), f"the proposed step has no known kind: {kind[:40]!r}."
    return {"kind": kind, "step": title or kind}, ""


def analysis_step() -> JsonObject:
    """What is done where nothing better was proposed."""
    return {"kind": "analysis", "step": "analysis"}


def _tool_step(found: JsonObject, title: str) -> tuple[JsonObject, str]:
    name, args = short(found.get("tool") or found.get("name"), 64), found.get("args", found.get("arguments"))
    if not name:
        return analysis_step(), "the proposed step asks for a tool and names none."
    fault = "" if args is None or isinstance(args, dict) else f"the arguments of {name!r} are no object."
    step = {"kind": TOOL, "step": title or name, "tool": name, "args": args if isinstance(args, dict) else {}}
    return step, fault


def confidence_of(value: Any, before: float) -> tuple[float, str]:
    """A confidence in [0, 1]; the one before where the value is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return before, f"the confidence is no number: {short(str(value), 40)!r}."
    return min(1.0, max(0.0, float(value))), ""


def critique_of(found: JsonObject) -> JsonObject | None:
    """The findings; None where the answer is no critique at all."""
    keys = ("unsupported_claims", "missing_constraints", "clarity_issues")
    if not (found.keys() & {*keys, "acceptable"}):
        return None
    critique: JsonObject = {key: lines(found.get(key) or []) for key in keys}
    findings = any(critique[key] for key in keys)
    if found.get("acceptable") is False and not findings:
        critique["clarity_issues"] = ["The draft was not accepted."]
        findings = True
    return {"acceptable": not findings, **critique}


# -- claims ------------------------------------------------------------------------------------------------

_SENTENCE = re.compile(r"(?<=[.!?])(\s+)|(\n+)")
_WORD = re.compile(r"\w+")
FLAG = "[unverified]"
#: share of a claim's words that a sentence must have to be the claim in other words
_ALIKE = 0.8


def flagged(text: str, claims: Sequence[str]) -> str:
    """The text with a mark behind every sentence that makes one of these claims."""
    return _treated(text, claims, lambda sentence: f"{sentence} {FLAG}")


def without_claims(text: str, claims: Sequence[str]) -> str:
    """The text without the sentences that make one of these claims; marked where nothing else is left."""
    left = _treated(text, claims, lambda sentence: "").strip()
    return left if _WORD.search(left) else flagged(text, claims)


def _treated(text: str, claims: Sequence[str], treat: Any) -> str:
    wanted = [words for claim in claims if (words := _words(claim))]
    parts = [part for part in _SENTENCE.split(text) if part is not None]
    made: set[int] = set()
    for place, part in enumerate(parts):
        hits = {i for i, claim in enumerate(wanted) if _makes(_words(part), claim)}
        made |= hits
        if hits and FLAG not in part:
            parts[place] = treat(part)
    whole = _words(text)
    # a claim that goes over several sentences has none of its own: it is named at the end
    lost = [claims[i] for i, claim in enumerate(wanted) if i not in made and _within(claim, whole)]
    return "".join(parts) + "".join(f"\n{FLAG} {claim}" for claim in lost)


def _makes(sentence: list[str], claim: list[str]) -> bool:
    if _within(claim, sentence):
        return True
    said = set(sentence)
    return len(claim) > 2 and sum(word in said for word in claim) >= _ALIKE * len(claim)


def _within(claim: list[str], words: list[str]) -> bool:
    return f" {' '.join(claim)} " in f" {' '.join(words)} "


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]
