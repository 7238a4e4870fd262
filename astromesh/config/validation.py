"""Nodes to records: pydantic checks, this says where and what in plain sentences."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import orjson
from pydantic import AliasChoices, AliasPath, BaseModel, ValidationError
from pydantic_core import ErrorDetails

from astromesh.config import scalars
from astromesh.config.loader import MAX_FAULTS, fault
from astromesh.config.nodes import Node, Steps
from astromesh.errors import InvalidManifest

#: times that a file with faults is tried again without them
_ROUNDS = 6


class Checked(NamedTuple):
    """A validated record, or None with the faults and the paths that they are about."""

    record: Any
    faults: tuple[InvalidManifest, ...] = ()
    about: tuple[Steps, ...] = ()


def validate(
    model: type[BaseModel], node: Node, file: Path, at: Steps = (), known: Iterable[str] = ()
) -> Checked:
    """Validates what a node holds, strictly: no type is turned into another, but for variables' text.

    Args:
        model: the record's class.
        file, at: where the node stands, for the faults.
        known: keys that are right beside those of the model, for `did you mean`.
    """
    try:
        return Checked(_validated(model, node))
    except ValidationError as error:
        first = error
    converted = _with_variables_converted(node, first)
    if converted is not None:
        try:
            return Checked(_validated(model, converted))
        except ValidationError as error:
            first = error
    details = first.errors(include_url=False)[:MAX_FAULTS]
    faults = tuple(_fault(model, node, detail, file, at, tuple(known)) for detail in details)
    return Checked(None, faults, tuple(_about(node, detail) for detail in details))


def _about(node: Node, detail: ErrorDetails) -> Steps:
    steps = node.known(detail["loc"])
    return steps[:-1] if detail["type"] == "missing" else steps


def _validated(model: type[BaseModel], node: Node) -> BaseModel:
    """By way of JSON: there a list may become a tuple, but no text a number."""
    return model.model_validate_json(orjson.dumps(node.value), strict=True)


class Salvaged(NamedTuple):
    """The faults of a node, and the record of what is left of it without them, to look for more."""

    record: Any
    node: Node
    faults: tuple[InvalidManifest, ...]


def salvage(model: type[BaseModel], node: Node, file: Path) -> Salvaged:
    """Validates; where there are faults, leaves out what they are about and tries again.

    The record is None where too little is left.
    """
    checked = validate(model, node, file)
    left, wrong = node, checked
    for _ in range(_ROUNDS):
        if wrong.record is not None:
            break
        for steps in sorted(set(wrong.about), key=_from_the_end, reverse=True):
            if steps and left.get(*steps) is not None:
                left = left.without(steps)
        wrong = validate(model, left, file)
    return Salvaged(wrong.record, left, checked.faults)


def _from_the_end(steps: Steps) -> list[str]:
    """In reverse, a list's later entries come first: taking them out moves none of the others."""
    return [f"{step:09d}" if isinstance(step, int) else step for step in steps]


# -- variables -----------------------------------------------------------------------------------------------

#: what pydantic asked for → how a variable's text becomes that
_CONVERSIONS: Mapping[str, Callable[[str], scalars.Scalar]] = {
    "int_type": scalars.integer,
    "float_type": scalars.real,
    "bool_type": scalars.boolean,
}


def _with_variables_converted(node: Node, error: ValidationError) -> Node | None:
    """The node with every variable's text made what its field asks for, or None where there is none."""
    converted = node
    for detail in error.errors(include_url=False, include_input=False):
        steps = node.known(detail["loc"])
        wrong = node.get(*steps)
        convert = _CONVERSIONS.get(detail["type"])
        if wrong is None or not wrong.variables or convert is None:
            continue
        try:
            converted = converted.replaced(steps, Node(convert(wrong.value.strip()), wrong.place))
        except ValueError:
            continue
    return converted if converted is not node else None


# -- sentences -----------------------------------------------------------------------------------------------

_KINDS = {
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
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


def _fault(
    model: type[BaseModel], node: Node, detail: ErrorDetails, file: Path, at: Steps, known: tuple[str, ...]
) -> InvalidManifest:
    kind, loc = detail["type"], detail["loc"]
    steps = node.known(loc)
    wrong = node.get(*steps)
    about_key = kind in ("extra_forbidden", "missing") or (steps and wrong is None)
    place = node.place_of(loc, key=bool(about_key))
    hint = _hint(model, detail, wrong, known if len(loc) == 1 else ())
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


def _hint(model: type[BaseModel], detail: ErrorDetails, wrong: Node | None, known: tuple[str, ...]) -> str:
    kind, loc = detail["type"], detail["loc"]
    if kind == "extra_forbidden":
        names = (*known, *keys_at(model, loc[:-1]))
        return did_you_mean(str(loc[-1]), names) or f"known: {', '.join(sorted(set(names)))}"
    if wrong is None:
        return ""
    if wrong.value is None and kind != "missing":
        return "write one or remove the key"
    if wrong.variables:
        return f"the content of {', '.join(wrong.variables)}"
    if kind == "string_type" and isinstance(wrong.value, int | float):
        return "put it in quotes"
    if kind == "bool_type" and str(wrong.value).lower() in ("yes", "on", "no", "off"):
        return f"write {'true' if str(wrong.value).lower() in ('yes', 'on') else 'false'}"
    if kind == "literal_error" and isinstance(wrong.value, str):
        return did_you_mean(wrong.value, _quoted(detail["ctx"]["expected"]))
    return ""


def _quoted(expected: str) -> list[str]:
    return expected.split("'")[1::2]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean 'timeout'?`, or nothing."""
    near = difflib.get_close_matches(name, sorted(set(known)), 1, 0.6)
    return f"did you mean {near[0]!r}?" if near else ""


# -- keys ----------------------------------------------------------------------------------------------------


@cache
def keys_of(model: type[BaseModel]) -> tuple[str, ...]:
    """Every key that a model takes in YAML, aliases too."""
    by_name = model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name")
    return tuple(
        key for name, field in model.model_fields.items() for key in _names(name, field, bool(by_name))
    )


def takes(model: type[BaseModel], key: str) -> bool:
    """Whether a model takes a key."""
    return model.model_config.get("extra") == "allow" or key in keys_of(model)


def _names(name: str, field: Any, by_name: bool) -> Iterable[str]:
    alias = field.validation_alias or field.alias
    if alias is None:
        return (name,)
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    texts = [str(c.path[0]) if isinstance(c, AliasPath) else c for c in choices]
    return (*texts, name) if by_name else texts


def keys_at(model: type[BaseModel], steps: Steps) -> tuple[str, ...]:
    """The keys of the mapping at a path below a model; nothing where that is no model."""
    types: list[Any] = [model]
    for step in steps:
        types = [found for one in types for found in _below(one, step)]
    return tuple(
        key for one in types if isinstance(one, type) and issubclass(one, BaseModel) for key in keys_of(one)
    )


def _below(annotation: Any, step: str | int) -> Iterable[Any]:
    """The types at one step below a type; the type itself where the step is no part of it (a union's tag)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        found = [f for n, f in annotation.model_fields.items() if step in tuple(_names(n, f, True))]
        return [one for f in found for one in _members(f.annotation)] or [annotation]
    arguments = [a for a in get_args(annotation) if a is not Ellipsis]
    return _members(arguments[-1]) if arguments else [annotation]


def _members(annotation: Any) -> list[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _members(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [one for member in get_args(annotation) for one in _members(member)]
    return [annotation]
