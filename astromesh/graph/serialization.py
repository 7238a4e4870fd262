"""Graphs as plain data (mappings, lists, texts, numbers), and back, without loss: `*.graph.yaml`.

Reading finds every problem at once, each with its location. Writing leaves out defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from typing import Any, NamedTuple, TypeVar

from astromesh.errors import InvalidGraph, described, is_failure
from astromesh.graph.base import DEFAULTS, BaseNode
from astromesh.graph.flags import NodeFlag
from astromesh.graph.node_config import MAX_CONCURRENCY
from astromesh.graph.nodes import KINDS
from astromesh.graph.nodes.function import FunctionNode
from astromesh.graph.nodes.guard import Guard
from astromesh.graph.nodes.system_prompt import (
    PERSPECTIVES,
    STRATEGIES,
    Examples,
    FromState,
    Rules,
    Text,
)
from astromesh.graph.problems import Location, Problem, location_in, problems_of_parts
from astromesh.graph.topology import GraphView
from astromesh.graph.transitions import (
    Edge,
    Fork,
    OnConfidence,
    OnError,
    OnGuardFail,
    OnNoToolCall,
    OnOutput,
    OnToolCall,
)
from astromesh.graph.typed_state import StateSchema
from astromesh.graph.validation import ON_NODE_ERROR, ROUTINGS, check_reducers
from astromesh.text import did_you_mean
from astromesh.types import JsonObject

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

BLOCKS: Mapping[str, type[Any]] = {
    "text": Text,
    "rules": Rules,
    "examples": Examples,
    "function": FromState,
}


@dataclass(frozen=True, slots=True)
class Cursor:
    """A location in the data, and the problems found so far anywhere in it.

    Args:
        objects: Python objects by the names that the caller uses.
        kinds: Node classes by name.
        make: Makes an empty graph.
        location: The keys and positions that lead there.
        ancestors: The graphs around it, by identity.
    """

    objects: Mapping[str, Any]
    kinds: Mapping[str, type[BaseNode]]
    make: Callable[..., Any]
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
    try:
        if "<locals>" not in qualname and _resolved(name) is value:
            return name
    except (ImportError, AttributeError, ValueError):
        pass
    raise ValueError(f"{name} cannot be found by its name: move it to a module, or name it in `objects`.")


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
        return _resolved(name)  # as with plugins, a module is loaded when a file names it
    except ImportError as error:
        raise ValueError(f"{name!r} cannot be loaded: {error}.") from error
    except AttributeError as error:
        raise ValueError(f"There is no {qualname!r} in the module {module!r}.") from error
    except BaseException as error:  # loading a module runs foreign code
        if not is_failure(error):
            raise
        raise ValueError(f"{name!r} cannot be loaded: {described(error)}.") from error


def _resolved(name: str) -> Any:
    """Returns the object of a name, and the function of a node that `@node` has made of it."""
    found = resolve_name(name)
    return found.function if isinstance(found, FunctionNode) else found


G = TypeVar("G")
_GRAPH_KEYS = (
    "name",
    "mode",
    "routing",
    "on_error",
    "state",
    "reducers",
    "entry",
    "finalizer",
    "nodes",
    "edges",
    "forks",
)
_FORK_KEYS = ("from", "to", "max_concurrency")
_EDGE_KEYS = ("from", "to", "when", "label", "priority")
#: Keys of a graph with a fixed set of values, the default first.
_GRAPH_CHOICES = {"mode": ("static", "autonomous"), "routing": ROUTINGS, "on_error": ON_NODE_ERROR}


def read_graph(
    make: Callable[..., G],
    config: Mapping[str, Any],
    objects: Mapping[str, Any] | None = None,
    kinds: Mapping[str, type[BaseNode]] | None = None,
) -> G:
    """Returns the graph that plain data describes. See `PromptGraph.from_config`.

    Args:
        make: Makes an empty graph: `PromptGraph`.
    """
    place = Cursor(objects or {}, {**KINDS, **(kinds or {})}, make)
    graph = _build_graph(config, place)
    if graph is None or place.problems:
        raise InvalidGraph(place.problems)
    made: G = graph
    return made


def find_problems(make: Callable[..., Any], config: Any) -> list[Problem]:
    """Returns every problem of a graph of plain data with its location, those of `PromptGraph.validate` too.

    If some nodes cannot be made, the others are checked one by one, because targets are unknown.
    """
    place = Cursor({}, KINDS, make)
    graph = _build_graph(config, place)
    found = place.problems
    if graph is not None:
        found = [*found, *(problems_of_parts(graph) if found else graph.validate(max_iterations=None))]
    problems = (p if isinstance(p, Problem) else Problem(p) for p in found)
    return [Problem(p, location_in(config, p.location, NODE_KEYS), p.message) for p in problems]


def _build_graph(config: Any, place: Cursor) -> Any:
    graphs: list[Any] = []
    with place.collecting_problems():
        graphs.append(_read_graph(config, place))
    return graphs[0] if graphs else None


def _read_graph(data: Any, place: Cursor) -> Any:
    data = _known_keys(data, _GRAPH_KEYS, place)
    for key in ("name", "entry", "finalizer"):
        if not isinstance(data.get(key, ""), str):
            place.at(key).add_problem(f"must be a text, not {data[key]!r}")
    options = {}
    for key, known in _GRAPH_CHOICES.items():
        options[key] = value = data.get(key, known[0])
        if value not in known:
            place.at(key).add_problem(f"must be one of {', '.join(filter(None, known))}, not {value!r}")
            options[key] = known[0]
    reducers: Mapping[str, Any] = {}
    with place.at("reducers").collecting_problems():
        reducers = _read_reducers(data.get("reducers", {}), place.at("reducers"))
    state = None
    with place.at("state").collecting_problems():
        state = _read_state(data["state"], place) if "state" in data else None
    graph = place.make(str(data.get("name", "graph")), reducers=reducers, state=state, **options)
    for item, inner in _items(data, "nodes", place):
        before = len(place.problems)
        with inner.collecting_problems():
            graph.add_node(_read_node(item, inner))
        if len(place.problems) > before:
            _add_placeholder(graph, item)
    _add_connections(graph, data, place)
    for key in ("entry", "finalizer"):
        if data.get(key) and isinstance(data[key], str):
            getattr(graph, f"set_{key}")(data[key])
    return graph


def _add_connections(graph: Any, data: Mapping[str, Any], place: Cursor) -> None:
    for item, inner in _items(data, "edges", place):
        with inner.collecting_problems():
            _add_edge(graph, _known_keys(item, _EDGE_KEYS, inner), inner)
    for item, inner in _items(data, "forks", place):
        with inner.collecting_problems():
            _add_fork(graph, _known_keys(item, _FORK_KEYS, inner), inner)


def _read_state(name: Any, place: Cursor) -> Any:
    kind = object_of(str(name), place.objects)
    StateSchema(kind)
    return kind


def _read_reducers(data: Any, place: Cursor) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise TypeError(f"must be a mapping of keys to functions, not {data!r}")
    found = {}
    for key, name in data.items():
        with place.at(key).collecting_problems():
            found[key] = object_of(str(name), place.objects)
            check_reducers("", {key: found[key]})
    return found


def _items(data: Mapping[str, Any], key: str, place: Cursor) -> Iterator[tuple[Any, Cursor]]:
    """Yields the entries of a list with their locations."""
    inner = place.at(key)
    items = data.get(key, ())
    if not isinstance(items, list | tuple):
        inner.add_problem(f"must be a list, not {items!r}")
        return
    yield from ((item, inner.at(index)) for index, item in enumerate(items))


def _add_placeholder(graph: Any, item: Any) -> None:
    """Replaces a node that could not be made, so that nodes which lead to it are not reported."""
    name = item.get("name") if isinstance(item, Mapping) else None
    if isinstance(name, str) and name and "/" not in name and not graph.has_node(name):
        graph.add_node(BaseNode(name))


def _known_keys(data: Any, known: tuple[str, ...], place: Cursor) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise TypeError(f"must be a mapping, not {data!r}.")
    for key in data:
        if key not in known:
            hint = did_you_mean(str(key), known)
            place.at(key).add_problem(f"unknown key `{key}`" + (f". {hint}" if hint else ""))
    return {key: value for key, value in data.items() if key in known}


def _read_node(data: Any, place: Cursor) -> BaseNode:
    if not isinstance(data, Mapping):
        raise TypeError(f"must be a mapping, not {data!r}.")
    name = data.get("name", "")
    if not isinstance(name, str):
        place.at("name").add_problem(f"must be a text, not {name!r}")
        raise InvalidGraph([])
    made = None
    with place.at("kind").collecting_problems():
        made = _read_kind(data.get("kind", "prompt"), place)
    if made is None:
        raise InvalidGraph([])
    keywords = _known_keys(data, ("name", "kind", *made.constructor_keys, *DEFAULTS), place)
    values = {key: value for key, value in keywords.items() if key not in ("name", "kind")}
    arguments: dict[str, Any] = {}
    before = len(place.problems)
    for key, value in values.items():
        with place.at(key).collecting_problems():
            arguments[key] = _read_value(key, value, place.at(key))
    if len(place.problems) > before:
        # the constructor would only report the missing values
        raise InvalidGraph([])
    try:
        return made(name, **arguments)
    except (TypeError, ValueError) as error:
        keys = [key for key in arguments if str(error).startswith(f"Node {name!r}: {key} ")]
        if not keys:
            raise
        place.at(keys[0]).add_problem(str(error))
        raise InvalidGraph([]) from error


def _read_kind(name: Any, place: Cursor) -> type[BaseNode]:
    if not isinstance(name, str):
        raise TypeError(f"must be a text, not {name!r}")
    if name in place.kinds:
        return place.kinds[name]
    if ":" not in name and name not in place.objects:
        raise ValueError(f"There is no kind of node {name!r}. {did_you_mean(name, place.kinds)}".rstrip())
    found = object_of(name, place.objects)
    if not (isinstance(found, type) and issubclass(found, BaseNode)):
        raise TypeError(f"{name!r} is not a class of nodes.")
    return found


def _read_value(key: str, value: Any, place: Cursor) -> Any:
    if key in NODE_KEYS:
        if isinstance(value, Mapping):
            return _read_node(value, place)
        return [_read_node(item, place.at(index)) for index, item in enumerate(_require_list(value))]
    if key == "graph":
        return _read_graph(value, place)
    if key in ("guards", "flags"):
        _require_list(value)
    if key == "guards":
        return [_read_guard(guard, place.at(index)) for index, guard in enumerate(value)]
    if key == "flags":
        return frozenset(_read_flag(flag, place) for flag in value)
    if isinstance(value, str):
        if key in BUILT_IN_OBJECTS:
            return value if value in BUILT_IN_OBJECTS[key] else object_of(value, place.objects)
        if key in OBJECT_KEYS:
            return object_of(value, place.objects)
    return _parse_value(value, place)


def _require_list(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"must be a list, not {value!r}")
    return list(value)


def _read_guard(guard: Any, place: Cursor) -> Any:
    if isinstance(guard, str):
        return object_of(guard, place.objects)
    data = _known_keys(guard, ("check", "mode", "name", "max_retries"), place)
    keywords = {key: value for key, value in data.items() if key != "check"}
    return Guard(object_of(str(data.get("check", "")), place.objects), **keywords)


def _read_flag(flag: Any, place: Cursor) -> Hashable:
    if isinstance(flag, str):
        return FLAGS_BY_NAME.get(flag, flag)
    made: Hashable = _hashable(_parse_value(flag, place))
    return made


def _hashable(value: Any) -> Any:
    """Returns lists as tuples: a list can be no flag."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _parse_value(value: Any, place: Cursor) -> Any:
    if isinstance(value, list):
        return [_parse_value(item, place) for item in value]
    if not isinstance(value, Mapping):
        return value
    if len(value) == 1 and (form := next(iter(value))) in WRAPPER_KEYS:
        return _WRAPPERS[form](value[form], place)
    return {key: _parse_value(item, place) for key, item in value.items()}


