"""Arguments for a tool, read off the question by the tool's JSON Schema. Nothing is made up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import re2

from astromesh.providers.embedded.words import STOP_WORDS, name_stems, stems
from astromesh.types import JsonObject

#: names and descriptions of arguments that take the question itself
QUERY_STEMS = frozenset(
    stems("query queries question q search term keyword phrase prompt request topic ask lookup input")
)
#: arguments that take a text the user wrote out: in quotes, or behind a colon
TEXT_STEMS = frozenset(stems("text title message body content subject summary note comment description name"))
_CODE_STEMS = frozenset(
    stems("id identifier number no code key ref reference order ticket invoice sku account case")
)
_FORMATS: Mapping[str, re.Pattern[str]] = {
    "date": re.compile(r"\b\d{4}-\d{2}-\d{2}\b"),
    "date-time": re.compile(r"\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2})?(?:Z|[+-]\d{2}:?\d{2})?"),
    "time": re.compile(r"\b\d{1,2}:\d{2}(?::\d{2})?\b"),
    "email": re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    "uri": re.compile(r"https?://[^\s<>\"')\]]+[^\s<>\"')\].,;:!?]"),
    "url": re.compile(r"https?://[^\s<>\"')\]]+[^\s<>\"')\].,;:!?]"),
    "uuid": re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"),
}
_NUMBER = re.compile(r"(?<![\w.,-])-?\d+(?:\.\d+)?(?![\w.,]*\d)(?!\w)")
_CODE = re.compile(r"#?\b(?=[\w-]*\d)[A-Za-z0-9][\w-]*\b")
_QUOTED = re.compile(r"[\"“”„«]([^\"“”„«»]+)[\"“”»]|(?<!\w)['‘]([^'‘’]{2,})['’](?!\w)")
_PROPER = re.compile(r"(?<![.!?]\s)(?<!^)\b([A-ZÀ-Þ][\w'-]+(?:\s+[A-ZÀ-Þ][\w'-]+)*)")
_NOT_FOUND = object()
#: characters of a question that arguments are read from
_LONGEST = 2000


def fill(parameters: Mapping[str, Any], question: str, *, whole: bool) -> JsonObject | None:
    """The arguments of a call, or None where a required one can't be read off the question.

    Args:
        parameters: JSON Schema, `type: object`.
        question: the user's words.
        whole: whether the tool searches, so that its only text argument takes the question.
    """
    question = question[:_LONGEST]
    properties = parameters.get("properties") or {}
    required = [name for name in parameters.get("required") or () if isinstance(name, str)]
    arguments: JsonObject = {}
    left = question
    for name in required:
        schema = _plain(properties.get(name) or {}, parameters)
        value = _value(name, schema, left, whole=whole and _only_text(required, properties, parameters))
        if value is _NOT_FOUND or value in arguments.values():
            return None
        arguments[name] = value
        if not _takes_question(name, schema):  # one word of the user is one argument
            left = left.replace(str(value), " ", 1)
    for name, declared in properties.items():
        schema = _plain(declared, parameters)
        if (
            name not in arguments
            and "enum" in schema
            and (value := _enum(schema, question)) is not _NOT_FOUND
        ):
            arguments[name] = value
        elif not required and name not in arguments and _takes_question(name, schema):
            arguments[name] = _cut(question, schema)
    return arguments


def asks_for_text(parameters: Mapping[str, Any]) -> bool:
    """Whether a tool takes a text that a question could be."""
    properties = parameters.get("properties") or {}
    required = parameters.get("required") or ()
    return any(_takes_question(n, _plain(s, parameters)) for n, s in properties.items()) or _only_text(
        list(required), properties, parameters
    )


def _only_text(required: list[str], properties: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    if len(required) != 1:
        return False
    schema = _plain(properties.get(required[0]) or {}, root)
    return schema.get("type") == "string" and not {"enum", "format", "pattern", "const"} & schema.keys()


def _takes_question(name: str, schema: Mapping[str, Any]) -> bool:
    if schema.get("type") != "string" or {"enum", "format", "pattern", "const"} & schema.keys():
        return False
    said = {*name_stems(name), *name.lower().split("_")}
    return bool(said & QUERY_STEMS) or bool(
        set(stems(str(schema.get("description", "")))) & QUERY_STEMS - {"input"}
    )


def _value(name: str, schema: Mapping[str, Any], question: str, *, whole: bool) -> Any:
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        found = _enum(schema, question)
    elif schema.get("type") == "string":
        found = _string(name, schema, question, whole=whole)
    elif schema.get("type") in ("integer", "number"):
        found = _number(schema, question)
    elif schema.get("type") == "array":
        found = _array(name, schema, question)
    else:
        found = _NOT_FOUND
    return schema.get("default", found) if found is _NOT_FOUND else found


def _string(name: str, schema: Mapping[str, Any], question: str, *, whole: bool) -> Any:
    if pattern := _FORMATS.get(str(schema.get("format"))):
        found = pattern.search(question)
        return found[0] if found else _NOT_FOUND
    if schema.get("pattern"):
        return _matching(str(schema["pattern"]), question)
    if whole or _takes_question(name, schema):
        return _cut(question, schema)
    said = set(name_stems(name))
    readers = [_quoted, _after_colon] if said & TEXT_STEMS else [_quoted, _proper]
    if said & _CODE_STEMS:
        readers.insert(0, _code)
    for read in readers:
        if (found := read(question)) is not _NOT_FOUND:
            return found
    return _NOT_FOUND


def _matching(pattern: str, question: str) -> Any:
    """A word that fits the schema's pattern. Schemas may come from other servers: linear time only."""
    try:
        fits = re2.compile(pattern)
    except re2.error:
        return _NOT_FOUND
    return next((w for w in re.findall(r"[^\s,;!?]+", question) if fits.search(w.rstrip("."))), _NOT_FOUND)


