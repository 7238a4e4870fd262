"""Missing values in templates render as nothing, and so do expressions over them (document 001, step 5).

A missing argument counts as an omitted one, wherever the argument is optional.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import ChainableUndefined, Environment, pass_context, pass_environment
from jinja2.filters import FILTERS, do_attr, do_replace, ignore_case, make_multi_attrgetter
from jinja2.runtime import Context


class SilentUndefined(ChainableUndefined):
    """Renders as nothing, is false and empty, and stays missing in every expression."""

    __slots__ = ()

    def __repr__(self) -> str:
        """The empty text, as written in lists and mappings."""
        return "''"

    def __format__(self, _: str) -> str:
        return ""

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


def call_of_text(method: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """The result of a text's method with a missing argument."""
    result = _RESULTS.get(method.__name__)
    if result is not None and args and is_missing(args[0]):
        return result(method.__self__)
    if method.__name__ == "join" and args:
        args = (["" if is_missing(item) else item for item in args[0]],)
    if method.__name__ == "replace" and len(args) > 1 and is_missing(args[1]):
        args = (args[0], "", *args[2:])
    args, named = drop_missing(args, named, ())
    return method(*(None if is_missing(value) else value for value in args), **named)


def required_arguments(filter_function: Callable[..., Any]) -> Sequence[str] | None:
    """The required arguments of a filter beside its value; None where no argument is optional."""
    parameters = list(inspect.signature(filter_function).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) or all(p.default is p.empty for p in parameters):
        return None
    if parameters[0].name in ("context", "env", "environment", "eval_ctx"):
        del parameters[0]
    return [p.name for p in parameters[1:] if p.default is p.empty]


def drop_missing(
    args: Sequence[Any], named: Mapping[str, Any], required: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments without the missing ones that are optional."""
    end = len(args)
    while end > len(required) and is_missing(args[end - 1]):
        end -= 1
    present = {name: value for name, value in named.items() if name in required or not is_missing(value)}
    return tuple(args[:end]), present


# -- filters -----------------------------------------------------------------------------------------------


@pass_context
def _attr(context: Context, obj: Any, name: Any) -> Any:
    return name if is_missing(name) else do_attr(context.environment, obj, name)


@pass_context
def _replace(context: Context, s: Any, old: Any, new: Any, count: int | None = None) -> Any:
    return s if is_missing(old) else do_replace(context.eval_ctx, s, old, new, count)


@pass_context
def _slice(context: Context, value: Any, slices: Any, fill_with: Any = None) -> Any:
    return FILTERS["slice"](context.eval_ctx, value, 1 if is_missing(slices) else slices, fill_with)


@pass_environment
def _sort(
    environment: Environment,
    value: Any,
    reverse: bool = False,
    case_sensitive: bool = False,
    attribute: Any = None,
) -> list[Any]:
    """A missing value is less than all others."""
    keys = make_multi_attrgetter(environment, attribute, None if case_sensitive else ignore_case)
    return sorted(value, key=lambda item: [(not is_missing(key), key) for key in keys(item)], reverse=reverse)


@pass_environment
def _groupby(
    environment: Environment, value: Any, attribute: Any, default: Any = None, case_sensitive: bool = False
) -> Any:
    """Items without the attribute are the first group: the filter keeps the order of what `_sort` returns."""
    ordered = _sort(environment, value, False, case_sensitive, attribute)
    return FILTERS["groupby"](environment, ordered, attribute, default, case_sensitive)


#: filters that must know of missing values
MISSING_FILTERS: dict[str, Callable[..., Any]] = {
    "attr": _attr,
    "groupby": _groupby,
    "replace": _replace,
    "slice": _slice,
    "sort": _sort,
}
