"""The pure parts of graph nodes: JSON in prose, guards, strategies, perspectives, blocks, output schemas."""

from __future__ import annotations

import dataclasses
import json
import threading
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from astromesh.graph import NodeResult
from astromesh.graph.model_output import extract_object, extract_values, output_schema, whole_object
from astromesh.graph.nodes.guard import Guard, GuardVerdict, as_guards, run_guards
from astromesh.graph.nodes.system_prompt import PERSPECTIVES, STRATEGIES, Examples, Rules, Text, as_block
from astromesh.graph.state import GraphState

# -- JSON in prose -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"next_node": "act"}', {"next_node": "act"}),
        ('```json\n{"next_node": "act"}\n```', {"next_node": "act"}),
        ('I say {"next_node": "a", "why": "{x} \\"}\\""} now', {"next_node": "a", "why": '{x} "}"'}),
        ('{"example": {"a": 1}} then {"next_node": "b"}', {"next_node": "b"}),
        ('{broken {"next_node": "c", "x": {"y": {}}}', {"next_node": "c", "x": {"y": {}}}),
        ("no json here", None),
        ("", None),
        ("{" * 5000, None),
        ('{"a":' * 100_000, None),
    ],
)  # fmt: skip
def test_an_object_is_found_in_prose(text, found):
    """Braces in strings, nesting, fences, broken beginnings and hostile depth do not mislead the search."""
    assert extract_object(text, "next_node") == found


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values, max_size=4), st.text(alphabet="ab c.\n"))
def test_any_object_survives_any_prose_without_braces(value, prose):
    """What a model wraps its JSON in makes no difference."""
    assert extract_object(f"{prose}{json.dumps(value)}{prose}") == value


@given(st.text())
def test_the_search_never_raises(text):
    """Whatever a model says."""
    found = extract_object(text)
    assert found is None or isinstance(found, dict)


def test_a_text_with_more_than_an_object_is_no_object():
    """Only an answer that is JSON as a whole is taken for data; prose stays prose."""
    assert whole_object('```json\n{"a": 1}\n```') == {"a": 1}
    assert whole_object('{"a": 1} is my answer') is None
    assert whole_object("[1]") is None


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[1, 2]", [[1, 2]]),
        ("3", [3]),
        ('See [1]: {"a": [2]} and ["b"]', [[1], {"a": [2]}, ["b"]]),
        ("nothing", []),
    ],
)
def test_all_values_of_a_text_are_candidates(text, values):
    """A schema takes the first that fits; a citation in brackets is no answer."""
    assert list(extract_values(text)) == values


# -- guards --------------------------------------------------------------------------------------------------


async def _async_false(output):
    return False


def _raises(output):
    raise ValueError("too long")


@pytest.mark.parametrize(
    ("check", "passed", "feedback"),
    [
        (lambda output: True, True, ""),
        (lambda output: None, True, ""),
        (lambda output, state: "x" in state.context, False, ""),
        (_async_false, False, ""),
        (_raises, False, "too long"),
        (lambda output: GuardVerdict(False, "say please"), False, "say please"),
        (lambda output: GuardVerdict(True), True, ""),
        (lambda output: "yes", False, "neither a bool nor a verdict"),
    ],
)
async def test_guards_have_one_contract(check, passed, feedback):
    """Trap 8: sync or async, a bool, a verdict or an exception; nothing else lets an output through."""
    verdict = await Guard(check).verdict("out", GraphState())
    assert verdict.passed is passed
    assert feedback in verdict.feedback


async def test_all_guards_are_asked_and_warnings_do_not_refuse():
    """The feedback is complete, and mode `warn` only notes."""
    guards = as_guards([Guard(_raises, "warn"), Guard(lambda o: False, name="polite"), lambda o: True])
    checked = await run_guards(guards, "out", GraphState())
    assert checked.passed == ("<lambda>",)
    assert checked.failed == ("_raises", "polite")
    assert [g.name for g in checked.refused] == ["polite"]
    assert checked.feedback == "polite is not met."


def test_a_guard_has_a_known_mode():
    """A wrong mode is an error where the guard is made."""
    with pytest.raises(ValueError, match="block, retry or warn"):
        Guard(_raises, "maybe")  # type: ignore[arg-type]


