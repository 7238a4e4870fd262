"""SUMMARIZE_OUTPUT: a long answer is shortened by the model before anything is written."""

from __future__ import annotations

import logging
from dataclasses import replace

from astromesh.graph.config import NodeConfig
from astromesh.graph.records import NodeResult
from astromesh.types import CompletionRequest, Message

log = logging.getLogger("astromesh.graph")

#: characters; longer answers are summarised (document 002)
TOO_LONG = 1000
PROMPT = (
    "Summarise the text of the user concisely. Keep every key fact, number, name and conclusion; leave out "
    "what is said twice. Answer with the summary alone."
)


def is_too_long(result: NodeResult) -> bool:
    """Whether an output is a text whose raw form exceeds 1000 characters."""
    if not isinstance(result.output, str):
        return False
    raw = result.raw_output if isinstance(result.raw_output, str) else result.output
    return len(raw) > TOO_LONG


async def summarise(result: NodeResult, config: NodeConfig) -> None:
    """Puts the summary in the output's place; the original stays in `raw_output`.

    What the summary cost is part of the result. A model that fails leaves the answer as long as it is.
    """
    text: str = result.output
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
        result.raw_output = text
    result.output = answer.content
    result.messages_added = [
        replace(m, content=answer.content) if m.role == "assistant" and m.content == text else m
        for m in result.messages_added
    ]