def _literal(value: Any, place: Cursor) -> Any:
    return {key: _parse_value(item, place) for key, item in value.items()}


def _python(value: Any, place: Cursor) -> Any:
    return object_of(str(value), place.objects)


def _block(value: Any, place: Cursor) -> Any:
    for name, block in BLOCKS.items():
        if name in value:
            data = _known_keys(value, (name, "title"), place)
            if name == "function":
                body = object_of(str(data[name]), place.objects)
            else:
                body = data[name] if name == "text" else tuple(map(_as_tuple, data[name]))
            return block(body, **({"title": data["title"]} if "title" in data else {}))
    raise ValueError(f"A block must be one of {', '.join(BLOCKS)}.")


def _as_tuple(item: Any) -> Any:
    return tuple(item) if isinstance(item, list) else item


_WRAPPERS: Mapping[str, Callable[[Any, Cursor], Any]] = {
    "literal": _literal,
    "python": _python,
    "block": _block,
}


def _add_edge(graph: Any, data: Mapping[str, Any], place: Cursor) -> None:
    for key in ("from", "to"):
        if key not in data:
            raise ValueError(f"needs {key!r}.")
        if not isinstance(data[key], str):
            place.at(key).add_problem(f"must be the name of a node, not {data[key]!r}")
            raise InvalidGraph([])
    condition = _read_condition(data["when"], place.at("when")) if "when" in data else None
    graph.add_edge(
        data["from"],
        data["to"],
        condition=condition,
        label=data.get("label", ""),
        priority=data.get("priority", 0),
    )


