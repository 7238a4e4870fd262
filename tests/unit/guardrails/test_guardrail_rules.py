"""The five rules of document 001: what each finds, what it does, and what is wrong with its options."""

import asyncio
import re
import sys
from typing import Any

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import PrivateAttr, ValidationError

from astromesh.core.guardrails import CheckedText, GuardrailsEngine, filter_data
from astromesh.errors import GuardrailBlocked
from astromesh.guardrails.base import CheckContext
from astromesh.guardrails.filters import (
    ContentFilter,
    Keywords,
    TopicFilter,
    fold,
    origins,
    validate_pattern,
    widest_match,
)
from astromesh.guardrails.limits import LOOK_BACK, CostLimit, MaxLength, cut_at
from astromesh.guardrails.pii_detection import PiiDetection
from astromesh.guardrails.pii_formats import IBAN_LENGTHS, is_card, luhn, mod_97
from astromesh.plugins import Deps, Plugins

PLUGINS: dict[str, Any] = {name: Plugins().load("guardrails", name) for name in Plugins().names("guardrails")}


def rule(plugin, **options):
    return asyncio.run(plugin.open(plugin.Options(**options), Deps()))


def output(checked, text, **tokens):
    return GuardrailsEngine((), [checked]).check_output(text, **tokens).text


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_every_rule_is_a_plugin_of_its_name_and_describes_its_options(name):
    assert PLUGINS[name].type == name
    schema = PLUGINS[name].Options.model_json_schema()
    assert schema["additionalProperties"] is False
    assert all(option.get("description") for option in schema["properties"].values())


# -- pii_detection -----------------------------------------------------------------------------------------

PII = rule(PiiDetection)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("Mail john.doe+tag@mail.example.co.uk.", "Mail [EMAIL]."),
        ("o'brien@example.com, 'x@example.com'", "[EMAIL], '[EMAIL]'"),
        ("<jürgen@müller.de>", "<[EMAIL]>"),
        ("我的邮箱是john@example.com谢谢", "我的邮箱是[EMAIL]谢谢"),
        ("john＠example.com", "[EMAIL]"),
        ("mailto:a@b.io?x=1", "mailto:[EMAIL]?x=1"),
        ("Xavier@example.com", "[EMAIL]"),
        ("...a@b.io.", "...[EMAIL]."),
        ("Call (212) 555-0123 now", "Call [PHONE] now"),
        ("Call 555-123-4567.", "Call [PHONE]."),
        ("212.555.0123, 1-800-356-9377", "[PHONE], [PHONE]"),
        ("+1 (415) 555-2671 or +49 30 901820", "[PHONE] or [PHONE]"),
        ("+1\u2011415\u2011555\u20112671", "[PHONE]"),
        ("+44\u00a020\u202f7946\u00a00958", "[PHONE]"),
        ("0049 30 901820", "[PHONE]"),
        ("+1234567890", "[PHONE]"),
        ("(call 212-555-0123)", "(call [PHONE])"),
        ("2125550123", "[PHONE]"),
        ("555-123-4567 212-555-0123", "[PHONE] [PHONE]"),
        ("SSN 123-45-6789, 123 45 6789", "SSN [SSN], [SSN]"),
        ("１２３-４５-６７８９", "[SSN]"),
        ("١٢٣-٤٥-٦٧٨٩", "[SSN]"),
        ("4111 1111 1111 1111 exp 12/25", "[CREDIT_CARD] exp 12/25"),
        ("4111-1111-1111-1111", "[CREDIT_CARD]"),
        ("4111.1111.1111.1111", "[CREDIT_CARD]"),
        ("4111111111111111", "[CREDIT_CARD]"),
        ("3782 822463 10005", "[CREDIT_CARD]"),
        ("卡号4111111111111111。", "卡号[CREDIT_CARD]。"),
        ("12345 4111 1111 1111 1111 9", "12345 [CREDIT_CARD] 9"),
        ("DE89 3704 0044 0532 0130 00 please", "[IBAN] please"),
        ("GB82WEST12345698765432", "[IBAN]"),
        ("gb82 west 1234 5698 7654 32", "[IBAN]"),
        ("4111111111111111@example.com", "[EMAIL]"),
        ("4111 1111 1111 1111.john@example.com", "[CREDIT_CARD].[EMAIL]"),
        (f"212-555-0123-{'a' * 61}@x.de", "212-555-01[EMAIL]"),
        ("DE８９ ３７０４ ００４４ ０５３２ ０１３０ ００", "[IBAN]"),
        ("ＤＥ89370400440532013000 and ｇｂ82ＷＥＳＴ12345698765432.", "[IBAN] and [IBAN]."),
        ("DE٨٩٣٧٠٤٠٠٤٤٠٥٣٢٠١٣٠٠٠", "[IBAN]"),
        ("D\u200bE89\u00ad370400 \u200b440532013000", "[IBAN]"),
        ("123\u200b-45-6789, 1\u200d23-45\ufeff-67\u206089", "[SSN], [SSN]"),
        ("b\u200bob@exam\u200bple.com", "[EMAIL]"),
        ("(\u200bbob\u200b@\u200bexample\u2060.\u2060c\u00adom)", "(\u200b[EMAIL])"),
        ("bob＠example．com, ｂｏｂ．ｌ＠ｅｘａｍｐｌｅ１．ｃｏｍ", "[EMAIL], [EMAIL]"),
        ("4111\u200b1111 1111\u200b11\u200c11, 21\u200b2-555-01\u200b87", "[CREDIT_CARD], [PHONE]"),
    ],
)
def test_personal_data_is_redacted_however_it_is_written(text, redacted):
    assert output(PII, text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112",  # Luhn
        "DE89 3704 0044 0532 0130 01",  # mod 97
        "XX89 3704 0044 0532 0130 00",
        "000-45-6789", "666-45-6789", "912-45-6789", "123-00-6789", "123-45-0000",
        "2024-01-05 12:30:00", "05.01.2024 10", "192.168.100.200",
        "10.0.0.1:8080",
        "order 1234567890", "3.14159265358979", "1700000000", "1,234,567,890.12",
        "1 2 3 4 5 6 7 8 9 10 11 12",
        "id 550e8400-e29b-41d4-a716-446655440000", "x4111111111111111", "a@b", "@user",
        "user@localhost", "12:30",
        "v1.2.3-4", "9" * 40, "", "no data at all",
    ],
)  # fmt: skip
def test_what_only_looks_like_personal_data_stays(text):
    assert PII.check(text, CheckContext("output")) is None


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("_4111 1111 1111 1111_", "_[CREDIT_CARD]_"),
        ("**_4111 1111 1111 1111_**", "**_[CREDIT_CARD]_**"),
        ("card_4111111111111111.", "card_[CREDIT_CARD]."),
        ("4111111111111111_", "[CREDIT_CARD]_"),
        ("_123-45-6789_, ___123-45-6789___", "_[SSN]_, ___[SSN]___"),
        ("ssn_123-45-6789", "ssn_[SSN]"),
        ("_212-555-0187_ or _(212) 555-0187_", "_[PHONE]_ or _[PHONE]_"),
        ("_2125550187_ __+12125550187__ _____2125550187_____", "_[PHONE]_ __[PHONE]__ _____[PHONE]_____"),
        ("_212 555 0123", "_[PHONE]"),
        ("user_212-555-0187, tel_+12125550187", "user_[PHONE], tel_[PHONE]"),
        ("__DE89370400440532013000__", "__[IBAN]__"),
        ("_DE89 3704 0044 0532 0130 00_", "_[IBAN]_"),
        ("iban_GB82WEST12345698765432", "iban_[IBAN]"),
    ],
)
def test_underscores_hide_no_number(text, redacted):
    """Markdown's italics, and names of fields before a value."""
    assert output(PII, text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "order_4111111111111111x", "order_a4111111111111111", "sha_1234567890", "order_2125550187",
        "2125550187_copy", "a__2125550187__b", "v_212_555", "v_212_555_0187",
        "run_01HQ3K5V7W9X1Y2Z3A4B5C6D7E",
        "run_01J8XAVZ4Q5T6H7J8K9M0N1P2Q_2125550187", "id_0049301234567",
        "img_2024-01-05_120000", "_2024-01-05_",
        "_192.168.100.200_", "req_550e8400-e29b-41d4-a716-446655440000", "__init__", "_1_", "2_000_000",
        "sha256_9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "obj_507f1f77bcf86cd799439011",
    ],
)  # fmt: skip
def test_names_with_underscores_and_digits_stay(text):
    assert PII.check(text, CheckContext("output")) is None


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        # extensions of phone numbers
        ("212-555-0187x5, (212)555-0187x5", "[PHONE]x5, [PHONE]x5"),
        ("001-212-555-0187x12345 or +1 212 555 0187ext.44", "[PHONE]x12345 or [PHONE]ext.44"),
        ("2125550187 x5, 212-555-0187Ext 5", "[PHONE] x5, [PHONE]Ext 5"),
        # words that touch what a check digit or a form confirms, or that say what it is
        ("SSN123-45-6789, 123-45-6789is", "SSN[SSN], [SSN]is"),
        ("Visa4111111111111111", "Visa[CREDIT_CARD]"),
        ("Mastercard5555555555554444is mine", "Mastercard[CREDIT_CARD]is mine"),
        ("4111 1111 1111 1111exp12/27", "[CREDIT_CARD]exp12/27"),
        ("Tel2125550187, phone212-555-0187", "Tel[PHONE], phone[PHONE]"),
        # addresses in scripts without spaces, and their full stop
        ("用户@example.com", "[EMAIL]"),
        ("joe@例子.广告, joe@例え.jp", "[EMAIL], [EMAIL]"),
        ("joe@example。com", "[EMAIL]"),
        ("请发到joe@example.com。谢谢大家", "请发到[EMAIL]。谢谢大家"),
        ("请发到joe@example.com。OK", "请发到[EMAIL]。OK"),
        # a line that ends within
        ("4111 1111\n1111 1111", "[CREDIT_CARD]"),
        ("4111-1111-\r\n1111-1111, 3782\n822463 10005", "[CREDIT_CARD], [CREDIT_CARD]"),
        ("(212) 555-\n0187 or 212-\n555-0187 or (212)\n555-0187", "[PHONE] or [PHONE] or [PHONE]"),
        ("123-45-\n6789", "[SSN]"),
        ("DE89 3704 0044\n0532 0130 00", "[IBAN]"),
        ("DE89 3704 0044\r\n0532 0130 00", "[IBAN]"),
        ("https://wa.me/12125550187", "https://wa.me/[PHONE]"),
    ],
)  # fmt: skip
def test_ordinary_spellings_hide_nothing(text, redacted):
    assert output(PII, text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "212-555-0187h", "2125550187x", "2125550187ab", "a123-45-6789", "ab14111111111111111",
        "4111111111111111ab1", "id4111111111111111x",
        "212\n555\n0187", "212 555\n0187", "100\n200\n3000", "123\n45\n6789", "123-45\n6789",
        "123-\n45-\n6789",
        "4111\n1111\n1111\n1111", "41111111\n11111111", "4111 1111\n\n1111 1111",
        "DE89\n3704\n0044\n0532\n0130\n00",
        "https://x.com/12345678901", "https://shop.example/orders/2125550187", "谢谢@小明。你好",
        "谢谢@joe。OK", "价格@100.50", "joe@。com",
    ],
)  # fmt: skip
def test_what_has_another_shape_stays(text):
    assert PII.check(text, CheckContext("output")) is None


