"""`type: internal`: a Python function as a tool."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import Field

from astromesh.abc.deps import Deps
from astromesh.abc.functions import FunctionTool
from astromesh.abc.tool_options import ToolOptions
from astromesh.errors import ConfigError
from astromesh.types import JsonObject


class InternalTool:
    """Opens `module:name` as a tool: the schema comes from the signature, the description from the docstring."""

    class Options(ToolOptions):
        function: str = Field(
            pattern=r"^[\w.]+:[\w.]+$",
            description="The function as `module:name`, found on the Python path, in the folder of the "
            "configuration and in the one above it.",
        )
        parameters: JsonObject | None = Field(
            None, description="JSON Schema shown to the model instead of the one from the signature."
        )

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> FunctionTool:
        """Raises: ConfigError: the function cannot be imported, or cannot be offered as a tool."""
        tool = FunctionTool(
            load(options.function),
            name=options.name,
            description=options.description,
            effect=options.effect,
        )
        if options.parameters is not None:
            tool.spec = replace(tool.spec, parameters=options.parameters)
        return tool


def load(reference: str) -> Callable[..., Any]:
    """The function that `module:name` names.

    Raises:
        ConfigError: saying whether the module, the name or the import itself is wrong.
    """
    module_name, _, path = reference.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(_missing(reference, module_name, error)) from error
    except Exception as error:  # the operator's module may raise anything while it loads
        raise ConfigError(
            f"Importing {module_name!r} for {reference!r} failed: {type(error).__name__}: {error}"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"The module {module_name!r} has no {path!r} (function: {reference}).")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{reference!r} is not a function but {type(found).__name__}.")
    function: Callable[..., Any] = found
    return function


def _missing(reference: str, module: str, error: ModuleNotFoundError) -> str:
    if error.name and (module == error.name or module.startswith(f"{error.name}.")):
        return (
            f"There is no module {error.name!r} for {reference!r} on the Python path. "
            f"Put {error.name}.py next to the configuration folder, or install the package that has it."
        )
    return f"Importing {module!r} for {reference!r} failed: it needs the module {error.name!r}."
