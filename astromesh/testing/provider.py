"""A model that answers from a script."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from astromesh.providers.base import Capabilities
from astromesh.telemetry.clock import Clock, SystemClock
from astromesh.types import CompletionRequest, CompletionResult, Delta, ToolCall, Usage

_WORD = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a script, in full detail.

    Args:
        chunks: the deltas of a stream; empty: word by word.
        delay: seconds before each delta, and before an answer that is not streamed.
        error: raised after the chunks instead of the result.
    """

    content: str = ""
    tool_calls: Sequence[ToolCall] = ()
    chunks: Sequence[str] = ()
    usage: Usage | None = None
    delay: float = 0.0
    error: BaseException | None = None
    finish_reason: str = ""


ScriptAnswer: TypeAlias = "Reply | CompletionResult | str | ToolCall | Sequence[ToolCall] | BaseException"
ScriptLine: TypeAlias = "ScriptAnswer | Callable[[CompletionRequest], ScriptAnswer | Awaitable[ScriptAnswer]]"


class ScriptedProvider:
    """A `Provider` that answers its n-th call with the n-th line of the script and records every request.

    A line is a text, a CompletionResult, tool calls, an exception to raise, a `Reply`, or a function of the
    request, sync or async, that returns one of these.

    Args:
        script: the lines.
        repeat: repeats the last line instead of failing.
        name: `provider/model`.
        clock: for the delays of a `Reply`.
        cost: US dollars that `estimated_cost` returns.

    `requests` holds every request in order. `closed_streams` counts streams closed before their end.
    """

    def __init__(
        self,
        *script: ScriptLine,
        repeat: bool = False,
        name: str = "scripted/test-model",
        clock: Clock | None = None,
        capabilities: Capabilities | None = None,
        cost: float = 0.0,
    ) -> None:
        self.name = name
        self.provider, _, self.model = name.partition("/")
        self.capabilities = capabilities or Capabilities()
        self.requests: list[CompletionRequest] = []
        self.closed_streams = 0
        self.closed = False
        #: raised by `ping` if a test sets it
        self.down: BaseException | None = None
        self._script, self._repeat, self._cost = script, repeat, cost
        self._clock: Clock = clock or SystemClock()

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        reply = await self._next(request)
        if reply.delay:
            await self._clock.sleep(reply.delay)
        if reply.error is not None:
            raise reply.error
        return self._result(reply, request)

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        finished = False
        try:
            reply = await self._next(request)
            for chunk in reply.chunks or _WORD.findall(reply.content):
                if reply.delay:
                    await self._clock.sleep(reply.delay)
                yield Delta(chunk)
            if reply.error is not None:
                finished = True
                raise reply.error
            finished = True
            yield self._result(reply, request)
        finally:
            self.closed_streams += not finished

    def estimated_cost(self, request: CompletionRequest) -> float:
        return self._cost

    async def ping(self) -> None:
        if self.down is not None:
            raise self.down

    async def close(self) -> None:
        self.closed = True

    async def _next(self, request: CompletionRequest) -> Reply:
        position = len(self.requests)
        self.requests.append(request)
        if position >= len(self._script) and not (self._repeat and self._script):
            raise AssertionError(
                f"The script of {self.name} has {len(self._script)} lines, and this is one call more."
            )
        line = self._script[min(position, len(self._script) - 1)]
        if callable(line) and not isinstance(line, type):
            answer = line(request)
            return _reply(await answer if inspect.isawaitable(answer) else answer)
        return _reply(line)  # type: ignore[arg-type]

    def _result(self, reply: Reply, request: CompletionRequest) -> CompletionResult:
        content = reply.content or "".join(reply.chunks)
        return CompletionResult(
            content=content,
            tool_calls=tuple(reply.tool_calls),
            usage=reply.usage or _word_usage(request, content),
            provider=self.provider,
            model=self.model,
            finish_reason=reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop"),
        )


def _reply(answer: ScriptAnswer) -> Reply:
    match answer:
        case Reply():
            return answer
        case str():
            return Reply(answer)
        case CompletionResult():
            return Reply(
                answer.content, answer.tool_calls, usage=answer.usage, finish_reason=answer.finish_reason
            )
        case ToolCall():
            return Reply(tool_calls=(answer,))
        case BaseException():
            return Reply(error=answer)
        case _:
            return Reply(tool_calls=tuple(answer))


def _word_usage(request: CompletionRequest, content: str) -> Usage:
    """Counts words as tokens: deterministic, and sufficient for sums."""
    words = sum(len(message.content.split()) for message in request.messages)
    return Usage(input_tokens=words, output_tokens=len(content.split()))
