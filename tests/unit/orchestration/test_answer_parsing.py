"""What the patterns decide by themselves: pure functions over texts of models that keep to no format."""

from __future__ import annotations

import pytest

from astromesh.orchestration.parallel_fan_out import BranchAnswer, concatenate, parse_verdict, vote
from astromesh.orchestration.patterns import best_fit
from astromesh.orchestration.plan_and_execute import parse_steps
from astromesh.orchestration.supervisor import Assignment, execution_waves, parse_assignments
from astromesh.orchestration.swarm import HandoffTools, parse_handoff
from astromesh.tools.base import ToolContext
from astromesh.types import ToolCall

WORKERS = {"account-agent": "passwords and sign-in", "billing-agent": "plans, invoices and refunds"}


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("1. look up\n2. answer", ["look up", "answer"]),
        ("Here is the plan:\n\n 1) look up {a}\n 2) answer\nDone.", ["look up {a}", "answer"]),
        ("Step 1: look up\nStep 2: answer", ["look up", "answer"]),
        ('```json\n["look up \\"x]\\"", "answer"]\n```', ['look up "x]"', "answer"]),
        ('Sure! {"steps": [{"step": "look up"}, {"task": "answer"}]}', ["look up", "answer"]),
        ("I found nothing.", []),
        ("Open the menu.\n2. Choose save\n3. Done", []),
        ("as shown in [1, 2]", []),
        ("[]", []),
        ("\n".join(f"{n}. x" for n in range(1, 40)), []),
    ],
)
def test_a_plan_is_a_numbered_list_or_json_and_nothing_else(text, steps):
    """Other numbered lines, citations and prose are no plan: the caller then has a plan of one step."""
    assert parse_steps(text) == steps


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            'I delegate: {"delegate": [{"worker": "billing-agent", "task": "refund {1}"}]}',
            [Assignment("billing-agent", "refund {1}")],
        ),
        ('{"delegate": [{"worker": "Billing Agent", "task": "x"}]}', [Assignment("billing-agent", "x")]),
        (
            '[{"worker": "nobody", "task": "reset passwords"}]',
            [Assignment("account-agent", "reset passwords")],
        ),
        (
            (
                '[{"worker": "account-agent", "task": "a"}, '
                '{"worker": "billing_agent", "task": "b", "after": [1, 2, 9, "x"]}]'
            ),
            [Assignment("account-agent", "a"), Assignment("billing-agent", "b", (1,))],
        ),
        ('{"delegate": []}', []),
        ("Nothing to do.", None),
        ('{"delegate": [{"worker": "account-agent"}]}', None),
        ('{"delegate": "account-agent"}', None),
        ("[]", None),
    ],
)
def test_delegations_are_read_from_text(text, found):
    """Names that are nearly right are meant, tasks may hold braces, and no later task is waited for."""
    assert parse_assignments(text, WORKERS) == found


def test_assignments_run_in_waves_each_after_what_it_needs():
    """Independent ones share a wave."""
    made = [
        Assignment("a", "1"),
        Assignment("a", "2"),
        Assignment("a", "3", (1, 2)),
        Assignment("a", "4", (3,)),
    ]
    assert execution_waves(made) == [[0, 1], [2], [3]]
    assert execution_waves([]) == []


@pytest.mark.parametrize(
    ("texts", "chosen"),
    [
        (["Yes.", "no", "yes"], 0),
        (["no", "Yes.", "yes"], 1),
        (["red", "the sky is blue", "the sky is blue today"], 1),
        (["a", "b"], 0),
        (["only"], 0),
        (["", ""], 0),
    ],
)
def test_a_vote_is_the_majority_then_the_nearest_to_all_then_the_first(texts, chosen):
    """Case, space and punctuation are no difference."""
    assert vote(texts) == chosen


def test_concat_says_each_answer_once():
    """The same answer stands once, under all who gave it; where all say the same there is no heading."""
    answers = [BranchAnswer("a", "yes"), BranchAnswer("b", "no"), BranchAnswer("c", "yes")]
    assert concatenate(answers) == "## a, c\n\nyes\n\n## b\n\nno"
    assert concatenate([BranchAnswer("a", "yes"), BranchAnswer("b", "yes ")]) == "yes"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"best": 2, "reason": "has 1"}', 1),
        ('Well: {"x": 1} {"best": "1"}', 0),
        ("2", 1),
        ("Answer 1.", 0),
        ('{"best": 3}', None),
        ('{"best": true}', None),
        ("It takes 2 days.", None),
        ("", None),
    ],
)
def test_a_verdict_is_json_or_a_number_alone(text, place):
    """A number in a sentence is no verdict."""
    assert parse_verdict(text, 2) == place


@pytest.mark.parametrize(
    ("text", "agent"),
    [
        ('{"handoff": "billing-agent", "message": "m"}', "billing-agent"),
        ('```json\n{"handoff": "Billing-Agent"}\n```', "billing-agent"),
        ('{"handoff": "nobody"}', None),
        ('Like this: {"handoff": "billing-agent"}', None),
        ("billing-agent", None),
        ('["handoff"]', None),
    ],
)
def test_only_a_whole_text_hands_over(text, agent):
    """What only mentions a hand-off is an answer."""
    found = parse_handoff(text, WORKERS)
    assert (found.agent if found else None) == agent


async def test_the_first_hand_off_ends_the_run_whatever_its_arguments():
    """To whom is what counts; a second one in the same turn changes nothing."""
    offer = HandoffTools(WORKERS)
    assert [s.name for s in offer.specs()] == ["handoff_to_account-agent", "handoff_to_billing-agent"]
    first = await offer.execute(ToolCall("1", "handoff_to_billing-agent", "{not json"), ToolContext())
    second = await offer.execute(ToolCall("2", "handoff_to_account-agent", '{"message": "x"}'), ToolContext())
    assert first.ok and first.ends_run and second.ends_run
    assert offer.chosen is not None and offer.chosen.agent == "billing-agent"
    unknown = await offer.execute(ToolCall("3", "handoff_to_sales", "{}"), ToolContext())
    assert not unknown.ok and not unknown.ends_run


def test_names_that_no_provider_takes_as_functions_are_made_fit():
    """A dot in an agent's name, and a long name."""
    long = "a" * 64
    names = [s.name for s in HandoffTools({"sales.eu": "", long: ""}).specs()]
    assert names[0] == "handoff_to_sales_eu"
    assert len(names[1]) == 64


@pytest.mark.parametrize(
    ("task", "who"),
    [
        ("What does the Team plan cost?", "billing-agent"),
        ("I forgot my password", "account-agent"),
        ("Was my invoice refunded?", "billing-agent"),
        ("hello", "account-agent"),
    ],
)
def test_a_task_goes_to_whom_it_shares_most_words_with(task, who):
    """Endings do not matter; a tie goes to the first."""
    assert best_fit(task, WORKERS) == who
