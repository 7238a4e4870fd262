"""`grounded`: warns of an answer that its passages do not support, or blocks it. Offline, by embeddings.

A sentence is supported if its vector is near that of a passage, of one of its sentences, or of two sentences
that follow each other. Nearness shows that the passages speak of the same thing. It does not show that a
number or a name is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr

from astromesh.errors import MissingExtra
from astromesh.guardrails.base import AnswerRule, CheckContext, RetrievedPassage, RuleStream, Verdict
from astromesh.text import NEAREST_FOUND, NOTHING_FOUND

#: shorter sentences, e.g. "Yes, you can.", claim nothing
_LEAST_WORDS = 4
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|\n+|(?<=[。！？])")
_WORD = re.compile(r"\w+")


class Grounded(AnswerRule):
    """Compares the sentences of an answer with the passages that the run has retrieved."""

    type = "grounded"
    embedder_plugin: ClassVar[str] = "onnx"

    action: Literal["warn", "block"] = Field(
        "warn",
        description="Only note it in `metadata.guardrails`, or replace the answer by the message.",
    )
    threshold: float = Field(
        0.62, gt=0, lt=1,
        description="Least cosine of a sentence and the passage that supports it; for all-MiniLM-L6-v2.",
    )  # fmt: skip
    message: str = Field(
        "I cannot answer that from the documents that I have found.",
        description="Text that replaces a blocked answer.",
    )
    _embedder: Any = PrivateAttr(default=None)

    @classmethod
    async def open(cls, options: Self, deps: Any) -> Self:
        """Raises: MissingExtra: the model is not installed."""
        if deps.embedder is None:
            install = "install it with `pip install 'astromesh[embeddings]'`"
            raise MissingExtra(f"The output rule `grounded` needs a model; {install}.")
        rule = options.model_copy()
        rule.use(deps.embedder)
        return rule

    def use(self, embedder: Any) -> None:
        """Sets the embedder of the sentences."""
        self._embedder = embedder

    @property
    def needs_whole_text(self) -> bool:
        return self.action == "block"

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        return None

    def stream(self, context: CheckContext) -> RuleStream:
        return _AllPasses()

    async def check_answer(self, answer: str, passages: Sequence[RetrievedPassage]) -> Verdict | None:
        claims = list(_claims(answer, [one.document for one in passages]))
        if not claims or not passages:
            return None
        evidence = list(dict.fromkeys(text for one in passages for text in _units(one.text)))
        vectors = await self._embedder.embed([*claims, *evidence])
        nearest = nearest_cosines(vectors[: len(claims)], vectors[len(claims) :])
        unsupported = sum(cosine < self.threshold for cosine in nearest)
        if not unsupported:
            return None
        return Verdict(self.action, self.message if self.action == "block" else answer, unsupported)


class _AllPasses:
    """The stream of a rule that reads the answer when it is complete."""

    action: Literal["warn"] = "warn"
    count = 0
    done = False

    def feed(self, text: str) -> str:
        return text

    def finish(self) -> str:
        return ""


def nearest_cosines(claims: Sequence[Any], evidence: Sequence[Any]) -> list[float]:
    """Returns the largest cosine of each of the first unit vectors with one of the others."""
    np = import_module("numpy")  # loaded with the first answer, not at start

    found: list[float] = (np.asarray(claims) @ np.asarray(evidence).T).max(axis=1).tolist()
    return found


def _claims(answer: str, documents: Sequence[str]) -> Iterator[str]:
    """The sentences that claim something: no questions, no short ones, no lines that name a source.

    What the offline model says of its search claims nothing about the documents.
    """
    for sentence in _sentences(answer):
        if sentence in _ABOUT_THE_SEARCH:
            continue
        text = sentence
        for document in documents:
            text = text.replace(document, "")
        if len(_WORD.findall(text)) >= _LEAST_WORDS and not sentence.endswith(("?", "？")):
            yield sentence


def _units(passage: str) -> Iterator[str]:
    """What a sentence is compared with: the passage, its sentences, and two that follow each other."""
    sentences = _sentences(passage)
    yield passage
    yield from sentences
    yield from map(" ".join, pairwise(sentences))


def _sentences(text: str) -> list[str]:
    return [part.strip() for part in _SENTENCE_END.split(text) if part.strip()]


_ABOUT_THE_SEARCH = frozenset(_sentences(NOTHING_FOUND + "\n" + NEAREST_FOUND))
