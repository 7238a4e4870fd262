"""The rule `grounded`: which sentences of an answer it compares, with what, and what it does then.

Vectors are counts of words, so that a test says itself which sentences are near each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import cast

import pytest

from astromesh.core.guardrails import CheckedText, GuardrailsEngine
from astromesh.errors import GuardrailBlocked, MissingExtra, ProviderUnavailable
from astromesh.guardrails.base import RetrievedPassage, Verdict
from astromesh.guardrails.grounding import Grounded
from astromesh.knowledge.base import Embedder
from astromesh.plugins import Deps
from astromesh.text import NOTHING_FOUND

WORDS = (
    "green",
    "tea",
    "steeps",
    "briefly",
    "black",
    "leaves",
    "dry",
    "slowly",
    "dogs",
    "swim",
    "in",
    "lakes",
)
TEA = "Green tea steeps briefly. Black leaves dry slowly."
MADE_UP = "Dogs swim in lakes."


class CountedWords:
    """An embedder whose vectors are the words of a text."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.down = False

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        if self.down:
            raise ProviderUnavailable("no embeddings")
        self.texts += texts
        return [self._vector(text.lower()) for text in texts]

    @staticmethod
    def _vector(text: str) -> list[float]:
        counts = [float(text.count(word)) for word in WORDS]
        length = sqrt(sum(count * count for count in counts)) or 1.0
        return [count / length for count in counts]


async def opened(embedder: CountedWords | None = None, **options: object) -> Grounded:
    deps = Deps(embedder=cast("Embedder", embedder or CountedWords()))
    return await Grounded.open(Grounded.model_validate(options), deps)


def passages(*texts: str) -> list[RetrievedPassage]:
    return [RetrievedPassage(f"{number}.md", text) for number, text in enumerate(texts)]


async def test_a_sentence_that_no_passage_supports_is_noted_or_replaces_the_answer() -> None:
    answer = f"Green tea steeps briefly. {MADE_UP} Lakes swim in dogs."
    assert await (await opened()).check_answer(answer, passages(TEA)) == Verdict("warn", answer, 2)
    blocking = await opened(action="block", message="I do not know.")
    assert await blocking.check_answer(answer, passages(TEA)) == Verdict("block", "I do not know.", 2)
    assert await blocking.check_answer(TEA, passages(MADE_UP, TEA)) is None


@pytest.mark.parametrize(
    ("answer", "passage"),
    [
        ("Green tea steeps briefly.", f"{TEA} {MADE_UP} {MADE_UP}"),  # one of its sentences
        (
            "Tea steeps briefly, leaves dry slowly.",
            f"{MADE_UP} {TEA} {MADE_UP}",
        ),  # two neighbours
        ("Green tea, black leaves: dogs swim in lakes.", f"{TEA} {MADE_UP}"),  # the whole passage
    ],
)
async def test_a_sentence_is_compared_with_parts_of_a_passage_and_with_the_whole(
    answer: str, passage: str
) -> None:
    rule = await opened(threshold=0.8)
    assert await rule.check_answer(answer, passages(passage)) is None
    assert await rule.check_answer(answer, passages("Slowly.")) is not None


async def test_the_threshold_is_the_least_cosine_that_supports() -> None:
    answer = "Green tea steeps briefly."  # four words, of which the passage has one: 0.5
    assert await (await opened(threshold=0.5)).check_answer(answer, passages("Green.")) is None
    assert await (await opened(threshold=0.51)).check_answer(answer, passages("Green.")) is not None


@pytest.mark.parametrize(
    "answer",
    [
        "Dogs swim there.",
        "Do dogs swim in lakes?",
        "狗在湖里游泳吗 狗 在 湖？",
        "Source of it: 0.md",
        NOTHING_FOUND,
        "",
    ],
)
async def test_what_claims_nothing_is_not_compared(answer: str) -> None:
    embedder = CountedWords()
    rule = await opened(embedder, action="block")
    assert await rule.check_answer(answer, passages(TEA)) is None
    assert embedder.texts == []


async def test_what_stands_beside_the_words_of_a_search_is_compared() -> None:
    answer = f"{NOTHING_FOUND} {MADE_UP}"
    assert await (await opened()).check_answer(answer, passages(TEA)) == Verdict("warn", answer, 1)


async def test_a_sentence_of_four_words_beside_a_source_is_compared() -> None:
    embedder = CountedWords()
    await (await opened(embedder)).check_answer(f"{MADE_UP}\nSwim in lakes now: 0.md", passages(TEA, TEA))
    sentences = ["Green tea steeps briefly.", "Black leaves dry slowly."]
    assert embedder.texts == [MADE_UP, "Swim in lakes now: 0.md", TEA, *sentences]


async def test_only_a_rule_that_blocks_needs_the_whole_text() -> None:
    mild, strict = await opened(), await opened(action="block")
    engine = GuardrailsEngine((), [mild])
    gate = engine.gate()
    assert [gate.feed(MADE_UP), gate.finish(), gate.released] == [MADE_UP, "", CheckedText(MADE_UP)]
    assert (mild.needs_whole_text, strict.needs_whole_text) == (False, True)


async def test_without_its_model_the_rule_says_what_to_install() -> None:
    with pytest.raises(MissingExtra, match=r"pip install 'astromesh\[embeddings\]'"):
        await Grounded.open(Grounded(), Deps())


# -- in the engine -------------------------------------------------------------------------------------------


def acted(action: str, count: int = 1) -> dict[str, object]:
    return {"stage": "output", "type": "grounded", "action": action, "count": count}


async def test_the_rules_of_an_answer_act_in_order_until_one_blocks() -> None:
    mild, strict = await opened(), await opened(action="block", message="No.")
    engine = GuardrailsEngine((), [mild, strict, mild])
    blocked = CheckedText("No.", (acted("warn"), acted("block")), blocked=True)
    assert await engine.check_answer(MADE_UP, passages(TEA)) == blocked
    assert await engine.check_answer(MADE_UP, []) == CheckedText(MADE_UP)
    both = CheckedText(MADE_UP, (acted("warn"), acted("warn")))
    assert await GuardrailsEngine((), [mild, mild]).check_answer(MADE_UP, passages(TEA)) == both


async def test_of_an_answer_in_json_the_texts_are_compared() -> None:
    """Its keys, numbers and quotes are no claims; a block is an error, because its message is no JSON."""
    value = '{"dogs swim in lakes": [{"a": "Green tea steeps briefly."}, 5], "b": "Dogs swim in lakes."}'
    embedder = CountedWords()
    noted = await GuardrailsEngine((), [await opened(embedder)]).check_answer(
        value, passages(TEA), is_json=True
    )
    assert noted == CheckedText(value, (acted("warn"),))
    assert embedder.texts[:3] == ["Green tea steeps briefly.", MADE_UP, TEA]
    strict = GuardrailsEngine((), [await opened(action="block", message="No.")])
    with pytest.raises(GuardrailBlocked, match=r"No\.") as refused:
        await strict.check_answer(value, passages(TEA), is_json=True)
    assert refused.value.actions == (acted("block"),)


async def test_an_answer_that_cannot_be_compared_passes_only_where_nothing_is_blocked() -> None:
    embedder = CountedWords()
    mild, strict = await opened(embedder), await opened(embedder, action="block")
    embedder.down = True
    assert await GuardrailsEngine((), [mild]).check_answer(MADE_UP, passages(TEA)) == CheckedText(MADE_UP)
    with pytest.raises(ProviderUnavailable, match="no embeddings"):
        await GuardrailsEngine((), [strict]).check_answer(MADE_UP, passages(TEA))
