"""Measures of retrieval over a file of questions. Pure.

A line of the file is a question, its document and the last part of its heading, separated by tabs. Without a
heading any passage of the document is right. Without a document no passage is right, and a question counts as
refused if the best score is below 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from astromesh.errors import InvalidInput
from astromesh.knowledge.base import Passage
from astromesh.types import JsonObject

#: passages that are compared with the right one
DEPTH = 10
#: below this score the best passage does not answer
_LEAST_SCORE = 0.5


class Question(NamedTuple):
    """Args: document: empty if no passage answers. heading: the last part; empty for any of the document."""

    text: str
    document: str = ""
    heading: str = ""

    def fits(self, passage: Passage) -> bool:
        """Whether a passage is the right one."""
        chunk = passage.chunk
        last = chunk.heading.rpartition(" > ")[2]
        return chunk.document == self.document and self.heading in ("", last)


class Asked(NamedTuple):
    """A question with what was found, and the milliseconds that it took."""

    question: Question
    found: tuple[Passage, ...]
    ms: float

    @property
    def rank(self) -> int:
        """The place of the right passage, 0 if it is not among `DEPTH`."""
        places = (n for n, one in enumerate(self.found[:DEPTH], 1) if self.question.fits(one))
        return next(places, 0)

    @property
    def is_right(self) -> bool:
        """Whether the right passage is first; without one, whether the best score is low."""
        if self.question.document:
            return self.rank == 1
        return not self.found or self.found[0].score < _LEAST_SCORE

    def to_json(self) -> JsonObject:
        best = self.found[0] if self.found else None
        return {
            "question": self.question.text,
            "expected": place(self.question.document, self.question.heading),
            "rank": self.rank,
            "first": place(best.chunk.document, best.chunk.heading) if best else "",
            "score": round(best.score, 4) if best else 0.0,
            "ms": round(self.ms, 1),
            "is_right": self.is_right,
        }


def read_questions(text: str) -> tuple[Question, ...]:
    """Reads a file of questions; empty lines are left out.

    Raises:
        InvalidInput: a line has more than three columns, or there is no question.
    """
    rows = [(n, line.split("\t")) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if wrong := next((n for n, row in rows if len(row) > 3 or not row[0].strip()), 0):
        raise InvalidInput(f"Line {wrong} of the questions is not QUESTION, DOCUMENT, HEADING between tabs.")
    if not rows:
        raise InvalidInput("The file has no questions.")
    return tuple(Question(*(cell.strip() for cell in row)) for _, row in rows)


def measures(asked: Sequence[Asked]) -> JsonObject:
    """The measures over all questions; those that lack questions of their kind are left out."""
    answerable = [one.rank for one in asked if one.question.document]
    others = [one.is_right for one in asked if not one.question.document]
    found: JsonObject = {"questions": len(asked)}
    if answerable:
        found |= {
            "hit@1": _mean([rank == 1 for rank in answerable]),
            "hit@5": _mean([0 < rank <= 5 for rank in answerable]),
            "mrr": _mean([1 / rank if rank else 0.0 for rank in answerable]),
            "ndcg@10": _mean([1 / math.log2(1 + rank) if rank else 0.0 for rank in answerable]),
        }
    if others:
        found["refused"] = _mean(others)
    times = sorted(one.ms for one in asked)
    slow = times[int(0.95 * (len(times) - 1))]
    return {**found, "p50_ms": round(median(times), 1), "p95_ms": round(slow, 1)}


def place(document: str, heading: str) -> str:
    """`document · heading`, as far as there are both."""
    return " · ".join(filter(None, (document, heading)))


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 3)
