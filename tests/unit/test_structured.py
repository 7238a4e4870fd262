"""Structured output: JSON is found wherever a model puts it, and faults are named with their place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astromesh.core.structured import OutputSchema, find_json, repair_message
from astromesh.errors import ConfigError

SCHEMA = {
    "type": "object",
    "required": ["city", "degrees"],
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer", "maximum": 60}},
}
GOOD = '{"city": "Paris", "degrees": 21}'


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}```\nThat is all.",
        f"Here you are: {GOOD} I hope it helps [1].",
        f"The set {{a, b}} is not it, but {GOOD} is.",
    ],
)
def test_the_json_is_found_where_models_put_it(text):
    read = OutputSchema(SCHEMA).read(text)
    assert read.fits
    assert read.value == {"city": "Paris", "degrees": 21}
    assert json.loads(read.text) == read.value


@pytest.mark.parametrize("text", ["", "It is warm.", '{"city": "Paris"', "```json\n{broken}\n```"])
def test_text_without_json_says_so(text):
    assert OutputSchema(SCHEMA).read(text).faults == ("the answer holds no JSON",)


def test_every_fault_is_named_with_its_place_and_told_to_the_model():
    read = OutputSchema(SCHEMA).read('{"degrees": 99}')
    assert not read.fits
    told = repair_message(read)
    assert told.role == "user"
    assert "city" in told.content
    assert "at degrees" in told.content


def test_a_null_that_the_schema_allows_is_an_answer():
    assert OutputSchema({"type": ["object", "null"]}).read("null") == (None, ())


def test_a_schema_that_is_none_is_the_operators_fault():
    with pytest.raises(ConfigError, match="output_schema"):
        OutputSchema({"type": "nonsense"})
    with pytest.raises(ConfigError):
        OutputSchema({"$ref": "https://example.invalid/schema.json"})


@given(
    st.text(alphabet=st.characters(exclude_characters='{}[]"`\\', exclude_categories=["Cs"])),
    st.dictionaries(st.text(), st.text() | st.lists(st.integers(-1000, 1000))),
)
def test_an_object_amid_any_words_is_found_whole(words, value):
    assert find_json(words + json.dumps(value) + words) == (value,)


@given(st.text())
def test_no_text_breaks_the_search(text):
    find_json(text)
    find_json("[" * 200 + text)
