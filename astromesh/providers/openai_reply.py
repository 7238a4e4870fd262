"""Reading OpenAI chat completions: a whole answer, or `chat.completion.chunk` events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from astromesh.growing import GrowingText
from astromesh.net import faults
from astromesh.net.sse import SseParser
from astromesh.providers.pairs import Pairs, loads
from astromesh.providers.service import CALL_SIZE, Counted, Reply, arguments_of, cut, fullest, meant, text_of
from astromesh.tokens import size_of
from astromesh.types import JsonObject, ToolCall

_FINISH = {"tool_calls": "tool_calls", "length": "length", "content_filter": "content_filter"}


def decode_completion(payload: Any) -> Reply:
    """A whole `chat.completion`."""
    choice = min(payload["choices"], key=_index)
    message = choice["message"]
    calls = tuple(_call(c.get("id"), c["function"]) for c in message.get("tool_calls") or ())
    refusal, reason = message.get("refusal"), choice.get("finish_reason")
    reply = Reply(
        text_of(message.get("content")) or text_of(refusal),
        calls,
        "content_filter" if refusal else _finish(reason, bool(calls)),
        counted(payload.get("usage")),
    )
    return meant(reply, reason)


class OpenAIReader:
    """Reads one stream of `chat.completion.chunk` events."""

    def __init__(self) -> None:
        self.done = False
        self.size = 0
        self._sse = SseParser()
        self._pairs = Pairs()
        self._text = GrowingText()
        self._calls: list[_GrowingCall] = []
        self._indices: set[Any] = set()
        #: of several answers (`n`) the one that is read
        self._choice: int | None = None
        self._finish = ""
        self._refused = False
        self._counted: Counted | None = None

    def feed(self, chunk: bytes) -> Iterator[str]:
        for event in self._sse.feed(chunk):
            if text := self._take(event.data):
                yield text

    def finish(self) -> Reply:
        for event in self._sse.finish():
            self._take(event.data)
        if not (self.done or self._finish):
            raise cut()
        calls = tuple(call.closed() for call in sorted(self._calls, key=_place))
        reason = "content_filter" if self._refused else _finish(self._finish, bool(calls))
        return meant(Reply(self._text.getvalue(), calls, reason, self._counted), self._finish)

    def so_far(self) -> Reply:
        calls = tuple(call.as_it_stands() for call in self._calls)
        return Reply(self._text.getvalue(), calls, "", self._counted)

    def _take(self, data: bytes) -> str:
        """The text of an event, if it has any; what stands behind the end is no part of the answer."""
        if self.done or data == b"[DONE]":
            self.done = True
            return ""
        event = loads(data)
        if usage := event.get("usage"):
            self._counted = fullest(counted(usage), self._counted)
        if choices := event.get("choices"):
            return self._choose_of(choices)
        if error := event.get("error"):
            raise faults.from_body(error)
        return ""

    def _choose_of(self, choices: list[JsonObject]) -> str:
        if self._choice is None:
            self._choice = min(map(_index, choices))
        if len(choices) == 1:  # as nearly all
            return self._choose(choices[0]) if _index(choices[0]) == self._choice else ""
        return "".join(self._choose(choice) for choice in choices if _index(choice) == self._choice)

    def _choose(self, choice: JsonObject) -> str:
        delta = choice.get("delta") or {}
        for piece in delta.get("tool_calls") or ():
            self._grow(piece)
        if reason := choice.get("finish_reason"):
            self._finish = reason
        refusal = delta.get("refusal")
        self._refused = self._refused or bool(refusal)
        text = self._pairs.feed(text_of(delta.get("content") or refusal))
        if text:
            self.size += size_of(text)
            self._text.write(text)
        return text

    def _grow(self, piece: JsonObject) -> None:
        call = self._call_of(piece)
        function = piece.get("function") or {}
        call.id = piece.get("id") or call.id
        if name := function.get("name"):
            self.size += len(name)
            call.named(name)
        if arguments := arguments_of(function.get("arguments"), ""):
            self.size += size_of(arguments)
            call.arguments.append(arguments)

    def _call_of(self, piece: JsonObject) -> _GrowingCall:
        index = piece.get("index")
        if index is None:  # some servers number nothing: a new id is a new call
            fresh = bool(piece.get("id")) and all(c.id != piece["id"] for c in self._calls)
            index = len(self._calls) - (0 if fresh or not self._calls else 1)
        if index in self._indices:
            for call in reversed(self._calls):
                if call.index == index and not call.ended_by(piece):
                    return call
        self.size += CALL_SIZE
        self._indices.add(index)
        self._calls.append(_GrowingCall(index))
        return self._calls[-1]


class _GrowingCall:
    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, index: Any) -> None:
        self.index, self.id, self.name = index, "", ""
        self.arguments: list[str] = []

    def ended_by(self, piece: JsonObject) -> bool:
        """Some servers give every call of a turn the same index: another id with a name is another call.

        Others make up an id for every piece, but name the call once.
        """
        named = (piece.get("function") or {}).get("name")
        return bool(named and self.id and piece.get("id") and piece["id"] != self.id)

    def named(self, piece: Any) -> None:
        """Some servers repeat a name, or what has come of it, in every piece; others cut it."""
        if self.arguments:
            self.name = self.name or piece
        else:
            self.name = piece if piece.startswith(self.name) else self.name + piece

    def as_it_stands(self) -> ToolCall:
        return ToolCall(self.id, self.name, "".join(self.arguments))

    def closed(self) -> ToolCall:
        return _call(self.id, {"name": self.name, "arguments": "".join(self.arguments)})


def counted(usage: Any) -> Counted | None:
    """Reported tokens; None where the server counts nothing."""
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    return Counted(
        usage.get("prompt_tokens"), usage.get("completion_tokens"), details.get("cached_tokens") or 0
    )


def _finish(reason: str | None, calls: bool) -> str:
    return "tool_calls" if calls else _FINISH.get(reason or "", "stop")


def _call(call_id: Any, function: JsonObject) -> ToolCall:
    name = function["name"]
    if not isinstance(name, str) or not name:
        raise TypeError("a tool call without a name")
    given = call_id if isinstance(call_id, str) else ""
    return ToolCall(given or f"call_{uuid4().hex}", name, arguments_of(function.get("arguments")))


def _index(choice: JsonObject) -> int:
    return choice.get("index") or 0


def _place(call: _GrowingCall) -> int:
    return call.index if isinstance(call.index, int) else 0
