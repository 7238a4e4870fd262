"""What writing and reading agree on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from astromesh.errors import InvalidGraph
from astromesh.graph.base import BaseNode
from astromesh.graph.edges import OnError, OnGuardFail, OnNoToolCall, OnToolCall
from astromesh.graph.flags import NodeFlag
from astromesh.graph.nodes.blocks import Examples, Rules, Text
from astromesh.graph.nodes.perspectives import PERSPECTIVES
from astromesh.graph.nodes.strategies import STRATEGIES
from astromesh.graph.problem import At, Problem

#: keys whose text is the name of a Python object
OBJECTS = frozenset({"preprocessor", "postprocessor", "output_schema", "choose", "transform", "function"})
#: keys whose text may be the name of a built-in instead
BUILT_IN: Mapping[str, Mapping[str, Any]] = {"strategy": STRATEGIES, "perspective": PERSPECTIVES}
#: keys whose values are nodes
NODES = frozenset({"node", "nodes", "pool", "body"})
#: mappings of one of these keys stand for something else
FORMS = frozenset({"python", "literal", "block"})
FLAGS = {flag.value: flag for flag in NodeFlag}
#: flags that are keywords too, and written as those
KEYWORD_FLAGS = frozenset({NodeFlag.ENTRY, NodeFlag.TERMINAL, NodeFlag.INJECT_TOOLS})
CONDITIONS: Mapping[str, Any] = {
    "tool_call": OnToolCall(),
    "no_tool_call": OnNoToolCall(),
    "error": OnError(),
    "guard_fail": OnGuardFail(),
}
BLOCKS: Mapping[str, type[Any]] = {"text": Text, "rules": Rules, "examples": Examples}


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the data something stands, and the problems found so far anywhere in it.

    Args:
        objects: Python objects by the names that the caller gives them.
        kinds: node classes by name.
        steps: the keys and positions that lead there.
        above: graphs that it stands in, by identity.
    """

    objects: Mapping[str, Any]
    kinds: Mapping[str, type[BaseNode]]
    steps: At = ()
    problems: list[str] = field(default_factory=list)
    above: tuple[int, ...] = ()

    @property
    def path(self) -> str:
        return ".".join(map(str, self.steps))

    def at(self, key: str | int) -> Place:
        return replace(self, steps=(*self.steps, key))

    def note(self, problem: str) -> None:
        text = f"{self.path}: {problem}" if self.steps else problem
        self.problems.append(Problem(text, self.steps, problem))

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Keeps what goes wrong inside as a problem of this place, so that all are found at once."""
        try:
            yield
        except InvalidGraph as error:
            for problem in error.problems:
                self.note(problem)
        except (TypeError, ValueError, AttributeError) as error:
            self.note(str(error))
