"""Snippets: the sections and sentences of a text that answer a question, ranked by BM25 over stems.

A section is the text under one heading. A unit is a sentence, or a whole list, table or code block with the
line that leads into it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from astromesh.knowledge.ranking import bm25_scores, stems, term_weights

Origin = Literal["tool", "question", "system", "history"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A text that may answer.

    Args:
        source: file, URL or title; empty if none was given.
        heading: heading of its section.
        direct: whether it is the tool's whole answer and not one of several results.
        score: of the search that found it, from 0 to 1; None if it was not searched.
    """

    text: str
    source: str = ""
    heading: str = ""
    origin: Origin = "tool"
    direct: bool = False
    score: float | None = None


_HEADING = re.compile(r"^\s{0,3}#{1,6}\s+(.*?)\s*#*\s*$")
_ITEM = re.compile(r"^\s*([-*+•]|\d{1,3}[.)])\s+")
_PIECE = re.compile(r".+?(?:[.!?。！？]+[\"'”’)]*\s+|\n+|$)|\s+", re.S)
_LOOSE_ITEM = re.compile(r"^[-*+•]\s+")
_FENCE = re.compile(r"^\s*(```|~~~)")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+(?=[\"'“‘(\[]?[^\sa-z])|(?<=[。！？])")
_ABBREVIATED = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|mr|mrs|ms|dr|no|approx|st)\.$", re.I)
#: separators of two units by their kinds; a blank line for all others
_GAPS = {("", kind): "" for kind in ("sentence", "item", "block")} | {
    ("sentence", "sentence"): " ",
    ("item", "item"): "\n",
}
#: how much a section's heading counts beside its text
_HEADING_WEIGHT = 2
#: a unit is quoted beside the best if its score is at least this share
_NEAR_BEST = 0.5
#: share of the question in a heading that makes its section the answer
_TITLED = 0.6
#: a tool's whole answer up to this length is quoted unchanged: the tool was asked the question
SHORT_ANSWER = 400
_DEPENDENT = re.compile(
    r"^\W*(you|it|its|this|that|these|those|they|then|if|after|afterwards|otherwise|there|also|but|however"
    r"|in (this|that) case|until|once|when)\b",
    re.I,
)
_ORIGIN_WEIGHT: dict[Origin, float] = {"tool": 1.0, "question": 1.0, "system": 0.9, "history": 0.8}


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece that is quoted whole: a sentence, an item of a loose list, or a block (steps, table, code)."""

    text: str
    kind: Literal["sentence", "item", "block"] = "sentence"


@dataclass(slots=True)
class Section:
    """Units under one heading.

    Args:
        coverage: share of the question's words that the section has, by their weight, from 0 to 1.
        title_coverage: the same for its heading alone.
    """

    passage: Evidence
    heading: str
    units: list[Unit] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    score: float = 0.0
    coverage: float = 0.0
    title_coverage: float = 0.0

    @property
    def text(self) -> str:
        return join_units(self.units)


def rank_sections(question: str, passages: Sequence[Evidence]) -> list[Section]:
    """Sections that share words with the question, best first."""
    sections = [section for passage in passages for section in sections_of(passage)]
    for section in sections:
        section.counts = Counter(stems(section.text))
        for word in stems(f"{section.heading} {section.passage.heading}"):
            section.counts[word] += _HEADING_WEIGHT
    documents = [section.counts for section in sections]
    weights = term_weights(stems(question), documents)
    total = sum(weights.values()) or 1.0
    for place, (section, score) in enumerate(zip(sections, bm25_scores(weights, documents), strict=True)):
        found = [word for word in weights if section.counts[word]]
        section.coverage = sum(weights[word] for word in found) / total
        title = set(stems(f"{section.heading} {section.passage.heading}"))
        section.title_coverage = sum(weight for word, weight in weights.items() if word in title) / total
        # the tool's own order breaks near ties
        section.score = score * _ORIGIN_WEIGHT[section.passage.origin] * (1 + 0.1 / (1 + place))
    return sorted((s for s in sections if s.score > 0), key=lambda s: -s.score)


def best_units(question: str, section: Section, max_characters: int) -> list[Unit]:
    """The units that answer best, in their order, with the units that depend on them."""
    size, is_titled = len(section.text), section.title_coverage >= _TITLED
    if size <= SHORT_ANSWER if section.passage.direct else size <= max_characters and is_titled:
        return section.units
    counts = [Counter(stems(unit.text)) for unit in section.units]
    scores = bm25_scores(term_weights(stems(question), counts), counts)
    chosen: set[int] = set()
    for index in sorted(range(len(scores)), key=lambda i: (-scores[i], i)):
        if chosen and scores[index] < _NEAR_BEST * max(scores):
            break
        for number in (index, *_dependent_units(section.units, index)):
            size = sum(len(section.units[i].text) + 1 for i in chosen)
            if not chosen or size + len(section.units[number].text) <= max_characters:
                chosen.add(number)
    return [section.units[i] for i in sorted(chosen)]


def leading_units(section: Section, max_characters: int) -> list[Unit]:
    """The first units of a section, as many as fit and at least one."""
    sizes = accumulate(len(unit.text) + 2 for unit in section.units)
    fitting = sum(1 for size in sizes if size <= max_characters + 2)
    return section.units[: max(fitting, 1)]


def _dependent_units(units: Sequence[Unit], index: int) -> list[int]:
    """Units that follow a unit and make no sense without it: steps, and sentences like `If it fails, …`."""
    following: list[int] = []
    for i in range(index + 1, min(index + 4, len(units))):
        if units[i].kind == "sentence" and not _DEPENDENT.match(units[i].text):
            break
        if units[i].kind == "item":
            break
        following.append(i)
    return following


# -- cutting -----------------------------------------------------------------------------------------------
def sections_of(passage: Evidence) -> list[Section]:
    """The passage by its Markdown headings."""
    sections = [Section(passage, passage.heading)]
    lines: list[str] = []
    fenced = False
    for line in passage.text.splitlines():
        fenced ^= bool(_FENCE.match(line))
        heading = None if fenced else _HEADING.match(line)
        if heading is None:
            lines.append(line)
            continue
        sections[-1].units = units_of(lines)
        lines = []
        sections.append(Section(passage, heading[1]))
    sections[-1].units = units_of(lines)
    return [section for section in sections if section.units]


def units_of(lines: Sequence[str]) -> list[Unit]:
    """The units of some lines."""
    units: list[Unit] = []
    for block in _blocks(lines):
        if _LOOSE_ITEM.match(block[0]) and not _introduces_block(units):
            units += [Unit(item, "item") for item in _items(block)]
        elif _is_block(block[0]):
            _add_block(units, "\n".join(block))
        else:
            units += [
                Unit(sentence) for sentence in split_sentences(" ".join(line.strip() for line in block))
            ]
    return units


def split_sentences(text: str) -> list[str]:
    """The sentences of a paragraph; the stop of an abbreviation ends none."""
    found: list[str] = []
    for piece in _SENTENCE_END.split(text):
        if found and _ABBREVIATED.search(found[-1]):
            found[-1] += " " + piece
        elif piece and piece.strip():
            found.append(piece.strip())
    return found


def join_units(units: Sequence[Unit]) -> str:
    """Units as text: blocks on lines of their own, sentences one after the other."""
    text = ""
    before = ""
    for unit in units:
        text += _GAPS.get((before, unit.kind), "\n\n") + unit.text
        before = unit.kind
    return text


def _add_block(units: list[Unit], text: str) -> None:
    """Adds a block with the line that leads into it, e.g. `To do so:`."""
    if _introduces_block(units):
        text = f"{units.pop().text}\n{text}"
    units.append(Unit(text, "block"))


def _introduces_block(units: Sequence[Unit]) -> bool:
    return bool(units) and units[-1].kind == "sentence" and units[-1].text.endswith(":")


def _items(block: Sequence[str]) -> list[str]:
    items: list[str] = []
    for line in block:
        if _LOOSE_ITEM.match(line) or not items:
            items.append(line)
        else:
            items[-1] += "\n" + line
    return items


def _is_block(line: str) -> bool:
    return bool(_ITEM.match(line) or _FENCE.match(line) or line.lstrip().startswith("|"))


def _blocks(lines: Sequence[str]) -> list[list[str]]:
    """Runs of lines: paragraphs; lists, tables and code each as one, with blank lines between items."""
    blocks: list[list[str]] = []
    open_block: list[str] = []
    fenced = False
    for line in lines:
        if not line.strip() and not fenced:
            if open_block and not _ITEM.match(open_block[0]):
                blocks.append(open_block)
                open_block = []
            continue
        starts = not open_block or (not fenced and _breaks(open_block, line))
        if starts and open_block:
            blocks.append(open_block)
            open_block = []
        open_block.append(line.rstrip())
        fenced ^= bool(_FENCE.match(line))
    return [*blocks, open_block] if open_block else blocks


def _breaks(block: Sequence[str], line: str) -> bool:
    """Whether this line begins another block."""
    if _ITEM.match(block[0]):
        return not (_ITEM.match(line) or line.startswith((" ", "\t")))
    return _is_block(line) != _is_block(block[0])


def split_pieces(text: str) -> list[str]:
    """Splits a text into sentences and lines; joined, they are the text again."""
    return _PIECE.findall(text)
