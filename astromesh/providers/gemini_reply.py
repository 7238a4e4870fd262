"""Reading Gemini's answers: a `GenerateContentResponse`, whole or in pieces as server-sent events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import orjson

from astromesh.errors import ProviderUnavailable
from astromesh.growing import GrowingText
from astromesh.net import faults
from astromesh.net.sse import SseParser
from astromesh.providers.kept import keep
from astromesh.providers.pairs import Pairs, loads
from astromesh.providers.service import CALL_SIZE, Counted, Reply, cut, fullest, summed
from astromesh.tokens import size_of
from astromesh.types import JsonObject, ToolCall

_FINISH = {
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"), "content_filter"
    ),
}


#: the API could not read what its model said, and threw it away: another try may do better
_THROWN_AWAY = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"})


class GeminiReader:
    """Reads one answer.

    Args:
        owner: whose calls they are: the model wants its signatures back.
    """

    #: nothing but the end of the body says that this was all
    done = False

    def __init__(self, owner: str) -> None:
        self.size = 0
        self._sse, self._pairs = SseParser(), Pairs()
        self._owner = owner
        self._text = GrowingText()
        self._calls: list[ToolCall] = []
        self._finish = ""
        self._counted: Counted | None = None

    def feed(self, chunk: bytes) -> Iterator[str]:
        for event in self._sse.feed(chunk):
            if text := self.take(loads(event.data)):
                yield text

    def finish(self) -> Reply:
        for event in self._sse.finish():
            self.take(loads(event.data))
        return self.whole()

    def so_far(self) -> Reply:
        return Reply(self._text.getvalue(), tuple(self._calls), "", self._counted)

    def whole(self) -> Reply:
        """Raises ProviderUnavailable where the end is missing, or the API could not read the model itself."""
        if not self._finish:
            raise cut()
        if self._finish in _THROWN_AWAY:
            raise ProviderUnavailable(f"gave up its answer: {self._finish}")
        reason = "tool_calls" if self._calls else _FINISH.get(self._finish, "stop")
        return self.so_far()._replace(finish_reason=reason)

    def take(self, payload: Any) -> str:
        """Notes one response; answers its text."""
        if error := payload.get("error"):
            raise faults.from_body(error)
        if usage := payload.get("usageMetadata"):
            self._counted = fullest(counted(usage), self._counted)
        if (payload.get("promptFeedback") or {}).get("blockReason"):
            self._finish = "SAFETY"
        texts = [self._choose(candidate) for candidate in (payload.get("candidates") or ())[:1]]
        return "".join(texts)

    def _choose(self, candidate: JsonObject) -> str:
        self._finish = candidate.get("finishReason") or self._finish
        said = ""
        for part in (candidate.get("content") or {}).get("parts") or ():
            if call := part.get("functionCall"):
                self._call(call, part.get("thoughtSignature"))
            elif not part.get("thought"):  # what it thought is no part of the answer
                said += part.get("text") or ""
        text = self._pairs.feed(said)
        if text:
            self.size += size_of(text)
            self._text.write(text)
        return text

    def _call(self, call: JsonObject, signature: Any) -> None:
        name, given = call["name"], call.get("id")
        if not isinstance(name, str) or not name:
            raise TypeError("a tool call without a name")
        call_id = given if isinstance(given, str) and given else f"call_{uuid4().hex}"
        kept = keep(self._owner, signature) if isinstance(signature, str) else ""
        arguments = orjson.dumps(call.get("args") or {}).decode()
        self.size += CALL_SIZE + size_of(arguments) + size_of(kept)
        self._calls.append(ToolCall(call_id, name, arguments, kept))


def counted(usage: JsonObject) -> Counted | None:
    """Reported tokens. What the model thought is output, as it is priced."""
    if "promptTokenCount" not in usage:
        return None
    said = summed(usage.get("candidatesTokenCount", 0), usage.get("thoughtsTokenCount"))  # it leaves out a 0
    asked = summed(usage["promptTokenCount"], usage.get("toolUsePromptTokenCount"))
    return Counted(asked, said, usage.get("cachedContentTokenCount") or 0)