@pytest.mark.parametrize("number", ["4111 1111 1111 1111", "123-45-6789", "DE89 3704 0044 0532 0130 00"])
def test_there_is_no_phone_inside_a_card_an_ssn_or_an_iban(number):
    found = PII.check(f"a {number} b", CheckContext("output"))
    assert "[PHONE]" not in found.text
    assert found.count == 1


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("email", "[EMAIL] 123-45-6789 (212) 555-0123 4111 1111 1111 1111 DE89 3704 0044 0532 0130 00"),
        ("ssn", "a@b.com [SSN] (212) 555-0123 4111 1111 1111 1111 DE89 3704 0044 0532 0130 00"),
        ("phone", "a@b.com 123-45-6789 [PHONE] 4111 1111 1111 1111 DE89 3704 0044 0532 0130 00"),
        ("credit_card", "a@b.com 123-45-6789 (212) 555-0123 [CREDIT_CARD] DE89 3704 0044 0532 0130 00"),
        ("iban", "a@b.com 123-45-6789 (212) 555-0123 4111 1111 1111 1111 [IBAN]"),
    ],
)
def test_only_the_chosen_kind_is_looked_for(kind, found):
    text = "a@b.com 123-45-6789 (212) 555-0123 4111 1111 1111 1111 DE89 3704 0044 0532 0130 00"
    assert output(rule(PiiDetection, kinds=[kind]), text) == found


