"""Characters that nobody sees hide nothing, from no rule, on whole texts and on streams."""

import asyncio
import random
import sys
import unicodedata

import pytest

from astromesh.core.guardrails import GuardrailsEngine
from astromesh.guardrails.filters import ContentFilter
from astromesh.guardrails.pii_detection import PiiDetection
from astromesh.plugins import Deps
from astromesh.text import LONGEST_INVISIBLE_RUN, has_invisible, visible_text


def engine(plugin, **options):
    return GuardrailsEngine((), [asyncio.run(plugin.open(plugin.Options(**options), Deps()))])


PII = engine(PiiDetection)
WORDS = engine(ContentFilter, forbidden_keywords=["violence", "internal_only"])

#: Default_Ignorable_Code_Point as Unicode 16 lists it (DerivedCoreProperties.txt), and format characters of
#: hieroglyphs that older Pythons do not know
IGNORABLE = [
    0xAD, 0x34F, 0x61C, (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x200B, 0x200F),
    (0x202A, 0x202E), (0x2060, 0x206F), 0x3164, (0xFE00, 0xFE0F), 0xFEFF, 0xFFA0, (0xFFF0, 0xFFF8),
    (0x13430, 0x1343F), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
]  # fmt: skip
#: White_Space among the controls, and Prepended_Concatenation_Mark, which is seen (PropList.txt)
SPACES = {*range(0x09, 0x0E), 0x85}
SEEN = {*range(0x600, 0x606), 0x6DD, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
EVERY = sorted(
    {code for first, last in (r if isinstance(r, tuple) else (r, r) for r in IGNORABLE)
     for code in range(first, last + 1)}
    | {code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in ("Cc", "Cf")}
    - SPACES - SEEN
)  # fmt: skip


def test_what_nobody_sees_is_what_unicode_says_and_nothing_else():
    hidden = [code for code in range(sys.maxunicode + 1) if has_invisible(chr(code))]
    assert hidden == EVERY
    assert has_invisible("vertical\vtab\x00") and not has_invisible("line\nend\ttab\vé")


DATA = ["4111111111111111", "joe@example.com", "123-45-6789", "212-555-0187", "DE89370400440532013000"]
ENDS = [code for code in EVERY if not {code - 1, code + 1} <= set(EVERY)]


@pytest.mark.parametrize("data", DATA)
def test_no_such_character_anywhere_in_it_hides_personal_data(data):
    for code in ENDS:
        for at in range(1, len(data)):
            text = f"to {data[:at]}{chr(code)}{data[at:]}, please"
            assert PII.check_output(text).text == PII.check_output(f"to {data}, please").text, hex(code)


@pytest.mark.parametrize(("word", "left"), [("violence", "[REDACTED]"), ("Internal-Only", "[REDACTED]")])
def test_no_such_character_hides_a_keyword(word, left):
    for code in ENDS:
        for at in range(1, len(word)):
            text = f"no {word[:at]}{chr(code)}{word[at:]}!"
            assert WORDS.check_output(text).text == f"no {left}!", hex(code)


@pytest.mark.parametrize("data", DATA)
def test_as_many_as_are_folded_hide_nothing_between_any_two(data):
    run = "\u200b\x00\ufe0f\u2066" * (LONGEST_INVISIBLE_RUN // 4)
    assert PII.check_output(run.join(data)).text == PII.check_output(data).text


def test_what_stands_around_stays_where_it_is():
    text = "\ufe0f\u200e4111\u200e1111 1111\x001111\u200e, joe\u2066@x.de\ufe0f. ❤\ufe0f"
    assert PII.check_output(text).text == "\ufe0f\u200e[CREDIT_CARD]\u200e, [EMAIL]\ufe0f. ❤\ufe0f"
    untouched = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f 1 ❤\ufe0f\x00 @"
    assert PII.check_output(untouched).text == untouched


def test_a_text_and_where_its_characters_come_from():
    assert visible_text("a\u200b\x00b") == ("ab", [0, 3])
    long = "a" + "\u200b" * (LONGEST_INVISIBLE_RUN + 1) + "b"
    assert visible_text(long) == (long, list(range(len(long))))


PIECES = [
    *DATA, "(212) 555-0187", "+49 30 901820", "192.168.100.200", "10.0.0.1", "violence", "internal_only", "x",
    "1", " ", "  ", "_", ".", "@", "-", "+", "(", "é", "12 34 56 78 90 ",
]  # fmt: skip
RUNS = [
    "",
    "",
    "\u200b",
    "\x00",
    "\ufe0f\u200d",
    "\u2066" * LONGEST_INVISIBLE_RUN,
    "\u200e" * (LONGEST_INVISIBLE_RUN + 1),
    "\xad" * 40,
]


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("rules", [PII, WORDS], ids=["pii", "words"])
def test_texts_full_of_them_stream_as_the_whole(rules, seed):
    """Runs that are folded, runs that are too long to be, in and around what is looked for, in any pieces."""
    chance = random.Random(seed)
    plain = "".join(chance.choices(PIECES, k=chance.choice([5, 20, 60])))
    often = chance.choice([0.05, 0.3, 1.0])
    text = "".join(c + (chance.choice(RUNS) if chance.random() < often else "") for c in plain)
    size = chance.choice([1, 2, 3, 7, 40])
    gate = rules.gate("token")
    out = [gate.feed(text[i : i + size]) for i in range(0, len(text), size)]
    out.append(gate.finish())
    assert "".join(out) == rules.check_output(text).text
