# ruff: noqa: E501
"""Templates are bounded before memory and time are taken, whatever the values are; what is ordinary still works."""

import tracemalloc
from datetime import date

import pytest

from astromesh.core.prompt_engine import PromptEngine, compile_transform
from astromesh.errors import TemplateFailed, ToolFailed
from astromesh.types import MemoryContext, Message

LONG = "@" * 30_000
NESTED: list[object] = [1] * 2_000
for _ in range(200):
    NESTED = [NESTED]
VALUES = {
    "note": LONG,
    "name": "n" * 30_000,
    "texts": [LONG] * 30,
    "numbers": list(range(3_000)),
    "deep": NESTED,
}
DOUBLING = "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x SHOWN }}"
MEBIBYTE = 1 << 20


def render(template, **context):
    return PromptEngine().register("helper", template).render(MemoryContext(), context)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ note|replace('@', name) }}", "characters"),
        ("{{ note.replace('@', name) }}", "characters"),
        ("{{ note['replace']('@', name) }}", "characters"),
        ("{{ (note|attr('replace'))('@', name) }}", "characters"),
        ("{{ (note|safe).replace('@', name) }}", "characters"),
        ("{% for t in texts|map('replace', '@', name) %}{{ t }}{% endfor %}", "characters"),
        ("{% filter replace('@', name) %}{{ note }}{% endfilter %}", "characters"),
        ("{{ numbers|join(name) }}", "characters"),
        ("{{ name.join(note) }}", "characters"),
        ("{{ numbers|join(', ', attribute=name) }}{{ [texts, texts]|join(name) * 9 }}", "characters"),
        ("{{ ([texts] * 9000)|join }}", "characters|steps"),
        ("{{ ([texts] * 9000)|string|length }}", "characters"),
        ("{{ ([texts] * 9000)|tojson }}", "characters|steps"),
        ("{{ [texts] * 9000 }}", "characters|steps"),
        ("{{ 'x' ~ [texts] * 9000 }}", "characters|steps"),
        ("{{ ([texts] * 9000)|pprint }}", "characters"),
        ("{{ deep|tojson(indent=2) * 9 }}", "characters|steps"),
        (DOUBLING.replace("SHOWN", ""), "characters"),
        (DOUBLING.replace("SHOWN", "|tojson"), "characters"),
        (DOUBLING.replace("SHOWN", "|upper"), "characters"),
        (DOUBLING.replace("SHOWN", "== n.x"), "characters"),
        ("{{ '%99999d' % 1 }}{{ '%s' % name }}", "width or precision"),
        ("{{ '%*d' % (99999, 1) }}", "width or precision"),
        ("{{ '%.99999f'|format(1) }}", "width or precision"),
        ("{{ '%(a(b))99999d' % {'a(b)': 1} }}", "parenthesis"),
        ("{{ ('%(n)s' * 40) % {'n': name} }}", "characters"),
        ("{{ '{:>99999}'.format(1) }}", "width or precision"),
        ("{{ '{:{w}}'.format(1, w=99999) }}", "width or precision"),
        ("{{ ('{n}' * 40).format(n=name) }}", "characters"),
        ("{{ '{a[x]}'.format_map({'a': {'x': texts}, 'b': 1}) * 2 }}", "characters"),
        ("{{ '{!r}'.format([texts] * 40) }}", "characters"),
        ("{{ '{0.__class__}'.format(name) }}", "__class__"),
        ("{{ namespace(a=1) }}", "namespace"),
        ("{{ name|wordwrap(1, wrapstring=note) }}", "characters"),
        ("{{ (name * 30)|wordwrap(1) }}", "100000 characters"),
        ("{{ ('\n' * 3000)|indent(name, blank=True) }}", "characters"),
        ("{{ ('\n' * 30000)|indent(900, blank=True) }}", "characters"),
        ("{{ ('a@b.cc ' * 9000)|urlize(target=name) }}", "characters"),
        ("{{ [1]|batch(999999999, 0)|list }}", "width"),
        ("{{ [1]|slice(999999999)|list }}", "width"),
        ("{{ note|wordwrap('nan'|float) }}", "width"),
        ("{{ note|wordwrap(1e400) }}", "width"),
        ("{{ 1|round(-999999999) }}", "precision"),
        ("{{ (1).to_bytes(999999999, 'big') }}", "'to_bytes'"),
        ("{{ name.encode() }}", "'encode'"),
        ("{{ 'ab'.translate({97: name}) }}", "'translate'"),
        ("{{ 'x'.center(99999) }}", "width"),
        ("{{ '7'.zfill(99999) }}", "width"),
        ("{{ ('\t' * 9000).expandtabs(9000) }}", "characters"),
        ("{{ ('{:9999}' * 9000).format(*numbers * 3) }}", "characters"),
        ("{{ ('%9999d' * 9000) % 1 }}", "characters"),
        ("{{ '%%99999%s %99999s' % (1, 2) }}", "width"),
        ("{{ {name: numbers}|pprint }}", "characters"),
        ("{{ ''.join(([{'a': note}] * 9000)|map(attribute='a')) }}", "characters"),
        ("{{ note.strip(name) }}", "characters"),
        ("{% for i in numbers %}{% set x = note.count('@@b') %}{% endfor %}", "steps"),
        ("{{ ([numbers] * 300)|sum(start=[])|length }}", "steps"),
        ("{% for i in numbers %}{% if name in note %}{% endif %}{% endfor %}" * 2, "steps"),
        ("{% for i in numbers %}{% set x = note[1:] %}{% endfor %}", "steps"),
        ("{% for i in numbers %}{% set x = note.upper() %}{% endfor %}", "steps"),
        ("{% set x %}{% for i in numbers %}{{ note }}{% endfor %}{% endset %}", "steps"),
    ],
)  # fmt: skip
def test_what_would_become_long_fails_before_it_is_made(template, message):
    """Each template ends in a failure that says why, and takes less memory than ten of the longest texts."""
    prompt = PromptEngine().register("helper", template)
    tracemalloc.start()
    try:
        with pytest.raises(TemplateFailed, match=message):
            prompt.render(MemoryContext(), VALUES)
        assert tracemalloc.get_traced_memory()[1] < 60 * MEBIBYTE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ 'a-b'|replace('-', '+') }}{{ 'a-b'.replace('-', '+', 1) }}", "a+ba+b"),
        ("{{ [1, 'a', nope]|join('-') }}|{{ '-'.join(['a', 'b']) }}|{{ people|join(', ', 'n') }}", "1-a-|a-b|x, y"),
        ("{{ people|map(attribute='n')|map('upper')|list }}", "['X', 'Y']"),
        ("{{ people|groupby('n')|map(attribute='grouper')|join }}", "xy"),
        ("{{ (people|groupby('n'))[0].list[0].n }}", "x"),
        ("{{ 'a b'.split()|reverse|join }}{{ ' a '.strip() }}{{ 'ab'.startswith('a') }}", "baaTrue"),
        ("{{ people[0].get('n') }}{% for k, v in people[1].items() %}{{ k }}{{ v }}{% endfor %}", "xnyw2"),
        ("{{ [3, 1]|sort|first }}{{ [1, 2]|sum }}{{ people|sum('w') }}{{ [[1], [2]]|sum(start=[]) }}", "133[1, 2]"),
        ("{{ 1.26|round(1) }}{{ [1, 2, 3]|batch(2)|list }}{{ [1, 2]|slice(2)|list }}", "1.3[[1, 2], [3]][[1], [2]]"),
        ("{{ '%05.2f|%-3s|%(n)s' % {'n': 1} if false else '%05.2f|%-3s' % (1.5, 'a') }}", "01.50|a  "),
        ("{{ '{:>4}|{0!r}|{n:.1f}'.format('a', n=2) if false else '{0:>4}|{0!r}|{n:.1f}'.format('a', n=2) }}", "   a|'a'|2.0"),
        ("{{ '%s-%s'|format(1, nope) }}{{ '<{}>'.format(nope) }}{{ ('<b>{}'|safe).format('<') }}", "1-<><b>&lt;"),
        ("{{ 'a'.center(3) }}{{ '7'.zfill(3) }}{{ 'b'.rjust(2) }}{{ 'a\tb'.expandtabs(2) }}", " a 007 ba b"),
        ("{{ '100%%20000 %s' % 'a' }}{{ '{:>{w}}|{:%Y}'.format('a', day, w=3) }}", "100%20000 a  a|2026"),
        ("{% for p in people %}{{ p.n.strip(nope) }}{{ 'a'.replace(nope, 'b') }}{% endfor %}", "xaya"),
        ("{{ 'a\nb'|indent(2) }}{{ 'a'|center(3) }}{{ 'ab cd'|wordwrap(2) }}", "a\n  b a ab\ncd"),
        ("{{ {'a': [1]}|tojson(indent=2) }}{{ {'b': 1}|pprint }}", '{\n  "a": [\n    1\n  ]\n}' + "{'b': 1}"),
        ("{{ 'a' in 'abc' }}{{ [1, 2]|select('in', [2])|list }}{{ 3 is eq 3 }}{{ 2 ** 3 % 5 * 'x' }}", "True[2]Truexxx"),
        ("{% for i in [[1], [2]] recursive %}{{ i if i is number else loop(i) }}{% endfor %}", "12"),
        ("{% set n = namespace(a=[]) %}{% for i in range(3) %}{% set n.a = n.a + [i] %}{% endfor %}{{ n.a }}", "[0, 1, 2]"),
        ("{{ 'a' * 3 }}{{ (1, 2) + (3,) }}{{ 1.5 + 1 }}{{ people[0].update }}", "aaa(1, 2, 3)2.5c"),
        ("{% autoescape true %}{{ '<' }}{% set m = '<'|safe %}{{ m }}{% endautoescape %}", "&lt;<"),
        ("{{ nope|default('d') }}{{ nope|sort|list }}{{ nope|sum }}{{ none }}", "d[]0None"),
    ],
)  # fmt: skip
def test_what_is_ordinary_is_as_in_jinja(template, text):
    """Filters, methods, tests and operators answer what they always did."""
    people = [{"n": "x", "w": 1, "update": "c"}, {"n": "y", "w": 2}]
    assert render(template, people=people, day=date(2026, 1, 31)) == text


def test_a_long_text_of_a_value_is_written_and_used():
    """The bounds leave room for a prompt of 100,000 characters through several filters."""
    long = "word " * 20_000
    assert render("{{ t|upper|trim|replace('WORD', 'x')|length }} {{ t[:4] }} {{ t == t }}", t=long) == (
        "39999 word True"
    )


def test_records_are_written_with_what_they_hold():
    """A whole message in a prompt costs what its text is long."""
    prompt = PromptEngine().register("helper", "{{ [conversation_history[0]] * 3 }}")
    assert prompt.render(MemoryContext((Message("user", "hi"),))).count("content='hi'") == 3
    with pytest.raises(TemplateFailed, match=r"steps|characters"):
        prompt.render(MemoryContext((Message("user", "x" * 20_000_000),)))


def test_context_transforms_are_bounded_alike():
    """What a model wrote is not multiplied between two agents either."""
    transform = compile_transform('{"a": "{{ note|replace(\'@\', name) }}"}')
    assert transform({"note": "a@b", "name": "-"}) == {"a": "a-b"}
    with pytest.raises(ToolFailed, match="more than 1000000 characters"):
        transform(VALUES)
