"""`type: internal`: a Python function as a tool."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jsonschema_rs
from pydantic import BaseModel, ConfigDict, Field, field_validator

from astromesh.errors import ConfigError, is_failure
from astromesh.plugins import Deps
from astromesh.text import did_you_mean
from astromesh.tools.functions import FunctionTool


class InternalTool:
    """Opens `module:name` as a tool: schema from the signature, description from the docstring."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        function: str = Field(
            pattern=r"^[\w.]+:[\w.]+$",
            description="The function as `module:name`, searched on the Python path, in the folder of the "
            "configuration and in its parent folder.",
        )

        @field_validator("function")
        @classmethod
        def _can_be_offered(cls, function: str) -> str:
            """Imports the function at load, so that a missing one is reported with its line."""
            try:
                tool = _as_tool(load_function(function))
                jsonschema_rs.meta.validate(dict(tool.spec.parameters))
            except ConfigError as error:
                raise ValueError(str(error)) from error
            except jsonschema_rs.ValidationError as error:
                raise ValueError(
                    f"The parameters of `{function}` are not a JSON Schema: {error.message}"
                ) from error
            return function

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> FunctionTool:
        """Raises: ConfigError: the function cannot be imported, or cannot be offered as a tool."""
        return _as_tool(load_function(options.function))


def _as_tool(function: Callable[..., Any]) -> FunctionTool:
    """Returns a function as a tool; `@tool` has made some of them tools already."""
    return function if isinstance(function, FunctionTool) else FunctionTool(function)


def load_function(reference: str) -> Callable[..., Any]:
    """Imports the function that `module:name` names.

    Raises:
        ConfigError: says whether the module, the name or the import itself is wrong.
    """
    module_name, _, path = reference.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            if not hasattr(found, part):
                hint = did_you_mean(part, dir(found))
                raise ConfigError(f"The module `{module_name}` has no `{path}`. {hint}".strip())
            found = getattr(found, part)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(_missing_module(reference, module_name, error)) from error
    except BaseException as error:  # modules, their `__getattr__` and properties are foreign code
        if not is_failure(error):
            raise
        raise ConfigError(f"Loading `{reference}` failed: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ConfigError(f"`{reference}` is not a function but {type(found).__name__}.")
    function: Callable[..., Any] = found
    return function


def _missing_module(reference: str, module: str, error: ModuleNotFoundError) -> str:
    if error.name and (module == error.name or module.startswith(f"{error.name}.")):
        return (
            f"There is no module `{error.name}` for `{reference}` on the Python path. "
            f"Put {error.name}.py next to the configuration folder, or install the package that contains it."
        )
    return f"Loading `{reference}` failed: it needs the module `{error.name}`."
