"""`type: internal`: a Python function as a tool."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, Self

import jsonschema_rs
import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from astromesh.errors import ConfigError, ForeignError, ToolFailed, described, is_failure
from astromesh.plugins import Deps
from astromesh.text import did_you_mean
from astromesh.tools.base import ToolContext
from astromesh.tools.functions import FunctionTool
from astromesh.tools.process_pool import Isolation, Port, call_in_process, is_isolated
from astromesh.tools.results import to_text
from astromesh.types import CallerContext, JsonObject, SessionKey, calling_as


class InternalTool:
    """Opens `module:name` as a tool: schema from the signature, description from the docstring."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        function: str = Field(
            pattern=r"^[\w.]+:[\w.]+$",
            description="The function as `module:name`, searched on the Python path, in the folder of the "
            "configuration and in its parent folder.",
        )
        isolation: Isolation = Field(
            None, description="process: the function runs in a worker process; its time limit kills that."
        )
        max_memory_mb: int | None = Field(
            None, ge=1, description="MiB of data that a call in a worker process may have; needs isolation."
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

        @property
        def declared_keys(self) -> JsonObject:
            """The keys of a block that `@tool(…)` has at the function."""
            found = load_function(self.function)
            return {"effect": found.spec.effect, **found.policy} if isinstance(found, FunctionTool) else {}

        @model_validator(mode="after")
        def _limits_a_process(self) -> Self:
            if self.max_memory_mb and not self.isolation:
                raise ValueError("max_memory_mb needs isolation: process")
            return self

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> InternalTool:
        """Raises: ConfigError: the function cannot be imported, or cannot be offered as a tool."""
        return cls(options)

    def __init__(self, options: Options) -> None:
        self._options, self._tool = options, _as_tool(load_function(options.function))
        self.spec = self._tool.spec

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """See `Tool`. In a worker process, a parameter `ToolContext` has only ids and texts."""
        takes_context = bool(self._tool.signature.contexts)
        if not (self._options.isolation or is_isolated(takes_context=takes_context)):
            return await self._tool.call(arguments, context)
        self._tool.signature.bind(arguments, context)  # its error is the model's to correct
        payload = {"function": self._options.function, "arguments": arguments, "context": _ids_of(context)}
        try:
            return await call_in_process(
                f"{__name__}:{run_tool.__name__}", payload, max_memory_mb=self._options.max_memory_mb or 0
            )
        except ForeignError as error:
            raise ToolFailed(f"The tool {self.spec.name!r} failed: {error}") from error


#: fields of a context that reach a worker process
_IDS = ("run_id", "call_id", "agent", "trace_id", "path", "idempotency_key", "tool")


def _ids_of(context: ToolContext) -> JsonObject:
    caller = context.caller
    return {
        **{name: getattr(context, name) for name in _IDS},
        "session": list(context.session),
        "caller": {"user_id": caller.user_id, "tenant_id": caller.tenant_id} if caller else None,
    }


async def run_tool(payload: JsonObject, port: Port) -> Any:
    """Runs a function as a tool in a worker process; see `astromesh.tools.process_pool`."""
    ids = payload["context"]
    caller = CallerContext(**ids["caller"]) if ids["caller"] else None
    context = ToolContext(**{**ids, "session": SessionKey(*ids["session"]), "caller": caller})
    with calling_as(caller):
        tool = _as_tool(load_function(payload["function"]))
        result = await tool.call(payload["arguments"], context)
    return result if isinstance(result, str) else orjson.loads(to_text(result, sys.maxsize))


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
        raise ConfigError(f"Loading `{reference}` failed: {described(error)}") from error
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
