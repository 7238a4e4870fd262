"""Plain scalars mean what the core schema of YAML 1.2 says."""

from __future__ import annotations

import pytest

from astromesh.config.parser import (
    NotFinite,
    NumberTooLarge,
    parse_boolean,
    parse_float,
    parse_integer,
    parse_scalar,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("~", None), ("null", None), ("NULL", None), ("nUll", "nUll"),
        ("true", True), ("False", False), ("yes", "yes"), ("no", "no"), ("on", "on"), ("off", "off"),
        ("0", 0), ("-12", -12), ("+3", 3), ("010", 10), ("0o17", 15), ("0x1F", 31),
        ("0b1", "0b1"), ("1_000", "1_000"), ("y", "y"),
        ("12:30", "12:30"), ("1.5", 1.5), (".5", 0.5), ("1.", 1.0), ("-1e3", -1000.0), ("1e", "1e"),
        (".infinite", ".infinite"), ("inf", "inf"), ("nan", "nan"),
        ("2024-01-01", "2024-01-01"), ("nothing", "nothing"), ("-", "-"),
        ("9223372036854775807", 2**63 - 1),
    ],
)  # fmt: skip
def test_a_plain_scalar_has_the_value_of_yaml_1_2(text: str, value: object) -> None:
    found = parse_scalar(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text", ["9223372036854775808", "-9223372036854775809", "9" * 100_000, "1e999", "0x" + "f" * 20]
)
def test_a_number_beyond_64_bits_is_refused_at_once(text: str) -> None:
    with pytest.raises(NumberTooLarge):
        parse_scalar(text)


@pytest.mark.parametrize("text", [".inf", "-.INF", "+.Inf", ".nan", ".NaN"])
def test_what_is_infinite_or_no_number_is_refused(text: str) -> None:
    with pytest.raises(NotFinite):
        parse_scalar(text)


@pytest.mark.parametrize(
    ("convert", "text"),
    [
        (parse_integer, "1.5"),
        (parse_integer, ""),
        (parse_float, "x"),
        (parse_boolean, "yes"),
        (parse_boolean, "1"),
    ],
)
def test_a_variables_text_becomes_only_what_it_plainly_is(convert: object, text: str) -> None:
    with pytest.raises(ValueError, match=r"number|neither"):
        convert(text)  # type: ignore[operator]
