"""`module:name` as a tool: what is found, and what is said when it is not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_core import core_schema

from astromesh.errors import ConfigError
from astromesh.plugins import Deps
from astromesh.tools.base import ToolContext
from astromesh.tools.kinds.internal import InternalTool, load_function


def greet(name: str, times: int = 1) -> str:
    """Greets somebody.

    Args:
        name: whom
    """
    return " ".join(["Hello", name] * times)


NOT_CALLABLE = 3


class Odd:
    """A type whose hook answers what is no JSON Schema."""

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        return core_schema.any_schema()

    @classmethod
    def __get_pydantic_json_schema__(cls, *_: Any) -> Any:
        return {"type": "nonsense"}


def look(at: Odd) -> None: ...


async def test_the_function_becomes_a_tool_with_its_signature_and_docstring():
    """The model sees parameters, defaults and descriptions; the call gets them."""
    tool = await InternalTool.open(InternalTool.Options(function=f"{__name__}:greet"), Deps())
    assert (tool.spec.name, tool.spec.description, tool.spec.effect) == ("greet", "Greets somebody.", "read")
    assert tool.spec.parameters["required"] == ["name"]
    assert await tool.call({"name": "Ann", "times": 2}, ToolContext()) == "Hello Ann Hello Ann"


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("no_such_module_here:f", "no module `no_such_module_here`"),
        (f"{__name__}:nope", "has no `nope`"),
        (f"{__name__}:gret", "Did you mean `greet`"),
        (f"{__name__}:NOT_CALLABLE", "is not a function but int"),
    ],
)
def test_what_cannot_be_found_is_named(reference, says):
    """The operator learns whether the module, the name or the object is wrong."""
    with pytest.raises(ConfigError, match=says):
        load_function(reference)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import no_such_dependency", "needs the module `no_such_dependency`"),
    ],
)
def test_a_module_that_breaks_while_it_loads_says_why(source, says, tmp_path, monkeypatch):
    """A fault inside the operator's module is not mistaken for a missing module."""
    name = f"broken_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=says):
        load_function(f"{name}:f")


def test_a_name_that_raises_when_it_is_read_is_a_fault(tmp_path, monkeypatch):
    """A module's `__getattr__` is the operator's code as well."""
    (tmp_path / "lazy_and_broken.py").write_text(
        "def __getattr__(name):\n    raise RuntimeError('not today')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"`lazy_and_broken:f` failed: RuntimeError: not today"):
        load_function("lazy_and_broken:f")


def test_parameters_that_are_no_json_schema_are_found_with_the_function():
    """Before an agent is built: with the place of the key `function`."""
    with pytest.raises(ValidationError, match='not a JSON Schema: "nonsense"'):
        InternalTool.Options(function=f"{__name__}:look")
