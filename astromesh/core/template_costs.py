"""What templates pay: steps, before the work is done, so that no value makes a rendering long or large.

A step is one round of a loop, one call, `CHARS` characters or `ITEMS` items that something is done with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sized
from types import BuiltinMethodType
from typing import Any, NoReturn

from jinja2 import Undefined, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.utils import Namespace

from astromesh.types import Message, SemanticResult

#: characters of a rendered text, and of any text on the way to it
MAX_OUTPUT = 1_000_000
#: steps in one rendering
MAX_STEPS = 100_000
MAX_RANGE = 10_000
MAX_BITS = 4_096
#: of columns, digits and texts that are put in many times
MAX_WIDTH = 1_000

CHARS = 100
ITEMS = 10

#: the name in templates that holds the steps which are left; nobody else may use it
STEPS = "_steps"
#: what templates read fields of
RECORDS = frozenset({Message, SemanticResult})

_SCALARS = frozenset({int, float, bool, type(None)})
_NOTHING: dict[Any, Any] = {}
_VIEWS = (type(_NOTHING.keys()), type(_NOTHING.values()), type(_NOTHING.items()))
#: what is written with all that it holds
_HOLDERS = (list, tuple, set, frozenset, *_VIEWS)
_LONG = (str, bytes, list, tuple)
#: characters of a number, or of what is written by its name
_LEAF = 16
#: and of what holds others: a step, which is about what it takes to look into it
_HOLDER = CHARS


def step(context: Context, steps: int) -> None:
    """Pays.

    Raises:
        SecurityError: there are not as many left.
    """
    left = context.parent[STEPS]
    left[0] -= steps
    if left[0] < 0:
        raise SecurityError(f"more than {MAX_STEPS} steps of loops, calls and work on long texts")


@pass_context
def paid(context: Context, value: Any) -> Any:
    """A value that is written or compared: its text is paid for before it is made."""
    kind = type(value)
    if kind is str:
        if len(value) > CHARS:
            step(context, len(value) // CHARS)
    elif kind not in _SCALARS:
        pay_text(context, value)
    return value


@pass_context
def written(context: Context, value: Any) -> Any:
    """The text of a value that the rendering was given: it is about as long as what it takes already."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    text = value if isinstance(value, str) else str(value)
    if len(text) > CHARS:
        step(context, len(text) // CHARS)
    return text


@pass_context
def as_text(context: Context, value: Any) -> str:
    """What blocks are written as, whose values Jinja takes for texts."""
    return value if isinstance(value, str) else str(written(context, value))


def pay_text(context: Context, value: Any, chars: int = CHARS, indent: int = 0) -> int:
    """Characters of a value's text, about, which are paid for.

    Args:
        chars: that a step pays for.
        indent: columns that each level of it is set in by.
    """
    size = weight(value, context.parent[STEPS][0] * chars, indent)
    step(context, -(-size // chars))
    return size


def weight(value: Any, most: int, indent: int = 0) -> int:
    """Characters of the text of a value, about; counted until there are more than `most`.

    What holds one thing many times is as heavy as its text is long. Goes down level by level.
    """
    size, depth, level = 0, 0, [value]
    while level and size <= most:
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
                if kind is dict:
                    size += 2 * each * len(item) + _HOLDER
                    held: tuple[Collection[Any], ...] = (item, item.values())
                else:
                    held = (_held(item),)
                    size += each * len(held[0]) + _HOLDER
                if size <= most:
                    for values in held:
                        below += values
            if size > most:
                return size
        depth, level = depth + 1, below
    return size


def _held(item: Any) -> Collection[Any]:
    """What the text of a value holds the texts of."""
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


@pass_context
def counted(context: Context, values: Any) -> Any:
    """What a loop goes over: a step for each round."""
    if isinstance(values, Undefined):
        return values
    if isinstance(values, Sized):
        step(context, len(values))
        return values
    return one_by_one(context, values)


def one_by_one(context: Context, values: Iterable[Any]) -> Iterator[Any]:
    """What is made as it is asked for, a step each."""
    for value in values:
        step(context, 1)
        yield value


@pass_context
def one_round(context: Context, nothing: Any) -> Any:
    """In loops that call themselves, which go over more than they began with."""
    step(context, 1)
    return nothing


@pass_context
def cut(context: Context, value: Any) -> Any:
    """What a part is copied of."""
    if isinstance(value, _LONG):
        step(context, len(value) // (CHARS if isinstance(value, str) else ITEMS))
    return value


def pay_call(context: Context, called: Any) -> None:
    """A step, and those for the text or list whose method it is."""
    steps = 1
    if type(called) is BuiltinMethodType:
        owner = called.__self__
        if isinstance(owner, _LONG):
            steps += len(owner) // (CHARS if isinstance(owner, str) else ITEMS)
    step(context, steps)


@pass_context
def bounded(context: Context, value: Any) -> Any:
    """What was made, which is not too long to go on with and is paid for."""
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


@pass_context
def joined(context: Context, parts: list[Any]) -> str:
    """What `~` makes of its parts."""
    size, texts = 0, []
    for part in parts:
        size += len(part) if type(part) is str else pay_text(context, part)
        if size > MAX_OUTPUT:
            too_long()
        texts.append(str(part))
    if size > CHARS:
        step(context, size // CHARS)
    return "".join(texts)


def too_long() -> NoReturn:
    raise SecurityError(f"more than {MAX_OUTPUT} characters")


def at_most(what: str, number: Any, most: int) -> None:
    """Numbers in templates that sizes are made of."""
    if isinstance(number, int | float) and not abs(number) <= most:  # `nan` is neither more nor less
        raise SecurityError(f"{what} of more than {most}")
