"""An agent's `output_schema`: read the model's final text by it, and say what to repair.

Pure. The runtime asks the model once more with `repair`; a second failure is the run's error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from astromesh.errors import ConfigError
from astromesh.graph.output_schema import OutputSchema
from astromesh.types import JsonObject, Message

_LONGEST_FAULT = 1500


class Structured(NamedTuple):
    """What became of a final text.

    Args:
        value: the JSON value; None where it does not fit.
        fault: what is wrong, with places; empty where it fits.
    """

    value: Any
    fault: str = ""

    @property
    def text(self) -> str:
        """The value as JSON text: what the run answers."""
        return orjson.dumps(self.value).decode()


class AnswerSchema:
    """An `output_schema`, compiled once.

    Args:
        schema: a JSON Schema.

    Raises:
        ConfigError: it is none.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            self._schema = OutputSchema(schema)
        except TypeError as error:
            raise ConfigError(str(error)) from error

    @property
    def json_schema(self) -> JsonObject:
        """For `CompletionRequest.output_schema`."""
        return self._schema.json_schema

    def read(self, text: str) -> Structured:
        """The value of a final text: bare JSON, JSON in a code fence, or JSON amid words."""
        try:
            return Structured(self._schema.parse(text))
        except ValueError as error:
            return Structured(None, str(error)[:_LONGEST_FAULT])


def repair(fault: str) -> Message:
    """What the model is told for its one repair turn, after its own wrong answer."""
    return Message(
        "user",
        f"Your answer does not fit the required JSON Schema: {fault}\n"
        "Answer again with nothing but the corrected JSON.",
    )
