"""The system prompt: variables of document 001, silent where missing, bounded, never a user's template."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astromesh.core.prompt_engine import RESERVED_NAMES, PromptEngine, current_date, unprovided_names
from astromesh.core.templates import check_template
from astromesh.errors import AstromeshError, ConfigError, InvalidManifest, TemplateFailed
from astromesh.types import MemoryContext, Message, SemanticResult

EMPTY = MemoryContext()
DOUBLING = (
    "{{% set n = namespace(x='ab') %}}{{% for i in range(60) %}}{{% set n.x = n.x {} n.x %}}{{% endfor %}}"
)
NOW = 1_769_904_000.0  # 2026-02-01 00:00 UTC


def render(template, memory=EMPTY, context=None, now=NOW, **variables):
    prompt = PromptEngine().register("helper", template, description="Helps.", variables=variables)
    return prompt.render(memory, context or {}, now)


def test_every_variable_of_the_document_is_there():
    memory = MemoryContext(
        (Message("user", "hi"), Message("assistant", "hello")),
        (SemanticResult("Paris is in France.", 0.92, why={"similarity": 0.92, "words": ["paris"]}),),
        ({"event": "tool_call", "tool": "search"},),
    )
    template = (
        "{{ agent_name }}|{{ description }}|{{ current_date }}|{{ product }}|"
        "{% for m in conversation_history %}{{ m.role }}: {{ m.content }};{% endfor %}"
        "|{% for r in semantic_context %}{{ r.content }} {{ r['score'] }} {{ r.why.words[0] }}{% endfor %}"
        "|{% for e in episodic_events %}{{ e.event }} {{ e['tool'] }}{% endfor %}"
    )
    assert render(template, memory, product="Astromesh") == (
        "helper|Helps.|2026-02-01|Astromesh|user: hi;assistant: hello;|Paris is in France. 0.92 paris|"
        "tool_call search"
    )


@pytest.mark.parametrize(
    "expression",
    [
        "nope", "nope.a.b", "nope['a'][0]", "nope.a()", "nope()", "nope(1, x=2).b", "nope|upper",
        "nope|join(', ')",
        "nope - 1", "-nope", "nope|first", "nope | trim", "context.deep.er[2]", "conversation_history",
    ],
)  # fmt: skip
def test_what_is_missing_renders_as_nothing(expression):
    assert render(f"[{{{{ {expression} }}}}]") == "[]"


def test_missing_values_are_false_and_empty_in_statements():
    template = "{% if nope.a > 3 or nope %}x{% endif %}{% for a in nope.b %}y{% endfor %}"
    assert render(template + "{{ 'a' + nope }}{{ 1 + nope }}") == "a1"


def test_the_requests_context_is_there_by_name_and_whole():
    assert render("{{ tier }} {{ context.tier }}", context={"tier": "gold"}) == "gold gold"


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES - {"context"}))
def test_a_request_cannot_set_the_documents_own_names(name):
    assert render(f"{{{{ {name} }}}}", context={name: "evil"}) == render(f"{{{{ {name} }}}}")


def test_a_request_cannot_set_the_operators_variables_or_the_engines_names():
    context = {"product": "evil", "range": 1, "_steps": [10**9]}
    template = "{{ product }} {{ range(2)|list }} {{ _steps|length }}"
    assert render(template, context=context, product="ok") == "ok [0, 1] 1"


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_the_operators_variables_cannot_have_the_documents_names(name):
    with pytest.raises(ConfigError, match=name):
        PromptEngine().register("helper", "", variables={name: 1})


@given(st.text(), st.text(st.sampled_from("{}%#| 'abc_()."), max_size=40))
def test_a_users_text_is_data_and_never_a_template(text, markup):
    for value in (text, markup, "{{ 7 * 7 }}", "{% for a in range(9) %}x{% endfor %}"):
        memory = MemoryContext((Message("user", value),))
        assert (
            render("<{{ q }}{{ conversation_history[0].content }}>", memory, {"q": value})
            == f"<{value}{value}>"
        )


def test_a_prompt_stays_the_same_over_a_day_and_changes_with_the_date():
    prompt = PromptEngine().register("helper", "Today is {{ current_date }}.")
    assert {prompt.render(EMPTY, {}, NOW + s) for s in (0, 1, 3600, 86_399)} == {"Today is 2026-02-01."}
    assert prompt.render(EMPTY, {}, NOW + 86_400) == "Today is 2026-02-02."
    assert prompt.render(EMPTY, {}, NOW) == "Today is 2026-02-01."
    assert current_date(0) == "1970-01-01"


def test_a_remembered_text_never_leaks_into_another_run():
    prompt = PromptEngine().register(
        "helper", "{{ name }}{% for r in semantic_context %}{{ r.content }}{% endfor %}"
    )
    known = MemoryContext(semantic_results=(SemanticResult("secret", 1.0),))
    assert prompt.render(known, {"name": "Ann"}, NOW) == "Annsecret"
    assert prompt.render(EMPTY, {}, NOW) == ""
    assert prompt.render(EMPTY, {"name": "Bob"}, NOW) == "Bob"
    assert prompt.render(EMPTY, {"name": 0}, NOW) == "0"


@pytest.mark.parametrize(
    ("template", "line", "message"),
    [
        ("a\n{% for x in y %}\n", 2, "Unexpected end"),
        ("a\n\n{{ x y }}", 3, "expected token"),
        ("{% if a %}\n{{ x|uper }}{% endif %}", 2, "unknown filter `uper`. Did you mean `upper`?"),
        ("\n{{ x is evn }}", 2, "unknown test `evn`. Did you mean `even`?"),
        ("\n\n{% include 'x' %}", 3, "`include` is not available"),
        ("{% extends 'x' %}", 1, "`extends` is not available"),
        ("{% import 'x' as y %}", 1, "`import` is not available"),
        ("{% nope %}", 1, "unknown tag"),
        ("{% block a %}{% endblock %}{% block a %}{% endblock %}", 1, "defined twice"),
    ],
)
def test_a_wrong_template_is_found_at_load_with_its_line(template, line, message):
    fault = check_template(template)
    assert fault is not None
    assert fault.line == line
    assert message in fault.message
    with pytest.raises(InvalidManifest, match="The system prompt of 'helper'"):
        PromptEngine().register("helper", template)


def test_a_sound_template_has_no_fault():
    assert (
        check_template("{% set x = 1 %}{% macro m(a) %}{{ a|upper }}{% endmacro %}{{ m('x') ~ x }}") is None
    )


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ 1 / 0 }}", "in line 1: ZeroDivisionError"),
        ("\n{{ 'a' - 1 }}", "in line 2: TypeError"),
        ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "steps"),
        (
            "{% for a in [1, 2]|map('string') %}{% for b in range(9999) %}{% endfor %}{% endfor %}" * 6,
            "steps",
        ),
        (
            "{% for i in [1] recursive %}{{ loop(range(9999)) if loop.depth < 3 }}{% endfor %}",
            "steps",
        ),
        ("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "RecursionError|steps"),
        ("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}", "steps"),
        ("{{ range(99999999) }}", "range"),
        ("{{ 'x' * 99999999 }}", "characters"),
        ("{{ [0] * 99999999 }}", "characters"),
        ("{{ 99999999 * 'x' }}", "characters"),
        ("{{ 9 ** 999 }}", "power"),
        ("{{ (9 ** 64) ** 64 }}", "bits"),
        ("{{ '%99999999d' % 1 }}", "width"),
        ("{{ '{:>99999999}'.format(1) }}", "width"),
        ("{{ 'x'.rjust(99999999) }}", "width"),
        ("{{ 'x'|center(99999999) }}", "width"),
        ("{{ 'x'|indent(99999999) }}", "width"),
        (DOUBLING.format("~"), "steps"),
        (DOUBLING.format("+"), "characters"),
        ("{% for i in range(9999) %}{{ big }}{% endfor %}", "characters"),
        ("{{ ''.__class__.__mro__ }}", "__class__"),
        ("{{ context.update({'a': 1}) }}", "'update'"),
        ("{{ agent_name.__init__.__globals__ }}", "__init__"),
    ],
)  # fmt: skip
def test_a_template_that_fails_or_takes_too_much_is_a_clear_error(template, message):
    with pytest.raises(TemplateFailed, match=message) as failed:
        render(template, context={"big": "x" * 1000})
    assert isinstance(failed.value, AstromeshError)
    assert "The system prompt of 'helper' failed" in str(failed.value)


def test_a_failed_rendering_does_not_spoil_the_next_one():
    prompt = PromptEngine().register("helper", "{{ 10 // n }}")
    with pytest.raises(TemplateFailed):
        prompt.render(EMPTY, {"n": 0}, NOW)
    assert prompt.render(EMPTY, {"n": 5}, NOW) == "2"


def test_json_for_a_model_is_not_escaped_for_html():
    assert render("{{ x|tojson }} {{ nope|tojson }}", context={"x": {"a": "<é>"}}) == '{"a":"<é>"} null'


def test_macros_loops_and_sets_work_as_in_jinja():
    template = (
        "{% macro item(x) %}<{{ x }}>{% endmacro %}{% set n = namespace(c=0) %}"
        "{% for k, v in d.items() %}{% set n.c = n.c + v %}{{ loop.index }}{{ item(k) }}"
        "{{ ',' if not loop.last }}{% else %}none{% endfor %}{{ n.c }}"
        "{% for x in xs|select('odd') %}{{ x }}{% endfor %}{{ 'a' ~ 1 ~ nope }}"
    )
    assert render(template, context={"d": {"a": 1, "b": 2}, "xs": [1, 2, 3]}) == "1<a>,2<b>313a1"


def test_every_wrong_filter_and_test_of_a_template_is_told_in_the_order_of_lines():
    fault = check_template("{{ c is defind }} {% include 'x' %}\n{{ a|uper }}\n{{ b|lowr }}")
    assert fault is not None
    assert [(one.line, one.message.split(".")[0]) for one in fault.every()] == [
        (1, "unknown test `defind`"),
        (1, "`include` is not available in templates"),
        (2, "unknown filter `uper`"),
        (3, "unknown filter `lowr`"),
    ]


def test_names_that_only_a_request_can_provide_are_told_by_line_with_the_nearest_known_one():
    system = "{{ tone|default('kind') }}\n{{ zebra }} {{ language }}\n{{ langauge }}{{ converstion_history }}"
    assert {(name, line): hint for name, line, hint in unprovided_names(system, ["language"])} == {
        ("zebra", 2): "",
        ("langauge", 3): "Did you mean `language`?",
        ("converstion_history", 3): "Did you mean `conversation_history`?",
    }
