"""Which tool the offline provider calls for a question, and with which arguments.

A tool that reads is called when it shares words with the question, or when it searches. A tool with an effect
(`write`, `external`) is called only when the user asks for it by its name: `Please create a ticket: …` for
`create_ticket`; not in a question about it, and not after a `don't`. Arguments are read from the question by
the tool's JSON Schema; none is made up.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import Any
from uuid import uuid4

import orjson

from astromesh.knowledge.ranking import STOP_WORDS, name_stems, stems, words_of
from astromesh.types import JsonObject, ToolCall, ToolSpec

#: names and descriptions of arguments that accept the question itself
QUERY_STEMS = frozenset(
    stems("query queries question q search term keyword phrase prompt request topic ask lookup input")
)
#: names of arguments that accept a text in quotes or behind a colon
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
#: characters of a question from which arguments are read
_LONGEST = 2000


def fill_arguments(parameters: Mapping[str, Any], question: str, *, whole: bool) -> JsonObject | None:
    """Returns the arguments of a call; None if the question lacks a required one.

    Args:
        parameters: JSON Schema, `type: object`.
        question: the user's words.
        whole: whether the tool searches, so that its only text argument is the question.
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
        if not _takes_question(name, schema):  # each word is used for one argument only
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
    """Whether a tool accepts a text that can be a question."""
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
    words = {*name_stems(name), *name.lower().split("_")}
    return bool(words & QUERY_STEMS) or bool(
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
    words = set(name_stems(name))
    readers = [_quoted, _after_colon] if words & TEXT_STEMS else [_quoted, _proper]
    if words & _CODE_STEMS:
        readers.insert(0, _code)
    for read in readers:
        if (found := read(question)) is not _NOT_FOUND:
            return found
    return _NOT_FOUND


def _matching(pattern: str, question: str) -> Any:
    """Returns a word that matches a schema's pattern, in linear time: schemas may come from other servers."""
    re2: Any = import_module("re2")
    try:
        fits = re2.compile(pattern)
    except re2.error:
        return _NOT_FOUND
    return next((w for w in re.findall(r"[^\s,;!?]+", question) if fits.search(w.rstrip("."))), _NOT_FOUND)


def _enum(schema: Mapping[str, Any], question: str) -> Any:
    sought = set(stems(question)) | set(question.lower().split())
    named = [
        v for v in schema["enum"] if isinstance(v, str) and (own := name_stems(v)) and set(own) <= sought
    ]
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
    """Returns the one name in the question, e.g. a city."""
    found = [name for name in _PROPER.findall(question) if name.lower() not in STOP_WORDS]
    return found[0] if len(found) == 1 else _NOT_FOUND


def _code(question: str) -> Any:
    found = [code.lstrip("#") for code in _CODE.findall(question)]
    return found[0] if len(found) == 1 else _NOT_FOUND


def _cut(question: str, schema: Mapping[str, Any]) -> str:
    limit = schema.get("maxLength")
    return question[:limit] if isinstance(limit, int) else question


def _plain(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a property's schema without reference and without the null of an optional one."""
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


# -- the tool ------------------------------------------------------------------------------------------------

_SEARCH_STEMS = frozenset(
    stems(
        "search find lookup look retrieve knowledge document passage faq wiki article manual information "
        "query answer"
    )
)
#: words that do not tell tools apart
_IDLE_STEMS = frozenset(
    stems("return result list show tool use user data value given number best new current get set")
)
_SEARCH_BONUS = 0.75
_NAME_WEIGHT = 2.0
_REQUEST = re.compile(
    r"^\W*(please\b|(can|could|would|will) you\b|i (want|would like|need) (you )?to\b|i'd like\b)", re.I
)
_ABOUT = re.compile(
    r"^\W*(how|what|why|when|where|who|whom|which|whose|do|does|did|is|are|was|were|should|can|could|may|will|would"
    r"|have|has|tell me|explain)\b",
    re.I,
)
_NEGATED = re.compile(r"\b(don't|do not|never|not|without|no need)\b", re.I)


def choose_tool(
    question: str, tools: Sequence[ToolSpec], called_names: Collection[str] = (), tool_choice: str = "auto"
) -> ToolCall | None:
    """Returns the call of the best fitting tool, None if no tool fits.

    Args:
        question: the user's words.
        tools: the offered tools.
        called: names of tools that were already called for this question.
        tool_choice: of the request; a name or `required` forces a call even if nothing fits.
    """
    if tool_choice == "none":
        return None
    if tool_choice not in ("auto", "required"):
        tools = [tool for tool in tools if tool.name == tool_choice]
    forced = tool_choice != "auto"
    ranked: list[tuple[float, int, ToolSpec, str]] = []
    for index, tool in enumerate(tools):
        score = tool_fit(question, tool)
        if tool.name in called_names or not (score > 0 or (forced and tool.effect == "read")):
            continue
        arguments = fill_arguments(tool.parameters, question, whole=is_search_tool(tool) or forced)
        if arguments is not None:
            ranked.append((-score, index, tool, orjson.dumps(arguments).decode()))
    if not ranked:
        return None
    _, _, tool, arguments_json = min(ranked, key=lambda r: r[:2])
    return ToolCall(f"call_{uuid4().hex[:24]}", tool.name, arguments_json)


def tool_fit(question: str, tool: ToolSpec) -> float:
    """Returns how well a tool fits a question; 0 if it must not be called."""
    if tool.effect != "read":
        return _NAME_WEIGHT * 2 if is_requested(question, tool) else 0.0
    sought = set(stems(question))
    if not sought:  # a greeting has no question
        return 0.0
    name = set(name_stems(tool.name)) - _IDLE_STEMS
    described = set(stems(tool.description)) - _IDLE_STEMS - name
    score = _NAME_WEIGHT * len(sought & name) + len(sought & described)
    return score + (_SEARCH_BONUS if is_search_tool(tool) else 0.0)


def is_search_tool(tool: ToolSpec) -> bool:
    """Whether a tool answers any question: it accepts a text, and its description speaks of finding."""
    words = {*name_stems(tool.name), *stems(tool.description)}
    for name, schema in (tool.parameters.get("properties") or {}).items():
        words |= {
            *name_stems(name),
            *stems(str(schema.get("description", "")) if isinstance(schema, dict) else ""),
        }
    return bool(words & _SEARCH_STEMS) and asks_for_text(tool.parameters)


def is_requested(question: str, tool: ToolSpec) -> bool:
    """Whether a sentence of the user asks for this tool by every word of its name."""
    name_words = set(name_stems(tool.name)) or set(words_of(tool.name.casefold()))
    return any(
        name_words and name_words <= set(stems(sentence)) and _is_request(sentence)
        for sentence in re.split(r"(?<=[.!?])\s+|\n+", question)
    )


def _is_request(sentence: str) -> bool:
    if _NEGATED.search(sentence):
        return False
    return bool(_REQUEST.match(sentence)) or not (_ABOUT.match(sentence) or sentence.rstrip().endswith("?"))
