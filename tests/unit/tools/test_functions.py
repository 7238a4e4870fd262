"""Python functions as tools: the schema a model sees, and the call that its arguments become."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NewType, Optional, Union

import jsonschema_rs
import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from astromesh.config.agent import ToolBlock
from astromesh.errors import ConfigError, InvalidToolCall
from astromesh.tools.base import ToolContext
from astromesh.tools.functions import FunctionTool, ToolKeys, read_signature, tool


@dataclass
class Point:
    x: int
    y: int = 0


class Ticket(BaseModel):
    title: str
    tags: list[str] = []


class SpecialContext(ToolContext):
    """As those of MCP servers."""


Renamed = NewType("Renamed", ToolContext)


class Raising:
    """A type whose hooks are somebody's code."""

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        raise ZeroDivisionError("the hook breaks")


class Exiting:
    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        raise SystemExit(3)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Wordless:
    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        raise Mute


class Nameless:
    @property
    def __name__(self) -> str:
        raise RuntimeError("no name")

    def __call__(self) -> None: ...


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("cannot be shown")


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
    spec = read_signature(search).spec
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


def test_a_class_has_the_types_of_its_parameters():
    """A class is a function that returns its object; a class with a context hides it as a function does."""

    class Point:
        """A point."""

        def __init__(self, context: ToolContext, x: int, label: str = "") -> None:
            self.x, self.label = x, label

    parameters = read_signature(Point).spec.parameters
    assert parameters["properties"] == {"x": {"type": "integer"}, "label": {"type": "string", "default": ""}}
    assert parameters["required"] == ["x"]


def test_sphinx_docstring_is_read_too():
    """`:param x:` lines describe parameters as Google's `Args:` do."""

    def add(a: int, b: int) -> int:
        """Adds.

        :param a: the first
        :param b: the second
        """
        return a + b

    properties = read_signature(add).spec.parameters["properties"]
    assert [p["description"] for p in properties.values()] == ["the first", "the second"]


def test_rich_types_have_a_schema_that_a_validator_accepts():
    """Optional, dict, nested lists, dataclasses, pydantic models and TypedDicts are all expressible."""

    def place(
        at: Point, ticket: Ticket, filters: list[Filter], meta: dict[str, float] | None = None
    ) -> None: ...

    validator = jsonschema_rs.validator_for(dict(read_signature(place).spec.parameters))
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
        (counting, "is a generator. Return one value"),
        (streaming, "is a generator. Return one value"),
        (partial(counting, top=2), "is a generator. Return one value"),
        (Desk.ring, r"is an unbound method. .* `ring = Desk\(…\).ring`"),
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

    properties = read_signature(odd).spec.parameters["properties"]
    assert list(properties) == ["copy", "_hidden", "model_dump", "schema"]
    assert properties["schema"]["maxLength"] == 3


@pytest.mark.parametrize("bad", [lambda *a: a, lambda **k: k, eval("lambda a, /: a")])
def test_functions_that_cannot_be_called_by_name_are_refused(bad):
    """Variadic and positional-only parameters are an error of the configuration, found at once."""
    with pytest.raises(ConfigError, match="by name"):
        read_signature(bad)


def test_a_hint_without_json_form_is_refused():
    """The message names the tool."""

    def draw(lock: threading.Thread) -> None: ...

    with pytest.raises(ConfigError, match="'draw'"):
        read_signature(draw)


def with_hint(hint: Any, default: Any = ...) -> Callable[..., Any]:
    """A function whose parameter `code` has this hint, and maybe a default."""

    def find(first: int, code: Any) -> Any:
        return code

    find.__annotations__ = {"first": int, "code": hint}
    if default is not ...:
        find.__defaults__ = (default,)
    return find


