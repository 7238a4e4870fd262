"""SUMMARIZE_OUTPUT: a long answer is shortened by the model before anything is written."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from astromesh.graph.config import NodeConfig
from astromesh.graph.mutations import ACTION
from astromesh.graph.records import NodeResult, as_json
from astromesh.graph.transitions import SPOKEN
from astromesh.types import CompletionRequest, Message

log = logging.getLogger("astromesh.graph")

_SAID = frozenset({*SPOKEN, ACTION})
#: characters; longer answers are summarised (document 002)
TOO_LONG = 1000
PROMPT = (
    "Summarise the text of the user concisely. Keep every key fact, number, name and conclusion; leave out "
    "what is said twice. Answer with the summary alone."
)


def is_too_long(result: NodeResult) -> bool:
    """Whether the raw form of an output exceeds 1000 characters.

    An output that says where to go, or what to change in the graph, stays as it is.
    """
    output = result.output
    if output is None or (isinstance(output, Mapping) and not _SAID.isdisjoint(output)):
        return False
    return len(_raw(result)) > TOO_LONG


def _raw(result: NodeResult) -> str:
    """The text that is looked at: the model's own words, or the output, as JSON where it is data."""
    if isinstance(result.raw_output, str):
        return result.raw_output
    return result.output if isinstance(result.output, str) else as_json(result.output)


async def summarise(result: NodeResult, config: NodeConfig) -> None:
    """Puts the summary in the output's place; the original stays in `raw_output`.

    What the summary cost is part of the result. A model that fails leaves the answer as long as it is.
    """
    output = result.output
    text = output if isinstance(output, str) else _raw(result)
    try:
        answer = await config.complete(
            CompletionRequest((Message("system", PROMPT), Message("user", text))), role="summary"
        )
    except Exception as error:  # noqa: BLE001 (the model may be anybody's code)
        log.warning("the output of %s could not be summarised: %s", config.path, error)
        return
    result.usage = config.usage
    if not answer.content:
        return
    if result.raw_output is None:
        result.raw_output = output
    spoken = {text, output if isinstance(output, str) else as_json(output)}
    result.output = answer.content
    result.messages_added = [
        replace(m, content=answer.content) if m.role == "assistant" and m.content in spoken else m
        for m in result.messages_added
    ]
