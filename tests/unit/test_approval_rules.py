"""Which calls a rule of `approval` puts to a person."""

from __future__ import annotations

import pytest

from astromesh.config.agent import ApprovalRule
from astromesh.core.conditions import rule_of
from astromesh.errors import InvalidManifest


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
    assert rule_of("pay", ApprovalRule(when=when))(arguments) is asks


@pytest.mark.parametrize(
    ("arguments", "asks"), [({"amount": 500}, True), ({"amount": 5}, False), ({}, False)]
)
def test_a_schema_that_the_arguments_fit(arguments, asks):
    schema = {"required": ["amount"], "properties": {"amount": {"minimum": 100}}}
    assert rule_of("pay", ApprovalRule(arguments=schema))(arguments) is asks


def test_both_must_hold_and_a_rule_that_says_nothing_names_every_call():
    both = ApprovalRule(when="amount > 1", arguments={"required": ["iban"]})
    assert [rule_of("pay", both)(given) for given in ({"amount": 2}, {"amount": 2, "iban": "x"})] == [
        False,
        True,
    ]
    assert rule_of("pay", ApprovalRule())({}) is True


def test_what_is_no_expression_is_told_before_the_first_call():
    with pytest.raises(InvalidManifest, match=r"approval\.when of the tool pay"):
        rule_of("pay", ApprovalRule(when="amount >"))
