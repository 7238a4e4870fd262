"""What a model wrote: JSON in its text, the schema that it must fit, and the thinking before the answer.

Thinking is found only where a text begins (controller.md, behaviour 49).
"""

from __future__ import annotations

import importlib
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from json import JSONDecodeError, JSONDecoder
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

import orjson

from astromesh.errors import ConfigError
from astromesh.tools.json_schema import schema_validator
from astromesh.types import JsonObject, Message

_DECODER = JSONDecoder()
#: The number of places that are tried. A text with more is an attack on the parser.
_MAX_ATTEMPTS = 64
_OBJECTS = re.compile(r"\{")
_VALUES = re.compile(r"[{\[]")


def extract_object(text: str, key: str = "") -> dict[str, Any] | None:
    """Returns the first JSON object in a text, or the first that has a key.

    The decoder starts at each opening brace, so that braces in strings, escapes and nesting do not mislead
    it.

    Args:
        text: The answer of a model.
        key: What the object must have, or empty.
    """
    return next((found for _, _, found in placed_values(text) if not key or key in found), None)


def extract_values(text: str) -> Iterator[Any]:
    """Yields the whole text as JSON, or else every object and array in it that no earlier one contains."""
    try:
        yield _DECODER.decode(text.strip())
    except (JSONDecodeError, RecursionError):
        yield from (value for _, _, value in placed_values(text, _VALUES))


def json_of(text: str, value: Any) -> str:
    """Returns the characters of a text that are a JSON value, an empty string if the text does not hold it.

    Args:
        text: The answer of a model.
        value: The value that was read from it: JSON, or an instance of a type with a JSON form.
    """
    for found, characters in _written_values(text):
        if found == value:
            return characters
        if not isinstance(value, _JSON_TYPES):
            try:
                if output_schema(type(value)).validate(found) == value:
                    return characters
            except (TypeError, ValueError):
                continue
    return ""


_JSON_TYPES = (dict, list, str, int, float, bool, type(None))


def _written_values(text: str) -> Iterator[tuple[Any, str]]:
    """Yields the values in a text, as `extract_values` finds them, each with its characters."""
    try:
        yield _DECODER.decode(text.strip()), text
    except (JSONDecodeError, RecursionError):
        yield from ((value, text[start:end]) for start, end, value in placed_values(text, _VALUES))


def whole_object(text: str) -> dict[str, Any] | None:
    """Returns the JSON object that a text is, with or without a code fence, or None."""
    body = text.strip()
    if body.startswith("```") and body.endswith("```"):
        body = body.strip("`").removeprefix("json").strip()
    if not body.startswith("{"):
        return None
    try:
        return _DECODER.decode(body)  # type: ignore[no-any-return]  # what starts with a brace is an object
    except (JSONDecodeError, RecursionError):
        return None


def placed_values(text: str, opening: re.Pattern[str] = _OBJECTS) -> Iterator[tuple[int, int, Any]]:
    """Yields start, end and value of every JSON object in a text that is not part of an earlier one.

    Args:
        text: The answer of a model.
        opening: What a value begins with.
    """
    end = 0
    for _ in range(_MAX_ATTEMPTS):
        start = opening.search(text, end)
        if start is None:
            return
        try:
            found, end = _DECODER.raw_decode(text, start.start())
        except (JSONDecodeError, RecursionError):
            end = start.end()
        else:
            yield start.start(), end, found


# -- output schemas: pydantic models, dataclasses, TypedDicts and JSON Schemas behind one interface --------


class OutputSchema:
    """The form that an output must have.

    Args:
        schema: A pydantic model, a dataclass, a TypedDict or another type with a JSON form, or a JSON Schema.

    Raises:
        TypeError: The value is of another type.
    """

    def __init__(self, schema: Any) -> None:
        self._check: Callable[[Any], Any]
        if isinstance(schema, Mapping):
            self.json_schema: dict[str, Any] = dict(schema)
            self._check = partial(_validate_json, _validator(self.json_schema))
        else:
            try:
                adapter = type_adapter(schema)
            except TypeError as error:
                raise TypeError(f"output_schema {schema!r} has no JSON form: {error}") from error
            self.json_schema = adapter.json_schema()
            self._check = adapter.validate_python

    def validate(self, value: Any) -> Any:
        """Returns the value as the schema's type. A JSON Schema leaves it unchanged.

        Raises:
            ValueError: It does not fit. The message names the faults with their places.
        """
        return self._check(value)  # pydantic's ValidationError is a ValueError

    def parse(self, text: str) -> Any:
        """Returns the value in a model's text: JSON, also in a code fence or in prose.

        Raises:
            ValueError: The text holds no JSON, or none that fits.
        """
        return self._first_fit(text)[1]

    def parse_json(self, text: str) -> tuple[Any, str]:
        """Returns the value in a model's text as JSON holds it, and its characters. It fits the schema.

        Raises:
            ValueError: As `parse`.
        """
        value, _, characters = self._first_fit(text)
        return value, characters

    def _first_fit(self, text: str) -> tuple[Any, Any, str]:
        misfit = ValueError("There is no JSON in the answer.")
        for value, characters in _written_values(text):
            try:
                return value, self.validate(value), characters
            except ValueError as error:
                misfit = error
        raise misfit