def test_the_region_says_what_a_local_number_is():
    german = rule(PiiDetection, default_region="DE")
    assert output(german, "030 901820 und 15.03.2024") == "[PHONE] und 15.03.2024"
    none = rule(PiiDetection, default_region="")
    assert output(none, "(212) 555-0123, +12125550123") == "(212) 555-0123, [PHONE]"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("+1234567890", "[PHONE]"),
        ("+4999999999999", "[PHONE]"),  # 49: Germany
        ("+3769999999", "[PHONE]"),  # 376: Andorra
        ("+491234567890123", "[PHONE]"),  # fifteen digits are the most (ITU-T E.164)
        ("+4912345678901234", "+4912345678901234"),
        ("+9991234567", "+9991234567"),  # nobody's code
        ("+499999999", "+499999999"),  # in no plan, and short
        ("+6834000", "[PHONE]"),  # Niue; seven digits are the least
        ("+683 400", "+683 400"),
        ("+376312345", "[PHONE]"),  # short, and in Andorra's plan
    ],
)
def test_behind_a_plus_a_number_need_only_look_like_one(text, redacted):
    assert output(rule(PiiDetection, kinds=["phone"], default_region=""), text) == redacted


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        *((number, "[PHONE]") for number in (
            "2125550123", "12125550123", "212 5550123", "212555 0123", "1 212 555 0123", "1 2125550123",
            "1 212 5550123", "1212 555 0123", "212  555  0123", "212   555   0123", "( 212) 555-0123",
            "212/555/0123", "+ 1 212 555 0123", "+(1) 212 555 0123", "＋1 212 555 0123", "0012125550123",
            "00 1 212 555 0123", "1.2125550123", "(1) 212 555 0123", "1-555-123-4567",
        )),
        *((number, number) for number in (
            "21 25 55 01 23", "212    555 0123", "[212] 555-0123", "x212 555 0123", "212 555 0123x",
            "212 555 01234", "5550123", "555 0123", "2125550123.5", "0.2125550123",
            "5,2125550123", "at 0.2125550123", "2125550123.55 m", "05.01.2024", "911",
        )),
        ("(212 555-0123", "([PHONE]"),
        ("(212 555-0123 (home)", "([PHONE] (home)"),
        ("+  1 212 555 0123", "+  [PHONE]"),
        ("+1 212 555 0123 4", "[PHONE] 4"),
        (",2125550123.", ",[PHONE]."),
        ("2024-01-05 212 555 0123", "2024-01-05 [PHONE]"),
        ("3 212 555 0123", "3 [PHONE]"),
        ("212 555 0123 212 555 0124", "[PHONE] [PHONE]"),
        ("+1 212 555 0123 +49 30 901820", "[PHONE] [PHONE]"),
        ("212 555 0123 4567", "[PHONE] 4567"),
    ],
)  # fmt: skip
def test_a_local_number_is_what_the_forms_of_its_region_allow(text, redacted):
    assert output(rule(PiiDetection, kinds=["phone"]), text) == redacted


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        *((number, "[PHONE]") for number in (
            "030 901820", "030901820", "(030) 901820", "0171 1234567", "+49 171 1234567", "0049 171 1234567",
            "00 49 171 1234567", "49 171 1234567", "030-901820", "030/901820", "0800 3301000", "030 9 01820",
            "030 90 18 20", "00493012345678901", "00492123456789012",
        )),
        *((number, number) for number in (
            "901820", "030 9 0 1 8 2 0", "030 90 1 820", "02.01.2024", "2010-01-01",
            "10.0.0.1", "192.168.100.200", "171.123.45.67", "171.123.45.67:8080",
            "Host 192.168.100.200, port 22", "10.20.30.255.",
        )),
        ("192.168.100.200 030 901820", "192.168.100.200 [PHONE]"),
        ("171.123.45.678", "[PHONE]"),
        ("030 90 18 2 0", "[PHONE] 2 0"),
        ("030.901820", "[PHONE]"),
    ],
)  # fmt: skip
def test_elsewhere_a_local_number_is_in_the_plan_and_in_no_address(text, redacted):
    assert output(rule(PiiDetection, kinds=["phone"], default_region="DE"), text) == redacted


@pytest.mark.parametrize(
    "number", ["01 42 68 53 00", "1 42 68 53 00", "33 1 42 68 53 00", "0142685300", "+33 1 42 68 53 00"]
)
def test_the_prefix_of_the_country_or_of_the_nation_may_be_there(number):
    french = rule(PiiDetection, kinds=["phone"], default_region="FR")
    assert output(french, f"au {number}, vite") == "au [PHONE], vite"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        *((number, "[CREDIT_CARD]") for number in (
            "501111111115", "6211111111111111116", "4111111111111111110", "4111111111119",
            "4111   1111   1111   1111",
        )),
        *((number, number) for number in (
            "50111111113", "62111111111111111119", "4111    1111 1111 1111", "x4111 1111 1111 1111",
            "4111 1111 1111 1111x",
        )),
        ("4111 1111 1111 1111 1111", "[CREDIT_CARD] 1111"),
        ("1 4111 1111 1111 1111", "1 [CREDIT_CARD]"),
        ("4222222222222 222", "[CREDIT_CARD] 222"),
    ],
)  # fmt: skip
def test_a_card_has_twelve_to_nineteen_digits(text, redacted):
    assert output(rule(PiiDetection, kinds=["credit_card"]), text) == redacted


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        *((number, "[SSN]") for number in (
            "001-01-0001", "899-99-9999", "665-01-0001", "667-01-0001", "123--45--6789",
        )),
        *((number, number) for number in (
            "900-01-0001", "123-45 6789", "123 45-6789", "1234-45-6789", "123-456-6789", "123-45-67890",
            "x123-45-6789", "123-45-6789x", "123    45    6789", "123-45", "123-45-",
        )),
        ("123-45-6789-1", "[SSN]-1"),
        ("1-123-45-6789", "1-[SSN]"),
    ],
)  # fmt: skip
def test_a_social_security_number_has_one_form(text, redacted):
    assert output(rule(PiiDetection, kinds=["ssn"]), text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        # decimal numbers and coordinates
        "0.6367212770611759", "603.6959159545229", "495.5853569643314", "0.378282246310005",
        "3.4111111111111111", "46.63608630376669, 100.67155061880516", "829.0049783315659",
        "[0.7615744042808226, 0.6100496028717136]", "41111111.11111111",
        # numbers in groups of three, a row of pairs, a row of digits
        "688 445 981 367 440", "567.530.872.801", "656 282 787 039 370", "130 004 776 504 275",
        "54 56 56 32 53 46 83 71", "0 4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1", "4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 2",
        # dates and IP addresses beside one another
        "24.10.2016 - 27.12.2017", "24/10/2016-27/12/2017", "12/30/2019 - 12/31/2020",
        "235.131.4.178 - 245.128.171.91", "45.197.105.160 74.232.183.142", "59.168.201.243/255.255.255.0",
        # several separators, and groups of no card
        "4111-1111 1111-1111", "4111 1111-1111 1111", "41 1111 1111 1111 11",
        # UUIDs that hold the check digits of an IBAN or a card
        "be427dbc-677e-42e6-a553-083cae9dedf2", "a73ba5e9-d9d2-47f3-be16-2fcbf30c997f",
        "0a1b2c3d-0a1b-4c3d-8a1b-501111111115",
    ],
)  # fmt: skip
def test_numbers_of_every_day_are_no_cards(text):
    """Each has a network's prefix and Luhn's check digit, in groups in which nobody writes a card."""
    assert PII.check(text, CheckContext("output")) is None


@pytest.mark.parametrize(
    "number",
    [
        "4111 1111 1111 1111", "4111-1111-1111-1111", "4111\u00a01111\u00a01111\u00a01111",
        "4111\u20111111\u20111111\u20111111", "4111/1111/1111/1111", "4111 - 1111 - 1111 - 1111",
        "4111\u00a01111 1111 1111", "4111_1111_1111_1111", "41111111 11111111",
        "4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1",
        "3782-822463-10005", "3782 8224 6310 005", "3056 930902 5904", "3056 9309 0259 04",
        "6211 1111 1111 1111 116", "621111 1111111111116", "4222 222 222 222", "2200 1234 5678 9019",
        "9792 0300 0000 0000",
    ],
)  # fmt: skip
def test_a_card_is_written_in_groups_with_one_kind_of_separator(number):
    assert output(rule(PiiDetection, kinds=["credit_card"]), f"card {number}.") == "card [CREDIT_CARD]."


