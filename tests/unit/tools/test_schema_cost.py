"""Schemas that would keep a validator busy for ever are told from those that only look intricate."""

from __future__ import annotations

from typing import Any

import pytest

from astromesh.errors import ConfigError
from astromesh.tools.json_schema import argument_validator, is_too_costly
from astromesh.types import ToolSpec


def twice(name: str) -> list[dict[str, str]]:
    return [{"$ref": f"#/$defs/{name}"}] * 2


def chain(keyword: str, length: int) -> dict[str, Any]:
    """Definitions that each refer twice to the next one."""
    definitions: dict[str, Any] = {f"a{n}": {keyword: twice(f"a{n + 1}")} for n in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": {**definitions, f"a{length}": {"type": "object"}}}


def through_parts(keyword: str) -> dict[str, Any]:
    """Every level of the instance doubles the looks."""
    part = {"allOf": twice("a")}
    parts = {"properties": {"x": part}} if keyword == "properties" else {keyword: part}
    return {"$ref": "#/$defs/a", "$defs": {"a": parts}}


COSTLY = {
    **{f"chain of {keyword}": chain(keyword, 28) for keyword in ("allOf", "anyOf", "oneOf")},
    **{f"through {key}": through_parts(key) for key in ("properties", "additionalProperties", "items")},
    "circle at one place": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "by anchors": {
        "$ref": "#a0",
        "$defs": {
            str(n): {"$anchor": f"a{n}", "allOf": [{"$ref": f"#a{n + 1}"}] * 2} for n in range(20)
        },
    },
    "through conditions": {
        "$ref": "#/$defs/a0",
        "$defs": {
            f"a{n}": {key: {"$ref": f"#/$defs/a{n + 1}"} for key in ("if", "then", "else", "not")}
            for n in range(20)
        },
    },
}  # fmt: skip
TREE = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "value": {}}}
EXPRESSION = {
    "$ref": "#/$defs/e",
    "$defs": {
        "e": {"anyOf": [{"type": "number"}, {"$ref": "#/$defs/sum"}, {"$ref": "#/$defs/not"}]},
        "sum": {"properties": {"terms": {"type": "array", "items": {"$ref": "#/$defs/e"}}}},
        "not": {"properties": {"of": {"$ref": "#/$defs/e"}}},
    },
}
HARMLESS: dict[str, Any] = {
    "empty": {},
    "tree": TREE,
    "expression": EXPRESSION,
    "itself": {"$ref": "#"},
    "a few levels": chain("allOf", 6),
    "wide": {"properties": {f"p{n}": {"type": "string"} for n in range(3000)}},
    "much in one": {"properties": {"x": {"anyOf": [{"const": n} for n in range(1000)]}}},
    "no schemas": {"properties": [1], "allOf": {"x": 1}, "items": True, "$ref": 5, "not": None},
    "leads nowhere": {"$ref": "#/$defs/none/0", "allOf": [{"$ref": "https://example.com/x"}]},
}


@pytest.mark.parametrize("name", COSTLY)
def test_what_would_never_end_is_found(name: str) -> None:
    assert is_too_costly(COSTLY[name])


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_looks_intricate_is_left_alone(name: str) -> None:
    assert not is_too_costly(HARMLESS[name])


def test_a_tool_with_such_a_schema_is_refused_before_it_is_called() -> None:
    with pytest.raises(ConfigError, match="too costly to check"):
        argument_validator(ToolSpec("bomb", "", {"type": "object", **chain("allOf", 28)}))