#: Compiled schemas by identity. The source is stored too, so that its identity is not reused.
_COMPILED: dict[int, tuple[Any, OutputSchema]] = {}
_MAX_COMPILED = 256


def output_schema(schema: Any) -> OutputSchema:
    """Returns the reader of a schema, which is compiled once per process."""
    known = _COMPILED.get(id(schema))
    if known is None:
        if len(_COMPILED) >= _MAX_COMPILED:
            _COMPILED.clear()
        known = _COMPILED[id(schema)] = schema, OutputSchema(schema)
    return known[1]


def _validate_json(validator: Any, value: Any) -> Any:
    faults = [
        f"{'.'.join(str(part) for part in fault.instance_path) or 'output'}: {fault.message}"
        for fault in validator.iter_errors(value)
    ]
    if faults:
        raise ValueError("; ".join(faults[:8]))
    return value


def _validator(schema: dict[str, Any]) -> Any:
    try:
        return schema_validator(schema)
    except ValueError as error:
        raise TypeError(f"output_schema is not a JSON Schema: {error}") from error


def type_adapter(schema: Any, config: Any = None) -> Any:
    """Returns pydantic's validator of a type.

    Args:
        config: The configuration of the class that has a field of this type.

    Raises:
        TypeError: The type cannot be validated.
    """
    # loaded on first use: graphs without typed outputs never need pydantic, and it doubles the time to import
    pydantic = importlib.import_module("pydantic")
    try:
        return pydantic.TypeAdapter(_pydantic_type(schema), config=config)
    except pydantic.PydanticUserError as error:
        if config and error.code == "type-adapter-config-unused":  # the type has its own
            return type_adapter(schema)
        raise TypeError(f"the type {schema!r} cannot be validated: {error}") from error


def _pydantic_type(hint: Any) -> Any:
    """Returns the type with `typing.TypedDict`s in the form that pydantic can read before Python 3.12."""
    if sys.version_info >= (3, 12):
        return hint
    if is_typeddict(hint) and type(hint).__module__ == "typing":
        extensions = importlib.import_module("typing_extensions")
        hints = get_type_hints(hint, include_extras=True)
        fields = {name: _pydantic_field(hint, name, kind) for name, kind in hints.items()}
        return extensions.TypedDict(hint.__name__, fields)
    origin, args = get_origin(hint), tuple(map(_pydantic_type, get_args(hint)))
    if not args or args == get_args(hint):
        return hint
    return Union[args] if origin in (Union, UnionType) else origin[args]  # noqa: UP007


def _pydantic_field(owner: Any, name: str, hint: Any) -> Any:
    if get_origin(hint) in (typing.Required, typing.NotRequired):
        return get_origin(hint)[_pydantic_type(get_args(hint)[0])]
    inner = _pydantic_type(hint)
    return inner if name in owner.__required_keys__ else typing.NotRequired[inner]


# -- the thinking before an answer ------------------------------------------------------------------------


class ThinkingMark(NamedTuple):
    """How thinking begins at the start of a text, and how it ends.

    Args:
        nests: Thinking may hold the marks, too: it ends where as many ends as beginnings were read.
    """

    opening: re.Pattern[str]
    closing: re.Pattern[str]
    nests: bool = False


def _mark(opening: str, closing: str, *, nests: bool = False) -> ThinkingMark:
    return ThinkingMark(re.compile(opening, re.I | re.M), re.compile(closing, re.I | re.M), nests)


_TAG = r"(?:\w{1,20}:)?think(?:ing)?"
#: Another token follows a channel's name, unless the text was cut there.
_CHANNEL = r"<\|channel\|>\s*(?:\w+\s*)?(?:to=[^<\n]*)?(?:<\||\Z)"
_FINAL = r"<\|channel\|>\s*final\b[^<\n]*(?:<\|constrain\|>[^<\n]*)?<\|message\|>"
_ANSWER = r"^[*_# ]{0,4}Final Answer[*_]{0,3} ?:[*_]{0,3}"
_THOUGHT = r"[*_# ]{0,4}Thought(?: \d{1,3})?[*_]{0,3} ?:"

