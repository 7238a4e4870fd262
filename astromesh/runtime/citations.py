"""Citations: the passages of knowledge that an answer draws on, found by comparing their words. Pure.

A passage is cited if a sentence of the answer has most of its words from it, or if the answer names its
document.
A model that says what no passage says cites nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import orjson

from astromesh.knowledge.words import stems
from astromesh.types import JsonObject

#: share of a sentence's words that come from the cited passage
_SUPPORT = 0.6
#: shorter sentences, e.g. "Yes, you can.", cite nothing
_LEAST_WORDS = 4
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|\n+|(?<=[。！？])")


def cited_passages(answer: str, results: Iterable[str]) -> list[JsonObject]:
    """Returns `{document, title, passage, start, end, score}` of each passage that an answer draws on.

    Args:
        results: the results of the run's searches as the model read them; texts that hold no passages count
            nothing. The order of the citations is that of the passages.
    """
    found = {(one["document"], one["start"]): one for result in results for one in _passages(result)}
    words = {key: frozenset(stems(f"{one['heading']} {one['text']}")) for key, one in found.items()}
    cited: set[tuple[str, int]] = set()
    for sentence in _SENTENCE_END.split(answer):
        spoken = set(stems(sentence))
        if len(spoken) >= _LEAST_WORDS and words:
            best = max(words, key=lambda key: len(spoken & words[key]))
            if len(spoken & words[best]) >= _SUPPORT * len(spoken):
                cited.add(best)
    documents = {document for document, _ in cited}
    for document, start in found:
        if document not in documents and document in answer:
            documents.add(document)
            cited.add((document, start))
    return [_citation(one) for key, one in found.items() if key in cited]


def _passages(result: str) -> Iterator[JsonObject]:
    try:
        value = orjson.loads(result)
    except orjson.JSONDecodeError:
        return  # too long for the model, and cut
    passages = value.get("passages") if isinstance(value, dict) else None
    keys = {"document", "title", "heading", "text", "start", "end", "score"}
    yield from (one for one in passages or () if isinstance(one, dict) and keys <= one.keys())


def _citation(one: JsonObject) -> JsonObject:
    place = {key: one[key] for key in ("document", "title")}
    return {**place, "passage": one["text"], **{key: one[key] for key in ("start", "end", "score")}}
