"""Limits of templates: caps on sizes, and steps for loops, calls and work on long texts.

A rendering makes no text of more than `MAX_OUTPUT` characters and takes at most `MAX_STEPS` steps. A step is
one round of a loop, one call, or work on `CHARS` characters or `ITEMS` items. Sizes are checked before the
text is made.
"""

from __future__ import annotations

import re
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sized,
)
from pprint import pformat
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn

import orjson
from jinja2 import Environment, Undefined, pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import (
    FILTERS,
    do_join,
    do_replace,
    make_attrgetter,
)
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.tests import TESTS
from jinja2.utils import Namespace, _PassArg
from markupsafe import Markup

from astromesh.core.missing_values import (
    MISSING_FILTERS,
    any_missing,
    drop_missing,
    found_in,
    is_missing,
    required_arguments,
)
from astromesh.types import Message, SemanticResult

#: characters of a rendered text, and of any text on the way to it
MAX_OUTPUT = 1_000_000
#: steps of one rendering
MAX_STEPS = 100_000
MAX_RANGE = 10_000
MAX_BITS = 4_096
#: columns, digits, precisions
MAX_WIDTH = 1_000
#: characters of a text that a filter inserts many times
_MAX_INSERTED = 100

#: characters and items of one step, and characters of one step of a slow filter
CHARS, ITEMS, _SLOW_CHARS = 100, 10, 5

#: the variable that holds the steps which are left; templates cannot set it
STEPS = "_steps"
#: records whose fields templates may read
RECORDS = frozenset({Message, SemanticResult})

_SCALARS = frozenset({int, float, bool, type(None)})
_NOTHING: dict[Any, Any] = {}
_HOLDERS = (
    list,
    tuple,
    set,
    frozenset,
    type(_NOTHING.keys()),
    type(_NOTHING.values()),
    type(_NOTHING.items()),
)
_LONG = (str, bytes, list, tuple)
#: characters that a number, or the frame of a list, counts for
_LEAF = 16
#: characters of the longest number that `%f` writes
_LONGEST_FLOAT = 330

Function = Callable[..., Any]


# -- sizes and steps ---------------------------------------------------------------------------------------


def too_long() -> NoReturn:
    raise SecurityError(f"more than {MAX_OUTPUT} characters")


def at_most(what: str, number: Any, most: int) -> None:
    """Caps a number that decides how long a text becomes."""
    if isinstance(number, int | float) and not abs(number) <= most:  # NaN fails both comparisons
        raise SecurityError(f"{what} of more than {most}")


def step(context: Context, steps: int) -> None:
    """Takes steps.

    Raises:
        SecurityError: fewer are left.
    """
    left = context.parent[STEPS]
    left[0] -= steps
    if left[0] < 0:
        raise SecurityError(f"more than {MAX_STEPS} steps of loops, calls and work on long texts")


def text_size(value: Any, indent: int = 0) -> int:
    """The approximate number of characters of the text of a value.

    A value that stands in many places counts once for each. The search goes down level by level.

    Args:
        indent: columns by which each level is indented.

    Raises:
        SecurityError: more than `MAX_OUTPUT`.
    """
    size, depth, level = 0, 0, [value]
    while level:
        each = 2 + indent * depth
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str:
                size += len(item)
            elif kind is int:
                size += 1 + item.bit_length() // 3
            elif kind in _SCALARS:
                size += _LEAF
            else:
                held = _parts(item)
                size += _LEAF + each * len(held)
                below += held if size <= MAX_OUTPUT else ()
            if size > MAX_OUTPUT:
                too_long()
        depth, level = depth + 1, below
    return size


def _parts(item: Any) -> Collection[Any]:
    """The values whose texts are part of the text of a value."""
    if isinstance(item, _HOLDERS):
        return item
    if isinstance(item, Mapping):
        return [*item, *item.values()]
    if isinstance(item, str | bytes):  # subclasses
        return (str(item),)
    if type(item) in RECORDS:
        return [getattr(item, name) for name in item.__slots__]
    if type(item) is Namespace:
        raise SecurityError("a namespace has no text")
    return ()


