"""Reads a graph from plain data. It finds every problem at once, each with its location."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, TypeVar

from astromesh.errors import InvalidGraph
from astromesh.graph.base import DEFAULTS, BaseNode
from astromesh.graph.edges import OnConfidence, OnOutput
from astromesh.graph.nodes import KINDS
from astromesh.graph.nodes.guard import Guard
from astromesh.graph.problems import Problem, location_in, problems_of_parts
from astromesh.graph.serialization.format import (
    BLOCKS,
    BUILT_IN_OBJECTS,
    CONDITIONS,
    FLAGS_BY_NAME,
    NODE_KEYS,
    OBJECT_KEYS,
    WRAPPER_KEYS,
    Cursor,
    object_of,
)
from astromesh.graph.validation import ROUTINGS

G = TypeVar("G")
_GRAPH_KEYS = ("name", "mode", "routing", "entry", "finalizer", "nodes", "edges")
_EDGE_KEYS = ("from", "to", "when", "label", "priority")
_MODES = ("static", "autonomous")


def read_graph(
    make: Callable[..., G],
    config: Mapping[str, Any],
    objects: Mapping[str, Any] | None = None,
    kinds: Mapping[str, type[BaseNode]] | None = None,
) -> G:
    """Returns the graph that plain data describes.

    Args:
        make: Makes an empty graph: `PromptGraph`.
        config: What `write_graph` has returned, or the contents of a file.
        objects: Python objects by the names that the data uses, beside `module:name`.
        kinds: Node classes by name, beside the built-in ones.

    Raises:
        InvalidGraph: Every problem with its location.
    """
    place = Cursor(objects or {}, {**KINDS, **(kinds or {})})
    graph = _build_graph(make, config, place)
    if graph is None or place.problems:
        raise InvalidGraph(place.problems)
    made: G = graph
    return made


def find_problems(
    make: Callable[..., Any],
    config: Any,
    objects: Mapping[str, Any] | None = None,
    kinds: Mapping[str, type[BaseNode]] | None = None,
) -> list[Problem]:
    """Returns every problem of a graph of plain data with its location, those of `PromptGraph.validate` too.

    If some nodes cannot be made, the others are checked one by one, because targets are unknown.
    """
    place = Cursor(objects or {}, {**KINDS, **(kinds or {})})
    graph = _build_graph(make, config, place)
    found = place.problems
    if graph is not None:
        found = [*found, *(problems_of_parts(graph) if found else graph.validate())]
    problems = (p if isinstance(p, Problem) else Problem(p) for p in found)
    return [Problem(p, location_in(config, p.location, NODE_KEYS), p.message) for p in problems]


def _build_graph(make: Callable[..., Any], config: Any, place: Cursor) -> Any:
    graphs: list[Any] = []
    with place.collecting_problems():
        graphs.append(_graph(make, config, place))
    return graphs[0] if graphs else None


def _graph(make: Callable[..., Any], data: Any, place: Cursor) -> Any:
    data = _known_keys(data, _GRAPH_KEYS, place)
    for key in ("name", "entry", "finalizer"):
        if not isinstance(data.get(key, ""), str):
            place.at(key).add_problem(f"must be a text, not {data[key]!r}")
    for key, known in (("mode", _MODES), ("routing", ROUTINGS)):
        if data.get(key, known[0]) not in known:
            place.at(key).add_problem(f"is one of {', '.join(filter(None, known))}, not {data[key]!r}")
    mode, routing = (
        data[key] if data.get(key) in known else known[0]
        for key, known in (("mode", _MODES), ("routing", ROUTINGS))
    )
    graph = make(str(data.get("name", "graph")), mode=mode, routing=routing)
    for item, inner in _items(data, "nodes", place):
        before = len(place.problems)
        with inner.collecting_problems():
            graph.add_node(_node(make, item, inner))
        if len(place.problems) > before:
            _add_placeholder(graph, item)
    for item, inner in _items(data, "edges", place):
        with inner.collecting_problems():
            _add_edge(graph, _known_keys(item, _EDGE_KEYS, inner), inner)
    for key in ("entry", "finalizer"):
        if data.get(key) and isinstance(data[key], str):
            getattr(graph, f"set_{key}")(data[key])
    return graph


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
            near = difflib.get_close_matches(str(key), known, 1)
            place.at(key).add_problem("unknown key" + (f". Did you mean {near[0]!r}?" if near else ""))
    return {key: value for key, value in data.items() if key in known}


def _node(make: Callable[..., Any], data: Any, place: Cursor) -> BaseNode:
    if not isinstance(data, Mapping):
        raise TypeError(f"must be a mapping, not {data!r}.")
    name = data.get("name", "")
    if not isinstance(name, str):
        place.at("name").add_problem(f"must be a text, not {name!r}")
        raise InvalidGraph([])
    made = None
    with place.at("kind").collecting_problems():
        made = _kind(data.get("kind", "prompt"), place)
    if made is None:
        raise InvalidGraph([])
    keywords = _known_keys(data, ("name", "kind", *made.constructor_keys, *DEFAULTS), place)
    values = {key: value for key, value in keywords.items() if key not in ("name", "kind")}
    arguments: dict[str, Any] = {}
    before = len(place.problems)
    for key, value in values.items():
        with place.at(key).collecting_problems():
            arguments[key] = _value(make, key, value, place.at(key))
    if len(place.problems) > before:
        # the constructor would only report the missing values
        raise InvalidGraph([])
    try:
        return made(name, **arguments)
    except (TypeError, ValueError) as error:
        named = [key for key in arguments if str(error).startswith(f"Node {name!r}: {key} ")]
        if not named:
            raise
        place.at(named[0]).add_problem(str(error))
        raise InvalidGraph([]) from error


def _kind(name: Any, place: Cursor) -> type[BaseNode]:
    if not isinstance(name, str):
        raise TypeError(f"must be a text, not {name!r}")
    if name in place.kinds:
        return place.kinds[name]
    if ":" not in name and name not in place.objects:
        near = difflib.get_close_matches(name, place.kinds, 1)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"There is no kind of node {name!r}.{guess}")
    found = object_of(name, place.objects)
    if not (isinstance(found, type) and issubclass(found, BaseNode)):
        raise TypeError(f"{name!r} is not a class of nodes.")
    return found


def _value(make: Callable[..., Any], key: str, value: Any, place: Cursor) -> Any:
    if key in NODE_KEYS:
        if isinstance(value, Mapping):
            return _node(make, value, place)
        return [_node(make, item, place.at(index)) for index, item in enumerate(_require_list(value))]
    if key == "graph":
        return _graph(make, value, place)
    if key in ("guards", "flags"):
        _require_list(value)
    if key == "guards":
        return [_guard(guard, place.at(index)) for index, guard in enumerate(value)]
    if key == "flags":
        return frozenset(_flag(flag, place) for flag in value)
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


def _guard(guard: Any, place: Cursor) -> Any:
    if isinstance(guard, str):
        return object_of(guard, place.objects)
    data = _known_keys(guard, ("check", "mode", "name", "max_retries"), place)
    keywords = {key: value for key, value in data.items() if key != "check"}
    return Guard(object_of(str(data.get("check", "")), place.objects), **keywords)


def _flag(flag: Any, place: Cursor) -> Hashable:
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
            body = data[name] if name == "text" else tuple(map(_as_tuple, data[name]))
            return block(body, **({"title": data["title"]} if "title" in data else {}))
    raise ValueError(f"A block is one of {', '.join(BLOCKS)}.")


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
    condition = _condition(data["when"], place.at("when")) if "when" in data else None
    graph.add_edge(
        data["from"],
        data["to"],
        condition=condition,
        label=data.get("label", ""),
        priority=data.get("priority", 0),
    )


def _condition(when: Any, place: Cursor) -> Any:
    if isinstance(when, str):
        return CONDITIONS[when] if when in CONDITIONS else object_of(when, place.objects)
    data = _known_keys(when, ("output", "equals", "confidence"), place)
    if "confidence" in data:
        return OnConfidence(float(data["confidence"]))
    if "output" in data:
        return OnOutput(data["output"], _parse_value(data.get("equals", True), place))
    raise ValueError(f"is {', '.join(CONDITIONS)}, a function, an output or a confidence.")
