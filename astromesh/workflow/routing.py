"""From a stage's output to where Tasks go: the edge of a decision, the children of a fork. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from astromesh.config.workflow.nodes import SELECTION_KEY, SplitSpec
from astromesh.types import JsonObject
from astromesh.workflow.plan import Edge, Stage

_SPLIT = SplitSpec()


class Part(NamedTuple):
    """A child of a fork: the edge it goes by, its place, its input and current output."""

    edge: Edge
    number: int
    value: Any


class RoutingFault(Exception):
    """The output does not say where to go; `code` is the stage's error."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


def decide(stage: Stage, output: Any) -> tuple[Edge, Any]:
    """The selected edge and the current output of a decision (E39).

    Raises:
        RoutingFault: `invalid_decision` (E40).
    """
    key = stage.node.selection_key or SELECTION_KEY
    if not isinstance(output, dict) or not isinstance(output.get(key), str):
        raise RoutingFault("invalid_decision", f"The output must be an object with the text {key!r}.")
    wanted = output[key]
    for edge in stage.out:
        if wanted == edge.label:
            return edge, output.get("output", output)
    known = ", ".join(repr(edge.label) for edge in stage.out)
    raise RoutingFault("invalid_decision", f"There is no edge {wanted!r}; there are {known}.")


def shape(stage: Stage, output: Any) -> list[Part]:
    """The children of a branch (E23) or split (E24).

    Raises:
        RoutingFault: `malformed_split`, `empty_split` or `limit_exceeded` (E18, E25, E26).
    """
    if stage.role == "branch":
        return [Part(edge, 0, output) for edge in stage.out]
    split = stage.node.split or _SPLIT
    if split.mode == "per_edge":
        found: JsonObject = output if isinstance(output, dict) else {}
        parts = [Part(edge, i, found.get(edge.label, output)) for i, edge in enumerate(stage.out)]
    else:
        items = _items(output, split.items_key)
        if not items and split.on_empty == "fail":
            raise RoutingFault(
                "empty_split", f"The list {split.items_key!r} is empty (split.on_empty: fail)."
            )
        ways = len(stage.out)
        parts = [Part(stage.out[i % ways], i, item) for i, item in enumerate(items)]
    if len(parts) > split.max_subtasks:
        message = f"{len(parts)} subtasks are more than {split.max_subtasks} (split.max_subtasks)."
        raise RoutingFault("limit_exceeded", message)
    return parts


def _items(output: Any, key: str) -> list[Any]:
    items = output.get(key) if isinstance(output, dict) else None
    if not isinstance(items, list):
        raise RoutingFault("malformed_split", f"The output must be an object with the list {key!r}.")
    return items
