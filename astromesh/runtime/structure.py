"""Structured answers (`spec.output_schema`): checked, asked for once more where they do not fit.

The schema goes to the model natively on calls that offer no tools, so that tool loops stay free; the repair
turn offers none. The answer of the run is the value as JSON text.
"""

from __future__ import annotations

from astromesh.abc.run import Outcome
from astromesh.core.structured import OutputSchema, Structured, repair_message
from astromesh.errors import InvalidOutput
from astromesh.node.calls import call_model
from astromesh.runtime.run import Run
from astromesh.types import CompletionRequest, Message


async def structured(
    schema: OutputSchema, outcome: Outcome, messages: tuple[Message, ...], run: Run
) -> Outcome:
    """The outcome with a text that fits the schema.

    Args:
        messages: what the pattern was given.

    Raises:
        InvalidOutput: the answer and its repair do not fit; it says what was wrong with the repair.
    """
    found = schema.read(outcome.text)
    if found.fits:
        return outcome.saying(found.text)
    repaired = await _repair(schema, outcome, found, messages, run)
    if not repaired.fits:
        faults = "; ".join(repaired.faults)
        raise InvalidOutput(
            f"The model's answer does not fit spec.output_schema, also on a second try: {faults}."
        )
    return outcome.saying(repaired.text)


async def _repair(
    schema: OutputSchema, outcome: Outcome, found: Structured, messages: tuple[Message, ...], run: Run
) -> Structured:
    again = (*messages, Message("assistant", outcome.text), repair_message(found))
    request = CompletionRequest(again, output_schema=schema.schema)
    result = await call_model(run.scope, run.model, request)
    return schema.read(result.content)
