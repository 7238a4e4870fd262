"""Context transforms: the template gives the shape, the arguments only values."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astromesh.core.prompt_engine import compile_transform
from astromesh.errors import ConfigError, ToolFailed

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc{}\"':,"), inner, max_size=3),
    max_leaves=6,
)


def test_expressions_become_text_inside_quotes_and_values_elsewhere():
    """Strings, numbers, lists, missing names and `tojson` each land where the template puts them."""
    transform = compile_transform(
        '{"customer": "{{ id }}", "label": "no. {{ n }}", "n": {{ n }}, "items": {{ items }}, '
        '"same": {{ items | tojson }}, "missing": "{{ nope.deep }}", "none": {{ nope }}, '
        '"all": {{ arguments }}}'
    )
    arguments = {"id": "a-1", "n": 3, "items": [1, {"x": "<y>"}]}
    assert transform(arguments) == {
        "customer": "a-1", "label": "no. 3", "n": 3, "items": [1, {"x": "<y>"}], "same": [1, {"x": "<y>"}],
        "missing": "", "none": None, "all": arguments,
    }  # fmt: skip


def test_loops_and_conditions_work():
    """It is Jinja2, not only substitution."""
    transform = compile_transform(
        '{"tags": [{% for t in tags %}"{{ t | upper }}"{% if not loop.last %}, {% endif %}{% endfor %}]}'
    )
    assert transform({"tags": ["a", "b"]}) == {"tags": ["A", "B"]}


@settings(deadline=None)
@given(first=VALUES, second=VALUES)
def test_no_value_can_change_the_shape(first, second):
    """Property: whatever the model wrote, the keys are the template's and the values are what was written."""
    transform = compile_transform('{"quoted": "{{ first }}/{{ second }}", "bare": {{ first }}}')
    context = transform({"first": first, "second": second})
    assert list(context) == ["quoted", "bare"]
    assert context["bare"] == first
    assert isinstance(context["quoted"], str)


@pytest.mark.parametrize("template", ["{% if %}", "{{ a ", "customer_id", "[1]", ""])
def test_a_template_that_cannot_work_is_found_when_it_is_loaded(template):
    """Syntax errors and templates of something else than an object."""
    with pytest.raises(ConfigError, match="context_transform"):
        compile_transform(template)


@pytest.mark.parametrize(
    "template", ['{"a": {{ a }}', '{"a": {{ 1 / 0 }}}', "{ {{ a }} }", '{"a": "{{ a.pop() }}"}']
)
def test_what_fails_while_rendering_is_a_failed_tool(template):
    """No JSON, an expression that raises, a call that the sandbox refuses."""
    with pytest.raises(ToolFailed, match="context_transform"):
        compile_transform(template)({"a": [1]})
