"""What reading and writing share: keys, objects by name, locations, references to tools and roles."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from astromesh.errors import InvalidGraph
from astromesh.graph.base import BaseNode
from astromesh.graph.edges import OnError, OnGuardFail, OnNoToolCall, OnToolCall
from astromesh.graph.flags import NodeFlag
from astromesh.graph.nodes.system_prompt import PERSPECTIVES, STRATEGIES, Examples, Rules, Text
from astromesh.graph.problems import Location, Problem

#: Keys whose text is the name of a Python object.
OBJECT_KEYS = frozenset({"preprocessor", "postprocessor", "output_schema", "choose", "transform", "function"})
#: Keys whose text may be the name of a built-in object.
BUILT_IN_OBJECTS: Mapping[str, Mapping[str, Any]] = {"strategy": STRATEGIES, "perspective": PERSPECTIVES}
#: Keys whose values are nodes.
NODE_KEYS = frozenset({"node", "nodes", "pool", "body"})
#: A mapping with one of these as its only key stands for another value.
WRAPPER_KEYS = frozenset({"python", "literal", "block"})
FLAGS_BY_NAME = {flag.value: flag for flag in NodeFlag}
#: Flags that are also keywords, and are written as those.
KEYWORD_FLAGS = frozenset({NodeFlag.ENTRY, NodeFlag.TERMINAL, NodeFlag.INJECT_TOOLS})

CONDITIONS: Mapping[str, Any] = {
    "tool_call": OnToolCall(),
    "no_tool_call": OnNoToolCall(),
    "error": OnError(),
    "guard_fail": OnGuardFail(),
}

BLOCKS: Mapping[str, type[Any]] = {"text": Text, "rules": Rules, "examples": Examples}


@dataclass(frozen=True, slots=True)
class Cursor:
    """A location in the data, and the problems found so far anywhere in it.

    Args:
        objects: Python objects by the names that the caller uses.
        kinds: Node classes by name.
        location: The keys and positions that lead there.
        ancestors: The graphs around it, by identity.
    """

    objects: Mapping[str, Any]
    kinds: Mapping[str, type[BaseNode]]
    location: Location = ()
    problems: list[str] = field(default_factory=list)
    ancestors: tuple[int, ...] = ()

    @property
    def path(self) -> str:
        return ".".join(map(str, self.location))

    def at(self, key: str | int) -> Cursor:
        return replace(self, location=(*self.location, key))

    def add_problem(self, problem: str) -> None:
        text = f"{self.path}: {problem}" if self.location else problem
        self.problems.append(Problem(text, self.location, problem))

    @contextmanager
    def collecting_problems(self) -> Iterator[None]:
        """Records exceptions as problems of this location, so that all are found at once."""
        try:
            yield
        except InvalidGraph as error:
            for problem in error.problems:
                self.add_problem(problem)
        except (TypeError, ValueError, AttributeError) as error:
            self.add_problem(str(error))


# -- names that only the caller can look up: tools and roles of models -------------------------------------


class Reference(NamedTuple):
    """A name and its location.

    Args:
        kind: `tool` or `role`.
    """

    kind: str
    name: str
    location: Location


def references(data: Any, at: Location = ()) -> Iterator[Reference]:
    """Yields the tools and roles that the nodes of a graph name, nested ones too.

    Malformed parts name nothing.
    """
    nodes = data.get("nodes") if isinstance(data, dict) else None
    for index, node in enumerate(nodes if isinstance(nodes, list) else ()):
        yield from _references_of_node(node, (*at, "nodes", index))


def _references_of_node(node: Any, at: Location) -> Iterator[Reference]:
    if not isinstance(node, dict):
        return
    listed = node.get("tools")
    tools: list[Any] = listed if isinstance(listed, list) else []
    own = [i for i, tool in enumerate(tools) if isinstance(tool, str)]
    yield from (Reference("tool", tools[i], (*at, "tools", i)) for i in own)
    # only the code of a tool that the node brings along knows its name
    if node.get("kind") == "tool" and isinstance(node.get("tool"), str) and len(own) == len(tools):
        yield Reference("tool", node["tool"], (*at, "tool"))
    if isinstance(node.get("model_override"), str):
        yield Reference("role", node["model_override"], (*at, "model_override"))
    for key in sorted(NODE_KEYS & node.keys()):
        below = node[key]
        if isinstance(below, list):
            for index, child in enumerate(below):
                yield from _references_of_node(child, (*at, key, index))
        else:
            yield from _references_of_node(below, (*at, key))
    yield from references(node.get("graph"), (*at, "graph"))


# -- Python objects by name: `module:qualname`, or a name that the caller passes, never code ---------------


def name_of(value: Any, objects: Mapping[str, Any]) -> str:
    """Returns the name by which an object can be found again.

    Args:
        objects: Objects that the caller names, for those that no module does.

    Raises:
        ValueError: It has none: a lambda, a local function, an instance.
    """
    for name, known in objects.items():
        if known is value:
            return name
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not qualname:
        raise ValueError(
            f"{value!r} has no name: give it one in `objects`, or use a function or class of a module."
        )
    if "<lambda>" in qualname:
        raise ValueError("A lambda cannot be written: use a function of a module, or name it in `objects`.")
    name = f"{module}:{qualname}"
    if "<locals>" in qualname or _find(module, qualname) is not value:
        raise ValueError(f"{name} cannot be found by its name: move it to a module, or name it in `objects`.")
    return name


def object_of(name: str, objects: Mapping[str, Any]) -> Any:
    """Returns the object of a name.

    Raises:
        ValueError: There is no such module or object.
    """
    if name in objects:
        return objects[name]
    module, colon, qualname = name.partition(":")
    if not colon or not module or not qualname:
        raise ValueError(f"{name!r} is not a Python object. Write `module:name`, or name it in `objects`.")
    try:
        found = _find(module, qualname)
    except ImportError as error:
        raise ValueError(f"{name!r} cannot be loaded: {error}.") from error
    except Exception as error:  # loading a module runs foreign code
        raise ValueError(f"{name!r} cannot be loaded: {type(error).__name__}: {error}.") from error
    if found is None:
        raise ValueError(f"There is no {qualname!r} in the module {module!r}.")
    return found


def _find(module: str, qualname: str) -> Any:
    # as with plugins, a module is loaded when a file names it
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found
