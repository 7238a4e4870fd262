"""What is missing is nothing wherever a template uses it; what is wrong is found at load or says its line."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.filters import FILTERS
from jinja2.tests import TESTS

from astromesh.core.prompt_engine import PromptEngine, compile_transform
from astromesh.core.templates import STRICT, CompiledTemplate, check_template
from astromesh.core.tools import expression_template
from astromesh.errors import ConfigError, TemplateFailed, ToolFailed
from astromesh.types import MemoryContext

VALUES: dict[str, Any] = {
    "text": "gold, platinum",
    "long": "words " * 60,
    "n": 3.14159,
    "d": {"a": 1},
    "xs": [{"x": "ab"}, {}, {"x": "b"}],
}


def render(template: str, **context: Any) -> str:
    return PromptEngine().register("helper", template).render(MemoryContext(), {**VALUES, **context})


def shown(expression: str) -> str:
    return render("{{ " + expression + " }}")


@pytest.mark.parametrize(
    "condition",
    [
        "tier in 'gold platinum'",
        "tier in text",
        "tier in xs",
        "tier in d",
        "tier is in text",
        "tier is in 'gold'",
        "text in tier",
        "'gold' in tier",
        "tier in text in xs",
        "tier.level in text",
        "text.startswith(tier)",
        "text.endswith(tier)",
        "text.count(tier)",
        "text.find(tier) >= 0",
        "text.rfind(tier) >= 0",
        "tier > 3",
        "3 > tier",
        "tier == ''",
        "tier",
        "tier.a.b()",
    ],
)
def test_an_if_over_what_is_missing_is_false(condition: str) -> None:
    assert render("{% if " + condition + " %}yes{% endif %}") == ""


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("tier not in text", "True"),
        ("'gold' in text", "True"),
        ("text in text", "True"),
        ("'x' in text or 'ab' in xs|map(attribute='x')", "True"),
        ("xs|selectattr('x', 'in', 'abc')|list|length", "2"),
        ("xs|rejectattr('x', 'in', 'abc')|list|length", "1"),
        ("range(many)|list", "[]"),
        ("range(many, many)|list", "[]"),
        ("range(many, 3)|list", "[0, 1, 2]"),
        ("text[:many]", "gold, platinum"),
        ("text[6:many]", "platinum"),
        ("text[many:4]", "gold"),
        ("xs[:many]|length", "3"),
        ("text[many]", ""),
        ("xs[many].x", ""),
        ("d[many]", ""),
        ("n|round(many)", "3.0"),
        ("n|round(2, way)", "3.14"),
        ("long|truncate(many)|length < 256", "True"),
        ("long|truncate(length=many) == long|truncate", "True"),
        ("long|truncate(9, killwords=kill)", "words..."),
        ("text|replace(old, 'x')", "gold, platinum"),
        ("text|replace('gold, ', new)", "platinum"),
        ("text.replace(old, 'x')", "gold, platinum"),
        ("text.replace('gold, ', new)", "platinum"),
        ("text.replace('g', '', many)", "old, platinum"),
        ("text.split(by)", "['gold,', 'platinum']"),
        ("text.split(by, 1)", "['gold,', 'platinum']"),
        ("text.split(', ', many)", "['gold', 'platinum']"),
        ("text.split(sep=by)", "['gold,', 'platinum']"),
        ("text.strip(by)", "gold, platinum"),
        ("text.partition(by)[0]", "gold, platinum"),
        ("text.rpartition(by)[2]", "gold, platinum"),
        ("text.removeprefix(start)", "gold, platinum"),
        ("', '.join([who, 'a'])", ", a"),
        ("', '.join(who)", ""),
        ("['a', who]|join(by)", "a"),
        ("text|attr(name)", ""),
        ("d.get('a', other)", "1"),
        ("d.get('b', other)", ""),
        ("nobody|default(other)", ""),
    ],
)
def test_a_missing_argument_is_as_one_that_is_not_given(expression: str, text: str) -> None:
    assert shown(expression) == text


@pytest.mark.parametrize(
    "template",
    [
        "{% call nobody() %}said{% endcall %}",
        "{% call(row) nobody.at.home(1) %}{{ row }}{% endcall %}",
        "{% filter first %}{{ nobody }}{% endfilter %}",
    ],
)
def test_blocks_of_what_is_missing_are_nothing(template: str) -> None:
    assert render(template) == ""


def test_a_filter_around_a_block_may_answer_any_value() -> None:
    assert render("{% filter length %}abc{% endfilter %}{% filter list %}ab{% endfilter %}") == "3['a', 'b']"


@pytest.mark.parametrize("name", sorted(FILTERS.keys() - {"format", "map", "select", "reject"}))
@pytest.mark.parametrize("value", ["nobody", "text", "xs", "n", "d"])
def test_no_filter_is_worse_off_for_a_missing_argument(name: str, value: str) -> None:
    """Where it works without an argument it works with one that is missing."""
    alone = outcome(f"{value}|{name}")
    if "failed" not in alone and " at 0x" not in alone and name != "random":
        assert outcome(f"{value}|{name}(nobody)") in (alone, WRONG_NUMBER)


WRONG_NUMBER = "failed: arguments"


def outcome(expression: str) -> str:
    try:
        return shown(expression)
    except TemplateFailed as error:
        return WRONG_NUMBER if "argument" in str(error) else f"failed: {error}"


METHODS_OF_TEXTS = sorted(
    name for name in dir(str) if name[0] != "_" and name not in ("format", "format_map")
)
HOW = [
    *(f"VALUE|{name}(ARGUMENT)" for name in FILTERS),
    *(f"VALUE is {name}(ARGUMENT)" for name in TESTS),
    *(f"VALUE.{name}(ARGUMENT)" for name in METHODS_OF_TEXTS),
    "VALUE[ARGUMENT]",
    "VALUE[ARGUMENT:VALUE]",
    "VALUE in ARGUMENT",
    "VALUE(ARGUMENT)",
    "VALUE + ARGUMENT",
    "VALUE < ARGUMENT",
    "VALUE|map(ARGUMENT)|list",
    "VALUE|select(ARGUMENT)|list",
    "range(VALUE, ARGUMENT)",
]
OF = st.sampled_from(
    [
        "nobody",
        "text",
        "xs",
        "n",
        "d",
        "none",
        "['a', nobody]",
        "('a', nobody)",
        "1e400",
        "'nan'|float",
        "-1",
        "{}",
    ]
)


@given(st.sampled_from(HOW), OF, OF)
def test_whatever_an_expression_does_is_a_text_or_a_clear_error(how: str, value: str, argument: str) -> None:
    template = "\n{{ " + how.replace("VALUE", f"({value})").replace("ARGUMENT", argument) + " }}"
    if check_template(template) is None:
        try:
            assert isinstance(render(template), str)
        except TemplateFailed as error:
            assert "failed in line 2: " in str(error)  # noqa: PT017 (a text is as good)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("1e400", "inf"),
        ("-1e400", "-inf"),
        ("'nan'|float", "nan"),
        ("'inf'|float", "inf"),
        ("[1e400, ('-inf'|float, 1)]", "[inf, (-inf, 1)]"),
        ("n < 1e400", "True"),
        ("{'most': 1e400}.most", "inf"),
    ],
)
def test_numbers_without_end_are_constants_too(expression: str, text: str) -> None:
    assert check_template("{{ " + expression + " }}") is None
    assert shown(expression) == text


@pytest.mark.parametrize(
    ("template", "line", "message"),
    [
        ("\n{{ f(a=1, a=2) }}", 2, "keyword argument repeated: a"),
        ("\n{{ x|default(boolean=1, boolean=2) }}", 2, "keyword argument repeated"),
        ("\n{% macro m(a, a) %}{% endmacro %}", 2, "duplicate argument"),
        ("{% for a in b %}" * 25 + "{% endfor %}" * 25, 1, "too many statically nested blocks"),
        ("{% if a %}" * 150 + "{% endif %}" * 150, 1, "too many levels"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", 1, "nested too deeply"),
        ("{{ x" + "|upper" * 3000 + " }}", 1, "nested too deeply"),
        ("{{ " + "9" * 5000 + " }}", 1, "4300 digits"),
        ("{{ {[]: 1} }}", 1, "unhashable"),
        ("{{ '\\ud800' }}", 1, "half a surrogate pair"),
        ("a\n\ud800", 1, "half a surrogate pair"),
    ],
)
def test_what_python_or_jinja_cannot_compile_is_found_at_load(template: str, line: int, message: str) -> None:
    fault = check_template(template)
    assert fault is not None
    assert (fault.line, message in fault.message) == (line, True)
    with pytest.raises(ConfigError):
        PromptEngine().register("helper", template)
    with pytest.raises(ConfigError, match="context_transform"):
        compile_transform('{"a": 1}' + template)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("\n{{ 'abc'|truncate(1) }}", "in line 2: AssertionError"),
        ("\n\n{{ 'inf'|float|int }}", "in line 3: OverflowError"),
        ("\n{{ none in text }}", "in line 2: TypeError"),
        ("\n{{ text.index(nobody) }}", "in line 2: TypeError"),
        ("\n{{ {'nobody': nothing}[[]] }}", "in line 2: "),
    ],
)
def test_what_fails_on_values_is_the_templates_own_error(template: str, says: str) -> None:
    """None is a value, not missing: operators and filters say what they think of it."""
    try:
        assert render(template) == "\n"
    except TemplateFailed as error:
        assert says in str(error)  # noqa: PT017 (one of them renders as nothing)


@pytest.mark.parametrize(
    "condition",
    ["who in 'gold'", "who not in 'gold'", "'gold'.startswith(who)", "'a'[:who]", "who is in 'gold'"],
)
def test_where_what_is_missing_is_a_failure_it_stays_one(condition: str) -> None:
    """Rules for approvals: a misspelt name neither holds nor fails to hold."""
    with pytest.raises(TemplateFailed):
        CompiledTemplate(expression_template(condition), "a rule", STRICT).render({})


def test_context_transforms_fail_as_they_did() -> None:
    with pytest.raises(ToolFailed, match="context_transform failed"):
        compile_transform('{"a": "{{ 1 / n }}"}')({"n": 0})
    assert compile_transform('{"a": {{ x|tojson }}, "b": "{{ y }}"}')({"x": [1]}) == {"a": [1], "b": ""}


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("[nope]", "['']"),
        ("{'a': nope}", "{'a': ''}"),
        ("{nope: 1}", "{'': 1}"),
        ("dict(a=nope)", "{'a': ''}"),
        ("[d, {}]|map(attribute='a')|list", "[1, '']"),
        ("[d, {}]|groupby('a')", "[('', [{}]), (1, [{'a': 1}])]"),
        ("nope|pprint", ""),
        ("[nope]|pprint", "['']"),
        ("[nope]|tojson", '[""]'),
        ("[1, 2]|slice(nope)|list", "[[1, 2]]"),
        ("[1, 2]|slice(slices=nope)|list", "[[1, 2]]"),
        ("[1, 2]|slice(2, nope)|list", "[[1], [2]]"),
        ("nope|slice(nope)|list", "[[]]"),
    ],
)
def test_in_a_list_or_a_mapping_what_is_missing_is_an_empty_text(expression: str, text: str) -> None:
    assert shown(expression) == text


@pytest.mark.parametrize(
    "template",
    [
        "{% set a, b = nope %}{{ a }}{{ b.c }}",
        "{% set a, b, c = nope.pair %}{{ a or b or c }}",
        "{% set a, (b, c) = nope %}{{ a }}{{ b }}{{ c }}",
        "{% for x in xs[:1] %}{% set a, b = x.nope %}{{ a }}{{ b }}{% endfor %}",
        "{% set space = namespace(a=1, b=2) %}{% set space.a, space.b = nope %}{{ space.a }}{{ space.b }}",
    ],
)
def test_names_that_are_set_to_the_parts_of_what_is_missing_are_missing(template: str) -> None:
    assert render(template) == ""


def test_what_is_there_is_taken_apart_as_ever() -> None:
    assert render("{% set a, (b, c) = [1, [2, 3]] %}{{ a }}{{ b }}{{ c }}") == "123"
    assert render("{% set a, b = d, nope %}{{ a }}{{ b }}") == "{'a': 1}"
    with pytest.raises(TemplateFailed, match="not enough values"):
        render("{% set a, b = [1] %}")
    with pytest.raises(TemplateFailed, match="line 2"):
        CompiledTemplate("\n{% set a, b = nope %}", "it", STRICT).render({})


ROWS = [{"a": 2, "n": 1}, {"n": 2}, {"a": 1, "n": 3}, {"n": 4}, {"a": 2, "n": 5}]


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("rows|sort(attribute='a')|map(attribute='n')|join", "24315"),
        ("rows|sort(attribute='a', reverse=true)|map(attribute='n')|join", "15324"),
        ("rows|sort(true, false, 'a')|map(attribute='n')|join", "15324"),
        ("rows|sort(attribute='a,n')|map(attribute='n')|join", "24315"),
        ("rows|map(attribute='a')|sort|join(',')", ",,1,2,2"),
        ("['b', nope, 'A']|sort|join(',')", ",A,b"),
        ("nope|sort", "[]"),
        ("rows|groupby('a')|map(attribute=0)|join(',')", ",1,2"),
        ("rows|groupby('a')|map(attribute=1)|map('map', attribute='n')|map('join')|join(',')", "24,3,15"),
        ("rows|groupby('a', default=9)|map(attribute='grouper')|join(',')", "1,2,9"),
        ("rows|groupby('n')|length", "5"),
        ("nope|groupby('a')", "[]"),
    ],
)
def test_what_is_missing_comes_first_and_the_rest_in_its_order(expression: str, text: str) -> None:
    assert render("{{ " + expression + " }}", rows=ROWS) == text
