"""Reading Anthropic messages: a whole one, or its stream of events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from astromesh.growing import GrowingText
from astromesh.net import faults
from astromesh.net.sse import SseParser
from astromesh.providers.kept import keep
from astromesh.providers.pairs import Pairs, loads
from astromesh.providers.service import CALL_SIZE, Counted, Reply, cut, meant, summed
from astromesh.tokens import size_of
from astromesh.types import JsonObject, ToolCall

_FINISH = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


_THOUGHTS = ("thinking", "redacted_thinking")
#: pieces of a block other than a text, and where they stand in the delta and belong in the block
_GROWING = {
    "input_json_delta": "partial_json",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}


def decode_message(payload: Any, owner: str) -> Reply:
    """A whole `message`; `owner` is the model that wants its thoughts back."""
    blocks, reason = payload["content"], payload.get("stop_reason") or ""
    reply = Reply(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        _calls(((block, "") for block in blocks), owner),
        _FINISH.get(reason, "stop"),
        counted(payload.get("usage") or {}),
    )
    return meant(reply, reason)


def _calls(blocks: Iterable[tuple[JsonObject, str]], owner: str) -> tuple[ToolCall, ...]:
    """The tool calls among blocks with the input that was streamed; each keeps the thoughts before it."""
    calls, thoughts = [], []
    for block, streamed in blocks:
        if block["type"] in _THOUGHTS:
            thoughts.append(block)
        elif block["type"] == "tool_use":
            arguments = streamed or orjson.dumps(block.get("input") or {}).decode()
            calls.append(
                ToolCall(block["id"], block["name"], arguments, keep(owner, thoughts) if thoughts else "")
            )
            thoughts = []
    return tuple(calls)


class AnthropicReader:
    """Reads one stream of message events.

    Args:
        owner: the model that wants its thoughts back.
    """

    def __init__(self, owner: str) -> None:
        self.done = False
        self.size = 0
        self._owner = owner
        self._sse = SseParser()
        self._pairs = Pairs()
        self._text = GrowingText()
        #: tool calls and thoughts, with what was streamed of them
        self._blocks: dict[int, tuple[JsonObject, dict[str, GrowingText]]] = {}
        self._finish = ""
        self._usage: JsonObject = {}

    def feed(self, chunk: bytes) -> Iterator[str]:
        for event in self._sse.feed(chunk):
            if text := self._pairs.feed(self._take(loads(event.data))):
                self.size += size_of(text)
                self._text.write(text)
                yield text

    def finish(self) -> Reply:
        for event in self._sse.finish():
            self._take(loads(event.data))
        if not self.done:
            raise cut()
        blocks = [_closed(*self._blocks[index]) for index in sorted(self._blocks)]
        calls = _calls(blocks, self._owner)
        reply = Reply(self._text.getvalue(), calls, _FINISH.get(self._finish, "stop"), counted(self._usage))
        return meant(reply, self._finish)

    def so_far(self) -> Reply:
        calls = tuple(
            ToolCall("", block["name"], streamed)
            for block, streamed in (_closed(*grown) for grown in self._blocks.values())
            if block["type"] == "tool_use"
        )
        return Reply(self._text.getvalue(), calls, "", counted(self._usage))

    def _take(self, event: JsonObject) -> str:
        """The text of an event, if it has any."""
        kind = event["type"]
        if kind == "content_block_delta":
            return self._delta(event["index"], event["delta"])
        if kind == "content_block_start":
            return self._start(event["index"], event["content_block"])
        if kind == "message_start":
            self._count(event["message"].get("usage"))
        elif kind == "message_delta":
            self._finish = event["delta"].get("stop_reason") or self._finish
            self._count(event.get("usage"))
        elif kind == "message_stop":
            self.done = True
        elif kind == "error":
            raise faults.from_body(event["error"])
        return ""

    def _start(self, index: int, block: JsonObject) -> str:
        if block["type"] == "tool_use" or block["type"] in _THOUGHTS:
            self.size += CALL_SIZE
            self._blocks[index] = dict(block), {}
        return _string(block["text"]) if block["type"] == "text" else ""

    def _delta(self, index: int, delta: JsonObject) -> str:
        if delta["type"] == "text_delta":
            return _string(delta["text"])
        if key := _GROWING.get(delta["type"]):
            piece = _string(delta[key])
            self.size += size_of(piece)
            self._blocks[index][1].setdefault(key, GrowingText()).write(piece)
        return ""

    def _count(self, usage: JsonObject | None) -> None:
        """Counts are totals so far; a later event may leave some of them out."""
        self._usage |= {name: value for name, value in (usage or {}).items() if value is not None}


def _closed(block: JsonObject, streamed: Mapping[str, GrowingText]) -> tuple[JsonObject, str]:
    """A block with what was streamed of it, but for the input of a tool call, which stands by itself."""
    grown = {key: text.getvalue() for key, text in streamed.items()}
    arguments = grown.pop("partial_json", "")
    return {**block, **{key: block.get(key, "") + text for key, text in grown.items()}}, arguments


def _string(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError("text that is none")
    return text


def counted(usage: JsonObject) -> Counted | None:
    """The API counts what its cache read and wrote beside `input_tokens`; we count it in."""
    if not usage:
        return None
    read, written = usage.get("cache_read_input_tokens") or 0, usage.get("cache_creation_input_tokens") or 0
    asked = summed(usage.get("input_tokens"), read, written)
    return Counted(asked, usage.get("output_tokens"), read, written)
