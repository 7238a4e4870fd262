"""JSON Schemas of tools and answers: compiled validators (jsonschema-rs), and arguments checked against them.

A limit on the cost of a schema protects against foreign ones.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias
from urllib.parse import unquote

import orjson

from astromesh.errors import ConfigError, InvalidToolCall
from astromesh.text import has_long_integer
from astromesh.tools.base import DeclaredTool, Invoke, ToolContext
from astromesh.types import JsonObject, ToolCall, ToolSpec


def schema_validator(schema: Mapping[str, Any]) -> Any:
    """Returns a compiled validator. It fetches no other document, and patterns match in linear time.

    Raises:
        ValueError: it is not a JSON Schema, or refers to another document.
    """
    library, linear = _library()
    try:
        return library.validator_for(dict(schema), offline=True, pattern_options=linear)
    except library.ReferencingError as error:
        raise ValueError(str(error)) from error


@cache
def _library() -> tuple[Any, Any]:
    library = importlib.import_module("jsonschema_rs")
    return library, library.RegexOptions()


# -- cost of a schema ----------------------------------------------------------------------------------------
#
# Schemas come from other servers. A few hundred bytes of definitions that each refer twice to the next one
# make a validator visit one value 2^n times. The number of visits is computed here without checking an
# instance: the schemas that apply to one place, each with the number of paths to it, are followed from place
# to place.

#: most visits of one place, and most different sets of schemas
MAX_VISITS, MAX_PLACES = 10_000, 5_000
#: keywords whose schemas apply to the same place, by the form of their value
_SAME_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_PLACE_KEYS = ("not", "if", "then", "else")
#: keywords whose schemas apply to any number of parts
_ANY_PART = ("items", "additionalItems", "contains", "additionalProperties", "unevaluatedItems",
             "unevaluatedProperties", "propertyNames")  # fmt: skip
_Visits: TypeAlias = "Counter[int]"


def is_too_costly(schema: Mapping[str, Any]) -> bool:
    """Whether checking an instance can visit one of its places more than `MAX_VISITS` times."""
    refers = any("$ref" in one or "$dynamicRef" in one for one in _all(schema))
    return refers and _Walk(schema).overflows()  # without references no place is looked at twice in one way


class _Walk:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._schemas: dict[int, Any] = {}
        self._anchors = {one["$anchor"]: one for one in _all(root) if isinstance(one.get("$anchor"), str)}

    def overflows(self) -> bool:
        pending: list[_Visits] = [Counter({self._known(self._root): 1})]
        seen: set[frozenset[tuple[int, int]]] = set()
        while pending:
            looks = self._spread(pending.pop())
            if looks is None:
                return True
            key = frozenset(looks.items())
            if key in seen:
                continue
            seen.add(key)
            if len(seen) > MAX_PLACES:
                return True
            pending += self._parts(looks)
        return False

    def _known(self, schema: Any) -> int:
        self._schemas[id(schema)] = schema
        return id(schema)

    def _spread(self, start: _Visits) -> _Visits | None:
        """Returns all schemas of a place, referenced ones included; None if there are too many."""
        looks: _Visits = Counter()
        waiting, total = list(start.items()), 0
        while waiting:
            which, times = waiting.pop()
            looks[which] += times
            total += times
            if total > MAX_VISITS:
                return None
            waiting += [(self._known(one), times) for one in self._same(self._schemas[which])]
        return looks

    def _same(self, schema: Any) -> Iterator[Any]:
        if not isinstance(schema, Mapping):
            return
        for keyword in _SAME_PLACE_LISTS:
            yield from _listed(schema.get(keyword))
        for keyword in _SAME_PLACE_KEYS:
            if keyword in schema:
                yield schema[keyword]
        yield from _named(schema.get("dependentSchemas"))
        for keyword in ("$ref", "$dynamicRef"):
            target = self._target(schema.get(keyword))
            if target is not None and target is not schema:
                yield target

    def _target(self, reference: Any) -> Any:
        """Resolves a reference within the document; other documents are never fetched."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        pointer = unquote(reference[1:])
        if pointer and not pointer.startswith("/"):
            return self._anchors.get(pointer)
        found: Any = self._root
        for step in pointer.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping):
                found = found.get(name)
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                return None
        return found

    def _parts(self, looks: _Visits) -> list[_Visits]:
        """Returns the schemas of each part of a place; schemas of any part apply to all of them."""
        named: dict[str, _Visits] = {}
        anything: _Visits = Counter()
        for which, times in looks.items():
            schema = self._schemas[which]
            if not isinstance(schema, Mapping):
                continue
            for keyword in _ANY_PART:
                for one in _one_or_listed(schema.get(keyword)):
                    anything[self._known(one)] += times
            for one in (*_named(schema.get("patternProperties")), *_listed(schema.get("prefixItems"))):
                anything[self._known(one)] += times
            for name, one in _items(schema.get("properties")):
                named.setdefault(name, Counter())[self._known(one)] += times
        parts = [looks + anything for looks in named.values()]
        return [*parts, anything] if anything else parts


