"""Missing values in templates render as nothing, and so does what is made of them (document 001, step 5).

A missing argument counts as one that is not given, wherever the argument is optional.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import BuiltinMethodType, MethodType
from typing import Any, NamedTuple

from jinja2 import ChainableUndefined, pass_context
from jinja2.filters import FILTERS, _GroupTuple, do_attr, do_sort, make_attrgetter, make_multi_attrgetter
from jinja2.runtime import Context


class SilentUndefined(ChainableUndefined):
    """Renders as nothing, is false and empty, and stays missing whatever a template does with it."""

    __slots__ = ()

    def __repr__(self) -> str:
        """The empty text, as written in lists and mappings."""
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


class _SearchedText(str):
    """A text in which no missing value is found."""

    __slots__ = ()

    def __contains__(self, sought: object) -> bool:
        return not is_missing(sought) and super().__contains__(sought)  # type: ignore[operator]


def is_missing(value: object) -> bool:
    """Whether a value is missing; never true where a missing value is an error (`StrictUndefined`)."""
    return type(value) is SilentUndefined


def any_missing(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether an argument of a call is missing."""
    return SilentUndefined in map(type, args) or SilentUndefined in map(type, named.values())


def searchable(value: Any) -> Any:
    """The right side of `in`."""
    return _SearchedText(value) if isinstance(value, str) else value


def found_in(value: Any, place: Any) -> bool:
    """The test `in`."""
    return value in searchable(place)


def or_none(value: Any) -> Any:
    """A bound of a slice, which is optional."""
    return None if is_missing(value) else value


def unpacked(value: Any, names: tuple[Any, ...]) -> Any:
    """The value of several names: if it is missing, each of them is.

    Args:
        names: holds a tuple for each nested group of names.
    """
    if not is_missing(value):
        return value
    return tuple(unpacked(value, name) if isinstance(name, tuple) else value for name in names)


# -- arguments ---------------------------------------------------------------------------------------------

#: results of methods of texts whose first argument is missing
_RESULTS: Mapping[str, Callable[[str], Any]] = {
    "count": lambda _: 0,
    "endswith": lambda _: False,
    "find": lambda _: -1,
    "join": lambda _: "",
    "partition": lambda text: (text, "", ""),
    "removeprefix": lambda text: text,
    "removesuffix": lambda text: text,
    "replace": lambda text: text,
    "rfind": lambda _: -1,
    "rpartition": lambda text: ("", "", text),
    "startswith": lambda _: False,
}


class Required(NamedTuple):
    """Arguments that a function has no default for: how many by position, and their names."""

    positions: int
    names: frozenset[str]


_NONE_REQUIRED = Required(0, frozenset())


def is_method_of_text(called: Any) -> bool:
    """Whether this is a text's own method."""
    return isinstance(called, BuiltinMethodType | MethodType) and isinstance(called.__self__, str)


def call_of_text(method: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """The result of a text's method with a missing argument."""
    result = _RESULTS.get(method.__name__)
    if result is not None and args and is_missing(args[0]):
        return result(method.__self__)
    if method.__name__ == "replace" and len(args) > 1 and is_missing(args[1]):
        args = (args[0], "", *args[2:])
    args, named = drop_missing(args, named, _NONE_REQUIRED)
    return method(*map(or_none, args), **named)


def required_arguments(filter_function: Callable[..., Any]) -> Required | None:
    """The required arguments of a filter beside its value; None where no argument is optional."""
    passed = getattr(filter_function, "jinja_pass_arg", None) is not None
    parameters = list(inspect.signature(filter_function).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) or all(p.default is p.empty for p in parameters):
        return None
    if passed and parameters[0].name in ("context", "env", "environment", "eval_ctx"):
        del parameters[0]
    names = [p.name for p in parameters[1:] if p.default is p.empty]
    return Required(len(names), frozenset(names))


def drop_missing(
    args: Sequence[Any], named: Mapping[str, Any], required: Required
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments without the missing ones that are optional."""
    end = len(args)
    while end > required.positions and is_missing(args[end - 1]):
        end -= 1
    kept = {name: value for name, value in named.items() if name in required.names or not is_missing(value)}
    return tuple(args[:end]), kept


# -- filters -----------------------------------------------------------------------------------------------


@pass_context
def _attr(context: Context, obj: Any, name: Any) -> Any:
    return name if is_missing(name) else do_attr(context.environment, obj, name)


@pass_context
def _groupby(
    context: Context, value: Any, attribute: Any, default: Any = None, case_sensitive: Any = False
) -> Any:
    """Items without the attribute are one group, the first."""
    key = make_attrgetter(context.environment, attribute, default=default)
    present, missing = _by_presence(value, lambda item: [key(item)])
    groups = FILTERS["groupby"](context.environment, present, attribute, default, case_sensitive)
    return [_GroupTuple(key(missing[0]), missing), *groups] if missing else groups


@pass_context
def _slice(context: Context, value: Any, slices: Any, fill_with: Any = None) -> Any:
    return FILTERS["slice"](context.eval_ctx, value, 1 if is_missing(slices) else slices, fill_with)


@pass_context
def _sort(
    context: Context, value: Any, reverse: Any = False, case_sensitive: Any = False, attribute: Any = None
) -> Any:
    """A missing value is less than all others."""
    present, missing = _by_presence(value, make_multi_attrgetter(context.environment, attribute))
    ordered = do_sort(context.environment, present, reverse, case_sensitive, attribute)
    return ordered + missing if reverse else missing + ordered


def _by_presence(items: Any, keys: Callable[[Any], Iterable[Any]]) -> tuple[list[Any], list[Any]]:
    """The items that have all their keys, and those that lack one."""
    present: list[Any] = []
    missing: list[Any] = []
    for item in items:
        (missing if any(map(is_missing, keys(item))) else present).append(item)
    return present, missing


#: filters that must know of missing values
MISSING_FILTERS: dict[str, Callable[..., Any]] = {
    "attr": _attr,
    "groupby": _groupby,
    "slice": _slice,
    "sort": _sort,
}
