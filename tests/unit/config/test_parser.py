"""YAML to nodes: places, and everything that YAML must not do here."""

from __future__ import annotations

from pathlib import Path

import pytest

from astromesh.config.base import Node, Place
from astromesh.config.parser import MAX_DEPTH, MAX_FAULTS, Document, parse_text


def read(text: str, **env: str) -> Document:
    return parse_text(text, Document(Path("f.yaml")), env)


def sound(text: str, **env: str) -> Node:
    document = read(text, **env)
    assert [str(found) for found in document.faults] == []
    assert document.node is not None
    return document.node


def only(text: str, **env: str) -> str:
    (found,) = read(text, **env).faults
    return str(found)


def test_values_are_plain_and_keys_are_text() -> None:
    node = sound("1: a\non: [yes, 2, 0.5, ~, '3']\nnull: {true: x}\n")
    assert node.value == {"1": "a", "on": ["yes", 2, 0.5, None, "3"], "null": {"true": "x"}}


def test_every_value_and_key_knows_its_place() -> None:
    node = sound("a: 1\nb:\n  - x\n  - {c: y}\n")
    assert node.place_of(("b", 1, "c")) == Place(4, 9)
    assert node.place_of(("b", 1, "c"), key=True) == Place(4, 6)
    assert node.place_of(("b", 1, "missing")) == Place(4, 5)


def test_an_alias_repeats_what_its_anchor_marks() -> None:
    assert sound("a: &x [1, 2]\nb: *x\nc: &x 3\nd: *x\n").value == {"a": [1, 2], "b": [1, 2], "c": 3, "d": 3}


def test_a_variable_is_text_whatever_it_holds() -> None:
    node = sound('a: ${X}\nb: "p${X}"\nc: |\n  ${X}\n', X="1: [&a")
    assert node.value == {"a": "1: [&a", "b": "p1: [&a", "c": "1: [&a\n"}
    assert node.get("a").variables == ("X",)  # type: ignore[union-attr]


def test_a_missing_variable_is_named_with_file_line_and_key() -> None:
    assert only("a:\n  b: ${NOPE}\n").startswith("f.yaml:2:6: a.b: the environment variable NOPE is not set")


def test_a_variable_in_a_literal_block_is_found_on_its_own_line() -> None:
    assert only("a: |\n  one\n  two ${NOPE}\n").startswith("f.yaml:3:1: a:")


def test_both_places_of_a_key_that_stands_twice_are_told() -> None:
    message = only("a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert message == "f.yaml:4:3: a.b: duplicate key `b`, first in line 2, column 3. Remove one of them."


def test_several_faults_of_one_file_are_told_at_once() -> None:
    assert len(read("a: 1\na: 2\nb: ${NOPE}\nc: 99999999999999999999\n").faults) == 3


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "1:1", "is empty"),
        ("# only a comment\n", "1:1", "is empty"),
        ("a: b: c\n", "1:5", "put text that contains ': ' in quotes"),
        ("a:\n\tb: 1\n", "2:1", "Indent with spaces"),
        ('a: "x\n', "2:1", "closing quote"),
        ("a: [1, 2\n", "2:1", "did not find expected ',' or ']'"),
        ("a: {b: ${X}, c: 1}\n", "1:9", "put ${…} in quotes"),
        ("a: 1\n---\nb: 2\n", "2:1", "a file holds one document"),
        ("a: *nothing\n", "1:4", "the alias *nothing has no anchor"),
        ("a: &a [*a]\n", "1:8", "inside its own anchor"),
        ("a: &a {b: {c: *a}}\n", "1:15", "inside its own anchor"),
        ("a: !!python/object:os.system x\n", "1:4", "is not supported"),
        ("a: !own [1]\n", "1:4", "is not supported"),
        ("base: &b {x: 1}\nc:\n  <<: *b\n", "3:3", "merge keys (<<) are not supported"),
        ("? [a]\n: b\n", "1:3", "a key must be text"),
        ("a: &k x\n*k : y\n", "2:1", "a key must be text"),
        ("?\n: x\n", "1:2", "a key is missing"),
        ("%TAG !e! tag:x,1:\n---\na: 1\n", "1:1", "%TAG directives"),
        ("a: \x07\n", "1:4", "control characters"),
        ("ä: ö\nb: \x07\n", "2:4", "control characters"),
        ("a: 1e999\n", "1:4", "at most 64 bits"),
    ],
)
def test_what_cannot_be_read_is_one_fault_with_its_place(text: str, place: str, message: str) -> None:
    found = only(text, X="1")
    assert found.startswith(f"f.yaml:{place}: ")
    assert message in found


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{a: " * 100_000,
        "\n".join(" " * i + "a:" for i in range(MAX_DEPTH + 2)),
        "a: " + "- " * 50_000,
        "a: &a [" + "[" * 40 + "]" * 40 + "]\nb: " + "[" * 40 + "*a" + "]" * 40,
    ],
    ids=["lists", "mappings", "blocks", "dashes", "aliases"],
)
def test_deep_nesting_is_a_fault_and_not_a_crash(text: str) -> None:
    assert any("levels deep" in str(found) or "not valid YAML" in str(found) for found in read(text).faults)


def test_an_alias_bomb_is_a_fault_and_not_a_full_memory() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "including those that aliases repeat" in only("\n".join(lines))


def test_a_long_text_repeated_by_aliases_counts_with_its_length() -> None:
    text = "a: &a " + "x" * 500_000 + "\nb: [" + ", ".join(["*a"] * 1000) + "]\n"
    assert "including those that aliases repeat" in only(text)


def test_faults_without_end_are_cut_off() -> None:
    found = read("a: 1\n" * 50_000).faults
    assert len(found) == MAX_FAULTS + 1
    assert "Fix these first" in str(found[-1])
