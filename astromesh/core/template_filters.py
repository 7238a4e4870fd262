"""Filters, tests and methods of templates that are paid for, and look at sizes before they make texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import wraps
from io import StringIO
from pprint import PrettyPrinter
from types import BuiltinMethodType, MethodType
from typing import Any

import orjson
from jinja2 import Undefined, pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import (
    FILTERS,
    _GroupTuple,
    do_attr,
    do_join,
    do_replace,
    do_sum,
    make_attrgetter,
    make_multi_attrgetter,
)
from jinja2.runtime import Context
from jinja2.tests import TESTS
from jinja2.utils import _PassArg

from astromesh.core.template_costs import (
    CHARS,
    ITEMS,
    MAX_OUTPUT,
    MAX_RANGE,
    MAX_WIDTH,
    at_most,
    bounded,
    one_by_one,
    paid,
    pay_text,
    step,
    too_long,
)
from astromesh.core.template_undefined import found_in, is_missing, sparing

Function = Callable[..., Any]

#: characters that a step pays for, of filters that take long over each
_SLOW, _SORTED = 5, 20
_PRICES: tuple[tuple[int, str], ...] = (
    (CHARS, "capitalize center e escape forceescape indent int lower safe string trim truncate upper"),
    (CHARS, "urlencode wordcount"),
    (_SORTED, "dictsort groupby max min sort unique"),
    (_SLOW, "striptags title urlize wordwrap xmlattr"),
)
_OF_TEXTS = {name: chars for chars, names in _PRICES for name in names.split()}
#: of whose results nothing more is to be paid
ANSWER_TEXTS = frozenset(
    {*_PRICES[0][1].split(), *_PRICES[1][1].split(), *_PRICES[3][1].split()} - {"int"}
    | {"count", "join", "length", "replace", "round", "tojson", "_tojson"}
)
_OF_ITEMS = (
    "batch", "first", "items", "list", "map", "reject", "rejectattr", "reverse", "round", "select",
    "selectattr", "slice",
)  # fmt: skip
_COMPARISONS = (
    "!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan",
    "lt", "ne",
)  # fmt: skip
#: positions and names of numbers that sizes are made of, and the most that they may be
_NUMBERS: dict[str, tuple[int, str, int]] = {
    "batch": (0, "linecount", MAX_RANGE),
    "center": (0, "width", MAX_WIDTH),
    "round": (0, "precision", MAX_WIDTH),
    "slice": (0, "slices", MAX_RANGE),
    "truncate": (0, "length", MAX_OUTPUT),
    "wordwrap": (0, "width", MAX_OUTPUT),
}
#: texts that filters put in again and again
_MAX_PUT_IN = 100

#: what may be called of values; the rest makes long values of short ones, or is of no use in a text
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(
        """capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit
        isidentifier islower isnumeric isprintable isspace istitle isupper join lower lstrip partition
        removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith
        strip swapcase title upper""".split()  # noqa: SIM905
    ),
    int: frozenset({"bit_count", "bit_length", "is_integer"}),
    float: frozenset({"is_integer"}),
    bytes: frozenset({"decode", "hex"}),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
}


def may_be_called(value: Any, name: str) -> bool:
    """Whether templates may call this method of a value of a built-in kind."""
    for kind, names in METHODS.items():
        if isinstance(value, kind):
            return name in names
    return True


def bounded_method(method: Any) -> Function | None:
    """The method of a string that looks at sizes first, for those that make long texts of short ones."""
    if not isinstance(method, BuiltinMethodType | MethodType) or not isinstance(method.__self__, str):
        return None
    made = _METHODS.get(method.__name__)
    return None if made is None else made(method.__self__)


def filters() -> dict[str, Any]:
    """The standard filters, which pay; without `format`, a width in which makes a text of any length."""
    chosen: dict[str, Any] = dict(FILTERS)
    chosen.pop("format")
    for name, chars in _OF_TEXTS.items():
        chosen[name] = _paying(chosen[name], _text_payer(chars))
    for name in _OF_ITEMS:
        chosen[name] = _paying(chosen[name], _pay_items)
    for name, number in _NUMBERS.items():
        chosen[name] = _narrow(chosen[name], *number)
    for name, sized in _SIZED.items():
        chosen[name] = _sized(chosen[name], sized)
    chosen["slice"] = _one_at_least(chosen["slice"])
    chosen["sort"], chosen["groupby"] = _sorting(chosen["sort"]), _grouping(chosen["groupby"])
    own: dict[str, Any] = {
        "attr": _attr, "join": _join, "pprint": _pprint, "replace": _replace, "sum": _sum, "tojson": _to_json,
    }  # fmt: skip
    return {name: sparing(made, own.get(name, FILTERS[name])) for name, made in {**chosen, **own}.items()}


def tests() -> dict[str, Any]:
    """The standard tests, of which those that compare pay."""
    standard: dict[str, Any] = {**TESTS, "in": found_in}
    return standard | {name: _comparing(standard[name]) for name in _COMPARISONS}


# -- how they pay ------------------------------------------------------------------------------------------


def _text_payer(chars: int) -> Callable[[Context, Any], Any]:
    def pay(context: Context, value: Any) -> Any:
        if type(value) is str:
            if len(value) > chars:
                step(context, len(value) // chars)
        elif isinstance(value, Iterator):
            return one_by_one(context, (pay(context, item) for item in value))
        else:
            pay_text(context, value, chars)
        return value

    return pay


def _pay_items(context: Context, value: Any) -> Any:
    if isinstance(value, Undefined):
        return value
    if isinstance(value, Sized):
        step(context, len(value) // ITEMS)
        return value
    return one_by_one(context, value) if isinstance(value, Iterator) else value


_PASSED: dict[_PassArg | None, Callable[[Context], tuple[Any, ...]]] = {
    None: lambda _: (),
    _PassArg.context: lambda context: (context,),
    _PassArg.eval_context: lambda context: (context.eval_ctx,),
    _PassArg.environment: lambda context: (context.environment,),
}


def _paying(function: Function, pay: Callable[[Context, Any], Any]) -> Function:
    passed = _PASSED[_PassArg.from_obj(function)]

    if _PassArg.from_obj(function) is None:

        @pass_context
        def simple(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
            return bounded(context, function(pay(context, value), *args, **kwargs))

        return simple

    @pass_context
    def paying(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        made = function(*passed(context), pay(context, value), *args, **kwargs)
        return bounded(context, made)

    return paying


def _comparing(test: Function) -> Function:
    @pass_context
    def comparing(context: Context, *values: Any) -> Any:
        for value in values:
            paid(context, value)
        return test(*values)

    return comparing


def _narrow(function: Function, position: int, name: str, most: int) -> Function:
    """A filter whose number stays small."""

    @wraps(function)
    def narrowed(first: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        at_most(f"a {name}", args[position] if len(args) > position else kwargs.get(name), most)
        return function(first, value, *args, **kwargs)

    return narrowed


def _one_at_least(function: Function) -> Function:
    """The filter `slice`, which needs a number: where that is missing it is one."""

    @wraps(function)
    def counted(context: Context, value: Any, slices: Any, *more: Any, **named: Any) -> Any:
        return function(context, value, 1 if is_missing(slices) else slices, *more, **named)

    return counted


def _sorting(function: Function) -> Function:
    """The filter `sort`: what is missing is less than all that is there."""

    @wraps(function)
    def ordered(
        context: Context, value: Any, reverse: Any = False, case_sensitive: Any = False, attribute: Any = None
    ) -> Any:
        there, without = _parted(context, value, make_multi_attrgetter(context.environment, attribute))
        made = function(context, there, reverse, case_sensitive, attribute)
        return bounded(context, made + without if reverse else without + made)

    return ordered


def _grouping(function: Function) -> Function:
    """The filter `groupby`: what has no such attribute is one group, the first."""

    @wraps(function)
    def grouped(
        context: Context, value: Any, attribute: Any, default: Any = None, case_sensitive: Any = False
    ) -> Any:
        key = make_attrgetter(context.environment, attribute, default=default)
        there, without = _parted(context, value, lambda item: [key(item)])
        made = function(context, there, attribute, default, case_sensitive)
        return [_GroupTuple(key(without[0]), without), *made] if without else made

    return grouped


def _parted(
    context: Context, items: Any, keys: Callable[[Any], Iterable[Any]]
) -> tuple[list[Any], list[Any]]:
    """The items that have all their keys, and those that lack one."""
    there: list[Any] = []
    without: list[Any] = []
    for item in _pay_items(context, items):
        (without if any(map(is_missing, keys(item))) else there).append(item)
    return there, without


def _sized(function: Function, size: Callable[..., None]) -> Function:
    """A filter that is told what would become too long."""

    @wraps(function)
    def sized(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        size(value, *args, **kwargs)
        return function(context, value, *args, **kwargs)

    return sized


# -- sizes before texts ------------------------------------------------------------------------------------


def _size_of_replaced(text: str, old: str, new: str, count: int = -1) -> None:
    if (len(text) + 1) * len(new) <= MAX_OUTPUT:
        return
    times = text.count(old) if count < 0 else min(count, text.count(old))
    if len(text) + times * (len(new) - len(old)) > MAX_OUTPUT:
        too_long()


def _size_of_indented(text: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    at_most("a width", width, MAX_WIDTH)
    columns = len(width) if isinstance(width, str) else width
    if not isinstance(text, str) or not isinstance(columns, int) or len(text) * (columns + 1) <= MAX_OUTPUT:
        return
    if len(text) + len(text.splitlines()) * columns > MAX_OUTPUT:
        too_long()


def _size_of_put_in(_: Any, *args: Any, **kwargs: Any) -> None:
    if any(isinstance(text, str) and len(text) > _MAX_PUT_IN for text in (*args, *kwargs.values())):
        raise SecurityError(f"a text of more than {_MAX_PUT_IN} characters to put in again and again")


_SIZED: dict[str, Callable[..., None]] = {
    "indent": _size_of_indented,
    "urlize": _size_of_put_in,
    "wordwrap": _size_of_put_in,
}


def _within(context: Context, items: Iterable[Any], between: Any) -> list[Any]:
    """What is to be joined, if it is not too long together."""
    items = items if isinstance(items, Sized) else one_by_one(context, items)
    apart, size, taken = pay_text(context, between) if between else 0, 0, []
    for item in items:
        size += apart + (len(item) if type(item) is str else pay_text(context, item))
        if size > MAX_OUTPUT:
            too_long()
        taken.append(item)
    step(context, size // CHARS + len(taken) // ITEMS)
    return taken


@pass_context
def _join(context: Context, value: Any, d: Any = "", attribute: str | int | None = None) -> Any:
    if attribute is not None:
        value = map(make_attrgetter(context.environment, attribute), value)
    return do_join(context.eval_ctx, _within(context, value, d), d)


@pass_context
def _replace(context: Context, s: Any, old: Any, new: Any, count: int | None = None) -> Any:
    if is_missing(old):
        return s
    text, found, put = (
        value if isinstance(value, str) else str(paid(context, value)) for value in (s, old, new)
    )
    _size_of_replaced(text, found, put, -1 if count is None else count)
    return bounded(context, do_replace(context.eval_ctx, text, found, put, count))


@pass_context
def _sum(context: Context, iterable: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    items = _pay_items(context, iterable)
    if isinstance(start, int | float):
        return bounded(context, do_sum(context.environment, items, attribute, start))
    if attribute is not None:
        items = map(make_attrgetter(context.environment, attribute), items)
    total = start
    for item in items:  # each sum is a copy of the one before
        total = bounded(context, total + item)
    return total


@pass_context
def _attr(context: Context, obj: Any, name: Any) -> Any:
    return name if is_missing(name) else do_attr(context.environment, obj, name)


class _Page(StringIO):
    def write(self, text: str) -> int:
        if self.tell() + len(text) > MAX_OUTPUT:
            too_long()
        return super().write(text)


@pass_context
def _pprint(context: Context, value: Any) -> str:
    if is_missing(value):
        return ""
    pay_text(context, value, _SLOW, indent=4)
    page = _Page()
    PrettyPrinter(stream=page).pprint(value)
    return page.getvalue()[:-1]


@pass_context
def _to_json(context: Context, value: Any, indent: int | None = None) -> str:
    """JSON as a model reads it; the standard filter escapes for HTML."""
    if not indent and pay_text(context, value) > MAX_OUTPUT:
        too_long()
    return given_to_json(context, value, indent)


@pass_context
def given_to_json(context: Context, value: Any, indent: int | None = None) -> str:
    """JSON of a value that holds nothing twice."""
    if indent and pay_text(context, value, indent=2) > MAX_OUTPUT:
        too_long()
    if isinstance(value, Undefined):
        return "null"
    option = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    return str(bounded(context, orjson.dumps(value, default=str, option=option).decode()))


def _joining(between: str) -> Function:
    @pass_context
    def join(context: Context, items: Iterable[Any]) -> str:
        return between.join("" if is_missing(item) else item for item in _within(context, items, between))

    return join


def _replacing(text: str) -> Function:
    @pass_context
    def replace(context: Context, old: str, new: str, count: int = -1) -> str:
        if is_missing(old):
            return text
        put, times = "" if is_missing(new) else new, -1 if is_missing(count) else count
        _size_of_replaced(text, old, put, times)
        return text.replace(old, put, times)

    return replace


_METHODS: Mapping[str, Callable[[str], Function]] = {"join": _joining, "replace": _replacing}