def _add_fork(graph: Any, data: Mapping[str, Any], place: Cursor) -> None:
    for key in ("from", "to"):
        if key not in data:
            raise ValueError(f"needs {key!r}.")
    with place.at("to").collecting_problems():
        _require_list(data["to"])
        graph.fork(data["from"], *data["to"], max_concurrency=data.get("max_concurrency", MAX_CONCURRENCY))


def _read_condition(when: Any, place: Cursor) -> Any:
    if isinstance(when, str):
        return CONDITIONS[when] if when in CONDITIONS else object_of(when, place.objects)
    data = _known_keys(when, ("output", "equals", "confidence"), place)
    if "confidence" in data:
        return OnConfidence(float(data["confidence"]))
    if "output" in data:
        return OnOutput(data["output"], _parse_value(data.get("equals", True), place))
    raise ValueError(f"must be {', '.join(CONDITIONS)}, a function, an output or a confidence.")


_SCALARS = (str, int, float, bool, type(None))


def write_graph(
    graph: GraphView,
    objects: Mapping[str, Any] | None = None,
    kinds: Mapping[str, type[BaseNode]] | None = None,
) -> JsonObject:
    """Returns a graph as plain data.

    Args:
        graph: A PromptGraph.
        objects: Names for Python objects that no module names.
        kinds: Node classes by name, in addition to the built-in ones.

    Raises:
        InvalidGraph: Something in it has no name. Every such location is listed.
    """
    place = Cursor(objects or {}, {**KINDS, **(kinds or {})}, type(graph))
    data = _graph_data(graph, place)
    if place.problems:
        raise InvalidGraph(place.problems)
    return data


