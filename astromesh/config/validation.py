"""Nodes to records: pydantic validates, and each error becomes a fault with place, message and hint."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import orjson
from pydantic import AliasChoices, AliasPath, BaseModel, ValidationError
from pydantic_core import ErrorDetails

from astromesh.config import parser
from astromesh.config.base import Node, Steps, node_from_value
from astromesh.config.parser import MAX_FAULTS, manifest_fault
from astromesh.errors import InvalidManifest
from astromesh.text import did_you_mean

# -- faults --------------------------------------------------------------------------------------------------

_TYPE_NAMES = {
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a decimal number",
    dict: "a mapping",
    list: "a list",
}
#: message of a fault for a missing key
MISSING = "required key is missing"
#: pydantic's error type → message; `{got}` is the actual type, `{key}` the last key, the others come from
#: pydantic
_MESSAGES = {
    "missing": MISSING,
    "extra_forbidden": "unknown key `{key}`",
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
#: pydantic's error type → name of the broken rule
_RULES = {"missing": "missing_key", "extra_forbidden": "unknown_key"}
#: patterns in words
_PATTERN_MESSAGES = {
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$": "must start with a letter or digit and contain only letters, "
    "digits, '.', '_' and '-', at most 64",
    r"^[A-Za-z0-9_-]{1,64}$": "must contain only letters, digits, '_' and '-', at most 64",
}


def fault_of_error(
    model: type[BaseModel], node: Node, detail: ErrorDetails, file: Path, at: Steps, known: tuple[str, ...]
) -> InvalidManifest:
    """Converts one error of pydantic into a fault.

    Args:
        model, node: the record's class and the node that was validated.
        detail: the error.
        file, at: place of the node.
        known: valid keys in addition to those of the model.
    """
    kind, loc = detail["type"], detail["loc"]
    # an invalid key is reported at its own place, as pydantic marks it
    steps = (
        node.path_to_missing(loc) if kind == "missing" or loc[-1:] == ("[key]",) else node.existing_path(loc)
    )
    wrong = node.get(*steps)
    about_key = kind in ("extra_forbidden", "missing") or (steps and wrong is None)
    place = node.place_of(loc, key=bool(about_key))
    hint = _hint(_ErrorCase(model, detail, wrong, known if len(loc) == 1 else (), node.get(*steps[:-1])))
    rule = _RULES.get(kind, "invalid_value")
    return manifest_fault(file, _describe_error(detail, wrong), place, (*at, *steps), hint, rule)


def _describe_error(detail: ErrorDetails, wrong: Node | None) -> str:
    key = str(detail["loc"][-1]) if detail["loc"] else ""
    context = {**detail.get("ctx", {}), "got": _actual_type(wrong), "key": key}
    if wrong is not None and wrong.value is None and detail["type"] not in ("missing", "extra_forbidden"):
        return "has no value"
    if detail["type"] == "string_pattern_mismatch":
        return _PATTERN_MESSAGES.get(context["pattern"], f"must match {context['pattern']}")
    if detail["type"] in ("value_error", "assertion_error"):
        return _mask_variables(str(context["error"]), wrong)
    template = _MESSAGES.get(detail["type"])
    return template.format(**context) if template else _mask_variables(_lowercase_first(detail["msg"]), wrong)


def _actual_type(wrong: Node | None) -> str:
    return "that" if wrong is None else _TYPE_NAMES.get(type(wrong.value), "nothing")


def _lowercase_first(message: str) -> str:
    return message[:1].lower() + message[1:]


def _mask_variables(message: str, wrong: Node | None) -> str:
    """Removes the content of a variable from a message, because it may be a secret."""
    if wrong is None or not wrong.variables or not wrong.value:
        return message
    return message.replace(str(wrong.value), "***")


# -- hints ---------------------------------------------------------------------------------------------------


class _ErrorCase(NamedTuple):
    """One error with everything that a hint depends on."""

    model: type[BaseModel]
    detail: ErrorDetails
    wrong: Node | None
    known: tuple[str, ...]
    around: Node | None


def _hint(case: _ErrorCase) -> str:
    kind, wrong = case.detail["type"], case.wrong
    if kind not in ("missing", "extra_forbidden") and wrong is not None:
        if wrong.value is None:
            return "Write a value or remove the key."
        if wrong.variables:
            return f"The value comes from {', '.join(wrong.variables)}."
    hint = _HINTS.get(kind)
    return hint(case) if hint else ""


def _similar_key(case: _ErrorCase) -> str:
    loc = case.detail["loc"]
    names = (*case.known, *keys_at(case.model, loc[:-1]))
    return suggest_name(str(loc[-1]), names)


def _misspelled_key(case: _ErrorCase) -> str:
    """Finds an unknown key that resembles the missing one, in blocks whose other keys belong to a plugin."""
    loc, around = case.detail["loc"], case.around
    strange = set(map(str, around.entries if around else ())) - set(keys_at(case.model, loc[:-1]))
    near = difflib.get_close_matches(str(loc[-1]), sorted(strange), 1, 0.6)
    return f"Did you misspell it as `{near[0]}`?" if near else ""


def _quote_hint(case: _ErrorCase) -> str:
    return "Put it in quotes." if case.wrong and isinstance(case.wrong.value, int | float) else ""


def _boolean_hint(case: _ErrorCase) -> str:
    word = str(case.wrong.value).lower() if case.wrong else ""
    written = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(word)
    return f"Write `{written}`." if written else ""


def _similar_word(case: _ErrorCase) -> str:
    words = case.detail["ctx"]["expected"].split("'")[1::2]
    if case.wrong is None or len(words) == 1:
        return ""
    return did_you_mean(str(case.wrong.value), words)


def _field_description(case: _ErrorCase) -> str:
    known = case.detail["ctx"]["pattern"] in _PATTERN_MESSAGES
    return "" if known else description_at(case.model, case.detail["loc"])


_HINTS: Mapping[str, Callable[[_ErrorCase], str]] = {
    "extra_forbidden": _similar_key,
    "missing": _misspelled_key,
    "string_type": _quote_hint,
    "bool_type": _boolean_hint,
    "literal_error": _similar_word,
    "string_pattern_mismatch": _field_description,
}


# -- records -------------------------------------------------------------------------------------------------

#: attempts to validate a file without its faults
_SALVAGE_ROUNDS = 8


class _FaultPath(NamedTuple):
    """The path of a fault: an invalid value or a missing key."""

    steps: Steps
    missing: bool


class Validation(NamedTuple):
    """A validated record, or None with the faults and their paths."""

    record: Any
    faults: tuple[InvalidManifest, ...] = ()
    fault_paths: tuple[_FaultPath, ...] = ()


def validate(
    model: type[BaseModel], node: Node, file: Path, at: Steps = (), known: Iterable[str] = ()
) -> Validation:
    """Validates a node strictly: only text from variables is converted to other types.

    Args:
        model: the record's class.
        file, at: place of the node, for the faults.
        known: valid keys in addition to those of the model, for `did you mean`.
    """
    try:
        return Validation(_validate_strictly(model, node))
    except ValidationError as error:
        first = error
    converted = _with_variables_converted(node, first)
    if converted is not None:
        try:
            return Validation(_validate_strictly(model, converted))
        except ValidationError as error:
            first = error
    details = first.errors(include_url=False)[:MAX_FAULTS]
    faults = tuple(fault_of_error(model, node, detail, file, at, tuple(known)) for detail in details)
    return Validation(None, faults, tuple(_fault_path(node, detail) for detail in details))


def _fault_path(node: Node, detail: ErrorDetails) -> _FaultPath:
    if detail["type"] == "missing":
        return _FaultPath(node.path_to_missing(detail["loc"]), missing=True)
    return _FaultPath(node.existing_path(detail["loc"]), missing=False)


def _validate_strictly(model: type[BaseModel], node: Node) -> BaseModel:
    """Validates by way of JSON, where a list may become a tuple, but text never a number."""
    return model.model_validate_json(orjson.dumps(node.value), strict=True)


class Salvage(NamedTuple):
    """The faults of a node, and the record of the rest, in which further checks find more faults."""

    record: Any
    node: Node
    faults: tuple[InvalidManifest, ...]


def salvage(model: type[BaseModel], node: Node, file: Path, *, placeholders: bool = False) -> Salvage:
    """Validates a node; after faults, removes what is invalid and tries again.

    The record is None where too little is left.

    Args:
        placeholders: whether marked placeholders replace missing keys, so that their faults hide no others.
    """
    checked = validate(model, node, file)
    left, validation = node, checked
    placed: set[Steps] = set()
    for _ in range(_SALVAGE_ROUNDS):
        if validation.record is not None:
            break
        outside: set[Steps] = set()
        for about in validation.fault_paths:
            placeholder = _placeholder(model, about) if placeholders and about.steps not in placed else None
            if placeholder is not None:
                placed.add(about.steps)
                left = left.with_missing(about.steps, placeholder)
            else:
                outside.add(about.steps[:-1] if about.missing else about.steps)
        for steps in sorted(outside, key=_last_first, reverse=True):
            if steps and left.get(*steps) is not None:
                left = left.without(steps)
        validation = validate(model, left, file)
    return Salvage(validation.record, left, checked.faults)


def _placeholder(model: type[BaseModel], about: _FaultPath) -> Node | None:
    """Returns a marked node for a missing key; None for an invalid value, or where no placeholder fits."""
    value = sample_value(model, about.steps) if about.missing else None
    return None if value is None else _mark_placeholder(node_from_value(value))


def _mark_placeholder(node: Node) -> Node:
    node.is_placeholder = True
    for child in node.entries.values():
        _mark_placeholder(child)
    return node


def _last_first(steps: Steps) -> list[str]:
    """Returns a sort key; in reverse, later entries of a list come first, so that removals move no others."""
    return [f"{step:09d}" if isinstance(step, int) else step for step in steps]


# -- variables -----------------------------------------------------------------------------------------------

#: pydantic's error type → conversion of a variable's text
_CONVERSIONS: Mapping[str, Callable[[str], parser.Scalar]] = {
    "int_type": parser.parse_integer,
    "float_type": parser.parse_float,
    "bool_type": parser.parse_boolean,
}


def _with_variables_converted(node: Node, error: ValidationError) -> Node | None:
    """Converts the text of each variable to the type of its field; None where nothing was converted."""
    converted = node
    for detail in error.errors(include_url=False, include_input=False):
        steps = node.path_to_missing(detail["loc"])
        wrong = node.get(*steps)
        convert = _CONVERSIONS.get(detail["type"])
        if wrong is None or not wrong.variables or convert is None:
            continue
        try:
            converted = converted.with_replaced(steps, Node(convert(wrong.value.strip()), wrong.place))
        except ValueError:
            continue
    return converted if converted is not node else None


# -- keys of records -----------------------------------------------------------------------------------------


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Returns a hint with the most similar known name, else with all of them, or that there are none."""
    names = sorted(set(known))
    listed = f"Known: {', '.join(f'`{one}`' for one in names)}." if names else "None is declared."
    return did_you_mean(name, names) or listed


