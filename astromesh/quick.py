"""Frozen records that are made quickly: `@quick` above `@dataclass(frozen=True, slots=True)`.

A frozen dataclass sets each field through `object.__setattr__`, at several times the cost of an assignment; a
run makes a dozen such records. Here a new instance is of an open twin of its class while its fields are
assigned, and of the class itself before anybody sees it. Everything else stays what dataclasses made it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

T = TypeVar("T")
P = ParamSpec("P")

#: what a field with a factory has as its default in the signature, as in dataclasses
_FACTORY = type("<factory>", (), {"__repr__": lambda self: "<factory>"})()
_turn_into = cast("Callable[[object, type], None]", object.__dict__["__class__"].__set__)


def quick(cls: type[T]) -> type[T]:
    """Replaces the constructor of a frozen dataclass with slots by a faster one.

    Raises:
        TypeError: it is none, it inherits fields, or it has fields that are no plain arguments.
    """
    usual = cls.__init__
    made = _constructor(cls, usual)
    made.__qualname__, made.__module__ = usual.__qualname__, cls.__module__
    made.__annotations__, made.__doc__ = usual.__annotations__, usual.__doc__
    setattr(cls, "__init__", made)  # noqa: B010 (mypy takes an assignment for a mistake)
    return cls


def maker(cls: Callable[P, T]) -> Callable[P, T]:
    """A function that makes records of a `@quick` class in two thirds of the time: no class is called.

    Args:
        cls: such a class; the function takes what its constructor takes.
    """
    made: Callable[P, T] = _function(cls)
    made.__name__ = made.__qualname__ = cls.__name__
    return made


def _constructor(cls: Any, usual: Any) -> Any:
    """`__init__`, written out field by field, as dataclasses writes its own."""
    signature, values, known = _arguments(cls)
    source = f"""
def __init__(self, {signature}):
    if type(self) is not _frozen:  # a subclass may have slots of its own
        return _usual(self, {", ".join(values.values())})
    _turn_into(self, _open)
    {_assigned(values)}
    self.__class__ = _frozen
"""
    known |= {"_turn_into": _turn_into, "_usual": usual, "_frozen": cls, "_open": _twin(cls)}
    exec(source, known)  # noqa: S102 (source made of field names alone, as in dataclasses)
    return known["__init__"]


def _function(cls: Any) -> Any:
    """The same as a function that makes a new record by itself."""
    signature, values, known = _arguments(cls)
    source = f"""
def make({signature}):
    self = _blank(_open)
    {_assigned(values)}
    self.__class__ = _frozen
    return self
"""
    known |= {"_blank": object.__new__, "_frozen": cls, "_open": _twin(cls)}
    exec(source, known)  # noqa: S102 (as above)
    return known["make"]


def _twin(cls: Any) -> type:
    """A class with the same slots, whose instances may be changed."""
    return type(cls.__name__, (), {"__slots__": cls.__slots__, "__module__": cls.__module__})


def _assigned(values: dict[str, str]) -> str:
    return "; ".join(f"self.{name} = {value}" for name, value in values.items())


def _arguments(cls: Any) -> tuple[str, dict[str, str], dict[str, Any]]:
    """The arguments of a record as source, the value of each field as source, and the names in both."""
    fields = dataclasses.fields(cls)
    slots = cls.__dict__.get("__slots__")
    if slots != tuple(field.name for field in fields) or not cls.__dataclass_params__.frozen:
        raise TypeError(f"{cls.__name__} must be a frozen dataclass with slots of its own alone.")
    if hasattr(cls, "__post_init__") or any(field.kw_only or not field.init for field in fields):
        raise TypeError(f"{cls.__name__} must take each of its fields as a plain argument, and nothing else.")
    known: dict[str, Any] = {"_factory": _FACTORY}
    arguments, values = [], {}
    for field in fields:
        name, argument, value = field.name, field.name, field.name
        if field.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = field.default
            argument = f"{name}=_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"] = field.default_factory
            argument = f"{name}=_factory"
            value = f"_make_{name}() if {name} is _factory else {name}"
        arguments.append(argument)
        values[name] = value
    return ", ".join(arguments), values, known
