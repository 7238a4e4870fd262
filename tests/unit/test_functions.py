"""Python functions as tools: the schema a model sees, and the call that its arguments become."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import jsonschema_rs
import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from astromesh.abc.functions import FunctionTool, tool_schema
from astromesh.abc.tool import ToolContext
from astromesh.errors import ConfigError, InvalidToolCall


@dataclass
class Point:
    x: int
    y: int = 0


class Ticket(BaseModel):
    title: str
    tags: list[str] = []


class Filter(TypedDict):
    field: str


def search(query: str, top_k: int = 5, order: Literal["new", "old"] = "new") -> list[str]:
    """Searches the shelf.

    Looks at titles only.

    Args:
        query: what to look for,
            over two lines
        top_k: how many
        order: which
    """
    return [query] * top_k


def test_google_docstring_and_hints_become_the_schema():
    """Names, types, defaults, choices, required ones and descriptions all reach the model."""
    spec = tool_schema(search)
    assert (spec.name, spec.description) == ("search", "Searches the shelf.\n\nLooks at titles only.")
    assert spec.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["query"],
        "properties": {
            "query": {"type": "string", "description": "what to look for, over two lines"},
            "top_k": {"type": "integer", "default": 5, "description": "how many"},
            "order": {
                "enum": ["new", "old"],
                "type": "string",
                "default": "new",
                "description": "which",
            },
        },
    }


def test_sphinx_docstring_is_read_too():
    """`:param x:` lines describe parameters as Google's `Args:` do."""

    def add(a: int, b: int) -> int:
        """Adds.

        :param a: the first
        :param b: the second
        """
        return a + b

    properties = tool_schema(add).parameters["properties"]
    assert [p["description"] for p in properties.values()] == ["the first", "the second"]


def test_rich_types_have_a_schema_that_a_validator_accepts():
    """Optional, dict, nested lists, dataclasses, pydantic models and TypedDicts are all expressible."""

    def place(
        at: Point, ticket: Ticket, filters: list[Filter], meta: dict[str, float] | None = None
    ) -> None: ...

    validator = jsonschema_rs.validator_for(dict(tool_schema(place).parameters))
    good = {"at": {"x": 1}, "ticket": {"title": "t"}, "filters": [{"field": "f"}], "meta": {"a": 1.5}}
    assert validator.is_valid(good)
    assert validator.is_valid({**good, "meta": None})
    assert not validator.is_valid({**good, "at": {"y": 1}})
    assert not validator.is_valid({**good, "other": 1})


async def test_arguments_arrive_with_their_python_types():
    """A dataclass parameter gets a dataclass, a model parameter a model, and defaults stay the function's."""
    marker: list[str] = []

    async def place(at: Point, ticket: Ticket, seen: list[str] = marker) -> tuple[Point, Ticket, bool]:
        return at, ticket, seen is marker

    arguments = {"at": {"x": 1}, "ticket": {"title": "t", "tags": ["a"]}}
    result = await FunctionTool(place).call(arguments, ToolContext())
    assert result == (Point(1), Ticket(title="t", tags=["a"]), True)


async def test_arguments_that_do_not_fit_are_named():
    """Every wrong argument is in the message that goes back to the model."""
    with pytest.raises(InvalidToolCall, match=r"top_k: .*integer.*; colour: ") as caught:
        await FunctionTool(search).call({"query": "q", "top_k": "many", "colour": "red"}, ToolContext())
    assert "'search'" in str(caught.value)


async def test_the_context_parameter_is_injected_and_hidden():
    """A parameter annotated ToolContext never stands in the schema and carries the call's identity."""

    async def whoami(context: ToolContext, loud: bool = False) -> str:
        return context.agent.upper() if loud else context.agent

    tool = FunctionTool(whoami)
    assert list(tool.spec.parameters["properties"]) == ["loud"]
    assert await tool.call({"loud": True}, ToolContext(agent="bot")) == "BOT"


async def test_a_synchronous_function_runs_in_a_thread_of_the_tools():
    """A blocking function never blocks the event loop."""

    def where() -> str:
        return threading.current_thread().name

    assert (await FunctionTool(where).call({}, ToolContext())).startswith("astromesh-tool")


async def test_callable_objects_and_partials_work():
    """What is called need not be a plain function."""

    class Adder:
        """Adds."""

        async def __call__(self, a: int, b: int = 1) -> int:
            return a + b

    tool = FunctionTool(Adder(), name="add")
    assert tool.spec.parameters["required"] == ["a"]
    assert await tool.call({"a": 2}, ToolContext()) == 3
    assert len(await FunctionTool(partial(search, top_k=2)).call({"query": "q"}, ToolContext())) == 2


class Desk:
    """Whose methods are tools where a desk stands."""

    def ring(self, times: int) -> str:
        """Rings."""
        return "ding " * times

    @classmethod
    def made(cls, kind: str) -> str:
        """Makes one."""
        return f"{cls.__name__} of {kind}"

    @staticmethod
    def size(kind: str) -> int:
        """Measures."""
        return len(kind)


async def test_methods_of_an_object_a_class_and_static_ones_are_tools():
    assert await FunctionTool(Desk().ring).call({"times": 1}, ToolContext()) == "ding "
    assert await FunctionTool(Desk.made).call({"kind": "oak"}, ToolContext()) == "Desk of oak"
    assert await FunctionTool(Desk.size).call({"kind": "oak"}, ToolContext()) == 3


def counting(top: int):
    """Counts."""
    yield from range(top)


async def streaming(top: int):
    """Counts later."""
    for number in range(top):
        yield number


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (counting, "is a generator: return one value"),
        (streaming, "is a generator: return one value"),
        (partial(counting, top=2), "is a generator: return one value"),
        (Desk.ring, r"is a method without its object: .* `ring = Desk\(…\).ring`"),
    ],
)
def test_what_could_only_fail_when_it_is_called_is_refused(function: Callable[..., object], says: str):
    """A model would be shown the text of a generator object, or be asked for `self`."""
    with pytest.raises(ConfigError, match=says):
        FunctionTool(function)


def test_awkward_parameter_names_are_kept():
    """Names that a pydantic model could not have as fields are fine as parameters."""

    def odd(
        copy: int, _hidden: int, model_dump: str, schema: Annotated[str, Field(max_length=3)] = ""
    ) -> None: ...

    properties = tool_schema(odd).parameters["properties"]
    assert list(properties) == ["copy", "_hidden", "model_dump", "schema"]
    assert properties["schema"]["maxLength"] == 3


@pytest.mark.parametrize("bad", [lambda *a: a, lambda **k: k, eval("lambda a, /: a")])
def test_functions_that_cannot_be_called_by_name_are_refused(bad):
    """Variadic and positional-only parameters are an error of the configuration, found at once."""
    with pytest.raises(ConfigError, match="by name"):
        tool_schema(bad)


def test_a_hint_without_json_form_is_refused():
    """The message names the tool."""

    def draw(lock: threading.Thread) -> None: ...

    with pytest.raises(ConfigError, match="'draw'"):
        tool_schema(draw)
