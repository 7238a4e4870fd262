"""Limits of templates: caps on sizes and numbers, and steps for loops, calls and long texts.

One rendering makes no text of more than `MAX_OUTPUT` characters and takes at most `MAX_STEPS` steps. Every
filter and every method of a text passes through `check_call`, which computes sizes before the text is made.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from string import Formatter
from typing import Any

from jinja2 import Undefined, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.utils import Namespace

from astromesh.types import Message, SemanticResult

#: characters of a rendered text, and of any text on the way to it
MAX_OUTPUT = 1_000_000
#: steps of one rendering
MAX_STEPS = 100_000
#: widths, precisions, and numbers of a range or batch
MAX_NUMBER = 10_000
_MAX_EXPONENT, _MAX_BITS = 64, 4_096
#: the size of a value times the largest number or text that a filter or method takes with it
_MAX_PRODUCT = 20_000_000
#: characters that a slow filter takes
_MAX_SLOW = 100_000
#: characters of one step; an item of a list and a character of a slow filter count for several
CHARS, _ITEM, _SLOW_CHAR = 100, 10, 20
#: characters that a number, or the frame of a list, counts for; of the longest number that `%f` writes
_LEAF, _LONGEST_FLOAT = 16, 330

#: the variable that holds the remaining steps; templates cannot set it
STEPS = "_steps"
#: records whose fields templates may read
RECORDS = frozenset({Message, SemanticResult})

#: filters and methods whose numbers decide how long the result is
_SIZED_BY_NUMBERS = frozenset(
    {"batch", "center", "expandtabs", "indent", "ljust", "rjust", "round", "slice", "wordwrap", "zfill"}
)
#: filters that make no text of the value they take
_TEXTLESS = frozenset(
    """attr batch count d default first items last length list map random reject rejectattr reverse select
    selectattr slice sum""".split()  # noqa: SIM905
)
_SLOW = frozenset({"pprint", "striptags", "title", "urlize", "wordwrap", "xmlattr"})
_SCALARS = frozenset({int, float, bool, type(None)})
#: types whose values are never lazy
_PLAIN = _SCALARS | {str, list, dict}
_PRINTF = re.compile(r"%%|%(?:\([^()]*\))?([-#0 +*.\d]*)")
_FIELDS = Formatter().parse
_DIGITS = re.compile(r"\d+")
_NESTED_NAME = re.compile(r"%\([^()]*\(")


# -- sizes and steps ---------------------------------------------------------------------------------------


def check_size(size: int, most: int = MAX_OUTPUT) -> None:
    if size > most:
        raise SecurityError(f"a text, or a value written as text, of more than {most} characters")


def _check_number(number: float) -> None:
    if not abs(number) <= MAX_NUMBER:  # NaN fails every comparison
        raise SecurityError(f"a width or precision of more than {MAX_NUMBER}")


def step(context: Context, steps: int) -> None:
    """Takes steps.

    Raises:
        SecurityError: fewer remain.
    """
    left = context.parent[STEPS]
    left[0] -= steps
    if left[0] < 0:
        raise SecurityError(f"more than {MAX_STEPS} steps of loops, calls and work on long texts")


def text_size(value: Any) -> int:
    """The approximate number of characters of the text of a value, as `str` or an indented JSON writes it.

    A value that stands in many places counts once for each. The search goes down level by level.

    Raises:
        SecurityError: more than `MAX_OUTPUT`.
    """
    kind = type(value)
    if kind is str and len(value) <= MAX_OUTPUT:
        return len(value)
    if kind in _SCALARS:
        return _LEAF + value.bit_length() // 3 if kind is int else _LEAF
    size, indent, level = 0, 2, [value]
    while level:
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str:
                size += len(item)
            elif kind is int:
                size += 1 + item.bit_length() // 3
            else:
                parts = () if kind in _SCALARS else _parts(item)
                size += _LEAF + indent * len(parts)
                below += parts if size <= MAX_OUTPUT else ()
            check_size(size)
        indent, level = indent + 2, below
    return size


def _parts(item: Any) -> Collection[Any]:
    """The values whose texts are part of the text of a value."""
    if isinstance(item, str | bytes):  # subclasses
        return (str(item),)
    if isinstance(item, Mapping):
        return [*item, *item.values()]
    if type(item) in RECORDS:
        return [getattr(item, name) for name in item.__slots__]
    if type(item) is Namespace:
        raise SecurityError("a namespace has no text")
    return item if isinstance(item, Collection) else ()


def length_of(value: Any) -> int:
    """The number of items; 0 for a value that has none."""
    return len(value) if isinstance(value, Sized) and not isinstance(value, Undefined) else 0


@pass_context
def written(context: Context, value: Any) -> Any:
    """A value that is written or compared."""
    kind = type(value)
    if kind is str:
        if len(value) > CHARS:
            step(context, len(value) // CHARS)
    elif kind not in _SCALARS:
        step(context, text_size(value) // CHARS)
    return value


@pass_context
def counted(context: Context, values: Any) -> Any:
    """The values of a loop, one step for each round."""
    if isinstance(values, Iterator):
        return _one_by_one(context, values)
    step(context, length_of(values))
    return values


def _one_by_one(context: Context, values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        step(context, 1)
        yield value


def bounded(context: Context, value: Any) -> Any:
    """The result of an operator, call or filter."""
    if type(value) is int:
        if value.bit_length() > _MAX_BITS:
            raise SecurityError(f"a number of more than {_MAX_BITS} bits")
    elif isinstance(value, str | bytes | list | tuple) and len(value) > CHARS:
        check_size(len(value))
        step(context, len(value) // (CHARS if isinstance(value, str) else _ITEM))
    return value


# -- operators and calls -----------------------------------------------------------------------------------


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuses `*`, `**` and `%` whose result would be too long."""
    if operator == "*":
        for sized, times in ((left, right), (right, left)):
            if isinstance(times, int):
                check_size(length_of(sized) * times)
    elif operator == "**" and isinstance(right, int | float) and abs(right) > _MAX_EXPONENT:
        raise SecurityError(f"a power of more than {_MAX_EXPONENT}")
    elif operator == "%" and isinstance(left, str):
        _check_printf(left, right)