def _enum(schema: Mapping[str, Any], question: str) -> Any:
    asked = set(stems(question)) | set(question.lower().split())
    named = [v for v in schema["enum"] if isinstance(v, str) and (own := name_stems(v)) and set(own) <= asked]
    return max(named, key=len) if named else _NOT_FOUND


def _number(schema: Mapping[str, Any], question: str) -> Any:
    for text in _NUMBER.findall(question):
        number = float(text)
        whole = schema["type"] == "integer"
        low, high = schema.get("minimum", number), schema.get("maximum", number)
        if low <= number <= high and not (whole and "." in text):
            return int(number) if "." not in text else number
    return _NOT_FOUND


def _array(name: str, schema: Mapping[str, Any], question: str) -> Any:
    items = schema.get("items") or {}
    if "enum" in items:
        found = _enum(items, question)
        return found if found is _NOT_FOUND else [found]
    if items.get("type", "string") == "string" and set(name_stems(name)) & QUERY_STEMS:
        return [question]
    return _NOT_FOUND


def _quoted(question: str) -> Any:
    found = [a or b for a, b in _QUOTED.findall(question)]
    return found[0].strip() if len(found) == 1 else _NOT_FOUND


def _after_colon(question: str) -> Any:
    _, colon, rest = question.partition(": ")
    return rest.strip() if colon and rest.strip() else _NOT_FOUND


def _proper(question: str) -> Any:
    """The one name in the question, e.g. a city."""
    found = [name for name in _PROPER.findall(question) if name.lower() not in STOP_WORDS]
    return found[0] if len(found) == 1 else _NOT_FOUND


def _code(question: str) -> Any:
    found = [code.lstrip("#") for code in _CODE.findall(question)]
    return found[0] if len(found) == 1 else _NOT_FOUND


def _cut(question: str, schema: Mapping[str, Any]) -> str:
    limit = schema.get("maxLength")
    return question[:limit] if isinstance(limit, int) else question


def _plain(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A property's schema without reference and without the null of an optional one."""
    if not isinstance(schema, Mapping):
        return {}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        target = (root.get("$defs") or {}).get(reference.removeprefix("#/$defs/"))
        return target if isinstance(target, Mapping) else {}
    options = [s for s in schema.get("anyOf") or () if isinstance(s, Mapping) and s.get("type") != "null"]
    if options:
        return {**schema, **_plain(options[0], root)}
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return {**schema, "type": next((k for k in kinds if k != "null"), "null")}
    return schema