@pytest.mark.parametrize(
    ("hint", "says"),
    [
        (Annotated[str, Field(pattern=r"^(?!0)\d+$")], "look-around"),
        (Annotated[str, Field(pattern="(")], "regex parse error"),
        (Annotated[str, Field(max_length=-1)], "negative int"),
        (Annotated[int, Field(multiple_of=0)], "multiple_of"),
        (Annotated[int, Field(gt="x")], "gt"),
        (Annotated[int | str, Field(discriminator="x")], "discriminated union"),
        (Annotated[int, Field(examples=[object()])], "serializ"),
        (Literal[10**30], "64-bit"),
        (Raising, "ZeroDivisionError: the hook breaks"),
        (Exiting, "SystemExit: 3"),
        (Wordless, "Mute"),
        (list[ToolContext], "Annotate it ToolContext or"),
        (Union[ToolContext, str], "Annotate it ToolContext or"),  # noqa: UP007
    ],
)
@pytest.mark.parametrize("default", [..., None])
def test_whatever_a_hint_raises_is_a_fault_that_names_the_parameter(hint: Any, says: str, default: Any):
    """One line: the tool, the parameter, and what pydantic or the type's own hook said."""
    with pytest.raises(ConfigError, match="The parameter 'code' of the tool 'find'") as caught:
        FunctionTool(with_hint(hint, default))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["1+", "int if", "missing.attribute", "int[", "1/0", "Nope"])
def test_a_hint_that_is_no_expression_is_a_fault(text: str):
    with pytest.raises(ConfigError, match="'find'"):
        FunctionTool(with_hint(text))


@pytest.mark.parametrize("function", [max, dict, type, with_hint(int, Unprintable())])
def test_whatever_else_reading_a_function_raises_is_a_fault(function: Callable[..., Any]):
    """Built-ins without a signature, defaults that raise when they are looked at."""
    with pytest.raises(ConfigError):
        FunctionTool(function)


def test_a_name_that_cannot_be_read_is_a_fault():
    with pytest.raises(ConfigError, match="RuntimeError: no name"):
        FunctionTool(Nameless())


@pytest.mark.parametrize("default", [10**40, "\ud800", {1: object()}])
def test_a_default_that_models_cannot_be_told_is_left_out(default: object):
    """The function has it all the same."""
    parameters = read_signature(with_hint(Any, default)).spec.parameters
    assert parameters["required"] == ["first"]
    assert "default" not in parameters["properties"]["code"]
    json.dumps(parameters)


def test_a_docstring_that_no_parser_understands_describes_the_tool_as_it_is():
    def find() -> None: ...

    find.__doc__ = "::    :param"
    assert read_signature(find).spec.description == "::    :param"


def test_a_docstring_of_half_a_character_is_a_fault():
    def find() -> None: ...

    find.__doc__ = "Finds \ud800."
    with pytest.raises(ConfigError, match=r"'find'.* surrogates"):
        read_signature(find)


@pytest.mark.parametrize(
    "hint",
    [
        ToolContext,
        Optional[ToolContext],  # noqa: UP045
        ToolContext | None,
        None | ToolContext,
        Annotated[ToolContext, "the call"],
        Annotated[ToolContext | None, "the call"],
        Optional[Annotated[ToolContext, "the call"]],  # noqa: UP045
        Renamed,
        Renamed | None,
        SpecialContext,
        SpecialContext | ToolContext | None,
        "ToolContext | None",
    ],
)
@pytest.mark.parametrize("default", [..., None])
async def test_every_way_to_write_the_context_is_the_context(hint: Any, default: Any):
    """Optional, annotated and renamed ones are injected and hidden as the plain one is."""
    tool = FunctionTool(with_hint(hint, default))
    assert list(tool.spec.parameters["properties"]) == ["first"]
    context = ToolContext(agent="bot")
    assert await tool.call({"first": 1}, context) is context


async def test_two_context_parameters_are_both_given():
    async def both(one: ToolContext, two: ToolContext | None = None) -> bool:
        return one is two

    assert await FunctionTool(both).call({}, ToolContext())


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"aproval": "required"}, "unknown key `aproval`. Did you mean `approval`?"),
        ({"efect": "external"}, "unknown key `efect`. Did you mean `effect`?"),
        ({"timeot": 5}, "unknown key `timeot`. Did you mean `timeout_seconds`?"),
        ({"zzz": 1}, "unknown key `zzz`."),
        ({"description": 5}, "must be a text"),
        ({"name": 5}, "must be a text"),
    ],
)
def test_wrong_keys_of_a_tool_are_refused_when_it_is_declared(keys: dict[str, Any], says: str):
    """A misspelled `approval` would let the tool run without a person."""
    with pytest.raises(ConfigError) as caught:

        @tool(**keys)
        def refund(order: int) -> str:
            return "done"

    assert says in str(caught.value)


def test_every_key_of_a_tool_in_yaml_is_a_key_of_the_decorator():
    own = {"name", "type", "description", "parameters", "effect"}
    assert set(ToolKeys.__annotations__) == ToolBlock.model_fields.keys() - own