@pytest.mark.parametrize(
    ("region", "text", "shown"),
    [
        ("FR", "06 12 34 12 05 2024-05-01", "[PHONE] 2024-05-01"),
        ("FR", "06 12 34 12 05 2024", "[PHONE] 2024"),
        ("FR", "01\u202f23\u202f45\u202f30 01 2024", "[PHONE] 2024"),
        ("DE", "0171 12 05 2024", "[PHONE]"),
        ("DE", "0171/12 05 2024", "[PHONE]"),
        ("FR", "le 12 05 2024", "le 12 05 2024"),
        ("DE", "am 12 05 2024", "am 12 05 2024"),
    ],
)
def test_the_last_groups_of_a_number_are_no_date(region, text, shown):
    """A day, a month and a year with blanks are one where no digits stand before them."""
    assert output(rule(PiiDetection, kinds=["phone"], default_region=region), text) == shown


@pytest.mark.parametrize("region", ["US", "DE", "FR", "GB"])
@pytest.mark.parametrize(
    "text",
    [
        *(f"{date}{rest}" for date in ("2008-06-18", "2011-09-28", "2023-09-22") for rest in (
            " 02:38:04.805094", " 12:30:45.123456", f" - {date}", f"..{date}", f"/{date}", f" {date}",
            "-57289", "-001-4444",
        )),
        *(f"{day}.2018{rest}" for day in ("18.06", "22.09", "15.12") for rest in (
            " 08.34", f" - {day}.2019", f"-{day}.2019",
        )),
        "18.06.-18.06.2008", "15.12.-15.12.1998", "22.09.-22.09.2023", "18 06 2008", "22 09 2023",
        "20281211", "20240115123045", "lat 52.520008, lon 13.404954", "52.520008 13.404954", "90210-1234",
        "8ba425e9-9119-4909-97dc-ba331d25b3fd", "550e8400-e29b-41d4-a716-446655440000",
        "192.168.100.200 - 171.123.45.67", "171.123.45.67/255.255.255.0",
    ],
)  # fmt: skip
def test_dates_decimals_and_addresses_are_no_phone_numbers_anywhere(text, region):
    assert rule(PiiDetection, default_region=region).check(text, CheckContext("output")) is None


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("am 18.06.2018 030 901820", "am 18.06.2018 [PHONE]"),
        ("030 901820 18.06.2018", "[PHONE] 18.06.2018"),
        ("12:30 030 901820", "12:30 [PHONE]"),
        ("52.520008 030 901820", "52.520008 [PHONE]"),
        ("171.123.45.67 - 0171 1234567", "171.123.45.67 - [PHONE]"),
        ("03012-3456", "[PHONE]"),
        ("0171_1234567", "[PHONE]"),
        ("20240115_120000", "20240115_120000"),
    ],
)
def test_a_number_beside_a_date_is_found(text, redacted):
    assert output(rule(PiiDetection, kinds=["phone"], default_region="DE"), text) == redacted


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("011 44 20 7946 0958", "[PHONE]"),
        ("011442079460958", "[PHONE]"),
        ("212_555_0187", "[PHONE]"),
        ("tel: 1_212_555_0187.", "tel: [PHONE]."),
        ("123_45_6789", "[SSN]"),
        ("v_123_45_6789", "v_123_45_6789"),
        ("212_555_0187_2", "212_555_0187_2"),
        ("card_4111_1111_1111_1111", "card_[CREDIT_CARD]"),
        ("212_555-0187", "212_555-0187"),
    ],
)
def test_underscores_join_the_groups_of_a_number(text, redacted):
    assert output(PII, text) == redacted


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("DE 89 3704 0044 0532 0130 00", "[IBAN]"),
        ("an DE 89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000.", "an [IBAN]."),
        ("GB 82 WEST 1234 5698 7654 32", "[IBAN]"),
        ("IBANDE89370400440532013000", "IBAN[IBAN]"),
        ("ibanDE89 3704 0044 0532 0130 00", "iban[IBAN]"),
        ("DE89370400440532013000EUR, DE89 3704 0044 0532 0130 00bitte", "[IBAN]EUR, [IBAN]bitte"),
        *((text, text) for text in (
            "DE 89370400440532013000", "DE 89 37040044 0532 0130 00", "DE 89 3704-0044 0532 0130 00",
            "MYIBANDE89370400440532013000", "DE89370400440532013000A", "DE89370400440532013000EUR1",
            "no 83 that were left", "DE  89 3704 0044 0532 0130 00",
        )),
    ],
)  # fmt: skip
def test_an_iban_is_found_in_the_spellings_of_forms_and_tables(text, redacted):
    assert output(rule(PiiDetection, kinds=["iban"]), text) == redacted