def _all(value: Any) -> Iterator[Mapping[str, Any]]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    return iter(value.items() if isinstance(value, Mapping) else ())


def _named(value: Any) -> Iterator[Any]:
    return (one for _, one in _items(value))


def _listed(value: Any) -> Iterator[Any]:
    return iter(value if isinstance(value, list) else ())


def _one_or_listed(value: Any) -> Iterator[Any]:
    return iter(value if isinstance(value, list) else () if value is None else (value,))


# -- arguments of tool calls, parsed from the model's text ---------------------------------------------------

#: most faults that the model receives, and characters of one
_MAX_FAULTS, _MAX_FAULT_CHARACTERS = 8, 500


def arguments(invoke: Invoke, tool: DeclaredTool) -> Invoke:
    """Parses the JSON and validates it against the tool's schema, which is compiled once."""
    name, validator = tool.spec.name, argument_validator(tool.spec)

    async def checked(arguments: str | JsonObject, context: ToolContext) -> Any:
        if isinstance(arguments, str):
            arguments = parse_arguments(ToolCall(context.call_id, name, arguments))
        if not validator.is_valid(arguments):
            raise InvalidToolCall(argument_error(name, validator, arguments))
        return await invoke(arguments, context)

    return checked


def parse_arguments(call: ToolCall) -> JsonObject:
    """Returns the arguments of a call.

    Raises:
        InvalidToolCall: they are not a JSON object; the message tells the model what to send.
    """
    text = call.arguments.strip()
    try:
        arguments = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError as error:
        raise InvalidToolCall(
            f"The arguments of {call.name!r} are not valid JSON ({error}). Send one JSON object."
        ) from error
    if has_long_integer(text.encode(errors="replace")):
        raise InvalidToolCall(
            f"The arguments of {call.name!r} have an integer beyond 64 bits, which would be rounded. "
            "Send it as text."
        )
    if arguments is None:  # some models write this for no arguments
        return {}
    if not isinstance(arguments, dict):
        raise InvalidToolCall(f"The arguments of {call.name!r} must be a JSON object, not {text[:80]}.")
    return arguments


def argument_validator(spec: ToolSpec) -> Any:
    """Returns a compiled JSON Schema validator of a tool's arguments.

    Raises:
        ConfigError: the schema is not a JSON Schema, refers to another document, or is too costly to check.
    """
    if is_too_costly(spec.parameters):
        raise ConfigError(
            f"The parameters of the tool {spec.name!r} are too costly to check: their references repeat the "
            "same parts too often. Write these parts out, or accept any object there."
        )
    try:
        return schema_validator(spec.parameters)
    except ValueError as error:
        raise ConfigError(
            f"The parameters of the tool {spec.name!r} are not a JSON Schema: {error}"
        ) from error


def argument_error(tool: str, validator: Any, arguments: JsonObject) -> str:
    """Returns the faults of arguments that are not valid, as a message to the model."""
    faults = schema_errors(validator, arguments)
    return f"The arguments of {tool!r} are not valid: {faults}. Correct them and call again."


def schema_errors(validator: Any, arguments: JsonObject) -> str:
    """Returns the faults of arguments, each with its place."""
    faults = [
        f"{'.'.join(str(part) for part in fault.instance_path) or 'arguments'}: {_short(fault.message)}"
        for fault in validator.iter_errors(arguments)
    ]
    more = f"; and {len(faults) - _MAX_FAULTS} more" if len(faults) > _MAX_FAULTS else ""
    return "; ".join(faults[:_MAX_FAULTS]) + more


def _short(text: str) -> str:
    return text if len(text) <= _MAX_FAULT_CHARACTERS else f"{text[:_MAX_FAULT_CHARACTERS]}…"
