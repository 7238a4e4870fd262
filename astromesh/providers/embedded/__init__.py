"""The offline provider `embedded`: no key, no download, no network, and no language model.

It calls the tool that fits a question, then quotes the passages that answer it with their source, or states
that it found none. It reads messages, tools and context, and knows no agent, pattern or prompt.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from astromesh.knowledge.snippets import (
    SHORT_ANSWER,
    Evidence,
    Section,
    best_units,
    join_units,
    leading_units,
    rank_sections,
    sections_of,
    split_pieces,
)
from astromesh.plugins import Deps
from astromesh.providers.base import Capabilities
from astromesh.providers.embedded.evidence import from_history, from_system, from_tools
from astromesh.providers.embedded.tool_choice import choose_tool
from astromesh.text import NEAREST_FOUND, NOTHING_FOUND
from astromesh.tokens import estimate, estimate_request
from astromesh.types import CompletionRequest, CompletionResult, Delta, Message, ToolCall, Usage

#: share of the question's words that a passage must have, or its heading
_COVERED, _TITLED = 0.55, 0.45
#: score from which on a passage that a search found answers the question, and from which on it is shown
_LIKELY, _POSSIBLE = 0.5, 0.35
#: share from which on a passage is shown if nothing better is found
_NEAR = 0.15
#: a second passage is quoted if its score is at least this share of the best and its source another
_AS_GOOD = 0.85
_MOST_QUOTED = 2
#: words; a longer message of the user is a question with its material
_LONG_QUESTION = 60
_HEADINGS = re.compile(r"^#{1,6}\s", re.M)
_SENTENCES = re.compile(r"(?<=[.!?？。])\s+|\n+")


class Answer(NamedTuple):
    """An answer. `is_sure`: it has enough of the question's words."""

    text: str
    is_sure: bool


@dataclass(frozen=True, slots=True)
class Conversation:
    """The parts of a conversation.

    Args:
        question: the user's own words, without pasted material.
        since: the messages after the user's last one: tool calls and their results.
        offered: descriptions of the tools.
    """

    question: str
    material: str
    since: tuple[Message, ...]
    before: tuple[Message, ...]
    system: str
    offered: tuple[str, ...] = ()

    @property
    def called(self) -> frozenset[str]:
        """Names of the tools that were called for this question."""
        return frozenset(call.name for message in self.since for call in message.tool_calls)


def read_conversation(request: CompletionRequest) -> Conversation:
    """Reads the question and its context from a request."""
    messages = request.messages
    last = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
    question, material = _split(messages[last].content if last >= 0 else "")
    system = "\n\n".join(m.content for m in messages if m.role == "system")
    offered = tuple(tool.description for tool in request.tools)
    return Conversation(question, material, messages[last + 1 :], messages[: max(last, 0)], system, offered)


def find_answer(conversation: Conversation, max_characters: int) -> Answer:
    """Returns the quoted answer; its text is empty if no passage has words of the question.

    Args:
        max_characters: of a quoted passage.
    """
    tools = from_tools(conversation.since)
    context = [Evidence(p, origin="question") for p in _split_material(conversation.material)]
    others = [
        *context,
        *from_system(conversation.system, conversation.offered),
        *from_history(conversation.before),
    ]
    searched = max((one for one in tools if one.score is not None), key=_score_of, default=None)
    if searched is not None and _score_of(searched) >= _LIKELY:
        return Answer(_quote_passage(conversation.question, searched, max_characters), True)
    ranked = rank_sections(conversation.question, [*tools, *others])
    found = [s for s in ranked if s.coverage >= _COVERED or s.title_coverage >= _TITLED]
    if best := [s for s in found if s.passage.origin == "tool"] or found:
        return Answer(_quote_sections(conversation.question, _choose_sections(best), max_characters), True)
    if direct := _direct_answer(tools):
        return Answer(direct, True)
    if searched is not None:
        near = sections_of(searched) if _score_of(searched) >= _POSSIBLE else []
    else:
        near = [s for s in ranked if s.passage.origin in ("tool", "question") and s.coverage >= _NEAR]
    return Answer(
        NEAREST_FOUND + _quote_sections(conversation.question, near[:1], max_characters) if near else "",
        False,
    )


def _score_of(passage: Evidence) -> float:
    return passage.score or 0.0


def _quote_passage(question: str, passage: Evidence, max_characters: int) -> str:
    """Quotes the passage that the search has put first. It need not share a word with the question.

    A short one is quoted whole, a longer one from its beginning if its heading has a word of the question.
    """
    best = next(iter(rank_sections(question, [passage]) or sections_of(passage)), None)
    if best is None or (len(best.text) > max_characters and not best.title_coverage):
        return _quote_sections(question, [best] if best else [], max_characters)
    return _with_sources(join_units(leading_units(best, max_characters)), [passage.source])