def test_a_sentence_is_no_iban():
    """Letters of four and a length that fits are not enough, though the check digits are right."""
    words = ["ours", "that", "were", "left"]
    check = next(n for n in range(2, 99) if mod_97(f"NO{n:02}" + "".join(words)[:11]))
    text = f"no {check:02} ours that wer"
    assert mod_97(text.replace(" ", "").upper())
    assert output(rule(PiiDetection, kinds=["iban"]), text) == text


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        # RFC 5322's atext
        ("john&co@example.com", "[EMAIL]"),
        ("john!doe@example.com, j*n@example.com", "[EMAIL], [EMAIL]"),
        ("john/doe@example.com", "[EMAIL]"),
        ("a$b^c#d@example.com", "[EMAIL]"),
        ("#john#@example.com", "#[EMAIL]"),
        ("{john}@example.com", "[EMAIL]"),
        ("john{x}y@example.com", "[EMAIL]"),
        # Markdown, templates, links, lists
        ("*john@example.com*", "*[EMAIL]*"),
        ("**john@example.com**", "**[EMAIL]**"),
        ("# john@example.com", "# [EMAIL]"),
        ("{john@example.com}", "{[EMAIL]}"),
        ("\\\\email{john@example.com}", "\\\\email{[EMAIL]}"),
        ("{{user}}@example.com, {{ user }}@example.com", "{{user}}@example.com, {{ user }}@example.com"),
        ("{{john@example.com}}", "{{[EMAIL]}}"),
        ("https://x.com/?a=1&to=john@example.com&b=2", "https://x.com/?a=1&to=[EMAIL]&b=2"),
        ("https://x.com/john@example.com", "https://x.com/[EMAIL]"),
        ("/home/john@example.com", "/home/[EMAIL]"),
        ("a@example.com/b@example.com", "[EMAIL]/[EMAIL]"),
        ("a@example.com&b@example.com", "[EMAIL]&[EMAIL]"),
        ("|john@example.com|ann@example.com|", "|[EMAIL]|[EMAIL]|"),
        ("`john@example.com`", "`[EMAIL]`"),
        ("&lt;john@example.com&gt;", "&lt;[EMAIL]&gt;"),
    ],
)  # fmt: skip
def test_an_address_has_the_signs_that_it_may_have_and_none_of_what_is_around(text, redacted):
    assert output(rule(PiiDetection, kinds=["email"]), text) == redacted


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ('"john doe"@example.com', "[EMAIL]"),
        ('Mail "ann.b"@example.org now', "Mail [EMAIL] now"),
        ('"a \\"b\\" c"@example.com', "[EMAIL]"),
        ("to=ann%40example.com&x=1", "to=[EMAIL]&x=1"),
        ("ann%2Eb%2Bnews%40mail%2eexample%2Ecom", "[EMAIL]"),
        ("ssn:123456789, SSN 123456789.", "ssn:[SSN], SSN [SSN]."),
        ('{"ssn": "123456789"}', '{"ssn": "[SSN]"}'),
        ("My social security number is 123456789", "My social security number is [SSN]"),
        (
            "ＳＳＮ：１２３４５６７８９, SSN – 123456789, ssn-123456789",
            "ＳＳＮ：[SSN], SSN – [SSN], ssn-[SSN]",
        ),
        ("ssn: 123-456789, ssn: 12345-6789", "ssn: [SSN], ssn: [SSN]"),
        (
            'userSsn=123456789, {"social_security_number": "123456789"}',
            'userSsn=[SSN], {"social_security_number": "[SSN]"}',
        ),
        ("ann@163.com.png, ann@mail.example.com.pdf", "[EMAIL].png, [EMAIL].pdf"),
    ],
)
def test_quoted_and_encoded_addresses_and_numbers_behind_their_name_are_found(text, redacted):
    assert output(PII, text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "100%40 off", "50%4000", "a%40b", "%40example", "x%40 example.com", '"x"@y', '"a" @example.com',
        'He said "hi" @ 5 p.m.', 'the "best"@home', "order 123456789", "ref:123456789", "assn:123456789",
        "ssn:1234567890", "ssn:000456789", "ssn: 12345678", "ssn:123456789a", "ssn count 123456789",
        "session 123456789", "icon@2x.png", "img/AppIcon-60@2x~ipad.PNG",
        "bg@1.5x.webp?v=3", "lodash@4.17.21.tgz", "vue@3.prod.js",
        "passns: 123456789", "ssn 12-3456789", "classn: 123-456789",
    ],
)  # fmt: skip
def test_what_only_resembles_these_spellings_stays(text):
    assert PII.check(text, CheckContext("output")) is None


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("212-555-0187 030 901820", "[PHONE] [PHONE]"),
        ("030 901820 212-555-0187", "[PHONE] [PHONE]"),
        ("030 901820 030 901820 030 901820", "[PHONE] [PHONE] [PHONE]"),
        ("030 90 18 20", "[PHONE]"),
    ],
)
def test_two_phone_numbers_beside_each_other_are_two(text, redacted):
    assert output(rule(PiiDetection, default_region="DE"), text) == redacted


def test_pii_may_refuse_a_query():
    engine = GuardrailsEngine([rule(PiiDetection, action="block", message="No personal data, please.")])
    with pytest.raises(GuardrailBlocked, match=r"No personal data, please\.") as blocked:
        engine.check_input("I am a@b.com and c@d.com")
    assert blocked.value.guardrail == "pii_detection"
    assert blocked.value.actions == (
        {"stage": "input", "type": "pii_detection", "action": "block", "count": 2},
    )


@settings(deadline=None)
@given(st.text(st.sampled_from("0123456789"), min_size=11, max_size=18))
def test_every_number_has_exactly_one_luhn_digit(digits):
    assert sum(luhn(digits + last) for last in "0123456789") == 1


@pytest.mark.parametrize(
    "number",
    ["4111111111111111", "5555555555554444", "2223003122003222", "378282246310005", "30569309025904",
     "6011111111111117", "3530111333300000", "6759649826438453", "4222222222222", "6212345678901232"],
)  # fmt: skip
def test_cards_of_every_network_are_known(number):
    assert is_card(number)
    assert output(PII, f"({number})") == "([CREDIT_CARD])"


@settings(deadline=None)
@given(
    st.sampled_from(sorted(IBAN_LENGTHS)), st.text(st.sampled_from("0123456789"), min_size=34, max_size=34)
)
def test_ibans_of_every_country_are_found_and_a_changed_digit_is_not(country, digits):
    rest = digits[: IBAN_LENGTHS[country] - 4]
    check = next(n for n in range(2, 99) if mod_97(f"{country}{n:02}{rest}"))
    iban = f"{country}{check:02}{rest}"
    assert output(rule(PiiDetection, kinds=["iban"]), f"to {iban}.") == "to [IBAN]."
    wrong = iban[:-1] + str((int(iban[-1]) + 1) % 10)
    assert output(rule(PiiDetection, kinds=["iban"]), wrong) == wrong


# -- topic_filter and content_filter -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "violence", "Violence!", "VIOLENCE", "is it (violence)?", "ｖｉｏｌｅｎｃｅ", "vio\u200blence",
        "vi\u00adolence",
        "illegal activity", "an Illegal_Activity", "illegal-activity", "illegal \n activity",
        "illegal\u00a0activity", "illegal\tactivity", "illegal\ractivity", "illegal\r\nactivity",
        "Die STRASSE", "die Straße", "这是暴力内容", "cafe\u0301", "café", "ﬁre",
    ],
)  # fmt: skip
def test_a_topic_is_found_however_it_is_written(text):
    words = ["violence", "illegal_activity", "straße", "暴力", "café", "fire"]
    found = rule(TopicFilter, forbidden_topics=words, message="No.").check(text, CheckContext("input"))
    assert (found.action, found.text) == ("block", "No.")


@pytest.mark.parametrize(
    "text", ["nonviolence", "violences", "illegal", "activity", "violence2", "illegalactivity", ""]
)
def test_a_topic_stands_between_word_boundaries(text):
    assert (
        rule(TopicFilter, blocked_topics=["violence", "illegal_activity"]).check(text, CheckContext("input"))
        is None
    )


@pytest.mark.parametrize(
    ("keyword", "texts"),
    [
        ("don't", ["don't", "Don\u2019t", "don\u2018t", "don\u02bct", "DON\uff07T", "don\u00b4t"]),
        ("O\u2019Brien", ["o'brien", "O\u2019Brien"]),
        ("kill -9", ["kill \u22129", "kill -9", "kill \uff0d9", "kill \ufe639", "kill\u20139"]),
        ("\u0130stanbul", ["istanbul", "Istanbul", "\u0130STANBUL", "I\u0307stanbul", "i\u0307stanbul"]),
        ("istanbul", ["\u0130stanbul", "I\u0307STANBUL", "ISTANBUL"]),
        ("\u017cona", ["z\u0307ona", "\u017bONA"]),
    ],
)
def test_one_word_has_many_ways_of_writing(keyword, texts):
    """Typographic apostrophes, the minus sign, the Turkish dotted I; the dot of other letters stays."""
    checked = rule(ContentFilter, forbidden_keywords=[keyword], replacement="-")
    assert [output(checked, f"a {text} b") for text in texts] == ["a - b"] * len(texts)
    assert output(rule(ContentFilter, forbidden_keywords=["zona"]), "\u017cona") == "\u017cona"


