"""Token estimates: near enough in every script, and corrected by what models report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astromesh.core.model_router import UsualAnswer
from astromesh.tokens import (
    FIRST_ANSWER_TOKENS,
    TokenCorrection,
    estimate,
    estimate_message,
    estimate_request,
)
from astromesh.types import CompletionRequest, Image, Message, ToolCall, ToolSpec


@pytest.mark.parametrize(
    ("text", "tokens"),  # about what present vocabularies of 100,000 to 200,000 entries make of it
    [
        ("The quick brown fox jumps over the lazy dog.", 10),
        ("Der schnelle braune Fuchs springt über den faulen Hund.", 13),
        ("Быстрая коричневая лиса прыгает через ленивую собаку.", 15),
        ("敏捷的棕色狐狸跳过了懒狗。", 14),
        ('{"name": "search", "arguments": {"query": "password"}}', 14),
    ],
)
def test_an_estimate_is_within_a_factor_of_two_in_every_script(text, tokens):
    assert tokens / 2 <= estimate(text) <= tokens * 2


@given(st.text(), st.text())
def test_a_longer_text_never_has_fewer_tokens(one, more):
    assert estimate(one) <= estimate(one + more) <= estimate(one) + estimate(more)


def test_calls_pictures_tools_and_schemas_count():
    plain = Message("user", "Hi")
    assert estimate_message(Message("user", "Hi", attachments=(Image(),))) > estimate_message(plain) + 100
    assert estimate_message(Message("assistant", "", (ToolCall("1", "search", "{}"),))) > 4
    bare = estimate_request(CompletionRequest((plain,)))
    tooled = estimate_request(CompletionRequest((plain,), (ToolSpec("search", "Searches"),)))
    shaped = estimate_request(CompletionRequest((plain,), output_schema={"type": "object"}))
    assert bare < shaped < tooled


def test_a_correction_moves_towards_what_is_reported_and_survives_nonsense():
    correction = TokenCorrection()
    assert correction.apply(100) == 100
    for _ in range(20):
        correction.learn(100, 150)
    assert correction.apply(100) == 150
    correction.learn(100, 10**9)
    assert correction.apply(100) < 200
    for reported in (0, -5):
        correction.learn(100, reported)
    correction.learn(0, 5)
    assert 100 < correction.apply(100) < 200


def test_an_answer_is_expected_to_be_at_most_twice_the_longest_of_late():
    usual = UsualAnswer()
    assert usual.tokens == FIRST_ANSWER_TOKENS
    usual.learn(10)
    assert usual.tokens == 1024  # short answers say little about the next one
    usual.learn(5000)
    assert usual.tokens == 10_000
    for _ in range(300):
        usual.learn(600)
    assert usual.tokens == 1200