def _choose_sections(sections: Sequence[Section]) -> list[Section]:
    best = sections[0]
    more = [
        section
        for section in sections[1:]
        if section.score >= best.score * _AS_GOOD
        and section.coverage >= best.coverage
        and section.passage.source != best.passage.source
        and section.text not in best.text
    ]
    return [best, *more[: _MOST_QUOTED - 1]]


def _quote_sections(question: str, sections: Sequence[Section], max_characters: int) -> str:
    text = "\n\n".join(_quote(question, section, max_characters) for section in sections)
    return _with_sources(text, [section.passage.source for section in sections])


def _quote(question: str, section: Section, max_characters: int) -> str:
    text = join_units(best_units(question, section, max_characters))
    return f"You said: “{text}”" if section.passage.origin == "history" else text


def _direct_answer(passages: Sequence[Evidence]) -> str:
    """Returns the short answers of tools, which need not share a word with the question."""
    short = [p for p in passages if p.direct and len(p.text) <= SHORT_ANSWER]
    return _with_sources("\n\n".join(p.text for p in short), [p.source for p in short])


def _with_sources(text: str, sources: Sequence[str]) -> str:
    named = list(dict.fromkeys(source for source in sources if source))
    if not text or not named:
        return text
    return f"{text}\n\n{'Sources' if len(named) > 1 else 'Source'}: {', '.join(named)}"


def _split(text: str) -> tuple[str, str]:
    """Splits a message into question and material; a short message is only a question."""
    text = text.strip()
    if len(text.split()) <= _LONG_QUESTION:
        return text, ""
    questions = [one for one in _SENTENCES.split(text) if one.rstrip().endswith(("?", "？"))]
    question = " ".join(questions[:3]) or _SENTENCES.split(text)[0]
    return question, text


def _split_material(material: str) -> list[str]:
    """Returns the paragraphs of the material without questions; one text if it has headings."""
    parts = [
        p.strip()
        for p in re.split(r"\n\s*\n", material)
        if p.strip() and not p.rstrip().endswith(("?", "？"))
    ]
    return ["\n\n".join(parts)] if _HEADINGS.search(material) else parts


MODEL = "extractive"


class EmbeddedOptions(BaseModel):
    """Options of `embedded`; it needs none."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    name: str = Field(
        "", description="Name in providers.yaml, shown in answers and metrics; the type if empty."
    )
    model: str = Field(MODEL, description="Shown in answers; it has no effect.")
    longest_quote: int = Field(900, ge=80, description="Maximum of characters quoted from a passage.")


class Embedded:
    """A `Provider` that works by words: it chooses tools by their words and ranks passages by BM25."""

    Options = EmbeddedOptions
    capabilities = Capabilities(json=False, quality=0.0, language_model=False)

    def __init__(self, options: EmbeddedOptions) -> None:
        self.provider, self.model = options.name or "embedded", options.model or MODEL
        self.name = f"{self.provider}/{self.model}"
        self._max_quote = options.longest_quote

    @classmethod
    async def open(cls, options: EmbeddedOptions, deps: Deps) -> Embedded:
        return cls(options)

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        started = perf_counter()
        text, call = self._decide(request)
        output = estimate(text) + (estimate(call.name) + estimate(call.arguments) if call else 0)
        return CompletionResult(
            content=text,
            tool_calls=(call,) if call else (),
            usage=Usage(estimate_request(request), output),
            provider=self.provider,
            model=self.model,
            finish_reason="tool_calls" if call else "stop",
            latency_ms=(perf_counter() - started) * 1000,
        )

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        """Yields the answer by sentences and lines."""
        result = await self.complete(request)
        for piece in split_pieces(result.content):
            yield Delta(piece)
        yield result

    def estimated_cost(self, request: CompletionRequest) -> float:
        return 0.0

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        """Does nothing: no resource is open."""

    def _decide(self, request: CompletionRequest) -> tuple[str, ToolCall | None]:
        """Returns an answer if the tools gave one, else the call of a fitting tool, else the best answer."""
        conversation = read_conversation(request)
        found = find_answer(conversation, self._max_quote)
        called = conversation.called
        if not (called and found.is_sure):
            call = choose_tool(conversation.question, request.tools, called, request.tool_choice)
            if call is not None:
                return "", call
        return found.text or NOTHING_FOUND, None
