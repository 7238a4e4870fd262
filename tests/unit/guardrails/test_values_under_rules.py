"""Rules on what is no plain text: parts of a request, answers in JSON, data, and messages of errors."""

from __future__ import annotations

from typing import Any

import pytest

from astromesh.core.guardrails import CheckedValue, GuardrailsEngine, filter_data, filter_error
from astromesh.errors import AstromeshError, GuardrailBlocked, InvalidInput, InvalidOutput, ProviderRejected
from astromesh.guardrails.base import CheckContext, RuleStream, Verdict
from astromesh.guardrails.filters import ContentFilter, TopicFilter
from astromesh.guardrails.limits import CostLimit, MaxLength
from astromesh.guardrails.pii_detection import PiiDetection

MAIL = PiiDetection(kinds=["email"])
CARD = PiiDetection(kinds=["credit_card"])
TOPIC = TopicFilter(forbidden_topics=["war"])
WORD = ContentFilter(forbidden_keywords=["secret"])
NUMBER = 4111111111111111


def act(kind: str, action: str, count: int = 1, stage: str = "output") -> dict[str, Any]:
    return {"stage": stage, "type": kind, "action": action, "count": count}


def nested(depth: int, value: Any = "a@b.com") -> Any:
    """A value in lists, `depth` levels deep."""
    for _ in range(depth):
        value = [value]
    return value


class OwnRule:
    """A rule of a program's own class. It notes what it is given, and leaves the first characters."""

    type = "own"
    needs_whole_text = True

    def __init__(self, characters: int) -> None:
        self.texts: list[tuple[str, CheckContext]] = []
        self._characters = characters

    def check(self, text: str, context: CheckContext) -> Verdict | None:
        self.texts.append((text, context))
        return None if len(text) <= self._characters else Verdict("redact", text[: self._characters])

    def stream(self, context: CheckContext) -> RuleStream:
        raise NotImplementedError


# -- parts of a request --------------------------------------------------------------------------------------


def test_the_texts_of_a_part_change_and_nothing_else_does() -> None:
    given = {"a@b.com": "a@b.com", "more": [{"mail": "to c@d.com"}, 5, None, True]}
    checked = GuardrailsEngine([MAIL]).check_part(given, "context")
    assert checked.value == {"a@b.com": "[EMAIL]", "more": [{"mail": "to [EMAIL]"}, 5, None, True]}
    assert checked.actions == (act("pii_detection", "redact", stage="input"),) * 2
    assert given["more"][0] == {"mail": "to c@d.com"}


def test_a_part_that_no_rule_checks_is_the_same_object() -> None:
    given = {"mail": "a@b.com"}
    assert GuardrailsEngine().check_part(given, "context").value is given
    assert GuardrailsEngine([MaxLength(max_chars=1)]).check_part(given, "metadata").value is given
    empty: dict[str, Any] = {}
    assert GuardrailsEngine([MAIL]).check_part(empty, "context") == CheckedValue(empty)


def test_a_rule_of_a_programs_own_class_checks_the_query_alone() -> None:
    engine = GuardrailsEngine([OwnRule(1)])
    assert engine.check_input("Hi").text == "H"
    assert engine.check_part({"a": "Hi"}, "context").value == {"a": "Hi"}
    assert engine.check_part({"a": "Hi"}, "metadata").value == {"a": "Hi"}


def test_a_refused_part_tells_what_was_done_before() -> None:
    with pytest.raises(GuardrailBlocked, match="help with that topic") as refused:
        GuardrailsEngine([MAIL, TOPIC]).check_part({"a": "a@b.com", "b": ["a war"]}, "metadata")
    assert refused.value.guardrail == "topic_filter"
    assert refused.value.actions == (
        act("pii_detection", "redact", stage="input"),
        act("topic_filter", "block", stage="input"),
    )


def test_a_part_may_nest_fifty_levels() -> None:
    engine = GuardrailsEngine([MAIL])
    assert engine.check_part({"a": nested(49)}, "context").value == {"a": nested(49, "[EMAIL]")}
    with pytest.raises(InvalidInput, match="context is nested more than 50 levels"):
        engine.check_part({"a": nested(50)}, "context")


def test_metadata_and_tags_that_a_rule_refuses_are_not_shown() -> None:
    engine = GuardrailsEngine([MAIL, TOPIC])
    assert engine.visible_metadata({"a": "a@b.com"}) == {"a": "[EMAIL]"}
    assert engine.visible_metadata({"a": "war", "b": "x"}) == {}
    assert engine.visible_metadata({"a": nested(60)}) == {}
    assert engine.visible_tags(("x", "a@b.com")) == ("x", "[EMAIL]")
    assert engine.visible_tags(("x", "war")) == ()