# -- strategies, perspectives, blocks ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chain_of_thought", "plan_then_answer", "self_critique"])
def test_strategies_ask_and_take_the_answer_out(name):
    """`wrap` keeps the prompt, `parse` gives what stands behind the last mark."""
    strategy = STRATEGIES[name]
    assert strategy.wrap("Be kind.").startswith("Be kind.\n\n")
    assert strategy.wrap("").startswith(("Think", "First"))
    assert strategy.parse("Step 1\nAnswer: 3\nno:\n**Final answer:** 42\nsure") == "42\nsure"
    assert strategy.parse("just 42") == "just 42"
    assert strategy.parse("thinking\nAnswer:") == "thinking\nAnswer:"
    assert strategy.parse({"a": 1}) == {"a": 1}


@pytest.mark.parametrize("name", ["analyst", "critic", "advisor"])
def test_perspectives_come_before_the_prompt(name):
    """The point of view is the first thing the model reads."""
    assert PERSPECTIVES[name].apply("Do it.").endswith("\n\nDo it.")
    assert name in PERSPECTIVES[name].apply("")


def test_blocks_render_to_text():
    """Titles, numbered rules, examples, plain texts and functions of the state."""
    state = GraphState(context={"who": "Ada"})
    assert as_block("plain").render(state) == "plain"
    assert Text("body", "Head").render(state) == "## Head\nbody"
    assert Rules(["a", "b"]).render(state) == "## Rules\n1. a\n2. b"
    assert Examples([("1", "one")]).render(state) == "## Examples\nInput: 1\nOutput: one"
    dynamic = as_block(lambda s: f"Hello {s.context['who']}")
    assert (dynamic.dynamic, dynamic.render(state)) == (True, "Hello Ada")
    with pytest.raises(TypeError, match="is not a block"):
        as_block(3)


# -- output schemas ------------------------------------------------------------------------------------------


class Ticket(BaseModel):
    title: str
    tags: list[str] = []


@dataclass
class Point:
    x: int
    y: int = 0


class Inner(TypedDict):
    n: int


class Row(TypedDict):
    name: str
    inner: list[Inner]
    note: NotRequired[str]


SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (Ticket, '{"title": "a"}', Ticket(title="a")),
        (Point, '```json\n{"x": 1}\n```', Point(1)),
        (Row, 'Here: {"name": "a", "inner": [{"n": 1}]}', {"name": "a", "inner": [{"n": 1}]}),
        (SCHEMA, '{"n": 1}', {"n": 1}),
        (list[int], "[1, 2]", [1, 2]),
        (SCHEMA, 'As in [1], {"m": 2} or {"n": 3}', {"n": 3}),
    ],
)
def test_output_schemas_of_every_kind_read_text(schema, text, value):
    """Trap 17: pydantic models, dataclasses, TypedDicts and JSON Schemas alike."""
    reader = output_schema(schema)
    assert reader.parse(text) == value
    assert reader.validate(value) == value
    assert reader.json_schema["type"] in ("object", "array")


@pytest.mark.parametrize("schema", [Ticket, Point, Row, SCHEMA])
@pytest.mark.parametrize("text", ["no json", "{}", '{"title": 3, "x": "a", "name": 1, "n": "b"}'])
def test_what_does_not_fit_is_a_value_error(schema, text):
    """One exception type for every kind of schema."""
    with pytest.raises(ValueError, match=r"."):
        output_schema(schema).parse(text)


def test_a_schema_without_json_form_is_refused():
    """Found when the node is made, not when the model has answered."""
    with pytest.raises(TypeError, match="is not a JSON Schema"):
        output_schema({"type": "nonsense"})
    with pytest.raises(TypeError, match="no JSON form"):
        output_schema(threading.Thread)


def test_a_result_is_made_like_every_dataclass() -> None:
    """By position, by name, by `replace`; what is no field is refused."""
    made = NodeResult("a", 1, "1", next_node="b")
    assert (made.node_name, made.output, made.raw_output, made.next_node, made.error) == (
        "a",
        1,
        "1",
        "b",
        "",
    )
    assert dataclasses.replace(made, output=2) == NodeResult("a", 2, "1", "b")
    assert NodeResult(output=1) == NodeResult("", 1)
    assert repr(NodeResult("a")).startswith("NodeResult(node_name='a', output=None, raw_output=None,")
    with pytest.raises(TypeError, match="routes"):
        NodeResult("a", routes="b")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        NodeResult("a", 1, "1", raw_output="2")  # type: ignore[misc]
    with pytest.raises(TypeError):
        NodeResult(*range(40))
