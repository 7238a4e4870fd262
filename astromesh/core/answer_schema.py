"""An agent's `output_schema`: parses the model's final text, and describes what to repair.

The runtime calls the model once more with `repair_message`. A second failure ends the run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from astromesh.errors import ConfigError
from astromesh.graph.model_output import OutputSchema
from astromesh.types import JsonObject, Message

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
    """An `output_schema`, compiled once.

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
