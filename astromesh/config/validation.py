"""Nodes to records: pydantic checks, this says where and what in plain sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from astromesh.config import scalars
from astromesh.config.loader import MAX_FAULTS
from astromesh.config.nodes import Node, Steps
from astromesh.config.sentences import sentence
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
    faults = tuple(sentence(model, node, detail, file, at, tuple(known)) for detail in details)
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
