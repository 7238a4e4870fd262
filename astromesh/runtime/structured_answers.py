"""Structured answers (`spec.output_schema`): checked, asked for once more where they do not fit.

The schema goes to the model natively on calls that offer no tools, so that tool loops stay free; the repair
turn offers none. The answer of the run is the value as JSON text.
"""

from __future__ import annotations

from astromesh.abc.run import Outcome
from astromesh.core.structured import AnswerSchema, repair
from astromesh.errors import InvalidOutput
from astromesh.node.calls import call_model
from astromesh.runtime.run import Run
from astromesh.types import CompletionRequest, Message


async def structured(
    schema: AnswerSchema, outcome: Outcome, messages: tuple[Message, ...], run: Run
) -> Outcome:
    """The outcome with a text that fits the schema.

    Args:
        messages: what the pattern was given.

    Raises:
        InvalidOutput: the answer and its repair do not fit; it says what was wrong with the repair.
    """
    found = schema.read(outcome.text)
    if not found.fault:
        return outcome.saying(found.text)
    again = (*messages, Message("assistant", outcome.text), repair(found.fault))
    request = CompletionRequest(again, output_schema=schema.json_schema)
    repaired = schema.read((await call_model(run.scope, run.model, request)).content)
    if repaired.fault:
        raise InvalidOutput(
            f"The model's answer does not fit spec.output_schema, also on a second try: {repaired.fault}"
        )
    return outcome.saying(repaired.text)
