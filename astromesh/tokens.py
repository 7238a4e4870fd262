"""Estimates the tokens of a text without a tokenizer.

A token is four bytes of UTF-8. Byte-pair vocabularies are built over bytes, so the rule holds for all
scripts: about four letters per token in English, two in Cyrillic or Greek, one and a third Chinese
characters. `TokenCorrection` learns the difference to the counts that a model reports.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from astromesh.types import Attachment, CompletionRequest, Message, ToolSpec

BYTES_PER_TOKEN = 4
#: role, separators
MESSAGE_OVERHEAD = 4
#: an image of about a megapixel, as vision models count it
IMAGE_TOKENS = 800
#: base64 characters of audio or of a document
_DATA_PER_TOKEN = 200


def estimate(text: str) -> int:
    """Returns the estimated tokens of a text, 0 for an empty one."""
    return estimate_size(utf8_size(text))


def utf8_size(text: str) -> int:
    """Returns the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def estimate_size(size: int) -> int:
    """Returns the estimated tokens of a text of this size in bytes."""
    return -(-size // BYTES_PER_TOKEN)


def estimate_message(message: Message) -> int:
    tokens = MESSAGE_OVERHEAD + estimate(message.content)
    if message.attachments:
        tokens += sum(map(_attachment_tokens, message.attachments))
    for call in message.tool_calls:
        tokens += MESSAGE_OVERHEAD + estimate(call.name) + estimate(call.arguments)
    return tokens


def _attachment_tokens(one: Attachment) -> int:
    """Counts an image as one of a megapixel, anything else by its size as well."""
    return IMAGE_TOKENS if one.kind == "image" else IMAGE_TOKENS + len(one.data) // _DATA_PER_TOKEN


def estimate_messages(messages: Iterable[Message]) -> int:
    return sum(map(estimate_message, messages))


def estimate_tools(tools: Iterable[ToolSpec]) -> int:
    return sum(
        MESSAGE_OVERHEAD
        + estimate(tool.name)
        + estimate(tool.description)
        + len(orjson.dumps(tool.parameters, default=dict)) // BYTES_PER_TOKEN
        for tool in tools
    )


def estimate_request(request: CompletionRequest) -> int:
    """Returns the estimated input tokens of a model call: messages, tools and schema."""
    tokens = estimate_messages(request.messages)
    if request.tools:
        tokens += estimate_tools(request.tools)
    if request.output_schema is not None:
        tokens += len(orjson.dumps(request.output_schema, default=dict)) // BYTES_PER_TOKEN
    return tokens


#: tokens of an answer of a model that has not answered yet and has no limit
FIRST_ANSWER_TOKENS = 4096


class TokenCorrection:
    """The factor from estimates to the counts of a model: a moving average over the reported usage.

    A single report is limited to a factor of four, so that a broken counter does no lasting harm.
    """

    __slots__ = ("factor", "reports")

    def __init__(self) -> None:
        self.factor = 1.0
        self.reports = 0

    def learn(self, estimated: int, reported: int) -> None:
        if estimated <= 0 or reported <= 0:
            return
        seen = min(4.0, max(0.25, reported / estimated))
        weight = max(0.1, 1 / (self.reports + 1))
        self.factor += weight * (seen - self.factor)
        self.reports += 1

    def apply(self, estimated: int) -> int:
        return round(estimated * self.factor)
