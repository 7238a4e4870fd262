"""Python functions as tools: their JSON Schema from type hints and docstring, and the tool around them.

Stands below the graph and the `tools` adapters because both offer plain functions to models. Loading it loads
pydantic: who may never meet a function (the graph, for its import time) loads it on first use.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_type_hints

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema

from astromesh.abc.own_tasks import OwnTasks
from astromesh.abc.python_calls import PythonCalls
from astromesh.abc.threads import Threads
from astromesh.abc.tool import ToolContext
from astromesh.errors import ConfigError, InvalidToolCall
from astromesh.types import Effect, JsonObject, ToolSpec

# Synchronous tools block; they get threads of their own, so that file and DNS work of the default executor
# never waits for them. Threads are started by the first calls, not here.
_CALLS = PythonCalls(Threads(32, "astromesh-tool"), OwnTasks())


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())


class _Quiet(GenerateJsonSchema):
    """A default that has no JSON form is left out of the schema without a warning: the function knows it."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 (pydantic's own form)


@dataclass(frozen=True, slots=True)
class Signature:
    """How a model's arguments become a call of a Python function.

    Args:
        spec: what the model sees.
        model: validates the arguments; field `pN` has the alias of the N-th parameter.
        names: field of the model to parameter of the function.
        context: the parameter annotated `ToolContext`, which the model does not see, or empty.
    """

    spec: ToolSpec
    model: type[BaseModel]
    names: Mapping[str, str]
    context: str = ""

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Keyword arguments with their Python types.

        Raises:
            InvalidToolCall: naming every argument that does not fit.
        """
        try:
            valid = self.model.model_validate(arguments)
        except ValidationError as error:
            raise InvalidToolCall(_readable(self.spec.name, error)) from error
        # what was not given keeps the function's own default object
        bound = {self.names[field]: getattr(valid, field) for field in valid.model_fields_set}
        if self.context:
            bound[self.context] = context
        return bound


class FunctionTool:
    """A Python function as a tool: async ones run on the event loop, others in a thread of the tools' own.

    Args:
        function: with type hints; its docstring's first paragraph and its parameters' lines describe it.
            A parameter annotated `ToolContext` is given the call's context and hidden from the model.
        name, description: instead of the function's own.
        effect: `read` may be repeated after a crash; `write` and `external` may not.
        calls: how it is called; None: as all tools of the process are.

    Raises:
        ConfigError: the function cannot be offered (positional-only or variadic parameters, unknown types).
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str = "",
        description: str = "",
        effect: Effect = "read",
        calls: PythonCalls | None = None,
    ) -> None:
        self.function, self._calls = function, calls or _CALLS
        self.signature = read_signature(function, name=name, description=description, effect=effect)
        self.spec = self.signature.spec
        self._async = inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 (asks whether the call is async, not whether it exists)
        )

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        bound = self.signature.bind(arguments, context)
        return await self._calls.call(
            self.function, bound, self.spec.name, context.goes_on, is_async=self._async
        )


def tool_schema(
    function: Callable[..., Any], *, name: str = "", description: str = "", effect: Effect = "read"
) -> ToolSpec:
    """The tool that a model sees in a Python function.

    Args:
        function: sync or async, with type hints.
        name: instead of the function's own.
        description: instead of the docstring's.
        effect: what calling it does.

    Raises:
        ConfigError: the function cannot be offered as a tool.
    """
    return read_signature(function, name=name, description=description, effect=effect).spec


def read_signature(
    function: Callable[..., Any], *, name: str = "", description: str = "", effect: Effect = "read"
) -> Signature:
    """Reads a function once, for its schema and for its calls; see `tool_schema`."""
    called = name or _name(function)
    _check_callable(function, called)
    hints, doc = _hints(function, called), docstring_parser.parse(inspect.getdoc(function) or "")
    described = {p.arg_name: " ".join((p.description or "").split()) for p in doc.params}
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    context = ""
    for index, parameter in enumerate(_parameters(function, called)):
        hint = hints.get(parameter.name, Any)
        if isinstance(hint, type) and issubclass(hint, ToolContext):
            context = parameter.name
            continue
        # `pN`: a parameter may be called `copy` or `_x`, a field of a pydantic model may not
        fields[f"p{index}"] = (hint, _field(parameter, described.get(parameter.name, "")))
        names[f"p{index}"] = parameter.name
    model = _model(called, fields)
    spec = ToolSpec(called, description or _summary(doc), _schema(called, model), effect)
    return Signature(spec, model, names, context)


def _check_callable(function: Callable[..., Any], called: str) -> None:
    """Refuses what would only fail, or answer nonsense, when a model calls it."""
    bare = inspect.unwrap(function.func if isinstance(function, partial) else function)
    asked = bare if inspect.isroutine(bare) or isinstance(bare, type) else type(bare).__call__
    if inspect.isgeneratorfunction(asked) or inspect.isasyncgenfunction(asked):
        raise ConfigError(
            f"The tool {called!r} is a generator: return one value, e.g. a list, without yield."
        )
    if _is_unbound(bare):
        owner, _, method = bare.__qualname__.rpartition(".")
        raise ConfigError(
            f"The tool {called!r} is a method without its object: offer a bound one, such as "
            f"`{method} = {owner.rpartition('.')[2]}(…).{method}` in the module."
        )


def _is_unbound(function: Callable[..., Any]) -> bool:
    """Whether this is a method as it stands in its class, which waits for `self`."""
    if not inspect.isfunction(function) or "." not in function.__qualname__.rpartition("<locals>.")[2]:
        return False
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return first is not None and first.name in ("self", "cls") and first.default is first.empty


def _name(function: Callable[..., Any]) -> str:
    inner = function.func if isinstance(function, partial) else function
    return getattr(inner, "__name__", "") or type(inner).__name__


def _hints(function: Callable[..., Any], called: str) -> dict[str, Any]:
    inner = function.func if isinstance(function, partial) else function
    target = inner if inspect.isroutine(inner) else type(inner).__call__
    try:
        return get_type_hints(inspect.unwrap(target), include_extras=True)
    except NameError as error:
        raise ConfigError(f"The tool {called!r} has a type hint that cannot be resolved: {error}.") from error


def _parameters(function: Callable[..., Any], called: str) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"The tool {called!r} has the parameter {parameter}: models give arguments by name, "
                "so positional-only and variadic parameters cannot be offered."
            )
    return parameters


def _field(parameter: inspect.Parameter, description: str) -> Any:
    default = ... if parameter.default is parameter.empty else parameter.default
    return Field(default, alias=parameter.name, description=description or None)


def _model(called: str, fields: Mapping[str, Any]) -> type[BaseModel]:
    try:
        return create_model(called, __base__=_Arguments, **fields)
    except PydanticUserError as error:
        raise ConfigError(f"The tool {called!r} has a type hint that has no JSON form: {error}") from error


def _schema(called: str, model: type[BaseModel]) -> JsonObject:
    try:
        schema = model.model_json_schema(by_alias=True, schema_generator=_Quiet)
    except PydanticUserError as error:
        raise ConfigError(f"The tool {called!r} has a type hint that has no JSON form: {error}") from error
    schema.pop("title", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
    return {**schema, "type": "object", "properties": schema.get("properties", {})}


def _summary(doc: docstring_parser.Docstring) -> str:
    return "\n\n".join(part.strip() for part in (doc.short_description, doc.long_description) if part)


def _readable(tool: str, error: ValidationError) -> str:
    faults = "; ".join(
        f"{'.'.join(str(part) for part in fault['loc']) or 'arguments'}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    )
    return f"The arguments of {tool!r} do not fit: {faults}"
