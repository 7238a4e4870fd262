"""Which calls a rule of `approval` puts to a person."""

from __future__ import annotations

import pytest

from astromesh.config.agent import ApprovalRule
from astromesh.core.tools import ToolRegistry, approval_predicate
from astromesh.errors import InvalidManifest
from astromesh.graph.scope import Scope
from astromesh.testing import RecordingTool
from astromesh.tools.base import DeclaredTool, HumanQuestion, ToolContext, ToolPolicy
from astromesh.types import ToolCall, ToolSpec


@pytest.mark.parametrize(
    ("when", "arguments", "asks"),
    [
        ("amount > 100", {"amount": 101}, True),
        ("amount > 100", {"amount": 100}, False),
        ("amount > 100", {}, True),  # nothing slips through because an argument is missing
        ("amount > 100", {"amount": "many"}, True),
        ("amuont > 100", {"amount": 1}, True),
        ("amount|default(0) > 100", {}, False),
        ("arguments['class'] == 'first'", {"class": "first"}, True),
        ("to.country not in ['DE', 'FR']", {"to": {"country": "DE"}}, False),
        ("'{{ 1 }}' == text", {"text": "{{ 1 }}"}, True),  # values are never templates
    ],
)
def test_an_expression_over_the_arguments(when, arguments, asks):
    assert approval_predicate("pay", ApprovalRule(when=when))(arguments) is asks


@pytest.mark.parametrize(
    ("arguments", "asks"),
    [
        ({"amount": 500}, True),
        ({"amount": 5}, False),
        ({}, False),
        ({"amount": float("nan")}, True),  # what the schema cannot compare
    ],
)
def test_a_schema_that_the_arguments_fit(arguments, asks):
    schema = {"required": ["amount"], "properties": {"amount": {"minimum": 100}}}
    assert approval_predicate("pay", ApprovalRule(arguments=schema))(arguments) is asks


def test_both_must_hold_and_a_rule_that_says_nothing_names_every_call():
    both = ApprovalRule(when="amount > 1", arguments={"required": ["iban"]})
    assert [
        approval_predicate("pay", both)(given) for given in ({"amount": 2}, {"amount": 2, "iban": "x"})
    ] == [
        False,
        True,
    ]
    assert approval_predicate("pay", ApprovalRule())({}) is True


def test_what_is_no_expression_is_told_before_the_first_call():
    with pytest.raises(InvalidManifest, match=r"approval\.when of the tool pay"):
        approval_predicate("pay", ApprovalRule(when="amount >"))


def test_a_pattern_that_could_keep_us_busy_is_none():
    """As in the schemas of tools: patterns match in linear time, so they cannot look around."""
    with pytest.raises(ValueError, match="regex"):
        approval_predicate("pay", ApprovalRule(arguments={"properties": {"to": {"pattern": "(?=a)b"}}}))


class Decided:
    """A step of a durable run, whose record may hold a refusal."""

    is_fork = False

    def __init__(self, *, held: bool) -> None:
        self.held = held
        self.questions: list[str] = []

    def has_request(self, kind: str) -> bool:
        return self.held

    async def ask(self, request: HumanQuestion) -> dict[str, str]:
        self.questions.append(request.question)
        return {"decision": "deny"}

    async def record_intent(self, spec: ToolSpec) -> None: ...


@pytest.mark.parametrize(
    ("read", "held", "effect", "policy", "made"),
    [
        ((), False, "external", ToolPolicy(), True),
        (("web",), False, "external", ToolPolicy(), False),
        (("web",), False, "write", ToolPolicy(), True),
        (("web",), False, "read", ToolPolicy(), True),
        # asked before the run was taken up again, in which another branch is slower to read
        ((), True, "external", ToolPolicy(), False),
        # a rule that does not name the call does not take it out of the other one
        (("web",), False, "external", ToolPolicy(approval="required", approve_if=lambda _: False), False),
        ((), False, "external", ToolPolicy(approval="required", approve_if=lambda _: False), True),
    ],
)
async def test_a_tainted_turn_acts_outside_only_with_a_persons_leave(read, held, effect, policy, made):
    tool, step, scope = RecordingTool("send"), Decided(held=held), Scope()
    scope.note_untrusted(read)
    spec = ToolSpec("send", effect=effect)
    tools = ToolRegistry().bind("bot", [DeclaredTool(spec, tool, policy)], approve_if_tainted=True)
    result = await tools.execute(ToolCall("c", "send", "{}"), ToolContext(run=scope, step=step))
    assert (len(tool.calls) == 1, result.ok, len(step.questions) == 0) == (made, made, made)
    assert all(("web" in question) is bool(read) for question in step.questions)
