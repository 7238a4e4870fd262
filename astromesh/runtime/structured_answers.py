"""Structured answers (`spec.output_schema`): checked, asked for once more where they do not fit.

Calls whose words may be the answer tell the model the schema, those that offer tools, too (`RunModel`). An
answer that no such call has given (joined from several, or made by a role) is asked for by one that does,
before there is anything to repair. The answer of the run is the value as JSON text.
"""

from __future__ import annotations

from dataclasses import replace

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

    The model is asked again in the conversation that led to its answer, tool calls and results included; it
    may call no tools any more.

    Args:
        messages: what the pattern was given.

    Raises:
        InvalidOutput: the answer and its repair do not fit; it says what was wrong with the repair.
    """
    text, read = outcome.text, schema.read(outcome.text)
    if not read.fault:
        return outcome.saying(read.text)
    asked = run.model.asked_for(text)
    told = asked is not None and asked.output_schema is not None
    request = replace(
        asked or CompletionRequest(messages), output_schema=schema.json_schema, tool_choice="none"
    )
    for _ in range(1 if told else 2):
        said = (*request.messages, Message("assistant", text), repair(read.fault))
        request = replace(request, messages=said)
        text = (await call_model(run.scope, run.model, request)).content
        read = schema.read(text)
        if not read.fault:
            return outcome.saying(read.text)
    raise InvalidOutput(
        f"The model's answer does not fit spec.output_schema, also on a second try: {read.fault}"
    )