@cache
def keys_of(model: type[BaseModel]) -> tuple[str, ...]:
    """Returns every key that a model accepts in YAML, including aliases."""
    by_name = model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name")
    return tuple(
        key for name, field in model.model_fields.items() for key in _names(name, field, bool(by_name))
    )


def accepts_key(model: type[BaseModel], key: str) -> bool:
    """Returns whether a model accepts a key."""
    return model.model_config.get("extra") == "allow" or key in keys_of(model)


def _names(name: str, field: Any, by_name: bool) -> Sequence[str]:
    alias = field.validation_alias or field.alias
    if alias is None:
        return (name,)
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    texts = [str(c.path[0]) if isinstance(c, AliasPath) else c for c in choices]
    return (*texts, name) if by_name else texts


def keys_at(model: type[BaseModel], steps: Steps) -> tuple[str, ...]:
    """Returns the keys of the mapping at a path below a model; nothing where that is not a model."""
    return tuple(key for one in _models_at(model, steps) for key in keys_of(one))


def description_at(model: type[BaseModel], steps: Steps) -> str:
    """Returns the description of the field at a path."""
    found = [one.model_fields.get(str(steps[-1])) for one in _models_at(model, steps[:-1])]
    return next((field.description for field in found if field and field.description), "")


#: matches every pattern of names
_SAMPLE_NAME = "placeholder"
#: type → placeholder for a value of it
_SAMPLES: dict[Any, Any] = {str: _SAMPLE_NAME, int: 1, float: 1, dict: {}, list: [], tuple: []}


