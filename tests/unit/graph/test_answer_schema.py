"""Structured answers: JSON is found wherever a model puts it, and a misfit is told to the model in words."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from astromesh.core.model_router import ModelRouter, RunModel
from astromesh.errors import ConfigError
from astromesh.graph.model_output import AnswerSchema, ParsedAnswer, repair_message
from astromesh.graph.scope import Scope
from astromesh.testing import ScriptedProvider
from astromesh.types import CompletionRequest, CompletionResult, Message, ToolSpec

SCHEMA = {
    "type": "object",
    "required": ["city", "degrees"],
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer", "maximum": 60}},
}
GOOD = '{"city": "Paris", "degrees": 21}'


@pytest.mark.parametrize("text", [GOOD, f"```json\n{GOOD}\n```", f"Here you are: {GOOD} I hope it helps."])
def test_the_json_is_found_where_models_put_it(text):
    assert AnswerSchema(SCHEMA).parse(text) == ParsedAnswer({"city": "Paris", "degrees": 21}, GOOD)


def test_the_answer_is_in_the_models_own_characters():
    """Also where another value of the text is equal in Python."""
    written = '{\n "a": [1.50, 1e2, "\\u00e9"]\n}'
    read = AnswerSchema({"type": "object"}).parse(f"Here:\n{written}\n")
    assert read == ParsedAnswer({"a": [1.5, 100.0, "é"]}, written)
    yes = {"type": "array", "items": {"type": "boolean"}}
    assert AnswerSchema(yes).parse("Not [1] but [true].").text == "[true]"


@pytest.mark.parametrize("text", ["", "It is warm.", '{"city": "Paris"'])
def test_text_without_json_says_so(text):
    assert "no JSON" in AnswerSchema(SCHEMA).parse(text).fault


def test_every_fault_is_told_to_the_model_with_its_place():
    told = repair_message(AnswerSchema(SCHEMA).parse('{"degrees": 99}').fault)
    assert told.role == "user"
    assert "city" in told.content
    assert "degrees" in told.content


def test_a_null_that_the_schema_allows_is_an_answer():
    assert AnswerSchema({"type": ["object", "null"]}).parse("null") == ParsedAnswer(None, "null")


def test_a_schema_that_is_none_is_the_operators_fault():
    with pytest.raises(ConfigError, match="output_schema"):
        AnswerSchema({"type": "nonsense"})


def test_a_run_taken_up_again_knows_what_was_asked_for_its_answer():
    """As one that was never interrupted: the repair is the same call, so that its record answers it."""
    asked = CompletionRequest((Message("user", "?"),), (ToolSpec("t"),))
    model = RunModel(ModelRouter([ScriptedProvider()]), Scope("r1"), SCHEMA)
    model.record_replay(asked, CompletionResult("It is warm."))
    assert model.request_for("It is warm.") == replace(asked, output_schema=SCHEMA)
    assert model.request_for("It is cold.") is None
    for other in (replace(asked, role="judge"), replace(asked, answers=False)):
        model.record_replay(other, CompletionResult("So so."))
        assert model.request_for("So so.") == other


@pytest.mark.parametrize("value", ["18446744073709551616", '"\\ud800"', "NaN", "-Infinity"])
def test_a_value_that_cannot_leave_as_json_is_a_fault_for_the_model(value):
    read = AnswerSchema({"type": "object"}).parse(f'{{"a": {value}}}')
    assert (read.value, "JSON cannot carry" in read.fault) == (None, True)
