"""Nodes to records: pydantic checks, this says where and what in plain sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from astromesh.config import scalars
from astromesh.config.keys import sample
from astromesh.config.loader import MAX_FAULTS
from astromesh.config.nodes import Node, Steps, made
from astromesh.config.sentences import sentence
from astromesh.errors import InvalidManifest

#: times that a file with faults is tried again without them
_ROUNDS = 8


class _About(NamedTuple):
    """The path that a fault is about: what is wrong, or what is missing."""

    steps: Steps
    missing: bool


class Checked(NamedTuple):
    """A validated record, or None with the faults and what they are about."""

    record: Any
    faults: tuple[InvalidManifest, ...] = ()
    about: tuple[_About, ...] = ()


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
    faults = tuple(sentence(model, node, detail, file, at, tuple(known)) for detail in details)
    return Checked(None, faults, tuple(_about(node, detail) for detail in details))


def _about(node: Node, detail: ErrorDetails) -> _About:
    if detail["type"] == "missing":
        return _About(node.known(detail["loc"]), missing=True)
    return _About(node.existing(detail["loc"]), missing=False)


def _validated(model: type[BaseModel], node: Node) -> BaseModel:
    """By way of JSON: there a list may become a tuple, but no text a number."""
    return model.model_validate_json(orjson.dumps(node.value), strict=True)


class Salvaged(NamedTuple):
    """The faults of a node, and the record of what is left of it without them, to look for more."""

    record: Any
    node: Node
    faults: tuple[InvalidManifest, ...]


def salvage(model: type[BaseModel], node: Node, file: Path, *, standing_in: bool = False) -> Salvaged:
    """Validates; where there are faults, leaves out what they are about and tries again.

    The record is None where too little is left.

    Args:
        standing_in: whether something stands in for required keys, so that their faults hide no others; those
            nodes are marked.
    """
    checked = validate(model, node, file)
    left, wrong = node, checked
    stood_in: set[Steps] = set()
    for _ in range(_ROUNDS):
        if wrong.record is not None:
            break
        outside: set[Steps] = set()
        for about in wrong.about:
            stand_in = _stand_in(model, about) if standing_in and about.steps not in stood_in else None
            if stand_in is not None:
                stood_in.add(about.steps)
                left = left.added(about.steps, stand_in)
            else:
                outside.add(about.steps[:-1] if about.missing else about.steps)
        for steps in sorted(outside, key=_from_the_end, reverse=True):
            if steps and left.get(*steps) is not None:
                left = left.without(steps)
        wrong = validate(model, left, file)
    return Salvaged(wrong.record, left, checked.faults)


def _stand_in(model: type[BaseModel], about: _About) -> Node | None:
    """A marked node for what is missing. None: it is there and wrong, or nothing can stand for it."""
    value = sample(model, about.steps) if about.missing else None
    return None if value is None else _marked(made(value))


def _marked(node: Node) -> Node:
    node.stands_in = True
    for child in node.entries.values():
        _marked(child)
    return node


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
