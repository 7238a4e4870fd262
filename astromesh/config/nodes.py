"""A YAML document with the place of everything in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

#: the way into a document: keys and positions
Steps = tuple[str | int, ...]


class Place(NamedTuple):
    """Line and column, 1-based; (0, 0) for what stands in no file."""

    line: int = 0
    column: int = 0


class Node:
    """A value with its place. Unfrozen: the loader fills it as it reads.

    Args:
        value: what it means: plain dict, list, str, int, float, bool or None.
        literal: whether it is a literal block (`|`), whose lines are those of the file.
        variables: environment variables that its text came from.
        entries: its parts, by key or position.
        keys: places of a mapping's keys.
        weight: its size with all that aliases repeat; height: levels below it.
        stands_in: whether it stands for something required that is missing or wrong, so that the rest can be
            looked into; what is wrong with it is nobody's mistake.
    """

    __slots__ = ("entries", "height", "keys", "literal", "place", "stands_in", "value", "variables", "weight")

    def __init__(self, value: Any, place: Place = Place(), weight: int = 1) -> None:
        self.value = value
        self.place = place
        self.literal = False
        self.variables: tuple[str, ...] = ()
        self.entries: dict[str | int, Node] = {}
        self.keys: dict[str, Place] = {}
        self.weight = weight
        self.height = 0
        self.stands_in = False

    def get(self, *steps: str | int) -> Node | None:
        """The node at a path, or None."""
        node: Node | None = self
        for step in steps:
            node = node.entries.get(step) if node is not None else None
        return node

    def text(self, *steps: str | int) -> str:
        """The text at a path, or an empty one."""
        node = self.get(*steps)
        return node.value if node is not None and isinstance(node.value, str) else ""

    def children(self, *steps: str | int) -> Iterable[tuple[str | int, Node]]:
        """The parts of what is at a path; nothing where there is none."""
        node = self.get(*steps)
        return node.entries.items() if node is not None else ()

    def place_of(self, steps: Steps, *, key: bool = False) -> Place:
        """Where the end of a path stands, or the nearest thing above it that stands in the file.

        Args:
            path: steps that lead nowhere are skipped: pydantic puts names of union members between keys.
            key: the last key itself rather than its value.
        """
        node, place = self, self.place
        for step in steps:
            child = node.entries.get(step)
            if child is None:
                continue
            own = node.keys.get(str(step), child.place) if key else child.place
            place = own if own.line else place
            node = child
        return place

    def known(self, steps: Steps) -> Steps:
        """The path without the steps that lead nowhere, but for the last: that is the key that is missing."""
        found = self.existing(steps)
        return found if found[-1:] == steps[-1:] else (*found, *steps[-1:])

    def existing(self, steps: Steps) -> Steps:
        """The path without the steps that lead nowhere: pydantic puts names of union members between keys."""
        node, found = self, []
        for step in steps:
            if (child := node.entries.get(step)) is not None:
                found.append(step)
                node = child
        return tuple(found)

    def stood_in_for(self, steps: Steps) -> bool:
        """Whether a path leads through something that stands in for what is missing."""
        node: Node | None = self
        for step in steps:
            node = node.entries.get(step) if node is not None else None
            if node is not None and node.stands_in:
                return True
        return False

    def picked(self, keys: Iterable[str | int]) -> Node:
        """The same mapping with only these keys."""
        wanted = set(keys)
        return self._mapping({k: n for k, n in self.entries.items() if k in wanted})

    def with_entry(self, key: str, node: Node) -> Node:
        """The same mapping with one entry more, or another one."""
        return self._mapping({**self.entries, key: node})

    def without(self, steps: Steps) -> Node:
        """The same tree without what stands at a path."""
        if len(steps) == 1:
            left = {key: node for key, node in self.entries.items() if key != steps[0]}
        else:
            left = {**self.entries, steps[0]: self.entries[steps[0]].without(steps[1:])}
        if not isinstance(self.value, list):
            return self._mapping(left)
        copy = Node([node.value for node in left.values()], self.place)
        copy.entries = dict(enumerate(left.values()))
        return copy

    def over(self, base: Node) -> Node:
        """The same mapping, with what `base` has beside it."""
        return self._mapping({**base.entries, **self.entries})

    def detached(self) -> Node:
        """The same without its places: for use in another file."""
        copy = Node(self.value)
        copy.variables = self.variables
        copy.entries = {step: child.detached() for step, child in self.entries.items()}
        return copy

    def replaced(self, steps: Steps, node: Node) -> Node:
        """The same tree with another node at a path that exists."""
        if not steps:
            return node
        copy = self._mapping({**self.entries, steps[0]: self.entries[steps[0]].replaced(steps[1:], node)})
        if isinstance(self.value, list):
            copy.value = [child.value for child in copy.entries.values()]
        return copy

    def added(self, steps: Steps, node: Node) -> Node:
        """The same tree with a node at a path whose end does not exist."""
        above = self.get(*steps[:-1])
        return self if above is None else self.replaced(steps[:-1], above.with_entry(str(steps[-1]), node))

    def _mapping(self, entries: dict[str | int, Node]) -> Node:
        node = Node({key: child.value for key, child in entries.items()}, self.place)
        node.entries, node.keys = entries, self.keys
        return node


def made(value: Any) -> Node:
    """A node for a value that stands in no file."""
    node = Node(value)
    if isinstance(value, Mapping):
        node.entries = {key: made(item) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        node.entries = {i: made(item) for i, item in enumerate(value)}
    return node


def dotted(steps: Steps) -> str:
    """`spec.tools[0].name`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return text.removeprefix(".")
