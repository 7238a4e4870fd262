"""An agent's `output_schema`: parses the model's final text, and describes what to repair.

The runtime calls the model once more with `repair_message`. A second failure ends the run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from astromesh.errors import ConfigError
from astromesh.graph.structured_output import OutputSchema
from astromesh.types import JsonObject, Message

_MAX_FAULT_LENGTH = 1500


class ParsedAnswer(NamedTuple):
    """The result of parsing a final text.

    Args:
        value: the JSON value; None if it does not fit.
        fault: what is wrong, with places; empty if the value fits.
    """

    value: Any
    fault: str = ""

    @property
    def text(self) -> str:
        """The value as JSON text, the answer of the run."""
        return orjson.dumps(self.value).decode()


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
            parsed = ParsedAnswer(self._schema.parse_json(text))
            orjson.dumps(parsed.value)
        except orjson.JSONEncodeError as error:  # integers beyond 64 bits, half surrogate pairs
            return ParsedAnswer(None, f"It has a value that JSON cannot carry: {error}.")
        except ValueError as error:
            return ParsedAnswer(None, str(error)[:_MAX_FAULT_LENGTH])
        return parsed


def repair_message(fault: str) -> Message:
    """The message of the one repair turn, after the wrong answer of the model."""
    return Message(
        "user",
        f"Your answer does not fit the required JSON Schema: {fault}\n"
        "Answer again with nothing but the corrected JSON.",
    )
