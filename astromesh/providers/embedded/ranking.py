"""Passages to sections to units, ranked by BM25 over stems (Robertson, Zaragoza 2009).

A section is what stands under one heading. A unit is a sentence, or a list, table or code block as a whole,
with the line that leads into it: steps stay together.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from astromesh.providers.embedded.passages import Origin, Passage
from astromesh.providers.embedded.words import stems

_HEADING = re.compile(r"^\s{0,3}#{1,6}\s+(.*?)\s*#*\s*$")
_ITEM = re.compile(r"^\s*([-*+•]|\d{1,3}[.)])\s+")
_PIECE = re.compile(r".+?(?:[.!?。！？]+[\"'”’)]*\s+|\n+|$)|\s+", re.S)
_LOOSE_ITEM = re.compile(r"^[-*+•]\s+")
_FENCE = re.compile(r"^\s*(```|~~~)")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+(?=[\"'“‘(\[]?[^\sa-z])|(?<=[。！？])")
_ABBREVIATED = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|mr|mrs|ms|dr|no|approx|st)\.$", re.I)
#: what stands between two units, by their kinds; a blank line where nothing is said
_GAPS = {("", kind): "" for kind in ("sentence", "item", "block")} | {
    ("sentence", "sentence"): " ",
    ("item", "item"): "\n",
}
_K1, _B = 1.2, 0.75
#: how much a section's heading counts beside its text
_HEADING_WEIGHT = 2
#: a unit is quoted beside the best where it is at least this near
_NEAR_BEST = 0.5
#: share of the question in a heading that makes its section the answer
_TITLED = 0.6
#: a tool's whole answer up to this length is quoted as it is: the tool was asked the question
SHORT = 400
_LEANS = re.compile(
    r"^\W*(you|it|its|this|that|these|those|they|then|if|after|afterwards|otherwise|there|also|but|however"
    r"|in (this|that) case|until|once|when)\b",
    re.I,
)
_ORIGIN_WEIGHT: dict[Origin, float] = {"tool": 1.0, "question": 1.0, "system": 0.9, "history": 0.8}


@dataclass(frozen=True, slots=True)
class Unit:
    """What is quoted whole: a sentence, an item of a loose list, or a block: steps, table, code."""

    text: str
    kind: Literal["sentence", "item", "block"] = "sentence"


@dataclass(slots=True)
class Section:
    """Units under one heading.

    Args:
        covered: share of what the question asks that the section speaks of, by weight of the words, 0 to 1.
        titled: the same of its heading alone.
    """

    passage: Passage
    heading: str
    units: list[Unit] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    score: float = 0.0
    covered: float = 0.0
    titled: float = 0.0

    @property
    def text(self) -> str:
        return joined(self.units)


def rank(question: str, passages: Sequence[Passage]) -> list[Section]:
    """Sections that share words with the question, best first."""
    sections = [section for passage in passages for section in sections_of(passage)]
    for section in sections:
        section.counts = Counter(stems(section.text))
        for word in stems(f"{section.heading} {section.passage.heading}"):
            section.counts[word] += _HEADING_WEIGHT
    asked = Counter(stems(question))
    weights = _weights(asked, [s.counts for s in sections])
    total = sum(weights.values()) or 1.0
    lengths = [sum(s.counts.values()) for s in sections]
    mean = sum(lengths) / len(lengths) if lengths else 1.0
    for place, (section, length) in enumerate(zip(sections, lengths, strict=True)):
        found = [word for word in weights if section.counts[word]]
        section.covered = sum(weights[word] for word in found) / total
        title = set(stems(f"{section.heading} {section.passage.heading}"))
        section.titled = sum(weight for word, weight in weights.items() if word in title) / total
        section.score = bm25(section.counts, weights, length, mean) * _ORIGIN_WEIGHT[section.passage.origin]
        section.score *= 1 + 0.1 / (1 + place)  # the tool's own order breaks near ties
    return sorted((s for s in sections if s.score > 0), key=lambda s: -s.score)


def best_units(question: str, section: Section, room: int) -> list[Unit]:
    """The units that answer best, in their order, with what leans on them; at most `room` characters."""
    size = len(section.text)
    if size <= SHORT if section.passage.direct else size <= room and section.titled >= _TITLED:
        return section.units
    counts = [Counter(stems(unit.text)) for unit in section.units]
    weights = _weights(Counter(stems(question)), counts)
    mean = sum(sum(c.values()) for c in counts) / len(counts)
    scores = [bm25(c, weights, sum(c.values()), mean) for c in counts]
    chosen: set[int] = set()
    for index in sorted(range(len(scores)), key=lambda i: (-scores[i], i)):
        if chosen and scores[index] < _NEAR_BEST * max(scores):
            break
        for taken in (index, *_leaning(section.units, index)):
            size = sum(len(section.units[i].text) + 1 for i in chosen)
            if not chosen or size + len(section.units[taken].text) <= room:
                chosen.add(taken)
    return [section.units[i] for i in sorted(chosen)]


def _leaning(units: Sequence[Unit], index: int) -> list[int]:
    """What follows a unit and makes no sense without it: steps, and sentences like `If it fails, …`."""
    following: list[int] = []
    for i in range(index + 1, min(index + 4, len(units))):
        if units[i].kind == "sentence" and not _LEANS.match(units[i].text):
            break
        if units[i].kind == "item":
            break
        following.append(i)
    return following


def bm25(counts: Counter[str], weights: dict[str, float], length: int, mean: float) -> float:
    norm = _K1 * (1 - _B + _B * length / (mean or 1.0))
    return sum(w * counts[t] * (_K1 + 1) / (counts[t] + norm) for t, w in weights.items() if counts[t])


def _weights(asked: Counter[str], documents: Sequence[Counter[str]]) -> dict[str, float]:
    """Rare words weigh more; a word that nobody has weighs as much as the rarest that somebody has."""
    total = len(documents)
    having = {word: sum(1 for d in documents if d[word]) for word in asked}
    weigh = {w: math.log(1 + (total - n + 0.5) / (n + 0.5)) for w, n in having.items() if n}
    rarest = max(weigh.values(), default=1.0)
    return {word: max(weigh.get(word, rarest), 0.1) for word in asked}


# -- cutting -----------------------------------------------------------------------------------------------


def sections_of(passage: Passage) -> list[Section]:
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
    """Lines to units."""
    units: list[Unit] = []
    for block in _blocks(lines):
        if _LOOSE_ITEM.match(block[0]) and not _leads_in(units):
            units += [Unit(item, "item") for item in _items(block)]
        elif _is_block(block[0]):
            _add_block(units, "\n".join(block))
        else:
            units += [Unit(sentence) for sentence in sentences(" ".join(line.strip() for line in block))]
    return units


def sentences(text: str) -> list[str]:
    """A paragraph's sentences; an abbreviation's stop ends none."""
    found: list[str] = []
    for piece in _SENTENCE_END.split(text):
        if found and _ABBREVIATED.search(found[-1]):
            found[-1] += " " + piece
        elif piece and piece.strip():
            found.append(piece.strip())
    return found


def joined(units: Sequence[Unit]) -> str:
    """Units as text: blocks on lines of their own, sentences one after the other."""
    text = ""
    before = ""
    for unit in units:
        text += _GAPS.get((before, unit.kind), "\n\n") + unit.text
        before = unit.kind
    return text


def _add_block(units: list[Unit], text: str) -> None:
    """`To do so:` belongs to the steps that follow it."""
    if _leads_in(units):
        text = f"{units.pop().text}\n{text}"
    units.append(Unit(text, "block"))


def _leads_in(units: Sequence[Unit]) -> bool:
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
    """Whether this line begins something else than the block it follows."""
    if _ITEM.match(block[0]):
        return not (_ITEM.match(line) or line.startswith((" ", "\t")))
    return _is_block(line) != _is_block(block[0])


def pieces(text: str) -> list[str]:
    """A text by sentences and lines, nothing left out: joined they are the text."""
    return _PIECE.findall(text)
