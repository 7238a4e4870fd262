"""Routing strategies as pure rankings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astromesh.core.routing import (
    EXPLORE_AFTER,
    STRATEGIES,
    Candidate,
    Needs,
    missing_capabilities,
    rank,
    request_needs,
)
from astromesh.providers.base import Capabilities
from astromesh.types import CompletionRequest, Image, Message, ToolSpec

capabilities = st.builds(
    Capabilities,
    tools=st.booleans(),
    vision=st.booleans(),
    json=st.booleans(),
    context_window=st.sampled_from([0, 1000, 8000]),
    quality=st.floats(0, 100),
    priced=st.booleans(),
    language_model=st.booleans(),
)


@st.composite
def candidates(draw):
    many = draw(
        st.lists(
            st.tuples(capabilities, st.floats(0, 1), st.floats(0, 900), st.integers(0, 99)),
            min_size=1,
            max_size=6,
        )
    )
    return [Candidate(index, *facts) for index, facts in enumerate(many)]


needs = st.builds(Needs, st.booleans(), st.booleans(), st.booleans(), st.sampled_from([0, 500, 5000, 50_000]))


def candidate(index: int, cost=0.0, latency=0.0, idle=0, **can) -> Candidate:
    return Candidate(index, Capabilities(**can), cost, latency, idle)


@given(st.sampled_from(STRATEGIES), candidates(), needs, st.integers(0, 100))
def test_nobody_is_asked_twice_and_nobody_who_cannot_before_one_who_can(strategy, given_, wanted, turn):
    order = rank(strategy, given_, wanted, turn)
    assert len(set(order)) == len(order)
    fit = {c.position for c in given_ if not missing_capabilities(c, wanted)}
    if fit or strategy == "capability_match":
        assert set(order) == fit
    else:
        assert set(order) == {c.position for c in given_}


@given(
    st.sampled_from(sorted(set(STRATEGIES) - {"priority", "capability_match"})),
    candidates(),
    st.integers(0, 100),
)
def test_what_is_no_language_model_comes_last_where_models_are_weighed(strategy, given_, turn):
    models = [given_[i].capabilities.language_model for i in rank(strategy, given_, turn=turn)]
    assert models == sorted(models, reverse=True)


@given(candidates())
def test_priority_is_the_declared_order(given_):
    assert rank("priority", given_) == tuple(range(len(given_)))


@given(candidates())
def test_round_robin_begins_with_every_model_equally_often(given_):
    models = sum(c.capabilities.language_model for c in given_)
    first = [rank("round_robin", given_, turn=turn)[0] for turn in range(3 * (models or 1))]
    assert all(first.count(index) == 3 for index in set(first))
    assert len(set(first)) == (models or 1)


def test_the_first_turn_is_that_of_the_primary():
    assert rank("round_robin", [candidate(0), candidate(1)]) == (0, 1)


def test_cost_optimized_asks_the_cheapest_known_price_first_and_unknown_ones_after():
    given_ = [candidate(0, 0.4), candidate(1, priced=False), candidate(2, 0.1), candidate(3, 0.0)]
    assert rank("cost_optimized", given_) == (3, 2, 0, 1)


def test_latency_optimized_asks_the_fastest_but_tries_the_unknown_and_the_long_untried():
    assert rank("latency_optimized", [candidate(0, latency=90), candidate(1, latency=20)]) == (1, 0)
    assert rank("latency_optimized", [candidate(0, latency=20), candidate(1)])[0] == 1
    stale = candidate(1, latency=900, idle=EXPLORE_AFTER)
    assert rank("latency_optimized", [candidate(0, latency=20), stale])[0] == 1


def test_quality_first_asks_the_best_and_keeps_the_declared_order_among_equals():
    given_ = [candidate(0, quality=60), candidate(1, quality=90), candidate(2, quality=90)]
    assert rank("quality_first", given_) == (1, 2, 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_primary_stays_first_before_an_embedded_fallback(strategy):
    embedded = Candidate(1, Capabilities(json=False, quality=0.0, language_model=False))
    for turn in range(3):
        assert rank(strategy, [candidate(0, cost=0.5, latency=900, quality=50), embedded], turn=turn) == (
            0,
            1,
        )


def test_capability_match_names_nobody_where_nobody_can():
    assert rank("capability_match", [candidate(0)], Needs(vision=True)) == ()
    assert missing_capabilities(candidate(0), Needs(vision=True)) == ("vision",)


def test_a_prompt_beyond_the_window_needs_a_larger_one_as_the_model_counts():
    small, large = candidate(0, context_window=1000), candidate(1, context_window=9000)
    assert rank("priority", [small, large], Needs(tokens=1500)) == (1,)
    frugal = small._replace(correction=0.5)
    assert rank("priority", [frugal, large], Needs(tokens=1500)) == (0, 1)


def test_what_a_request_needs_is_read_off_it():
    picture = Message("user", "?", attachments=(Image(url="https://example.test/a.png"),))
    request = CompletionRequest((picture,), (ToolSpec("t"),), output_schema={})
    assert request_needs(request, 7) == Needs(True, True, False, 7)  # beside tools it is told in words
    assert request_needs(CompletionRequest((picture,), output_schema={})) == Needs(False, True, True)
    assert (
        request_needs(CompletionRequest((Message("user", "?"),), (ToolSpec("t"),), tool_choice="none"))
        == Needs()
    )


@pytest.mark.parametrize(
    ("needs", "without", "word"),
    [
        (Needs(tools=True), {"tools": False}, "tools"),
        (Needs(vision=True), {"vision": False}, "vision"),
        (Needs(json=True), {"json": False}, "structured output"),
        (Needs(tokens=101), {"context_window": 100}, "context window"),
    ],
)
def test_what_a_model_lacks_is_said_in_words(needs: Needs, without: dict, word: str):
    """Only what the request needs and the model does not have; a prompt that just fits does."""
    able = {"vision": True, "context_window": 101}
    assert missing_capabilities(candidate(0, **{**able, **without}), needs) == (word,)
    assert missing_capabilities(candidate(0, **able), needs) == ()
    assert missing_capabilities(candidate(0, **{**able, **without}), Needs()) == ()


def test_a_model_faster_than_a_millisecond_is_not_asked_before_one_that_was_never_tried():
    fast, untried = candidate(0, latency=0.5), candidate(1, latency=0.5, idle=EXPLORE_AFTER)
    assert rank("latency_optimized", [fast, untried]) == (1, 0)


def test_without_needs_of_its_own_a_request_fits_every_model():
    able, limited = candidate(0, context_window=1), candidate(1, tools=False, json=False)
    assert rank("priority", [able, limited]) == (0, 1)
