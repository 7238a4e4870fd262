"""What pydantic found wrong, in plain sentences and at its place in the file."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from astromesh.config.keys import description_at, did_you_mean, keys_at, listed
from astromesh.config.loader import fault
from astromesh.config.nodes import Node, Steps
from astromesh.errors import InvalidManifest

_KINDS = {
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a decimal number",
    dict: "a mapping",
    list: "a list",
}

#: pydantic's error type → what is wrong; `{…}` are pydantic's own figures, `{got}` is what stands there
_SENTENCES = {
    "missing": "is missing",
    "extra_forbidden": "is no known key",
    "string_type": "must be text, not {got}",
    "int_type": "must be a whole number, not {got}",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number, not {got}",
    "bool_type": "must be true or false, not {got}",
    "list_type": "must be a list, not {got}",
    "tuple_type": "must be a list, not {got}",
    "set_type": "must be a list, not {got}",
    "frozen_set_type": "must be a list, not {got}",
    "dict_type": "must be a mapping (key: value), not {got}",
    "model_type": "must be a mapping (key: value), not {got}",
    "model_attributes_type": "must be a mapping (key: value), not {got}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
}  # fmt: skip

#: for patterns, which nobody wants to read
_PATTERNS = {
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$": "must start with a letter or digit and hold only letters, digits, "
    "'.', '_' and '-', at most 64",
    r"^[A-Za-z0-9_-]{1,64}$": "must hold only letters, digits, '_' and '-', at most 64",
}


def sentence(
    model: type[BaseModel], node: Node, detail: ErrorDetails, file: Path, at: Steps, known: tuple[str, ...]
) -> InvalidManifest:
    """One error of pydantic as a fault.

    Args:
        model, node: what was validated.
        detail: the error.
        file, at: where the node stands.
        known: keys that are right beside those of the model.
    """
    kind, loc = detail["type"], detail["loc"]
    # a key that is itself wrong is told at its place, as pydantic marks it
    steps = node.known(loc) if kind == "missing" or loc[-1:] == ("[key]",) else node.existing(loc)
    wrong = node.get(*steps)
    about_key = kind in ("extra_forbidden", "missing") or (steps and wrong is None)
    place = node.place_of(loc, key=bool(about_key))
    hint = _hint(_Case(model, detail, wrong, known if len(loc) == 1 else (), node.get(*steps[:-1])))
    return fault(file, _sentence(detail, wrong), place, (*at, *steps), hint)


def _sentence(detail: ErrorDetails, wrong: Node | None) -> str:
    context = {**detail.get("ctx", {}), "got": _got(wrong)}
    if wrong is not None and wrong.value is None and detail["type"] not in ("missing", "extra_forbidden"):
        return "has no value"
    if detail["type"] == "string_pattern_mismatch":
        return _PATTERNS.get(context["pattern"], f"must match {context['pattern']}")
    if detail["type"] in ("value_error", "assertion_error"):
        return _masked(str(context["error"]), wrong)
    template = _SENTENCES.get(detail["type"])
    return template.format(**context) if template else _masked(_lowered(detail["msg"]), wrong)


def _got(wrong: Node | None) -> str:
    return "that" if wrong is None else _KINDS.get(type(wrong.value), "nothing")


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:]


def _masked(message: str, wrong: Node | None) -> str:
    """A variable may hold a secret: a message does not repeat it."""
    if wrong is None or not wrong.variables or not wrong.value:
        return message
    return message.replace(str(wrong.value), "***")


# -- hints -------------------------------------------------------------------------------------------------


class _Case(NamedTuple):
    """One error with all that a hint may look at."""

    model: type[BaseModel]
    detail: ErrorDetails
    wrong: Node | None
    known: tuple[str, ...]
    around: Node | None


def _hint(case: _Case) -> str:
    kind, wrong = case.detail["type"], case.wrong
    if kind not in ("missing", "extra_forbidden") and wrong is not None:
        if wrong.value is None:
            return "write one or remove the key"
        if wrong.variables:
            return f"the content of {', '.join(wrong.variables)}"
    hint = _HINTS.get(kind)
    return hint(case) if hint else ""


def _meant_key(case: _Case) -> str:
    loc = case.detail["loc"]
    names = (*case.known, *keys_at(case.model, loc[:-1]))
    return did_you_mean(str(loc[-1]), names) or listed(names)


def _misspelt(case: _Case) -> str:
    """The key that stands in place of a missing one, in blocks that leave unknown keys to their plugin."""
    loc, around = case.detail["loc"], case.around
    strange = set(map(str, around.entries if around else ())) - set(keys_at(case.model, loc[:-1]))
    near = difflib.get_close_matches(str(loc[-1]), sorted(strange), 1, 0.6)
    return f"did you mean it by {near[0]!r}?" if near else ""


def _quotes(case: _Case) -> str:
    return "put it in quotes" if case.wrong and isinstance(case.wrong.value, int | float) else ""


def _truth(case: _Case) -> str:
    word = str(case.wrong.value).lower() if case.wrong else ""
    return {"yes": "write true", "on": "write true", "no": "write false", "off": "write false"}.get(word, "")


def _meant_word(case: _Case) -> str:
    words = case.detail["ctx"]["expected"].split("'")[1::2]
    if case.wrong is None or len(words) == 1:
        return ""
    return did_you_mean(str(case.wrong.value), words)


def _described(case: _Case) -> str:
    known = case.detail["ctx"]["pattern"] in _PATTERNS
    return "" if known else description_at(case.model, case.detail["loc"]).rstrip(".")


_HINTS: Mapping[str, Callable[[_Case], str]] = {
    "extra_forbidden": _meant_key,
    "missing": _misspelt,
    "string_type": _quotes,
    "bool_type": _truth,
    "literal_error": _meant_word,
    "string_pattern_mismatch": _described,
}
