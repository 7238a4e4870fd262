"""Citations: the passages of knowledge that an answer draws on, found by comparing their words. Pure.

A passage is cited if a sentence of the answer has most of its words from it, or if the answer names its
document. A model that says what no passage says cites nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import quote

import orjson

from astromesh.knowledge.ranking import stems
from astromesh.types import JsonObject

#: share of a sentence's words that come from the cited passage
_SUPPORT = 0.6
#: shorter sentences, e.g. "Yes, you can.", cite nothing
_LEAST_WORDS = 4
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|\n+|(?<=[。！？])")
_SEARCHED = frozenset(("document", "title", "heading", "text", "start", "end", "score"))


class Search(NamedTuple):
    """A search of the run. Args: result: as the model read it; a text without passages counts nothing."""

    pipeline: str
    result: str


class _Passage(NamedTuple):
    """Args: citation: without `spans`. words: stems of its text and its headings."""

    citation: JsonObject
    words: frozenset[str]


def cited_passages(
    answer: str, searches: Iterable[Search], nested: Iterable[JsonObject] = ()
) -> list[JsonObject]:
    """Returns `{document, title, passage, start, end, score, url, spans}` of each passage that is cited.

    `start` and `end` are offsets into the document, `spans` are offsets into the answer.

    Args:
        searches: those of the run. The order of the citations is that of the passages.
        nested: the citations of nested runs, which are cited if this answer draws on them, too.
    """
    passages = _retrieved(searches, nested)
    spans: dict[int, list[list[int]]] = {}
    for start, end in sentence_spans(answer):
        if (best := _best(passages, answer[start:end])) is not None:
            spans.setdefault(best, []).append([start, end])
    named = {passages[number].citation["document"] for number in spans}
    for number, passage in enumerate(passages):
        document = passage.citation["document"]
        if document in named:
            continue
        if place := re.search(rf"(?<!\w){re.escape(document)}(?!\w)", answer):
            named.add(document)
            spans[number] = [list(place.span())]
    return [{**passages[number].citation, "spans": spans[number]} for number in sorted(spans)]


def retrieved_passages(searches: Iterable[Search], nested: Iterable[JsonObject] = ()) -> list[JsonObject]:
    """Returns every passage that an answer could cite, as a citation without `spans`."""
    return [one.citation for one in _retrieved(searches, nested)]


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """The sentences of a text, as offsets."""
    start = 0
    for separator in _SENTENCE_END.finditer(text):
        if separator.start() > start:
            yield start, separator.start()
        start = separator.end()
    if start < len(text):
        yield start, len(text)


def document_address(pipeline: str, document: str) -> str:
    """The path at which the server shows a document."""
    return f"/v1/rag/{quote(pipeline, safe='')}/documents/{quote(document)}"


def _best(passages: list[_Passage], sentence: str) -> int | None:
    """The passage that has the most words of a sentence; None if none has enough of them."""
    spoken = set(stems(sentence))
    if len(spoken) < _LEAST_WORDS or not passages:
        return None
    best = max(range(len(passages)), key=lambda number: len(spoken & passages[number].words))
    return best if len(spoken & passages[best].words) >= _SUPPORT * len(spoken) else None


def _found(searches: Iterable[Search]) -> Iterator[_Passage]:
    for pipeline, result in searches:
        for one in _passages(result):
            citation = {
                "document": one["document"], "title": one["title"], "passage": one["text"],
                "start": one["start"], "end": one["end"], "score": one["score"],
                "url": one.get("url") or document_address(pipeline, one["document"]),
            }  # fmt: skip
            yield _Passage(citation, frozenset(stems(f"{one['heading']} {one['text']}")))


def _cited_before(nested: Iterable[JsonObject]) -> Iterator[_Passage]:
    for one in nested:
        citation = {key: value for key, value in one.items() if key != "spans"}
        yield _Passage(citation, frozenset(stems(f"{one['title']} {one['passage']}")))


def _retrieved(searches: Iterable[Search], nested: Iterable[JsonObject]) -> list[_Passage]:
    """Each passage once, with its last score."""
    passages = (*_found(searches), *_cited_before(nested))
    return list({(one.citation["url"], one.citation["start"]): one for one in passages}.values())


def _passages(result: str) -> Iterator[JsonObject]:
    try:
        value = orjson.loads(result)
    except orjson.JSONDecodeError:
        return  # too long for the model, and cut
    passages = value.get("passages") if isinstance(value, dict) else None
    yield from (one for one in passages or () if isinstance(one, dict) and one.keys() >= _SEARCHED)
