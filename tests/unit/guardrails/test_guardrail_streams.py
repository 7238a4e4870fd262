"""What streams joins to what the rules make of the whole, for every chunking."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astromesh.core.guardrails import GuardrailsEngine
from astromesh.guardrails.base import CheckContext
from astromesh.guardrails.filters import ContentFilter, TopicFilter
from astromesh.guardrails.limits import LOOK_BACK, CostLimit
from astromesh.guardrails.pii_detection import PiiDetection
from astromesh.guardrails.spans import SpanRule
from astromesh.plugins import Deps


def rule(plugin, **options):
    return asyncio.run(plugin.open(plugin.Options(**options), Deps()))


PII = rule(PiiDetection)
PII_DE = rule(PiiDetection, default_region="DE", kinds=["phone", "credit_card", "ssn"])
EMAIL = rule(PiiDetection, kinds=["email"])
IBAN = rule(PiiDetection, kinds=["iban"])
WORDS = rule(
    ContentFilter,
    forbidden_keywords=[
        "internal_only",
        "only us",
        "secret",
        "secret plan",
        "a a",
        "c++",
        "don't",
        "istanbul",
    ],
)
PATTERNS = rule(ContentFilter, blocked_patterns=[r"\bab{1,3}c\b", r"x.?y$", r"(?m)^\d{3}z", "b|bc"])
BOTH = rule(
    TopicFilter,
    forbidden_topics=["phone", "暴力", "straße"],
    blocked_patterns=["PHONE|EMAIL"],
    action="redact",
)
COST = rule(CostLimit, max_tokens_per_turn=40)
RULES = [PII, PII_DE, EMAIL, IBAN, WORDS, PATTERNS, BOTH, COST]

SEEDS = [
    "4111 1111 1111 1111", "378282246310005", "123-45-6789", "(212) 555-0123", "+49 30 901820",
    "555-123-4567",
    "DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432", "john.doe@example.co.uk", "a@b.com", "o'x@y.de",
    "2024-01-05", "192.168.1.1", "192.168.100.200", "internal_only",
    "Internal  Only", "secret", "secret-plan",
    "SECRET\u200bplan", "a a", "a a a", "abbc", "abbbc", "abc", "x\ny", "xy", "\n123z", "bc", "phone", "暴力",
    "Straße",
    "strasse", "c++", "2125550187", "_2125550187_", "order_2125550187",
    "__DE89370400440532013000__", "[PHONE]", "１２３-４５-６７８９", "é", "e\u0301", "ﬁ",
    "212-555-0187x5", "+1 212 555 0187 ext. 44", "Visa4111111111111111", "SSN123-45-6789is", "Tel2125550187",
    "4111 1111\n1111 1111exp12/27", "(212) 555-\r\n0187", "123-45-\n6789", "DE89 3704 0044\n0532 0130 00",
    "用户@例子.广告", "joe@例え.jp", "joe@example。com", "https://x.com/12345678901",
    "4111111111111111abcdefghi",
    "DE 89 3704 0044 0532 0130 00", "IBANDE89370400440532013000", "DE89370400440532013000EUR",
    "4111_1111_1111_1111", "123_45_6789", "212_555_0187", "011 44 20 7946 0958", "0171_1234567",
    "4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1", "8ba425e9-9119-4909-97dc-ba331d25b3fd",
    "8142513a-11111111-4111-8111-111111111111", "81425139-1119-4909-9711-033133125131",
    "2008-06-18 02:38:04.805094", "18.06.2008 - 19.06.2008", "52.520008", "0.4111111111111111", "18 06 2008",
    "171.123.45.67 - 10.20.30.40", "90210-1234", "20281211",
    "john&co@example.com", "{john}@example.com", "{{user}}@example.com", "https://x.com/a/joe@example.com",
    "don\u2019t", "don't", "\u0130stanbul", "I\u0307stanbul",
    "joe\u2066@exam\ufe0fple.com", "4111\x00 1111\u200e 1111 1111",
]  # fmt: skip
GLUE = [
    "", " ", "  ", ".", "-", "@", "+", "(", ")", "/", "_", "___", "____",
    "\n", "\u200b", "\ufe0f" * 8, "\x00" * 9, "\u00a0", " " * 9, "1", "12", "x",
    "us", ". The", "-", "..", ":", "a", "f0", ", ", " - ", "\u0307", "{", "}", "/", "&",
]  # fmt: skip
pieces = st.one_of(
    st.sampled_from(SEEDS),
    st.sampled_from(GLUE),
    st.sampled_from(SEEDS).flatmap(lambda s: st.integers(0, len(s)).map(lambda n: s[:n])),
    st.sampled_from(SEEDS).flatmap(lambda s: st.integers(0, len(s)).map(lambda n: s[n:])),
    st.text(st.sampled_from("0123456789 -.@+()abcxyzAZ"), max_size=12),
    st.text(max_size=3),
)  # fmt: skip
texts = st.lists(pieces, max_size=14).map("".join)


def chunked(text, cuts):
    places = sorted({min(c, len(text)) for c in cuts})
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def streamed(engine, chunks, mode="token", tokens_used=0):
    gate = engine.gate(mode, tokens_used=tokens_used)
    out = [gate.feed(chunk) for chunk in chunks]
    out.append(gate.finish(tokens_used=tokens_used))
    return out, gate


@pytest.mark.parametrize("checked", RULES, ids=lambda r: r.type)
@given(text=texts, cuts=st.lists(st.integers(0, 120), max_size=30), every=st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_rule_streams_what_it_makes_of_the_whole(checked, text, cuts, every):
    engine = GuardrailsEngine((), [checked])
    whole = engine.check_output(text)
    chunks = list(text) if every else chunked(text, cuts)
    out, gate = streamed(engine, chunks)
    assert "".join(out) == whole.text
    assert gate.released == whole


def test_what_one_rule_held_back_until_the_end_goes_through_the_next():
    mail = rule(PiiDetection, kinds=["email"])
    tag = rule(TopicFilter, forbidden_topics=["email"], action="redact", replacement="X")
    gate = GuardrailsEngine((), [mail, tag]).gate()
    assert [gate.feed("a@b.com"), gate.finish(), gate.released.text] == ["", "[X]", "[X]"]
    both = rule(
        ContentFilter, forbidden_keywords=["secret"], blocked_patterns=["DACT{1,5}"], replacement="REDACTED"
    )
    gate = GuardrailsEngine((), [both]).gate()
    assert [gate.feed("secret"), gate.finish(), gate.released.text] == ["", "REREDACTEDED", "REREDACTEDED"]
    assert gate.released.actions[0]["count"] == 2
    assert GuardrailsEngine((), [both]).check_output("secret").actions == gate.released.actions


@pytest.mark.parametrize(
    "text", ["x4111111111111111", "a_2125550187", "2125550187___a", "é+x@", "12345678901234567890 x"]
)
def test_what_stands_before_is_remembered(text):
    engine = GuardrailsEngine((), [rule(PiiDetection)])
    gate = engine.gate()
    assert not gate.done
    assert "".join(map(gate.feed, text)) + gate.finish() == text
    stream = rule(PiiDetection, kinds=["credit_card", "ssn"]).stream(CheckContext("output"))
    assert "".join(map(stream.feed, text)) + stream.finish() == text


EXAMPLES = {
    "email": "Mail john.doe@example.co.uk, a@b.com or " + "a" * 60 + "@" + ("1" * 60 + ".") * 5 + "com now",
    "iban": "to DE89 3704 0044 0532 0130 00 or GB82WEST12345698765432 at once",
    "phone": "Call (212) 555-0123, +49 30 901820 or 555-123-4567 now",
    "ssn": "It is 123-45-6789, not 123-45-67890 12 34",
    "credit_card": "Pay with 4111 1111 1111 1111 or 378282246310005 " + "12 34 56 78 90 " * 40,
}


@pytest.mark.parametrize("kinds", [*([kind] for kind in EXAMPLES), list(EXAMPLES)], ids=" ".join)
def test_personal_data_that_arrives_letter_by_letter_is_found(kinds):
    checked = rule(PiiDetection, kinds=kinds)
    engine = GuardrailsEngine((), [checked])
    for kind in kinds:
        whole = engine.check_output(EXAMPLES[kind])
        out, gate = streamed(engine, EXAMPLES[kind])
        assert "".join(out) == whole.text
        assert gate.released == whole
        assert f"[{kind.upper()}]" in whole.text


@pytest.mark.parametrize(
    ("kind", "free", "held"),
    [
        ("email", ["? ", "! "], ["a", "a@", "1"]),
        ("iban", ["12 ", "a@ ", "__"], ["D", "DE8", "GB82 W"]),
        ("phone", ["ab ", "a@b ", "__"], ["1", "+", "(", "+1 (", "1___"]),
        ("ssn", ["ab ", "a@b "], ["1", "12-"]),
        ("credit_card", ["ab ", "a@b "], ["4", "41 "]),
    ],
)
def test_only_what_may_become_something_is_held_back(kind, free, held):
    engine = GuardrailsEngine((), [rule(PiiDetection, kinds=[kind])])
    assert [engine.gate().feed(text) for text in free] == free
    assert [engine.gate().feed(text) for text in held] == [""] * len(held)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("secret ", ""),
        ("secret p", ""),
        ("secret x", "[REDACTED] x"),
        ("secrets", "secrets"),
        ("top sec", "top "),
        ("sec ond", "sec ond"),
        ("tosecre", "tosecre"),
        ("se\u200bc", ""),
        ("é se", "é "),
        ("ﬁ sec", "ﬁ "),
    ],
)
def test_only_what_may_become_a_word_is_held_back(text, left):
    engine = GuardrailsEngine((), [rule(ContentFilter, forbidden_keywords=["secret", "secret plan"])])
    assert engine.gate().feed(text) == left
    assert "".join(streamed(engine, text)[0]) == engine.check_output(text).text


@given(
    text=texts,
    cuts=st.lists(st.integers(0, 200), max_size=30),
    rules=st.lists(st.sampled_from(RULES), max_size=4),
    mode=st.sampled_from(["token", "sentence", "final"]),
    used=st.integers(0, 45),
)
@settings(max_examples=600, deadline=None)
def test_rules_in_sequence_stream_what_they_make_of_the_whole(text, cuts, rules, mode, used):
    engine = GuardrailsEngine((), rules)
    whole = engine.check_output(text, tokens_used=used)
    out, gate = streamed(engine, chunked(text, cuts), mode, used)
    assert "".join(out) == whole.text
    assert gate.released == whole


@given(text=texts, more=texts, rules=st.lists(st.sampled_from(RULES), min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_what_left_is_right_whatever_comes_next(text, more, rules):
    """The released part is a prefix of what the rules make of any continuation."""
    engine = GuardrailsEngine((), rules)
    left = engine.gate("token").feed(text)
    assert engine.check_output(text + more).text.startswith(left)


@pytest.mark.parametrize("checked", RULES, ids=lambda r: r.type)
@given(
    st.lists(st.text(st.sampled_from("0123456789 -a.@"), min_size=1, max_size=40), max_size=60).map("".join)
)
@settings(max_examples=60, deadline=None)
def test_hold_back_is_bounded(checked, text):
    bound = (
        sum(s.max_lookahead or 0 for s in checked.scanners) if isinstance(checked, SpanRule) else LOOK_BACK
    )
    gate = GuardrailsEngine((), [checked]).gate("token")
    for fed, char in enumerate(text, 1):
        gate.feed(char)
        left = gate.released
        if not left.actions:
            assert fed - len(left.text) <= 2 * bound


TABLE = [
    "4111 1111 1111 1111", "4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1", "4111 - 1111 - 1111 - 1111", "378282246310005",
    "6011 0009 9013 9424", "123-45-6789", "212 555 0123", "(212) 555-0123", "030 901820", "0171 1234567",
    "192.168.100.200", "171.123.45.67",
    *(str(n) for n in range(12)), "17", "2024", "555", "123", "4567", "4111", "1111",
]  # fmt: skip
LONG = (
    "0 1 2 3 4 5 6 7 8 9 " * 60 + "12 34 56 78 90 " * 60 + "ab@" * 500
    + "a" * 900 + "@b.de " + "1" * 800 + " 4111111111111111"
)  # fmt: skip


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("checked", RULES, ids=lambda r: r.type)
def test_texts_longer_than_any_window_stream_the_same(checked, size):
    engine = GuardrailsEngine((), [checked])
    out, _ = streamed(engine, [LONG[i : i + size] for i in range(0, len(LONG), size)])
    assert "".join(out) == engine.check_output(LONG).text


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("checked", [PII, PII_DE], ids=["US", "DE"])
def test_long_tables_of_numbers_stream_the_same(checked, seed):
    """Numbers that might begin a card or a phone number follow one another without end."""
    chance = random.Random(seed)
    table = " ".join(chance.choice(TABLE) for _ in range(300))
    size = chance.choice([1, 2, 5, 40])
    engine = GuardrailsEngine((), [checked])
    out, _ = streamed(engine, [table[i : i + size] for i in range(0, len(table), size)])
    whole = engine.check_output(table)
    assert "".join(out) == whole.text
    assert whole.actions[0]["count"] > 20