def test_content_is_redacted_where_it_stands():
    checked = rule(ContentFilter, forbidden_keywords=["internal_only", "classified"])
    assert (
        output(checked, "Internal  only: CLASSIFIED, declassified.")
        == "[REDACTED]: [REDACTED], declassified."
    )


def test_a_word_is_redacted_where_it_stands_beside_letters_that_are_two_and_letters_that_are_none():
    checked = rule(ContentFilter, forbidden_keywords=["secret"])
    assert output(checked, "\u200bsecret ﬁ") == "\u200b[REDACTED] ﬁ"
    assert output(checked, "ﬁ secret, ﬁ") == "ﬁ [REDACTED], ﬁ"


def test_of_two_keywords_at_one_place_the_longer_goes():
    checked = rule(ContentFilter, forbidden_keywords=["secret", "secret plan"], replacement="-")
    assert output(checked, "secret plans, secret plan, secret") == "- plans, -, -"


def test_patterns_are_looked_for_in_what_the_keywords_left():
    checked = rule(
        ContentFilter, forbidden_keywords=["key"], blocked_patterns=[r"sk-[a-z0-9]{8,20}", r"(?i)x{3}"]
    )
    assert output(checked, "key sk-abcdefgh1 XxX xx") == "[REDACTED] [REDACTED] [REDACTED] xx"


def test_content_may_be_replaced_by_a_safe_response():
    engine = GuardrailsEngine(
        (), [rule(ContentFilter, forbidden_keywords=["secret"], action="block", safe_response="Sorry."), PII]
    )
    released = engine.check_output("secret a@b.com secret")
    assert (released.text, released.blocked) == ("Sorry.", True)
    assert released.actions == ({"stage": "output", "type": "content_filter", "action": "block", "count": 2},)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_folding_knows_where_each_character_comes_from(text):
    folded = fold(text)
    origin = origins(text, folded)
    origin = range(len(text)) if origin is None else origin
    assert len(origin) == len(folded)
    assert list(origin) == sorted(origin)
    assert all(0 <= at < len(text) for at in origin)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from("ab _-"), max_size=30).map("".join),
    st.sets(st.sampled_from(["a", "ab", "b a", "a_b", "bb"]), min_size=1),
)
def test_keywords_are_those_that_a_naive_search_finds(text, words):
    """Against a regular expression with lookarounds; blanks come in runs of at most eight."""
    text = re.sub(r"[ _-]{9,}", " ", text)
    alternatives = "|".join(re.sub(r"[ _]", r"[ _-]+", w) for w in sorted(words, key=len, reverse=True))
    expected = [m.span() for m in re.finditer(rf"(?<![a-z])(?:{alternatives})(?![a-z])", text)]
    found = Keywords(sorted(words), "").scan(text, 0, True).findings
    assert [(f.start, f.end) for f in found] == expected


@pytest.mark.parametrize(
    ("pattern", "widest"),
    [
        ("abc", 3), ("a{2,5}", 5), ("ab?|cd{3}", 4), (r"\d{3}-\d{2}", 6), ("[[:alpha:]]{2}", 2),
        (r"\pL{3}", 3),
        (r"\p{Greek}{2}x", 3), (r"a\z", 1), ("(?P<n>ab)(?<m>c)", 3), (r"\\p{3}", 4), (r"\bfoo\b", 3),
        ("(?i)a|bc", 2),
        ("a*", None), ("a+b", None), (".{0,9000}", None), (r"\Qa+b\E", None), ("a(?i)b", None),
        (r"\x{1F600}a", 2), (r"\C{3}", 3), ("a{2000}", 2000), ("a{1000}b{1000}c", None),
    ],
)  # fmt: skip
def test_the_longest_match_of_a_pattern_is_known_or_none(pattern, widest):
    assert widest_match(pattern) == widest


@settings(deadline=None)
@given(
    st.sampled_from(
        ["a{2,4}b?", "[[:alpha:]]{1,3}", r"\pL\d{0,2}", "(ab|abc){1,2}", r"(?i)k{1,2}", r"x.{0,3}y"]
    ),
    st.text(st.sampled_from("abckKxy1é\u212a"), max_size=20),
)
def test_no_match_is_longer_than_it_was_said_to_be(pattern, text):
    assert all(m.end() - m.start() <= widest_match(pattern) for m in re2.finditer(pattern, text))


def test_what_is_wrong_with_a_pattern_is_said_to_the_operator_and_not_on_the_console(capfd):
    with pytest.raises(ValueError, match="not an RE2 pattern") as wrong:
        validate_pattern("a(")
    assert str(wrong.value) == (
        "'a(' is not an RE2 pattern: missing ): a(. RE2 has no lookaround and no back-references."
    )
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("patterns", "held_back"), [(["ab{1,9}"], 11), (["a", "b{3}c"], 5), (["a", "b+"], None)]
)
def test_a_stream_holds_back_the_longest_match_and_what_follows_it(patterns, held_back):
    [scanner] = rule(ContentFilter, blocked_patterns=patterns).scanners
    assert scanner.max_lookahead == held_back


def test_a_stream_of_a_pattern_holds_back_its_width():
    bounded = rule(ContentFilter, blocked_patterns=["ab"]).stream(CheckContext("output"))
    assert [bounded.feed("xxxxx"), bounded.finish()] == ["xxx", "xx"]
    unbounded = rule(ContentFilter, blocked_patterns=["ab+"]).stream(CheckContext("output"))
    assert [unbounded.feed("xxabbb"), unbounded.finish()] == ["", "xx[REDACTED]"]


def test_half_a_character_is_no_hindrance():
    """A lone surrogate, which RE2 cannot read, stays where it is."""
    checked = rule(ContentFilter, blocked_patterns=["ab{1,9}"], replacement="-")
    assert output(checked, "abb \ud800 abb") == "- \ud800 -"
    stream = checked.stream(CheckContext("output"))
    assert "".join(map(stream.feed, "abb \ud800 " * 5)) + stream.finish() == "- \ud800 " * 5


def test_a_match_of_nothing_is_none():
    checked = rule(ContentFilter, blocked_patterns=[r"\bx?"], replacement="-")
    assert output(checked, "a x") == "a -"


def test_a_thousand_matches_of_any_length_are_replaced_one_by_one_and_the_rest_as_one():
    checked = rule(ContentFilter, blocked_patterns=["a+"], replacement="-")
    assert output(checked, "a " * 1500) == "- " * 999 + "-"
    assert checked.check("a " * 1500, CheckContext("output")).count == 1000
    bounded = rule(ContentFilter, blocked_patterns=["a"], replacement="-")
    assert output(bounded, "a " * 1500) == "- " * 1500


