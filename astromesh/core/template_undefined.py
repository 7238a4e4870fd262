"""What does not exist in templates: it is nothing, and so is what is made of it (document 001, step 5).

An argument that does not exist is as one that is not given, wherever it may be left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from types import BuiltinMethodType
from typing import Any

from jinja2 import ChainableUndefined


class SilentUndefined(ChainableUndefined):
    """Renders as nothing, is false and empty, and stays what it is whatever is done with it."""

    __slots__ = ()

    def __repr__(self) -> str:
        """The text that it is, as it stands in lists and mappings that are written."""
        return "''"

    def _itself(self, *_: Any, **__: Any) -> Any:
        return self

    def _other(self, other: Any) -> Any:
        return other

    def _no(self, *_: Any) -> Any:
        return False

    def _zero(self, *_: Any) -> Any:
        return 0

    def _zero_float(self) -> Any:
        return 0.0

    __add__ = __radd__ = _other
    __call__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _itself
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _itself
    __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __pos__ = _itself
    __lt__ = __le__ = __gt__ = __ge__ = _no
    __int__ = _zero
    __float__ = _zero_float
    __round__ = __abs__ = _zero


class Searched(str):
    """A text that holds everything which it is asked for with `in`, but nothing that does not exist."""

    __slots__ = ()

    def __contains__(self, sought: object) -> bool:
        return not is_missing(sought) and super().__contains__(sought)  # type: ignore[operator]


def is_missing(value: object) -> bool:
    """Whether it does not exist. Where that is a failure (`StrictUndefined`) nothing is missing."""
    return type(value) is SilentUndefined


def any_missing(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether one of the arguments of a call does not exist."""
    return SilentUndefined in map(type, args) or SilentUndefined in map(type, named.values())


def searched(value: Any) -> Any:
    """What stands on the right of `in`: nothing that is missing is in a text, as none is in a list."""
    return Searched(value) if isinstance(value, str) else value


def found_in(value: Any, place: Any) -> bool:
    """The test `in`."""
    return value in searched(place)


def or_none(value: Any) -> Any:
    """A bound of a slice, which may be left out."""
    return None if is_missing(value) else value


def taken_apart(value: Any, names: tuple[Any, ...]) -> Any:
    """What several names are set to: of what is missing each is missing.

    Args:
        names: a tuple for each that are taken apart in turn.
    """
    if not is_missing(value):
        return value
    return tuple(taken_apart(value, name) if isinstance(name, tuple) else value for name in names)


def existing(values: Sequence[Any]) -> list[Any]:
    """Those that are there."""
    return [value for value in values if not is_missing(value)]


# -- arguments ---------------------------------------------------------------------------------------------

#: what the methods of texts answer about what is missing
_ABOUT_NOTHING: Mapping[str, Callable[[str], Any]] = {
    "count": lambda _: 0,
    "endswith": lambda _: False,
    "find": lambda _: -1,
    "partition": lambda text: (text, "", ""),
    "removeprefix": lambda text: text,
    "removesuffix": lambda text: text,
    "rfind": lambda _: -1,
    "rpartition": lambda text: ("", "", text),
    "startswith": lambda _: False,
}
#: parameters that Jinja fills in itself
_PASSED = frozenset({"context", "env", "environment", "eval_ctx"})


def is_method_of_text(called: Any) -> bool:
    """Whether this is a text's own method."""
    return type(called) is BuiltinMethodType and isinstance(called.__self__, str)


def call_of_text(method: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """What a text's method answers where an argument is missing."""
    about = _ABOUT_NOTHING.get(method.__name__)
    if about is not None and args and is_missing(args[0]):
        return about(method.__self__)
    return method(*map(or_none, _given(args)), **_named(named))


def sparing(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that can do without the arguments that are missing, where it has defaults for them.

    Args:
        original: the function with the filter's own parameters.
    """
    parameters = inspect.signature(original).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) or all(p.default is p.empty for p in parameters):
        return function
    needed = frozenset(p.name for p in parameters if p.default is p.empty) - _PASSED
    places = len(needed) + hasattr(function, "jinja_pass_arg")

    @wraps(function)
    def spares(*args: Any, **named: Any) -> Any:
        return function(*_given(args, places), **_named(named, needed))

    return spares


def _given(args: Sequence[Any], needed: int = 0) -> Sequence[Any]:
    """Without the missing ones at the end, but so many at least."""
    end = len(args)
    while end > needed and is_missing(args[end - 1]):
        end -= 1
    return args[:end]


def _named(named: Mapping[str, Any], needed: Collection[str] = ()) -> Mapping[str, Any]:
    """Without the missing ones that are not needed."""
    if not named:
        return named
    return {name: value for name, value in named.items() if name in needed or not is_missing(value)}
