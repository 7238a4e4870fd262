"""`@quick`: records are made faster, and are otherwise what dataclasses made them."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, replace
from typing import Any

import orjson
import pytest

from astromesh.quick import maker, quick
from astromesh.types import CompletionRequest, Message, ToolCall, ToolSpec, Usage


@dataclass(frozen=True, slots=True)
class Usual:
    text: str
    number: int = 1
    values: dict[str, int] = field(default_factory=dict)
    hidden: str = field(default="", repr=False, compare=False)


@quick
@dataclass(frozen=True, slots=True)
class Quick:
    text: str
    number: int = 1
    values: dict[str, int] = field(default_factory=dict)
    hidden: str = field(default="", repr=False, compare=False)


MAKINGS: list[Callable[[Any], Any]] = [
    lambda cls: cls("a"),
    lambda cls: cls("a", 2),
    lambda cls: cls("a", number=3, hidden="secret"),
    lambda cls: cls(text="a", values={"x": 1}),
]


@pytest.mark.parametrize("make", MAKINGS)
def test_it_holds_and_shows_what_a_usual_one_does(make: Callable[[Any], Any]) -> None:
    made = make(Quick)
    assert type(made) is Quick
    assert asdict(made) == asdict(make(Usual))
    assert repr(made) == repr(make(Usual)).replace("Usual", "Quick")
    assert made == make(Quick)
    assert orjson.dumps(made) == orjson.dumps(make(Usual))


def test_it_cannot_be_changed() -> None:
    made = Quick("a")
    with pytest.raises(FrozenInstanceError):
        made.text = "b"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del made.text
    assert not hasattr(made, "__dict__")


def test_each_one_has_its_own_default() -> None:
    first, second = Quick("a"), Quick("a")
    first.values["x"] = 1
    assert second.values == {}


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), replace]
)
def test_it_is_copied_pickled_and_replaced(again: Callable[[Any], Any]) -> None:
    made = Message("assistant", "hi", (ToolCall("1", "look"),))
    other = again(made)
    assert other == made
    assert hash(other) == hash(made)
    assert type(other) is Message


def test_its_constructor_has_the_usual_signature_and_refuses_what_the_usual_one_refuses() -> None:
    wanted, got = inspect.signature(Usual).parameters, inspect.signature(Quick).parameters
    assert [(p.name, p.kind, p.annotation) for p in got.values()] == [
        (p.name, p.kind, p.annotation) for p in wanted.values()
    ]
    assert got["number"].default == 1
    with pytest.raises(TypeError, match=r"Quick.__init__\(\) missing 1 required positional argument: 'text'"):
        Quick()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        Quick("a", nothing=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("make", MAKINGS)
def test_a_maker_makes_the_same_records_as_the_class(make: Callable[[Any], Any]) -> None:
    made = make(maker(Quick))
    assert type(made) is Quick
    assert made == make(Quick)
    assert made.hidden == make(Quick).hidden
    with pytest.raises(FrozenInstanceError):
        made.text = "b"  # type: ignore[misc]


def test_a_maker_refuses_what_the_class_refuses_and_each_record_has_its_own_default() -> None:
    make = maker(Quick)
    assert make("a").values is not make("a").values
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'text'"):
        make()  # type: ignore[call-arg]


def test_a_subclass_is_made_as_itself() -> None:
    class Named(Quick):
        """One with a dictionary of its own."""

    named = Named("a", 2)
    assert (type(named), named.text, named.number, named.values) == (Named, "a", 2, {})


def test_a_class_that_it_cannot_make_is_refused() -> None:
    @dataclass(slots=True)
    class Open:
        text: str

    @dataclass(frozen=True)
    class WithoutSlots:
        text: str

    @dataclass(frozen=True, slots=True)
    class Checked:
        text: str

        def __post_init__(self) -> None:
            raise AssertionError

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        text: str

    for cls in (Open, WithoutSlots, Checked, Named):
        with pytest.raises(TypeError):
            quick(cls)


def test_the_records_of_the_hot_path_are_equal_by_value() -> None:
    assert Usage(1, 2) + Usage(3, 4, 5) == Usage(4, 6, 5)
    assert CompletionRequest((Message("user", "x"),)) == CompletionRequest((Message("user", "x"),), ())
    assert ToolSpec("a").parameters == {"type": "object", "properties": {}}
