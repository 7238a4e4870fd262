"""Questions to search terms, and scores that mean something."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astromesh.knowledge.ranking import MAX_TERMS, match_any, match_prefixes, terms, word_score


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("How do I reset my password?", ("reset", "password")),
        ("What is it?", ("what", "is", "it")),
        ("RESET reset Reset", ("reset",)),
        ("api_key/X-Header", ("api", "key", "x", "header")),
        ("naïve Straße 日本語", ("naïve", "straße", "日本語")),
        ('"; DROP TABLE -- *', ("drop", "table")),
        ("?! …", ()),
        ("", ()),
    ],
)
def test_the_telling_words_of_a_question(query, found):
    """Small words go, unless there is nothing else; syntax is never a word."""
    assert terms(query) == found


@settings(deadline=None)
@given(query=st.text(max_size=200))
def test_any_text_is_a_sound_full_text_query(query):
    """Property: FTS5 accepts whatever comes out of any text."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE t USING fts5(a, tokenize='porter unicode61')")
    connection.execute("INSERT INTO t VALUES ('some words')")
    for expression in (match_any(terms(query)), match_prefixes(terms(query))):
        if expression:
            connection.execute("SELECT * FROM t WHERE t MATCH ?", (expression,)).fetchall()
    connection.close()


def test_a_novel_as_a_query_is_bounded():
    """Nobody searches for a thousand words at once."""
    assert len(terms(" ".join(f"word{n}" for n in range(1000)))) == MAX_TERMS


@given(matched=st.integers(0, 40), sought=st.integers(1, 32), rank=st.floats(0, 50), more=st.floats(0, 50))
def test_scores_stay_between_nothing_and_all(matched, sought, rank, more):
    """Property: [0, 1], and more matched terms never score less."""
    here = word_score(matched, sought, rank, rank + more)
    assert 0.0 <= here <= 1.0
    assert word_score(matched + 1, sought, rank, rank + more) >= here


def test_a_passage_with_one_of_three_words_scores_low():
    """That is how a caller sees that the best passage found is none that answers."""
    assert word_score(1, 3, 5.0, 5.0) < 0.4
    assert word_score(3, 3, 5.0, 5.0) == 1.0
