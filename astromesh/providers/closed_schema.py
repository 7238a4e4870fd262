"""JSON Schema as constrained decoding takes it: closed objects, few keywords, the rest in the description.

Source: https://docs.claude.com/en/docs/build-with-claude/structured-outputs
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from astromesh.types import JsonObject

_KEPT = frozenset({"type", "description", "title", "enum", "const", "required", "$ref"})
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
_MAPS = ("properties", "$defs")
_LISTS = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}


def closed(schema: Mapping[str, Any]) -> JsonObject | None:
    """The schema with every object closed, or None where it asks for objects of open shape."""
    try:
        return _closed(schema)
    except _OpenShape:
        return None


class _OpenShape(ValueError):
    pass


def _closed(schema: Any) -> JsonObject:
    if not isinstance(schema, Mapping):
        raise _OpenShape
    result: JsonObject = {key: value for key, value in schema.items() if key in _KEPT}
    for key in _MAPS:
        if key in schema:
            result[key] = {name: _closed(inner) for name, inner in schema[key].items()}
    for key, becomes in _LISTS.items():
        if key in schema:
            result[becomes] = [_closed(inner) for inner in schema[key]]
    if "items" in schema:
        result["items"] = _closed(schema["items"])
    if schema.get("format") in _FORMATS:
        result["format"] = schema["format"]
    if not _is_definite(schema, result):
        raise _OpenShape
    if "properties" in result:
        result["additionalProperties"] = False
    return _described(schema, result)


def _is_definite(schema: Mapping[str, Any], result: JsonObject) -> bool:
    """Whether a grammar can be made of it: objects name their properties, everything else its kind."""
    if schema.get("type") == "object" or "properties" in schema:
        return bool(schema.get("properties"))
    return bool(result.keys() & {"type", "anyOf", "allOf", "enum", "const", "$ref"})


def _described(schema: Mapping[str, Any], result: JsonObject) -> JsonObject:
    """Names in the description what the grammar cannot hold, so that the model may still follow it."""
    known = {*result, *_LISTS, "items", "default", "examples", "$schema", "$id"}
    left = {key: value for key, value in schema.items() if key not in known}
    if left:
        said = orjson.dumps(left, default=str).decode()
        result["description"] = "\n\n".join(filter(None, (result.get("description"), said)))
    return result