def check_call(context: Context, name: str, values: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
    """Takes the steps of a filter or method, and refuses one whose result could be too long.

    Args:
        values: the value of the filter, or the text that owns the method, and the arguments by position.
        named: the arguments by name.

    Returns:
        The values; those that were lazy are lists.
    """
    if not _PLAIN.issuperset(map(type, values)):
        values = [[*_one_by_one(context, one)] if isinstance(one, Iterator) else one for one in values]
    value = values[0]
    others = [*values[1:], *named.values()] if named or len(values) > 1 else ()
    factor = _largest_number(others) if name in _SIZED_BY_NUMBERS else 1
    if name in _TEXTLESS:
        length = length_of(value)
        size, total = (0, length) if type(value) is str else (length, length * _ITEM)
    else:
        size = total = text_size(value)
        for other in others:
            length = text_size(other)
            total += length
            if length > factor:
                factor = length
    if name in _RESULT_CHECKS:
        _RESULT_CHECKS[name](*values, **named)
    elif size * factor > _MAX_PRODUCT:
        check_size(size * factor, _MAX_PRODUCT)
    if name in _SLOW:
        check_size(size, _MAX_SLOW)
        total *= _SLOW_CHAR
    if total > CHARS:
        step(context, total // CHARS)
    return values


def _largest_number(arguments: Sequence[Any]) -> int:
    numbers = [one for one in arguments if isinstance(one, int | float)]
    for number in numbers:
        _check_number(number)
    return max(map(int, numbers), default=1)


def check_format(text: str, values: Any) -> None:
    """Caps the widths and precisions of `text.format(...)`, and its result."""
    _check_fields([spec or "" for _, name, spec, _ in _FIELDS(text) if name is not None], values)


def _check_printf(text: str, values: Any) -> None:
    """The same for `text % values`."""
    if "(" in text and _NESTED_NAME.search(text):
        raise SecurityError("a parenthesis in a name of a format")
    _check_fields(_PRINTF.findall(text), values)


def _check_fields(specs: list[str], values: Any) -> None:
    """Caps the widths of fields, each of which may have the text of all values."""
    size = text_size(values) + _LONGEST_FLOAT
    numbers = " ".join(specs)
    if "*" in numbers or "{" in numbers:  # a field takes its width from the values
        numbers += str(values)
    widths = [int(digits) for digits in _DIGITS.findall(numbers)]
    if widths:
        _check_number(max(widths))
    check_size(sum(widths) + size * len(specs), _MAX_PRODUCT)


def _check_replacement(s: Any, old: Any, new: Any, count: int | None = None) -> None:
    times = str(s).count(str(old))
    times = times if count is None or count < 0 else min(count, times)
    check_size(len(str(s)) + times * (len(str(new)) - len(str(old))))


#: checks of filters and methods whose results are not a multiple of their texts
_RESULT_CHECKS: dict[str, Callable[..., None]] = {
    "format": lambda value, *args, **named: _check_printf(str(value), named or args),
    "replace": _check_replacement,
}


class BoundedText(io.StringIO):
    """A buffer that takes at most `MAX_OUTPUT` characters."""

    def write(self, text: str) -> int:
        check_size(self.tell() + len(text))
        return super().write(text)