# -- answers in JSON -----------------------------------------------------------------------------------------


def test_of_an_answer_in_json_the_texts_change_and_their_actions_are_counted() -> None:
    value: dict[str, Any] = {"name": "a@b.com", "more": ["c@d.com and e@f.com", "secret", 5, 1.5, None, True]}
    checked = GuardrailsEngine((), [MAIL, WORD]).check_value(value)
    assert checked.value == {
        "name": "[EMAIL]",
        "more": ["[EMAIL] and [EMAIL]", "[REDACTED]", 5, 1.5, None, True],
    }
    assert checked.actions == (act("pii_detection", "redact", 3), act("content_filter", "redact"))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"secret": 1}, "hides a key"),
        ({"n": NUMBER}, "hides a number"),
        ([float(NUMBER)], "hides a number"),
        (nested(51, 1), "deeper than 50 levels"),
    ],
)
def test_what_a_rule_cannot_hide_in_json_is_an_error(value: Any, why: str) -> None:
    with pytest.raises(InvalidOutput, match=why):
        GuardrailsEngine((), [CARD, WORD]).check_value(value)


def test_an_answer_in_json_may_nest_fifty_levels() -> None:
    engine = GuardrailsEngine((), [MAIL])
    assert engine.check_value(nested(50)).value == nested(50, "[EMAIL]")
    assert engine.check_value({"a": {"b": nested(48)}}).value == {"a": {"b": nested(48, "[EMAIL]")}}


def test_a_rule_that_blocks_or_cuts_an_answer_in_json_is_an_error() -> None:
    block = ContentFilter(forbidden_keywords=["secret"], action="block", safe_response="No.")
    with pytest.raises(GuardrailBlocked, match=r"No\.") as refused:
        GuardrailsEngine((), [MAIL, block]).check_value({"a": "a@b.com", "b": "my secret"})
    assert refused.value.guardrail == "content_filter"
    assert refused.value.actions == (act("pii_detection", "redact"), act("content_filter", "block"))
    with pytest.raises(InvalidOutput, match="cost_limit would cut the answer"):
        GuardrailsEngine((), [CostLimit(max_tokens_per_turn=1)]).check_value(["longer than one token"])


def test_rules_know_the_cost_of_an_answer_in_json_even_where_it_has_no_text() -> None:
    seen = OwnRule(99)
    engine = GuardrailsEngine((), [seen])
    values: tuple[Any, ...] = ({"a": "b"}, [], True, 7)
    for value in values:
        engine.check_value(value, tokens_used=9, output_tokens=3)
    context = CheckContext("output", 9, 3)
    assert seen.texts == [(text, context) for text in ("a", "b", "[]", "true", "7")]


# -- data and errors -----------------------------------------------------------------------------------------


def test_data_passes_with_its_keys_and_numbers() -> None:
    engine = GuardrailsEngine((), [MAIL, CARD])
    data = {"a@b.com": ["c@d.com", NUMBER, 7, 1.5, True, None]}
    assert filter_data(engine, data) == {"[EMAIL]": ["[EMAIL]", "[CREDIT_CARD]", 7, 1.5, True, None]}
    assert filter_data(engine, ["a@b.com"], checked={"a@b.com": "known"}) == ["known"]
    assert filter_data(engine, nested(50)) == nested(50, "[EMAIL]")
    assert filter_data(engine, nested(51)) == nested(50, "…")


def test_rules_know_the_kind_of_all_data() -> None:
    seen = OwnRule(99)
    filter_data(GuardrailsEngine((), [seen]), {"key": ["text", 7]}, "tool_argument")
    assert seen.texts == [(text, CheckContext("tool_argument")) for text in ("key", "text", "7")]


def test_the_message_of_an_error_and_its_quote_pass_the_rules() -> None:
    error = ProviderRejected("no a@b.com", quote="you said c@d.com")
    filter_error(GuardrailsEngine(), error)
    assert str(error) == "no a@b.com: you said c@d.com"
    filter_error(GuardrailsEngine((), [MAIL]), error)
    assert (str(error), error.quote) == ("no [EMAIL]: you said [EMAIL]", "you said [EMAIL]")
    refused = AstromeshError("my secret")
    block = ContentFilter(forbidden_keywords=["secret"], action="block")
    filter_error(GuardrailsEngine((), [block]), refused)
    assert str(refused) == "the output rules withhold the message"