MARKS = (
    # <think>, <thinking depth="2">, <seed:think>
    _mark(rf"<{_TAG}(?:\s+[\w:-]+=[^<>]*)?\s*>", rf"</{_TAG}\s*>", nests=True),
    _mark(r"```think(?:ing)?[ \t]*\n", r"^[ \t]*```[ \t]*$"),
    # the special tokens of Magistral, Kimi, Cohere, Apertus, Gemma and gpt-oss (harmony, also without tokens)
    _mark(r"(?-i:\[THINK\](?=\S|\s*$|[\s\S]*?\[/THINK\]))", r"(?-i:\[/THINK\])"),
    _mark("◁think▷", "◁/think▷"),
    _mark(
        r"<\|(?:start|begin)_(?:of_)?(?:think\w*|thought\w*|reasoning)\|>",
        r"<\|end_(?:of_)?(?:think\w*|thought\w*|reasoning)\|>",
    ),
    _mark(r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),
    _mark(r"<\|channel>\s*thought", r"<channel\|>"),
    _mark(rf"(?=(?:<\|start\|>assistant)?{_CHANNEL})", _FINAL),
    _mark(r"analysis(?=\S[\s\S]*assistantfinal)", "assistantfinal"),
    # ReAct in words
    _mark(rf"{_THOUGHT}(?=[\s\S]*{_ANSWER})", _ANSWER),
)
_THOUGHT_LINES = re.compile(rf"(?:{_THOUGHT}[^\n]*(?:\n\s*|\Z))+", re.I)

#: The ends of thinking whose beginning was part of the prompt: a tag has a line of its own.
_ENDS_ALONE = re.compile(
    rf"^[ \t]*</{_TAG}>[ \t]*(?=\n|\Z)|<\|end\|><\|start\|>assistant{_FINAL}", re.I | re.M
)
_HARMONY_END = re.compile(r"<\|(?:end|return|call)\|>\s*\Z")
_SPACE, _GAP = re.compile(r"[\s\ufeff\u200b]*"), re.compile(r"(?:\s*\n|[ \t]+)?")


def without_thinking(text: str) -> str:
    """Returns a model's text without the thinking before its answer. An unclosed mark hides everything."""
    end = 0
    while (after := _end_of_thinking(text, end)) is not None:
        end = after
    end = end or _end_alone(text)
    if not end:
        return text
    start = _GAP.match(text, end)
    return _HARMONY_END.sub("", text[start.end() if start else end :])


def _end_of_thinking(text: str, start: int) -> int | None:
    """Returns the end of the thinking that begins here, or None if here is something else."""
    if space := _SPACE.match(text, start):
        start = space.end()
    for mark in MARKS:
        if opening := mark.opening.match(text, start):
            return _end_of_mark(text, mark, opening.end())
    lines = _THOUGHT_LINES.match(text, start)
    return lines.end() if lines else None


def _end_of_mark(text: str, mark: ThinkingMark, start: int) -> int:
    """Returns the end of the closing mark. Without one it is the end of the text."""
    depth, end, openings = 1, len(text), mark.opening.finditer(text, start) if mark.nests else iter(())
    inner = next(openings, None)
    for closing in mark.closing.finditer(text, start):
        end = closing.end()
        while inner is not None and inner.start() < closing.start():
            depth, inner = depth + 1, next(openings, None)
        depth -= 1
        if not depth:
            break
    return end


def _end_alone(text: str) -> int:
    """Returns the end of thinking that began in the prompt, or 0. A mark within code is text."""
    if (found := _ENDS_ALONE.search(text)) is None:
        return 0
    before = text[: found.start()]
    fences = before.count("```")
    return 0 if fences % 2 or before[before.rfind("\n") + 1 :].count("`") % 2 else found.end()


_MAX_FAULT_LENGTH = 1500


class ParsedAnswer(NamedTuple):
    """The result of parsing a final text.

    Args:
        value: the JSON value; None if it does not fit.
        text: the model's own characters of it, the answer of the run.
        fault: what is wrong, with places; empty if the value fits.
    """

    value: Any
    text: str = ""
    fault: str = ""


class AnswerSchema:
    """An `output_schema`, compiled once: parses the final text of an agent, and describes what to repair.

    The runtime calls the model once more with `repair_message`. A second failure ends the run.

    Args:
        schema: a JSON Schema, or a type that has one: a pydantic model, a dataclass, a TypedDict.

    Raises:
        ConfigError: it is neither.
    """

    def __init__(self, schema: Any) -> None:
        try:
            self._schema = OutputSchema(schema)
        except TypeError as error:
            raise ConfigError(str(error)) from error

    @property
    def json_schema(self) -> JsonObject:
        """For `CompletionRequest.output_schema`."""
        return self._schema.json_schema

    def parse(self, text: str) -> ParsedAnswer:
        """The value of a final text: bare JSON, JSON in a code fence, or JSON within other text."""
        try:
            value, characters = self._schema.parse_json(text)
        except ValueError as error:
            return ParsedAnswer(None, fault=str(error)[:_MAX_FAULT_LENGTH])
        try:
            orjson.dumps(value)
            orjson.loads(characters)
        except (orjson.JSONEncodeError, orjson.JSONDecodeError) as error:
            # integers beyond 64 bits, half surrogate pairs, NaN and infinity
            return ParsedAnswer(None, fault=f"It has a value that JSON cannot carry: {error}.")
        return ParsedAnswer(value, characters.strip())


def repair_message(fault: str) -> Message:
    """The message of the one repair turn, after the wrong answer of the model."""
    return Message(
        "user",
        f"Your answer does not fit the required JSON Schema: {fault}\n"
        "Answer again with nothing but the corrected JSON.",
    )
