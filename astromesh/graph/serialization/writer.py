"""Writes a graph as plain data. It leaves out defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

from astromesh.errors import InvalidGraph
from astromesh.graph.base import DEFAULTS, BaseNode
from astromesh.graph.edges import Edge, OnConfidence, OnOutput
from astromesh.graph.flags import NodeFlag
from astromesh.graph.nodes import KINDS
from astromesh.graph.nodes.guard import Guard
from astromesh.graph.serialization.format import (
    BLOCKS,
    BUILT_IN_OBJECTS,
    CONDITIONS,
    FLAGS_BY_NAME,
    KEYWORD_FLAGS,
    NODE_KEYS,
    OBJECT_KEYS,
    WRAPPER_KEYS,
    Cursor,
    name_of,
)
from astromesh.graph.topology import GraphView
from astromesh.types import JsonObject

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
        kinds: Node classes by name, beside the built-in ones.

    Raises:
        InvalidGraph: Something in it has no name. Every such location is listed.
    """
    place = Cursor(objects or {}, {**KINDS, **(kinds or {})})
    data = _graph(graph, place)
    if place.problems:
        raise InvalidGraph(place.problems)
    return data


def _graph(graph: GraphView, place: Cursor) -> JsonObject:
    if id(graph) in place.ancestors:
        raise ValueError(f"The graph {graph.name!r} contains itself.")
    place = replace(place, ancestors=(*place.ancestors, id(graph)))
    data: JsonObject = {"name": graph.name}
    for key, value, default in (
        ("mode", graph.mode, "static"),
        ("routing", graph.routing, ""),
        ("entry", graph.entry, ""),
        ("finalizer", graph.finalizer, ""),
    ):
        if value != default:
            data[key] = value
    data["nodes"] = [_node(node, place.at("nodes").at(name)) for name, node in graph.nodes.items()]
    if graph.edges:
        data["edges"] = [_edge(edge, place.at("edges").at(i)) for i, edge in enumerate(graph.edges)]
    return data


def _node(node: BaseNode, place: Cursor) -> JsonObject:
    data: JsonObject = {"name": node.name}
    with place.at("kind").collecting_problems():
        data["kind"] = _kind(node, place)
    for key in (*node.constructor_keys, *DEFAULTS):
        value = node.constructor_value(key)
        if key == "flags":
            value = node.flags - node.default_flags - KEYWORD_FLAGS
        if not _is_default(node, key, value):
            inner = place.at(key)
            with inner.collecting_problems():
                data[key] = _value(key, value, inner)
    return data


def _is_default(node: BaseNode, key: str, value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return len(value) == 0 and key in DEFAULTS
    default = DEFAULTS.get(key) if key in DEFAULTS else _own_defaults(type(node)).get(key)
    return type(value) is type(default) and bool(value == default)


def _own_defaults(kind: type[BaseNode]) -> Mapping[str, Any]:
    parameters = inspect.signature(kind).parameters
    return {key: p.default for key, p in parameters.items() if p.default is not p.empty}


def _kind(node: BaseNode, place: Cursor) -> str:
    for kind, known in place.kinds.items():
        if known is type(node):
            return kind
    return name_of(type(node), place.objects)


def _value(key: str, value: Any, place: Cursor) -> Any:
    if key in NODE_KEYS:
        return _node(value, place) if isinstance(value, BaseNode) else [_node(n, place) for n in value]
    if key == "graph":
        return _graph(value, place)
    if key == "guards":
        return [_guard(guard, place) for guard in value]
    if key == "flags":
        return sorted((_flag(flag, place) for flag in value), key=str)
    if key in BUILT_IN_OBJECTS:
        found = (name for name, known in BUILT_IN_OBJECTS[key].items() if known is value)
        return value if isinstance(value, str) else next(found, None) or name_of(value, place.objects)
    if key in OBJECT_KEYS and not isinstance(value, Mapping):
        return name_of(value, place.objects)
    return _plain_value(value, place)


def _guard(guard: Any, place: Cursor) -> Any:
    if not isinstance(guard, Guard):
        return name_of(guard, place.objects)
    check = name_of(guard.check, place.objects)
    return {"check": check, "mode": guard.mode, "name": guard.name, "max_retries": guard.max_retries}


def _flag(flag: Hashable, place: Cursor) -> Any:
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
            return {"block": {name: _plain_value(getattr(value, name), place), "title": value.title}}
    if hasattr(value, "spec") and hasattr(value, "call"):
        return str(value.spec.name)
    return {"python": name_of(value, place.objects)}


def _mapping(value: Mapping[Any, Any], place: Cursor) -> JsonObject:
    data = {key: _plain_value(item, place.at(str(key))) for key, item in value.items()}
    if any(type(key) not in _SCALARS for key in data):
        raise ValueError("A key of a mapping must be a text or a number.")
    # a mapping that looks like a wrapper but is none is marked
    return {"literal": data} if len(data) == 1 and next(iter(data)) in WRAPPER_KEYS else data


def _edge(edge: Edge, place: Cursor) -> JsonObject:
    data: JsonObject = {"from": edge.source, "to": edge.target}
    if edge.condition is not None:
        with place.at("when").collecting_problems():
            data["when"] = _condition(edge.condition, place)
    if edge.label:
        data["label"] = edge.label
    if edge.priority:
        data["priority"] = edge.priority
    return data


def _condition(condition: Callable[..., Any], place: Cursor) -> Any:
    if isinstance(condition, OnOutput):
        return {"output": condition.key, "equals": _plain_value(condition.value, place)}
    if isinstance(condition, OnConfidence):
        return {"confidence": condition.min_confidence}
    found = (name for name, known in CONDITIONS.items() if condition == known)
    return next(found, None) or name_of(condition, place.objects)