def sample_value(model: type[BaseModel], steps: Steps) -> Any:
    """Returns a placeholder for the required value at a path, or None where its type is unknown."""
    for one in _models_at(model, steps[:-1]):
        for name, field in one.model_fields.items():
            if steps[-1] in tuple(_names(name, field, True)):
                return _sample(field.annotation)
    return None


def _sample(annotation: Any) -> Any:
    for one in _union_members(annotation):
        if get_origin(one) is Literal and len(get_args(one)) == 1:
            return get_args(one)[0]
        if isinstance(one, type) and issubclass(one, BaseModel):
            needed = {name: field for name, field in one.model_fields.items() if field.is_required()}
            return {
                _names(name, field, False)[0]: _sample(field.annotation) for name, field in needed.items()
            }
        if (found := _SAMPLES.get(get_origin(one) or one)) is not None:
            return found
    return None


def _models_at(model: type[BaseModel], steps: Steps) -> list[type[BaseModel]]:
    types: list[Any] = [model]
    for step in steps:
        types = [found for one in types for found in _types_below(one, step)]
    return [one for one in types if isinstance(one, type) and issubclass(one, BaseModel)]


def _types_below(annotation: Any, step: str | int) -> Iterable[Any]:
    """Returns the types one step below a type; the type itself where the step is a union's tag."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        found = [f for n, f in annotation.model_fields.items() if step in tuple(_names(n, f, True))]
        return [one for f in found for one in _union_members(f.annotation)] or [annotation]
    arguments = [a for a in get_args(annotation) if a is not Ellipsis]
    return _union_members(arguments[-1]) if arguments else [annotation]


def _union_members(annotation: Any) -> list[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _union_members(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [one for member in get_args(annotation) for one in _union_members(member)]
    return [annotation]