def pay(context: Context, value: Any, chars: int = CHARS) -> int:
    """Takes the steps for work on the text of a value; returns its size.

    Args:
        chars: characters of one step.
    """
    size = len(value) if type(value) is str else text_size(value)
    if size > chars:
        step(context, size // chars)
    return size


@pass_context
def written(context: Context, value: Any) -> Any:
    """A value that is written or compared."""
    kind = type(value)
    if kind is str:
        if len(value) > CHARS:
            step(context, len(value) // CHARS)
    elif kind not in _SCALARS:
        pay(context, value)
    return value


@pass_context
def as_text(context: Context, value: Any) -> str:
    """The result of a block, which Jinja takes for a text."""
    return value if isinstance(value, str) else str(written(context, value))


@pass_context
def concatenated(context: Context, parts: list[Any]) -> str:
    """The operator `~`."""
    if sum(pay(context, part) for part in parts) > MAX_OUTPUT:
        too_long()
    return "".join(map(str, parts))


@pass_context
def counted(context: Context, values: Any, items: int = 1) -> Any:
    """The values of a loop, one step for each round; or of a filter, one step for some items.

    Args:
        items: of one step.
    """
    if isinstance(values, Undefined):
        return values
    if isinstance(values, Sized) and not isinstance(values, Iterator):
        step(context, len(values) // items)
        return values
    return one_by_one(context, values) if isinstance(values, Iterable) else values


def one_by_one(context: Context, values: Iterable[Any], chars: int = 0) -> Iterator[Any]:
    """Lazy values, one step each, and the steps for their texts if `chars` is given."""
    for value in values:
        step(context, 1)
        if chars:
            pay(context, value, chars)
        yield value


@pass_context
def one_round(context: Context, value: Any) -> Any:
    """One round of a loop that calls itself."""
    step(context, 1)
    return value


def pay_call(context: Context, called: Any) -> None:
    """Takes one step, and those for the text or list whose method is called."""
    owner = called.__self__ if isinstance(called, BuiltinMethodType | MethodType) else None
    step(context, 1 + len(owner) // CHARS if isinstance(owner, _LONG) else 1)


def bounded(context: Context, value: Any) -> Any:
    """The result of an operator, call or filter."""
    kind = type(value)
    if kind is str:
        if len(value) > CHARS:
            if len(value) > MAX_OUTPUT:
                too_long()
            step(context, len(value) // CHARS)
    elif kind is int:
        if value.bit_length() > MAX_BITS:
            raise SecurityError(f"a number of more than {MAX_BITS} bits")
    elif isinstance(value, _LONG):
        if len(value) > MAX_OUTPUT:
            too_long()
        step(context, len(value) // ITEMS)
    return value


# -- operators and methods ---------------------------------------------------------------------------------

_PRINTF = re.compile(r"%(?:\(([^()]*)\))?[-#0 +]*(\*|\d+)?(?:\.(\*|\d+))?")

#: methods that make long texts of short ones, or are of no use in a text
_REFUSED_METHODS = frozenset(
    """as_integer_ratio center encode expandtabs from_bytes fromhex fromkeys ljust maketrans rjust to_bytes
    translate zfill""".split()  # noqa: SIM905
)


def may_be_called(value: Any, name: str) -> bool:
    """Whether templates may call this method of a value."""
    return name not in _REFUSED_METHODS or not isinstance(value, str | bytes | int | float | dict)


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuses `*`, `**` and `%` whose result would be too long."""
    if operator == "*":
        for sized, times in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(sized, Sized) and len(sized) * times > MAX_OUTPUT:
                too_long()
    elif operator == "**":
        if isinstance(right, int | float) and abs(right) > 64:
            raise SecurityError("a power of more than 64")
    elif operator == "%" and isinstance(left, str):
        _check_printf(left, right)


def _check_printf(text: str, values: Any) -> None:
    """Counts the widths, precisions and values of `text % values`."""
    fields = [found.groups() for found in _PRINTF.finditer(text)]
    if re.search(r"%\([^()]*\(", text):
        raise SecurityError("a parenthesis in a name of a format")
    arguments = values if isinstance(values, tuple) else (values,)
    size = len(text)
    for _, *numbers in fields:
        for number in filter(None, numbers):
            width = max((one for one in arguments if isinstance(one, int)), default=0, key=abs)
            at_most("a width or precision", width if number == "*" else int(number), MAX_WIDTH)
            size += MAX_WIDTH if number == "*" else int(number)
    value_size = text_size(values)
    size += value_size if isinstance(values, tuple) else value_size * len(fields)
    if size + _LONGEST_FLOAT * len(fields) > MAX_OUTPUT:
        too_long()


class _CappedFormatter(SandboxedFormatter):
    """`str.format` whose widths, precisions and result are capped."""

    size = 0

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion is not None:
            text_size(value)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        for number in re.findall(r"\d+", format_spec):
            at_most("a width or precision", int(number), MAX_WIDTH)
        self.size += text_size(value)
        if self.size > MAX_OUTPUT:
            too_long()
        return str(super().format_field("" if is_missing(value) else value, format_spec))


class _CappedEscapeFormatter(_CappedFormatter, SandboxedEscapeFormatter):
    """The same for texts that are marked as safe."""


def format_method(environment: Environment, method: Any) -> Function | None:
    """The capped `format` or `format_map` of a text; None for every other value."""
    if not isinstance(method, BuiltinMethodType | MethodType) or not isinstance(method.__self__, str):
        return None
    if method.__name__ not in ("format", "format_map"):
        return None
    text, takes_mapping = method.__self__, method.__name__ == "format_map"

    def capped(*args: Any, **named: Any) -> str:
        if isinstance(text, Markup):
            formatter: _CappedFormatter = _CappedEscapeFormatter(environment, escape=text.escape)
        else:
            formatter = _CappedFormatter(environment)
        return type(text)(formatter.vformat(text, *((), *args) if takes_mapping else (args, named)))

    return capped


def checked_arguments(context: Context, method: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a text's method: those of `join` and `replace` must not make a long text."""
    if method.__name__ == "join" and args:
        items = _joinable(context, args[0], method.__self__)
        return ([*("" if is_missing(item) else item for item in items)], *args[1:])
    if method.__name__ == "replace" and len(args) > 1:
        _check_replacement(method.__self__, *args)
    return args


def _check_replacement(text: str, old: str, new: str, count: int = -1) -> None:
    if (len(text) + 1) * len(new) <= MAX_OUTPUT:
        return
    times = text.count(old) if count < 0 else min(count, text.count(old))
    if len(text) + times * (len(new) - len(old)) > MAX_OUTPUT:
        too_long()


def _joinable(context: Context, items: Iterable[Any], separator: Any) -> list[Any]:
    """Items whose texts, with the separator between them, are not too long."""
    items = items if isinstance(items, Sized) else one_by_one(context, items)
    between, size, taken = pay(context, separator) if separator else 0, 0, []
    for item in items:
        size += between + pay(context, item)
        if size > MAX_OUTPUT:
            too_long()
        taken.append(item)
    step(context, size // CHARS + len(taken) // ITEMS)
    return taken


# -- filters and tests -------------------------------------------------------------------------------------

_SLOW = frozenset({"striptags", "title", "urlize", "wordwrap", "xmlattr"})
#: filters that work on a list as a whole, or take their steps themselves
_OF_ITEMS = frozenset(
    """attr batch count d default first items join last length list map pprint random reject rejectattr
    reverse round select selectattr slice sum tojson""".split()  # noqa: SIM905
)
#: the first argument of filters that decides how long the text becomes, and its cap
_CAPS: dict[str, tuple[str, int]] = {
    "batch": ("linecount", MAX_RANGE),
    "center": ("width", MAX_WIDTH),
    "indent": ("width", MAX_WIDTH),
    "round": ("precision", MAX_WIDTH),
    "slice": ("slices", MAX_RANGE),
    "truncate": ("length", MAX_OUTPUT),
    "wordwrap": ("width", MAX_OUTPUT),
}
_COMPARISONS = "!= < <= == > >= eq equalto ge greaterthan gt in le lessthan lt ne".split()  # noqa: SIM905
_PASSED: dict[_PassArg | None, Callable[[Context], tuple[Any, ...]]] = {
    None: lambda _: (),
    _PassArg.context: lambda context: (context,),
    _PassArg.eval_context: lambda context: (context.eval_ctx,),
    _PassArg.environment: lambda context: (context.environment,),
}


def filters() -> dict[str, Any]:
    """The standard filters under limits."""
    return {name: _limited(name, function) for name, function in {**FILTERS, **_OWN}.items()}


def tests() -> dict[str, Any]:
    """The standard tests, of which those that compare take steps."""
    standard: dict[str, Any] = {**TESTS, "in": found_in}
    return standard | {name: _comparison(standard[name]) for name in _COMPARISONS}


def _limited(name: str, function: Function) -> Function:
    """A filter that takes steps for its value, caps its arguments and bounds its result.

    A missing argument counts as one that is not given, where the filter has a default for it.
    """
    passed, required = _PASSED[_PassArg.from_obj(function)], required_arguments(function)
    chars, of_items = _SLOW_CHARS if name in _SLOW else CHARS, name in _OF_ITEMS
    parameter, cap = _CAPS.get(name, ("", 0))
    check = _CHECKS.get(name)

    @pass_context
    def limited(context: Context, value: Any, *args: Any, **named: Any) -> Any:
        if of_items:
            value = counted(context, value, ITEMS)
        elif isinstance(value, Iterator):
            value = one_by_one(context, value, chars)
        else:
            pay(context, value, chars)
        if required is not None and any_missing(args, named):
            args, named = drop_missing(args, named, required)
        if cap:
            at_most(f"a {parameter}", args[0] if args else named.get(parameter), cap)
        if check is not None:
            check(value, *args, **named)
        return bounded(context, function(*passed(context), value, *args, **named))

    return limited


def _comparison(test: Function) -> Function:
    @pass_context
    def compare(context: Context, *values: Any) -> Any:
        for value in values:
            written(context, value)
        return test(*values)

    return compare


def _check_indent(text: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    columns = len(width) if isinstance(width, str) else width
    if not isinstance(text, str) or not isinstance(columns, int) or len(text) * (columns + 1) <= MAX_OUTPUT:
        return
    if len(text) + len(text.splitlines()) * columns > MAX_OUTPUT:
        too_long()


def _check_inserted(_: Any, *args: Any, **named: Any) -> None:
    if any(isinstance(text, str) and len(text) > _MAX_INSERTED for text in (*args, *named.values())):
        raise SecurityError(f"a text of more than {_MAX_INSERTED} characters to insert again and again")


_CHECKS: dict[str, Callable[..., None]] = {
    "format": lambda text, *args, **named: _check_printf(str(text), named or args),
    "indent": _check_indent,
    "urlize": _check_inserted,
    "wordwrap": _check_inserted,
}


@pass_context
def _join(context: Context, value: Any, d: Any = "", attribute: str | int | None = None) -> Any:
    if attribute is not None:
        value = map(make_attrgetter(context.environment, attribute), value)
    return do_join(context.eval_ctx, _joinable(context, value, d), d)


@pass_context
def _pprint(context: Context, value: Any) -> str:
    if is_missing(value):
        return ""
    step(context, text_size(value, indent=4) // _SLOW_CHARS)
    return pformat(value)


@pass_context
def _replace(context: Context, s: Any, old: Any, new: Any, count: int | None = None) -> Any:
    if is_missing(old):
        return s
    text, old, new = (one if isinstance(one, str) else str(written(context, one)) for one in (s, old, new))
    _check_replacement(text, old, new, -1 if count is None else count)
    return do_replace(context.eval_ctx, text, old, new, count)


@pass_context
def _sum(context: Context, iterable: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    if attribute is not None:
        iterable = map(make_attrgetter(context.environment, attribute), iterable)
    for item in iterable:  # each sum of lists copies the one before
        start = bounded(context, start + item)
    return start


@pass_context
def _to_json(context: Context, value: Any, indent: int | None = None) -> str:
    """JSON as a model reads it; the standard filter escapes for HTML."""
    if isinstance(value, Undefined):
        return "null"
    step(context, text_size(value, indent=2 if indent else 0) // CHARS)
    option = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    return orjson.dumps(value, default=str, option=option).decode()


_OWN: dict[str, Function] = {
    **MISSING_FILTERS,
    "join": _join,
    "pprint": _pprint,
    "replace": _replace,
    "sum": _sum,
    "tojson": _to_json,
}
