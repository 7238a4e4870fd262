"""The offline provider `embedded`: no key, no download, no network, and no language model.

It calls the tool that fits a question, then quotes the passages that answer it, with their source. It sees
messages, tools and context, and knows no agent, pattern or prompt.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from time import perf_counter

from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.deps import Deps
from astromesh.abc.provider import Capabilities
from astromesh.providers.embedded.answering import NOTHING, answer, read
from astromesh.providers.embedded.choice import choose
from astromesh.providers.embedded.ranking import pieces
from astromesh.tokens import estimate, estimate_request
from astromesh.types import CompletionRequest, CompletionResult, Delta, ToolCall, Usage

MODEL = "extractive"


class EmbeddedOptions(BaseModel):
    """Options of `embedded`; it needs none."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    name: str = Field(
        "", description="Name in providers.yaml, shown in answers and metrics; the type if empty."
    )
    model: str = Field(MODEL, description="Shown in answers; there is one way of working only.")
    longest_quote: int = Field(900, ge=80, description="Characters of a passage that are quoted at most.")


class Embedded:
    """A `Provider` that works by words: tools by lexical fit, answers by BM25 over what is at hand."""

    Options = EmbeddedOptions
    capabilities = Capabilities(json=False, quality=0.0, language_model=False)

    def __init__(self, options: EmbeddedOptions) -> None:
        self.provider, self.model = options.name or "embedded", options.model or MODEL
        self.name = f"{self.provider}/{self.model}"
        self._room = options.longest_quote

    @classmethod
    async def open(cls, options: EmbeddedOptions, deps: Deps) -> Embedded:
        return cls(options)

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        started = perf_counter()
        text, call = self._decide(request)
        spoken = estimate(text) + (estimate(call.name) + estimate(call.arguments) if call else 0)
        return CompletionResult(
            content=text,
            tool_calls=(call,) if call else (),
            usage=Usage(estimate_request(request), spoken),
            provider=self.provider,
            model=self.model,
            finish_reason="tool_calls" if call else "stop",
            latency_ms=(perf_counter() - started) * 1000,
        )

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        """The answer by sentences and lines."""
        result = await self.complete(request)
        for piece in pieces(result.content):
            yield Delta(piece)
        yield result

    def estimated_cost(self, request: CompletionRequest) -> float:
        return 0.0

    async def ping(self) -> None:
        """It is always there."""

    async def close(self) -> None:
        """It holds nothing."""

    def _decide(self, request: CompletionRequest) -> tuple[str, ToolCall | None]:
        """A fitting tool first, then what the evidence says; where it says nothing, another fitting tool."""
        asked = read(request)
        found = answer(asked, self._room)
        if not (asked.called and found.sure):
            call = choose(asked.question, request.tools, asked.called, request.tool_choice)
            if call is not None:
                return "", call
        return found.text or NOTHING, None