def test_a_topic_may_be_a_pattern():
    checked = rule(TopicFilter, blocked_patterns=["wa+r"], action="redact", replacement="-")
    assert output(checked, "waaar and peace") == "- and peace"


def test_a_stream_holds_back_the_longest_word_with_all_that_may_stand_in_it():
    """Each of its characters may have eight invisible ones behind it, and a boundary follows."""
    [scanner] = rule(ContentFilter, forbidden_keywords=["abcd", "x"]).scanners
    assert scanner.max_lookahead == 4 * 9 + 1


# -- max_length and cost_limit -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["max_characters", "max_chars"])
def test_a_query_that_is_too_long_is_refused(key):
    engine = GuardrailsEngine([rule(MaxLength, **{key: 5})])
    assert engine.check_input("12345").text == "12345"
    with pytest.raises(GuardrailBlocked, match="at most 5 characters"):
        engine.check_input("123456")


def test_a_length_needs_the_whole_text():
    with pytest.raises(NotImplementedError, match=r"^max_length needs the whole text\.$"):
        rule(MaxLength, max_characters=5).stream(CheckContext("output"))


SENTENCES = "First one. Second one! Third one? Fourth."


@pytest.mark.parametrize(
    ("used", "answer", "expected"),
    [
        (1000, 10, SENTENCES),
        (1001, 10, "First one. Second one! Third one?"),
        (1006, 10, "First one."),
        (1010, 10, "stopped"),
        (2000, 10, "stopped"),
        (995, 0, "First one."),  # uncounted: four characters a token
        (985, 0, SENTENCES),
    ],
)
def test_an_answer_ends_at_a_sentence_where_the_turns_tokens_end(used, answer, expected):
    checked = rule(CostLimit, max_tokens_per_turn=1000, message="stopped")
    assert output(checked, SENTENCES, tokens_used=used, output_tokens=answer) == expected


def test_an_expensive_turn_may_be_blocked():
    checked = rule(CostLimit, max_tokens_per_turn=10, action="block", message="Too expensive.")
    released = GuardrailsEngine((), [checked]).check_output("hello", tokens_used=11, output_tokens=5)
    assert (released.text, released.blocked) == ("Too expensive.", True)


@settings(deadline=None)
@given(st.text(st.sampled_from("ab .\n"), max_size=60), st.integers(-3, 70))
def test_a_cut_keeps_a_prefix_within_the_bound(text, bound):
    at = cut_at(text, bound)
    assert 0 <= at <= max(bound, 0)


def test_a_cut_without_sentences_is_between_words():
    assert "one two three"[: cut_at("one two three", 9)] == "one two"
    assert cut_at("x" * 2000, 1000) == 1000
    assert (cut_at("ab", 1), cut_at("ab", 0), cut_at("ab", -1)) == (1, 0, 0)
    assert cut_at("Go on. Two", 6) == len("Go on.")
    assert cut_at("Go on. Two", 5) == len("Go")
    assert cut_at("\nabcdef", 4) == 0
    assert cut_at("One two three", 8) == len("One two")
    assert cut_at("x. " + "y" * 2000, 2 * LOOK_BACK) == 2 * LOOK_BACK


# -- options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pii_detection", {"action": "hide"}, "redact"),
        ("pii_detection", {"kinds": ["iris"]}, "kinds"),
        ("pii_detection", {"kinds": []}, "kinds"),
        ("pii_detection", {"default_region": "XX"}, "'XX' is not a region"),
        ("topic_filter", {}, "forbidden_topics"),
        ("topic_filter", {"forbidden_topics": ["_ -"]}, "no letter and no digit"),
        ("topic_filter", {"blocked_patterns": ["a("]}, "missing )"),
        ("content_filter", {"blocked_patterns": ["(?=a)b"]}, "no lookaround"),
        ("content_filter", {"blocked_patterns": [r"(a)\1"]}, "back-references"),
        ("content_filter", {"blocked_patterns": ["a*"]}, "matches the empty text"),
        ("content_filter", {"blocked_patterns": ["((a{100}){100}){100}"]}, "not an RE2 pattern"),
        ("content_filter", {}, "forbidden_keywords"),
        ("max_length", {}, "max_characters"),
        ("max_length", {"max_characters": 5, "max_chars": 5}, "once"),
        ("max_length", {"max_characters": 0}, "max_characters"),
        ("grounded", {"threshold": 1.5}, "threshold"),
        ("cost_limit", {}, "max_tokens_per_turn"),
        ("cost_limit", {"max_tokens_per_turn": 5, "colour": 1}, "colour"),
    ],
)
def test_wrong_options_say_what_is_wrong(name, options, message):
    with pytest.raises(ValidationError) as wrong:
        PLUGINS[name].Options(**options)
    assert message in str(wrong.value)


@pytest.mark.parametrize(
    ("name", "options", "whole"),
    [
        ("pii_detection", {}, False),
        ("pii_detection", {"action": "block"}, True),
        ("topic_filter", {"forbidden_topics": ["x"]}, True),
        ("topic_filter", {"forbidden_topics": ["x"], "action": "redact"}, False),
        ("content_filter", {"blocked_patterns": ["ab{1,9}"]}, False),
        ("content_filter", {"blocked_patterns": ["ab+"]}, True),
        ("content_filter", {"forbidden_keywords": ["x"], "action": "block"}, True),
        ("max_length", {"max_chars": 9}, True),
        ("cost_limit", {"max_tokens_per_turn": 9}, False),
        ("cost_limit", {"max_tokens_per_turn": 9, "action": "block"}, True),
    ],
)
def test_the_options_say_whether_a_rule_can_stream(name, options, whole):
    """The configuration reads them; with a rule that needs the whole text the gate releases at the end."""
    checked = rule(PLUGINS[name], **options)
    assert PLUGINS[name].Options(**options).needs_whole_text is whole
    gate = GuardrailsEngine((), [checked]).gate("token")
    assert (gate.feed("a b c " * 500) == "") is whole


# -- the engine --------------------------------------------------------------------------------------------


def test_rules_run_in_order_each_on_what_the_one_before_left():
    mail = rule(PiiDetection, kinds=["email"])
    tag = rule(TopicFilter, forbidden_topics=["email"], action="redact", replacement="X")
    assert GuardrailsEngine([mail, tag]).check_input("a@b.com").text == "[X]"
    assert GuardrailsEngine([tag, mail]).check_input("a@b.com").text == "[EMAIL]"
    assert GuardrailsEngine([mail, tag]).check_input("an email").text == "an X"
    assert GuardrailsEngine((), [mail, tag]).check_output("an email").text == "an X"
    assert [a["type"] for a in GuardrailsEngine([mail, tag]).check_input("a@b.com").actions] == [
        "pii_detection",
        "topic_filter",
    ]


class Recorder(CostLimit):
    """Records the contexts of the texts."""

    _contexts: list = PrivateAttr(default_factory=list)

    def check(self, text, context):
        self._contexts.append(context)

    def stream(self, context):
        self._contexts.append(context)
        return super().stream(context)


