"""A YAML document as nodes with their places, and the protocols that the configuration is checked with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel

#: path in a document: keys and positions
Steps = tuple[str | int, ...]


class Place(NamedTuple):
    """Line and column, 1-based; (0, 0) for a value outside any file."""

    line: int = 0
    column: int = 0


class Node:
    """A value with its place. Mutable, because the parser fills it as it reads.

    Args:
        value: a plain dict, list, str, int, float, bool or None.
        literal: whether it is a literal block (`|`), whose lines are those of the file.
        variables: environment variables in its text.
        entries: its children, by key or position.
        keys: places of a mapping's keys.
        weight: number of values in it, including those that aliases repeat; height: levels below it.
        is_placeholder: whether it replaces a missing or invalid required value, so that the rest can be
            checked. Faults in it are not reported.
    """

    __slots__ = (
        "entries",
        "height",
        "is_placeholder",
        "keys",
        "literal",
        "place",
        "value",
        "variables",
        "weight",
    )

    def __init__(self, value: Any, place: Place = Place(), weight: int = 1) -> None:
        self.value = value
        self.place = place
        self.literal = False
        self.variables: tuple[str, ...] = ()
        self.entries: dict[str | int, Node] = {}
        self.keys: dict[str, Place] = {}
        self.weight = weight
        self.height = 0
        self.is_placeholder = False

    def get(self, *steps: str | int) -> Node | None:
        """Returns the node at a path, or None."""
        node: Node | None = self
        for step in steps:
            node = node.entries.get(step) if node is not None else None
        return node

    def text(self, *steps: str | int) -> str:
        """Returns the text at a path, or an empty one."""
        node = self.get(*steps)
        return node.value if node is not None and isinstance(node.value, str) else ""

    def children(self, *steps: str | int) -> Iterable[tuple[str | int, Node]]:
        """Returns the children of the node at a path."""
        node = self.get(*steps)
        return node.entries.items() if node is not None else ()

    def place_of(self, steps: Steps, *, key: bool = False) -> Place:
        """Returns the place of the end of a path, or of the nearest node above it in the file.

        Args:
            steps: unknown steps are skipped, because pydantic puts names of union members between keys.
            key: whether to return the place of the last key rather than of its value.
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

    def path_to_missing(self, steps: Steps) -> Steps:
        """Returns a path without unknown steps except the last, which is the missing key."""
        found = self.existing_path(steps)
        return found if found[-1:] == steps[-1:] else (*found, *steps[-1:])

    def existing_path(self, steps: Steps) -> Steps:
        """Returns a path without unknown steps: pydantic puts names of union members between keys."""
        node, found = self, []
        for step in steps:
            if (child := node.entries.get(step)) is not None:
                found.append(step)
                node = child
        return tuple(found)

    def has_placeholder(self, steps: Steps) -> bool:
        """Returns whether a path leads through a placeholder."""
        node: Node | None = self
        for step in steps:
            node = node.entries.get(step) if node is not None else None
            if node is not None and node.is_placeholder:
                return True
        return False

    def select(self, keys: Iterable[str | int]) -> Node:
        """Returns the mapping with only these keys."""
        names = set(keys)
        return self._mapping({k: n for k, n in self.entries.items() if k in names})

    def with_entry(self, key: str, node: Node) -> Node:
        """Returns the mapping with one entry added or replaced."""
        return self._mapping({**self.entries, key: node})

    def without(self, steps: Steps) -> Node:
        """Returns the tree without the node at a path."""
        if len(steps) == 1:
            left = {key: node for key, node in self.entries.items() if key != steps[0]}
        else:
            left = {**self.entries, steps[0]: self.entries[steps[0]].without(steps[1:])}
        if not isinstance(self.value, list):
            return self._mapping(left)
        copy = Node([node.value for node in left.values()], self.place)
        copy.entries = dict(enumerate(left.values()))
        return copy

    def merged_over(self, base: Node) -> Node:
        """Returns the mapping with the entries of `base` that it does not have."""
        return self._mapping({**base.entries, **self.entries})

    def detached(self) -> Node:
        """Returns the node without places, for use in another file."""
        copy = Node(self.value)
        copy.variables = self.variables
        copy.entries = {step: child.detached() for step, child in self.entries.items()}
        return copy

    def with_replaced(self, steps: Steps, node: Node) -> Node:
        """Returns the tree with another node at an existing path."""
        if not steps:
            return node
        copy = self._mapping(
            {**self.entries, steps[0]: self.entries[steps[0]].with_replaced(steps[1:], node)}
        )
        if isinstance(self.value, list):
            copy.value = [child.value for child in copy.entries.values()]
        return copy

    def with_missing(self, steps: Steps, node: Node) -> Node:
        """Returns the tree with a node added at a path whose end does not exist."""
        above = self.get(*steps[:-1])
        return (
            self if above is None else self.with_replaced(steps[:-1], above.with_entry(str(steps[-1]), node))
        )

    def _mapping(self, entries: dict[str | int, Node]) -> Node:
        node = Node({key: child.value for key, child in entries.items()}, self.place)
        node.entries, node.keys = entries, self.keys
        return node


def node_from_value(value: Any) -> Node:
    """Creates a node for a value outside any file."""
    node = Node(value)
    if isinstance(value, Mapping):
        node.entries = {key: node_from_value(item) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        node.entries = {i: node_from_value(item) for i, item in enumerate(value)}
    return node


def format_path(steps: Steps) -> str:
    """Returns a path as text, such as `spec.tools[0].name`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return text.removeprefix(".")


# -- protocols: the configuration package does not import plugins, templates or graphs -----------------------


class OptionsResolver(Protocol):
    """The installed plugins. `astromesh.plugins.Plugins` is one."""

    def names(self, group: str) -> Sequence[str]:
        """Returns every name of a group."""

    def options(self, group: str, name: str) -> type[BaseModel]:
        """Returns the `Options` of a plugin.

        Raises:
            UnknownPlugin, MissingExtra: as `Plugins.load`.
        """


class TemplateFault(NamedTuple):
    """A fault of a template.

    Args:
        line: 1-based within the template.
        more: its further faults.
    """

    message: str
    line: int = 1
    more: tuple[TemplateFault, ...] = ()

    def every(self) -> tuple[TemplateFault, ...]:
        """Returns this fault and the further ones."""
        return (self, *self.more)


#: checks a template; returns its fault or None
TemplateCheck = Callable[[str], TemplateFault | None]


class UnprovidedName(NamedTuple):
    """A variable of a system prompt that only the context of a request can provide.

    Args:
        line: 1-based within the template.
        hint: a known name that is like it, as a sentence, or empty.
    """

    name: str
    line: int
    hint: str = ""


#: takes a system prompt and the names of its own variables
PromptCheck = Callable[[str, Collection[str]], Sequence[UnprovidedName]]


class GraphMention(NamedTuple):
    """A name in a graph that its agents must declare: `what` is `tool` or `role`."""

    what: str
    name: str
    steps: Steps


class GraphFindings(NamedTuple):
    """The result of checking the spec of a graph; steps lead into the spec.

    Args:
        faults: faults for every agent.
        mentions: names that its agents must declare.
        least_iterations: node executions without which no run of it completes.
    """

    faults: Sequence[tuple[Steps, str]] = ()
    mentions: Sequence[GraphMention] = ()
    least_iterations: int = 0


#: checks the spec of a graph
GraphCheck = Callable[[Mapping[str, Any]], GraphFindings]