def _graph_data(graph: GraphView, place: Cursor) -> JsonObject:
    if id(graph) in place.ancestors:
        raise ValueError(f"The graph {graph.name!r} contains itself.")
    place = replace(place, ancestors=(*place.ancestors, id(graph)))
    data: JsonObject = {"name": graph.name}
    for key, value, default in (
        ("mode", graph.mode, "static"),
        ("routing", graph.routing, ""),
        ("on_error", "stop" if graph.stops_on_error else "continue", "continue"),
        ("entry", graph.entry, ""),
        ("finalizer", graph.finalizer, ""),
    ):
        if value != default:
            data[key] = value
    if graph.schema is not None:
        with place.at("state").collecting_problems():
            data["state"] = name_of(graph.schema.kind, place.objects)
    if graph.own_reducers:
        data["reducers"] = _reducer_names(graph.own_reducers, place.at("reducers"))
    data["nodes"] = [_node_data(node, place.at("nodes").at(name)) for name, node in graph.nodes.items()]
    if graph.edges:
        data["edges"] = [_edge_data(edge, place.at("edges").at(i)) for i, edge in enumerate(graph.edges)]
    if graph.forks:
        data["forks"] = [_fork_data(fork) for fork in graph.forks.values()]
    return data


def _fork_data(fork: Fork) -> JsonObject:
    data: JsonObject = {"from": fork.source, "to": list(fork.targets)}
    return (
        data if fork.max_concurrency == MAX_CONCURRENCY else {**data, "max_concurrency": fork.max_concurrency}
    )


def _reducer_names(reducers: Mapping[str, Callable[..., Any]], place: Cursor) -> JsonObject:
    names: JsonObject = {}
    for key, function in reducers.items():
        with place.at(key).collecting_problems():
            names[key] = name_of(function, place.objects)
    return names


