"""What part of a session the strategies show: properties over any session, and the words of document 001."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from astromesh.errors import AllProvidersFailed, ProviderUnavailable, SessionNotFound
from astromesh.memory.base import RecalledTurns, Summary
from astromesh.memory.strategies import SlidingWindow, SlidingWindowOptions, SummaryStrategy, TokenBudget
from astromesh.testing import ScriptedProvider
from astromesh.tokens import MESSAGE_OVERHEAD, estimate
from astromesh.types import Message, Turn

TEXTS = st.text(max_size=60)
ROLES = st.sampled_from(["user", "assistant"])


@st.composite
def sessions(draw: st.DrawFn) -> tuple[Turn, ...]:
    """Any turns: mostly pairs, sometimes an answer without its question, as partial runs may leave."""
    pairs: list[Any] = draw(st.lists(st.tuples(ROLES, TEXTS), max_size=60))
    turns = [Turn(role, text, tokens=draw(st.integers(0, 40))) for role, text in pairs]
    return tuple(turn._replace(seq=n) for n, turn in enumerate(turns, 1))


def recalled(turns: tuple[Turn, ...], limit: int, summary: Summary | None = None) -> RecalledTurns:
    """As a store answers a recall with this limit."""
    return RecalledTurns(turns[-limit:], summary, "ann", len(turns))


def is_end_of(shown: tuple[Message, ...], turns: tuple[Turn, ...]) -> bool:
    end = turns[len(turns) - len(shown) :] if shown else ()
    return [(m.role, m.content) for m in shown] == [(t.role, t.content) for t in end]


# -- sliding_window ------------------------------------------------------------------------------------------


@given(sessions(), st.integers(2, 30))
def test_a_window_is_the_end_of_the_session_starts_with_a_question_and_is_no_longer_than_asked(turns, size):
    strategy = SlidingWindow(size)
    shown = strategy.select(recalled(turns, strategy.limit))
    assert is_end_of(shown, turns)
    assert len(shown) <= size
    assert not shown or shown[0].role == "user"


@given(st.integers(0, 40), st.integers(1, 15))
def test_of_whole_exchanges_a_window_shows_as_many_as_fit(exchanges, half):
    turns = tuple(Turn(role, "x", seq) for seq, role in enumerate(("user", "assistant") * exchanges, 1))
    assert len(SlidingWindow(2 * half).select(recalled(turns, 2 * half))) == min(len(turns), 2 * half)


def test_a_window_of_one_turn_is_refused():
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        SlidingWindowOptions(max_turns=1)


# -- token_budget --------------------------------------------------------------------------------------------


@given(sessions(), st.integers(16, 400))
def test_a_budget_holds_and_takes_whole_turns_from_the_newest(turns, budget):
    strategy = TokenBudget(budget)
    seen = recalled(turns, strategy.limit)
    shown = strategy.select(seen)
    sizes = [MESSAGE_OVERHEAD + (t.tokens or estimate(t.content)) for t in seen.turns]
    assert is_end_of(shown, turns)
    assert not shown or shown[0].role == "user"
    taken = len(shown)
    assert sum(sizes[len(sizes) - taken :]) <= budget
    for more in range(
        taken + 1, len(sizes) + 1
    ):  # nothing that starts with a question would have fitted as well
        if seen.turns[-more].role == "user":
            assert sum(sizes[-more:]) > budget


def test_a_size_is_estimated_once_and_what_the_model_reports_is_believed():
    strategy = TokenBudget(1000)
    assert strategy.measure("a" * 400) == 100
    assert strategy.measure("a" * 400, reported=130) == 130
    assert strategy.measure("", reported=0) == 0


def test_the_estimate_follows_what_models_report():
    strategy = TokenBudget(1000)
    for _ in range(50):
        strategy.measure("a" * 400, reported=200)
    assert 190 <= strategy.measure("a" * 400) <= 210


def test_a_report_about_a_few_words_teaches_nothing():
    strategy = TokenBudget(1000)
    strategy.measure("ok", reported=9)
    assert strategy.measure("a" * 400) == 100


# -- summary -------------------------------------------------------------------------------------------------


@given(sessions(), st.integers(2, 10), st.integers(2, 10), st.integers(0, 70))
def test_the_turns_behind_a_summary_are_shown_verbatim(turns, keep, every, upto):
    strategy = SummaryStrategy(keep, every)
    upto = min(upto, len(turns))
    summary = Summary("They spoke of shoes.", upto) if upto else None
    shown = strategy.select(recalled(turns, strategy.limit, summary))
    if summary:
        assert shown[0].role == "system"
        assert summary.text in shown[0].content
        shown = shown[1:]
    assert is_end_of(shown, turns[upto:])
    assert not shown or shown[0].role == "user"


def pager(turns):
    async def page(after: int, limit: int) -> tuple[Turn, ...]:
        return turns[after : after + limit]

    return page


def exchanges(count: int) -> tuple[Turn, ...]:
    return tuple(
        turn
        for n in range(count)
        for turn in (Turn("user", f"q{n}", 2 * n + 1), Turn("assistant", f"a{n}", 2 * n + 2))
    )


async def test_every_turn_is_compressed_once_in_order_and_the_last_stay_verbatim():
    """A session grows exchange by exchange: each is given to the model once, and only every few exchanges."""
    strategy = SummaryStrategy(keep_turns=4, every=6)
    model = ScriptedProvider("They counted.", repeat=True)
    summary, calls_at = Summary("Nothing yet.", 0), []
    turns = exchanges(30)
    for end in range(2, 61, 2):
        now = recalled(turns[:end], strategy.limit, summary)
        if strategy.due(now):
            summary = await strategy.compact(now, pager(turns[:end]), model)
            calls_at.append(end)
        assert len(strategy.select(recalled(turns[:end], strategy.limit, summary))) <= 4 + 6 + 1
    assert calls_at == list(range(10, 61, 6))
    given_turns = [
        line
        for request in model.requests
        for line in request.messages[-1].content.partition("Turns:\n")[2].splitlines()
    ]
    assert given_turns == [f"{t.role}: {t.content}" for t in turns[: summary.upto]]
    assert summary.upto == 54


async def test_a_summary_builds_on_the_one_before():
    strategy = SummaryStrategy(keep_turns=2, every=2)
    model = ScriptedProvider("New summary.")
    turns = exchanges(4)
    now = recalled(turns, strategy.limit, Summary("Ann likes tea.", 4))
    assert await strategy.compact(now, pager(turns), model) == Summary("New summary.", 6)
    prompt = model.requests[0].messages[-1].content
    assert "Ann likes tea." in prompt
    assert "q2" in prompt
    assert "q1" not in prompt


async def test_no_model_is_asked_about_a_session_that_was_erased_meanwhile():
    strategy, model = SummaryStrategy(keep_turns=2, every=2), ScriptedProvider("A summary.")
    with pytest.raises(SessionNotFound):
        await strategy.compact(recalled(exchanges(4), strategy.limit), pager(()), model)
    assert model.requests == []


@pytest.mark.parametrize("answer", ["  ", AllProvidersFailed([])])
async def test_no_answer_is_no_summary(answer):
    strategy = SummaryStrategy(keep_turns=2, every=2)
    turns = exchanges(4)
    with pytest.raises((ProviderUnavailable, AllProvidersFailed)):
        await strategy.compact(recalled(turns, strategy.limit), pager(turns), ScriptedProvider(answer))