def test_a_rule_knows_what_it_checks():
    recorder = Recorder(max_tokens_per_turn=10)
    GuardrailsEngine([recorder]).check_input("query")
    engine = GuardrailsEngine((), [recorder])
    engine.check_output("answer")
    engine.check_output("answer", tokens_used=7, output_tokens=2)
    final = engine.gate("final", tokens_used=1)
    assert final.released == CheckedText("")
    final.finish(tokens_used=9, output_tokens=3)
    engine.gate("final").finish()
    engine.gate("sentence", tokens_used=4)
    filter_data(engine, ["text"], "tool_argument")
    engine.filter_text("text", "tool_result")
    assert recorder._contexts == [
        CheckContext("input"),
        CheckContext("output"),
        CheckContext("output", 7, 2),
        CheckContext("output", 9, 3),
        CheckContext("output"),
        CheckContext("output", 4),
        CheckContext("tool_argument"),
        CheckContext("tool_result"),
    ]


def test_without_rules_texts_pass_as_they_are():
    assert GuardrailsEngine().check_input("a@b.com") == CheckedText("a@b.com")
    assert GuardrailsEngine().check_output("a@b.com") == CheckedText("a@b.com")


def test_what_was_redacted_before_a_refusal_is_told():
    engine = GuardrailsEngine([PII, rule(TopicFilter, forbidden_topics=["war"])])
    with pytest.raises(GuardrailBlocked) as blocked:
        engine.check_input("a@b.com war")
    assert [a["action"] for a in blocked.value.actions] == ["redact", "block"]


def test_a_gate_that_needs_the_whole_releases_it_at_the_end():
    engine = GuardrailsEngine((), [rule(ContentFilter, forbidden_keywords=["secret"], action="block")])
    gate = engine.gate("token")
    assert [gate.feed(d) for d in ("the ", "secret")] == ["", ""]
    assert gate.finish() == "I can't share that."
    assert gate.released.blocked


def test_a_gate_in_sentences_releases_whole_ones():
    gate = GuardrailsEngine((), [PII]).gate("sentence")
    out = [gate.feed(d) for d in ("Hello ", "there. My", " mail is a@b", ".com! And", " more")]
    assert "".join(out) == "Hello there. My mail is [EMAIL]! "
    assert gate.finish() == "And more"
    assert gate.released.text == "Hello there. My mail is [EMAIL]! And more"


def test_a_gate_in_sentences_releases_nothing_before_the_first_end():
    gate = GuardrailsEngine((), [rule(PiiDetection)]).gate("sentence")
    assert [gate.feed(d) for d in ("12", "!\n", "The end is")] == ["", "12!\n", ""]
    assert GuardrailsEngine().gate("sentence").feed("\nThe end is") == "\n"


def test_a_gate_without_rules_lets_everything_through_at_once():
    gate = GuardrailsEngine().gate("token")
    assert [gate.feed(d) for d in ("a", "b ", "4111")] == ["a", "b ", "4111"]
    assert gate.finish() == ""
    assert gate.released.text == "ab 4111"


def test_plain_words_are_held_back_by_no_more_than_the_word():
    gate = GuardrailsEngine((), [PII]).gate("token")
    out = [gate.feed(d) for d in ("The", " quick", " brown", " fox", ".", " It")]
    assert out == ["", "The ", "quick ", "brown ", "", "fox. "]


def test_a_stream_that_has_reached_its_cost_says_that_it_is_done():
    gate = GuardrailsEngine((), [rule(CostLimit, max_tokens_per_turn=5)]).gate("token")
    out = [gate.feed(d) for d in ("One two. ", "Three four five. ", "Six")]
    assert gate.done
    assert "".join(out) + gate.finish() == "One two."
    assert gate.released.actions == (
        {"stage": "output", "type": "cost_limit", "action": "truncate", "count": 1},
    )


WORDS = "".join(f"This is sentence {n}. " for n in range(60))


@pytest.mark.parametrize("size", [1, 10, 2000])
@pytest.mark.parametrize("tokens", [20, 100, 110, 200, 290, 300])
def test_a_long_answer_is_cut_at_the_same_place_streamed_or_not(tokens, size):
    """Its beginning leaves at once; what the cut may take, 400 characters before the bound, waits."""
    engine = GuardrailsEngine((), [rule(CostLimit, max_tokens_per_turn=tokens)])
    gate = engine.gate("token")
    out = [gate.feed(WORDS[i : i + size]) for i in range(0, len(WORDS), size)]
    whole = engine.check_output(WORDS)
    assert "".join(out) + gate.finish() == whole.text
    assert gate.released == whole
    assert gate.done is (len(whole.text) < len(WORDS))
    if size == 1:
        free = max(4 * tokens - LOOK_BACK, 0)
        assert "".join(out[:free]) == WORDS[:free]
        assert not any(out[free : 4 * tokens])


def test_nothing_is_left_where_the_turn_is_over_before_the_answer():
    engine = GuardrailsEngine((), [rule(CostLimit, max_tokens_per_turn=5, message="stopped")])
    for used in (5, 6):
        gate = engine.gate("token", tokens_used=used)
        assert [gate.feed("H"), gate.feed("ello"), gate.finish()] == ["stopped", "", ""]
        assert engine.check_output("H", tokens_used=used).text == "stopped"


def test_an_answer_that_just_fits_leaves_whole():
    engine = GuardrailsEngine((), [rule(CostLimit, max_tokens_per_turn=100)])
    gate = engine.gate("token")
    assert gate.feed(WORDS[:400]) + gate.finish() == WORDS[:400] == engine.check_output(WORDS[:400]).text
    assert not gate.done
    assert gate.released.actions == ()


@pytest.mark.counts_calls
@pytest.mark.parametrize(
    "text",
    [
        "1 " * 4000, "12 34 56 78 90 " * 500, "a@" * 4000, "a@" + "a-" * 4000, "(" * 8000, "DE89 " * 1500,
        "(2" * 4000, "22 " * 2500, "9-" * 4000, "1.2.3.4 " * 1000, "0044 " * 1600,
    ],
)  # fmt: skip
def test_work_grows_with_the_text_and_not_with_its_square(text):
    """Eight times the text takes at most ten times the calls; a square would be sixty-four."""
    assert _calls(text) < 10 * _calls(text[: len(text) // 8]) + 100


@pytest.mark.counts_calls
@pytest.mark.parametrize(
    "unit", ["(2", "22 ", "9-", "9 ", "2024-01-01 ", "1.2.3.4 ", "212 555 01 ", "12, 34\n"]
)
def test_a_character_of_numbers_that_are_nothing_costs_a_few_calls(unit):
    """Fewer than twelve; rows of groups built anew from each group on would be a hundred."""
    text = unit * (6000 // len(unit))
    assert _calls(text) < 12 * len(text)


def _calls(text):
    counted = [0]

    def count(frame, event, argument):
        counted[0] += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        PII.check(text, CheckContext("input"))
    finally:
        sys.setprofile(None)
    return counted[0]