def _node_data(node: BaseNode, place: Cursor) -> JsonObject:
    data: JsonObject = {"name": node.name}
    with place.at("kind").collecting_problems():
        data["kind"] = _kind_name(node, place)
    for key in (*node.constructor_keys, *DEFAULTS):
        value = node.constructor_value(key)
        if key == "flags":
            value = node.flags - node.default_flags - KEYWORD_FLAGS
        if not _is_default(node, key, value):
            inner = place.at(key)
            with inner.collecting_problems():
                data[key] = _value_data(key, value, inner)
    return data


def _is_default(node: BaseNode, key: str, value: Any) -> bool:
    if isinstance(value, tuple | frozenset | dict):
        return len(value) == 0 and key in DEFAULTS
    default = DEFAULTS.get(key) if key in DEFAULTS else _own_defaults(type(node)).get(key)
    return type(value) is type(default) and bool(value == default)


def _own_defaults(kind: type[BaseNode]) -> Mapping[str, Any]:
    parameters = inspect.signature(kind).parameters
    return {key: p.default for key, p in parameters.items() if p.default is not p.empty}


def _kind_name(node: BaseNode, place: Cursor) -> str:
    for kind, known in place.kinds.items():
        if known is type(node):
            return kind
    return name_of(type(node), place.objects)


def _value_data(key: str, value: Any, place: Cursor) -> Any:
    if key in NODE_KEYS:
        return (
            _node_data(value, place) if isinstance(value, BaseNode) else [_node_data(n, place) for n in value]
        )
    if key == "graph":
        return _graph_data(value, place)
    if key == "guards":
        return [_guard_data(guard, place) for guard in value]
    if key == "flags":
        return sorted((_flag_data(flag, place) for flag in value), key=str)
    if key in BUILT_IN_OBJECTS:
        found = (name for name, known in BUILT_IN_OBJECTS[key].items() if known is value)
        return value if isinstance(value, str) else next(found, None) or name_of(value, place.objects)
    if key in OBJECT_KEYS and not isinstance(value, Mapping):
        return name_of(value, place.objects)
    return _plain_value(value, place)


def _guard_data(guard: Any, place: Cursor) -> Any:
    if not isinstance(guard, Guard):
        return name_of(guard, place.objects)
    check = name_of(guard.check, place.objects)
    return {"check": check, "mode": guard.mode, "name": guard.name, "max_retries": guard.max_retries}


def _flag_data(flag: Hashable, place: Cursor) -> Any:
    if isinstance(flag, NodeFlag):
        return flag.value
    if flag in FLAGS_BY_NAME:
        raise ValueError(f"The flag {flag!r} is the name of a NodeFlag: use that, or another name.")
    return _plain_value(flag, place)


def _plain_value(value: Any, place: Cursor) -> Any:
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        return _mapping(value, place)
    if isinstance(value, list | tuple):
        return [_plain_value(item, place.at(index)) for index, item in enumerate(value)]
    for name, block in BLOCKS.items():
        if type(value) is block:
            body = getattr(value, name)
            data = name_of(body, place.objects) if name == "function" else _plain_value(body, place)
            return {"block": {name: data, "title": value.title}}
    if hasattr(value, "spec") and hasattr(value, "call"):
        return str(value.spec.name)
    return {"python": name_of(value, place.objects)}


def _mapping(value: Mapping[Any, Any], place: Cursor) -> JsonObject:
    data = {key: _plain_value(item, place.at(str(key))) for key, item in value.items()}
    if any(type(key) not in _SCALARS for key in data):
        raise ValueError("A key of a mapping must be a text or a number.")
    # a mapping that looks like a wrapper but is none is marked
    return {"literal": data} if len(data) == 1 and next(iter(data)) in WRAPPER_KEYS else data


def _edge_data(edge: Edge, place: Cursor) -> JsonObject:
    data: JsonObject = {"from": edge.source, "to": edge.target}
    if edge.condition is not None:
        with place.at("when").collecting_problems():
            data["when"] = _condition_data(edge.condition, place)
    if edge.label:
        data["label"] = edge.label
    if edge.priority:
        data["priority"] = edge.priority
    return data


def _condition_data(condition: Callable[..., Any], place: Cursor) -> Any:
    if isinstance(condition, OnOutput):
        return {"output": condition.key, "equals": _plain_value(condition.value, place)}
    if isinstance(condition, OnConfidence):
        return {"confidence": condition.min_confidence}
    found = (name for name, known in CONDITIONS.items() if condition == known)
    return next(found, None) or name_of(condition, place.objects)
