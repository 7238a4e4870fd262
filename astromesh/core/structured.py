"""Structured answers: find the JSON in a model's text, hold it against the schema, say what to repair.

Pure. The runtime asks the model once more with `repair_message`; a second failure is the run's error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

import jsonschema_rs
import orjson

from astromesh.errors import ConfigError
from astromesh.types import JsonObject, Message

_FENCED = re.compile(r"```[ \t]*[\w-]*[ \t]*\n?(.*?)```", re.S)
_OPENING = re.compile(r"[{\[]")
_MARKS = re.compile(r'["{}\[\]\\]')
_MOST_FAULTS = 8
#: bracketed pieces of a text that are tried
_MOST_TRIES = 50
_LONGEST_FAULT = 300
# schemas may come from callers: no reference is fetched, and patterns match in linear time
_LINEAR = jsonschema_rs.RegexOptions()


class Structured(NamedTuple):
    """What became of an answer.

    Args:
        value: the JSON value, None where there is none.
        faults: what is wrong with it, one sentence each; empty where the value fits.
    """

    value: Any
    faults: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.faults

    @property
    def text(self) -> str:
        """The value as JSON text: what the run answers."""
        return orjson.dumps(self.value).decode()


class OutputSchema:
    """An agent's `output_schema`, compiled once.

    Args:
        schema: a JSON Schema without references to other documents.

    Raises:
        ConfigError: it is no JSON Schema.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema: JsonObject = dict(schema)
        try:
            self._validator = jsonschema_rs.validator_for(self.schema, offline=True, pattern_options=_LINEAR)
        except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
            raise ConfigError(f"The output_schema is no JSON Schema: {error}") from error

    def read(self, text: str) -> Structured:
        """The value of a model's answer, with every fault it has.

        Args:
            text: as the model wrote it: bare JSON, JSON in a code fence, or JSON amid words.
        """
        found = find_json(text)
        if found is None:
            return Structured(None, ("the answer holds no JSON",))
        value = found[0]
        faults = islice(self._validator.iter_errors(value), _MOST_FAULTS)
        return Structured(value, tuple(_sentence(fault) for fault in faults))


def repair_message(structured: Structured) -> Message:
    """What the model is told for its one repair turn, after its own wrong answer."""
    faults = "\n".join(f"- {fault}" for fault in structured.faults)
    return Message(
        "user",
        "Your answer does not fit the required JSON Schema:\n"
        f"{faults}\nAnswer again with nothing but the corrected JSON.",
    )


def find_json(text: str) -> tuple[Any] | None:
    """The JSON value in a text, in a tuple as it may be null: whole, fenced, or the first amid words."""
    for candidate in (text, *_FENCED.findall(text)):
        try:
            return (orjson.loads(candidate),)
        except orjson.JSONDecodeError:
            continue
    return _amid_words(text)


def _amid_words(text: str) -> tuple[Any] | None:
    """The first object or array that is whole. Linear: a failure goes on behind what it had scanned."""
    start = 0
    for _ in range(_MOST_TRIES):
        opening = _OPENING.search(text, start)
        if opening is None:
            return None
        begin, end = opening.start(), _closing(text, opening.start())
        if end < 0:
            return None
        try:
            return (orjson.loads(text[begin:end]),)
        except orjson.JSONDecodeError:
            start = end
    return None


def _closing(text: str, begin: int) -> int:
    """Behind the bracket that closes the one at `begin`, brackets in strings left out; -1 if none does."""
    depth, in_string, position = 0, False, begin
    while (mark := _MARKS.search(text, position)) is not None:
        position = mark.end()
        if mark[0] == "\\":
            position += in_string
        elif mark[0] == '"':
            in_string = not in_string
        elif not in_string:
            depth += 1 if mark[0] in "{[" else -1
            if depth == 0:
                return position
    return -1


def _sentence(fault: Any) -> str:
    place = "/".join(str(part) for part in fault.instance_path)
    return f"{'at ' + place if place else 'at the top'}: {fault.message}"[:_LONGEST_FAULT]
