"""What to answer: the best passages, quoted, with their sources; or plainly that there are none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from astromesh.providers.embedded.passages import Passage, of_history, of_system, of_tools
from astromesh.providers.embedded.ranking import SHORT, Section, best_units, joined, rank
from astromesh.types import CompletionRequest, Message

NOTHING = (
    "I found nothing that answers this. I am not a language model: I can only quote what my tools and my "
    "context give me."
)
NEAREST = "I found nothing that answers this exactly. The nearest passage:\n\n"
#: share of the question that a passage must speak of, and where its heading speaks of as much
_COVERED, _TITLED = 0.55, 0.45
#: share that makes it worth showing where nothing better is found
_NEAR = 0.15
#: a further passage is quoted where it is nearly as good as the best and from elsewhere
_AS_GOOD = 0.85
_MOST_QUOTED = 2
#: a user's message beyond this is a question with its material
_LONG_QUESTION = 60
_HEADINGS = re.compile(r"^#{1,6}\s", re.M)
_SENTENCES = re.compile(r"(?<=[.!?？。])\s+|\n+")


class Answer(NamedTuple):
    """A text to say. `sure`: it speaks of what was asked."""

    text: str
    sure: bool


@dataclass(frozen=True, slots=True)
class Conversation:
    """Where the conversation stands.

    Args:
        question: the user's own words, without material they pasted.
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


def read(request: CompletionRequest) -> Conversation:
    """The question and what belongs to it."""
    messages = request.messages
    last = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
    said = messages[last].content if last >= 0 else ""
    question, material = _split(said)
    system = "\n\n".join(m.content for m in messages if m.role == "system")
    offered = tuple(tool.description for tool in request.tools)
    return Conversation(question, material, messages[last + 1 :], messages[: max(last, 0)], system, offered)


def answer(asked: Conversation, room: int) -> Answer:
    """The quoted answer; its text is empty where nothing speaks of what is asked.

    Args:
        asked: the question and what there is.
        room: characters of a quoted passage.
    """
    tools = of_tools(asked.since)
    context = [Passage(p, origin="question") for p in _parts(asked.material)]
    others = [*context, *of_system(asked.system, asked.offered), *of_history(asked.before)]
    ranked = rank(asked.question, [*tools, *others])
    found = [s for s in ranked if s.covered >= _COVERED or s.titled >= _TITLED]
    if best := [s for s in found if s.passage.origin == "tool"] or found:
        return Answer(_quoted(asked.question, _chosen(best), room), True)
    if direct := _direct(tools):
        return Answer(direct, True)
    near = [s for s in ranked if s.passage.origin in ("tool", "question") and s.covered >= _NEAR]
    return Answer(NEAREST + _quoted(asked.question, near[:1], room) if near else "", False)


def _chosen(sections: Sequence[Section]) -> list[Section]:
    best = sections[0]
    more = [
        section
        for section in sections[1:]
        if section.score >= best.score * _AS_GOOD
        and section.covered >= best.covered
        and section.passage.source != best.passage.source
        and section.text not in best.text
    ]
    return [best, *more[: _MOST_QUOTED - 1]]


def _quoted(question: str, sections: Sequence[Section], room: int) -> str:
    text = "\n\n".join(_quote(question, section, room) for section in sections)
    return _with_sources(text, [section.passage.source for section in sections])


def _quote(question: str, section: Section, room: int) -> str:
    text = joined(best_units(question, section, room))
    return f"You said: “{text}”" if section.passage.origin == "history" else text


def _direct(passages: Sequence[Passage]) -> str:
    """What a tool answered to this very question, where it is short and shares no word with it."""
    short = [p for p in passages if p.direct and len(p.text) <= SHORT]
    return _with_sources("\n\n".join(p.text for p in short), [p.source for p in short])


def _with_sources(text: str, sources: Sequence[str]) -> str:
    named = list(dict.fromkeys(source for source in sources if source))
    if not text or not named:
        return text
    return f"{text}\n\n{'Sources' if len(named) > 1 else 'Source'}: {', '.join(named)}"


def _split(said: str) -> tuple[str, str]:
    """The question and the material around it: a long message is both."""
    said = said.strip()
    if len(said.split()) <= _LONG_QUESTION:
        return said, ""
    asked = [sentence for sentence in _SENTENCES.split(said) if sentence.rstrip().endswith(("?", "？"))]
    question = " ".join(asked[:3]) or _SENTENCES.split(said)[0]
    return question, said


def _parts(material: str) -> list[str]:
    """Paragraphs, or the whole where headings order it; what repeats the question is no material."""
    parts = [
        p.strip()
        for p in re.split(r"\n\s*\n", material)
        if p.strip() and not p.rstrip().endswith(("?", "？"))
    ]
    return ["\n\n".join(parts)] if _HEADINGS.search(material) else parts
