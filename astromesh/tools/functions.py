"""Python functions as tools: their JSON Schema from type hints and docstring, and the tool around them.

This module imports pydantic. The graph engine, which must start fast, imports it on first use.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, update_wrapper
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypedDict,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import docstring_parser
import orjson
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, SchemaError
from typing_extensions import ParamSpec, TypeVar

from astromesh.errors import ConfigError, InvalidToolCall, is_failure, text_of
from astromesh.text import did_you_mean
from astromesh.tools.base import ToolContext
from astromesh.tools.executor import TOOL_CALLS, FunctionExecutor
from astromesh.types import Effect, JsonObject, ToolSpec


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())


class _SchemaGenerator(GenerateJsonSchema):
    """Omits a default that has no JSON form from the schema, without a warning."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 (pydantic's own form)

    def encode_default(self, dft: Any) -> Any:
        """Raises: PydanticSerializationError: pydantic then omits the default."""
        encoded = super().encode_default(dft)
        try:
            orjson.dumps(encoded)
        except TypeError as error:
            raise PydanticSerializationError(str(error)) from error
        return encoded


@dataclass(frozen=True, slots=True)
class Signature:
    """Binds a model's arguments to a call of a Python function.

    Args:
        spec: what the model sees.
        model: validates the arguments; field `pN` has the alias of the N-th parameter.
        names: field of the model to parameter of the function.
        contexts: the parameters annotated `ToolContext`, which the model does not see.
    """

    spec: ToolSpec
    model: type[BaseModel]
    names: Mapping[str, str]
    contexts: tuple[str, ...] = ()

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Returns keyword arguments with their Python types.

        Raises:
            InvalidToolCall: the message names every invalid argument.
        """
        try:
            valid = self.model.model_validate(arguments)
        except ValidationError as error:
            raise InvalidToolCall(_validation_message(self.spec.name, error)) from error
        # an omitted argument keeps the default object of the function
        bound = {self.names[field]: getattr(valid, field) for field in valid.model_fields_set}
        for name in self.contexts:
            bound[name] = context
        return bound


P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)


class FunctionTool(Generic[P, R]):
    """A Python function as a tool: async functions run on the event loop, others in the tools' thread pool.

    It can be called as the function itself, and has its name and docstring.

    Args:
        function: with type hints; its docstring's first paragraph and its parameters' lines describe it.
            A parameter annotated `ToolContext`, optional or not, receives the call's context and is hidden
            from the model.
        name, description: instead of the function's own.
        effect: `read` may be repeated after a crash; `write` and `external` may not.
        executor: runs the calls; None: the executor of the process.
        policy: keys of a tool in an agent's YAML that say how it may be used, e.g. `approval`.

    Raises:
        ConfigError: the function cannot be a tool: positional-only or variadic parameters, unknown types, or
            hints, defaults or schemas that raise. Or `policy` has an unknown key.
    """

    __name__: str

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str = "",
        description: str = "",
        effect: Effect = "read",
        executor: FunctionExecutor | None = None,
        policy: Mapping[str, Any] | None = None,
    ) -> None:
        self.function, self._executor = function, executor or TOOL_CALLS
        self.policy = dict(policy or {})
        self.signature = read_signature(function, name=name, description=description, effect=effect)
        self.spec = self.signature.spec
        _check_keys(self.spec.name, self.policy)
        with _config_errors(f"The tool {self.spec.name!r} cannot be offered"):
            self._async = _is_async(function)
            update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        bound = self.signature.bind(arguments, context)
        return await self._executor.call(
            self.function, bound, self.spec.name, context.report_uncancellable, is_async=self._async
        )


class ToolKeys(TypedDict, total=False):
    """Keys of a tool in an agent's YAML that say how it may be used (docs/tools.md)."""

    approval: Literal["none", "required"] | Mapping[str, Any]
    idempotency: Literal["none", "key"]
    timeout_seconds: float
    rate_limit: Mapping[str, Any]
    max_calls_per_run: int
    max_result_tokens: int
    trusted: bool


def _check_keys(name: str, policy: Mapping[str, Any]) -> None:
    """Raises: ConfigError: a tool is declared with an unknown key."""
    for key in policy.keys() - ToolKeys.__annotations__.keys():
        hint = did_you_mean(key, {"name", "description", "effect", *ToolKeys.__annotations__})
        raise ConfigError(f"The tool {name!r} has the unknown key `{key}`. {hint}".rstrip())


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *, name: str = "", description: str = "", effect: Effect = "read", **policy: Unpack[ToolKeys]
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    effect: Effect = "read",
    **policy: Unpack[ToolKeys],
) -> Any:
    """Makes a function a tool, as `@tool` or `@tool(…)`.

    The model sees the function's name, the first paragraph of its docstring, and its parameters with their
    types and descriptions (Google, NumPy or Sphinx style). A parameter annotated `ToolContext` receives the
    call's context and is hidden from the model. The result can be called as the function itself.

    Args:
        name, description: instead of the function's own.
        effect: `read` may be repeated after a crash; `write` and `external` may not.
        policy: further keys of a tool in an agent's YAML: `approval`, `timeout_seconds`, `rate_limit`,
            `max_calls_per_run`, `idempotency`, `max_result_tokens`, `trusted`.

    Raises:
        ConfigError: the function cannot be a tool, or there is no such key.
    """

    def decorate(decorated: Callable[..., Any]) -> FunctionTool[..., Any]:
        return FunctionTool(decorated, name=name, description=description, effect=effect, policy=policy)

    return decorate if function is None else decorate(function)


def read_signature(
    function: Callable[..., Any], *, name: str = "", description: str = "", effect: Effect = "read"
) -> Signature:
    """Reads a function once, for its schema and for its calls.

    Args:
        function: sync or async, with type hints.
        name: instead of the function's own.
        description: instead of the docstring's.
        effect: of a call.

    Raises:
        ConfigError: the function cannot be a tool.
    """
    with _config_errors("The function has no name that can be read"):
        tool_name = name or _name(function)
    with _config_errors(f"The tool {tool_name!r} cannot be offered"):
        return _read_function(function, tool_name, description, effect)


def _read_function(
    function: Callable[..., Any], tool_name: str, description: str, effect: Effect
) -> Signature:
    _check_text(tool_name, "name", tool_name)
    _check_text(tool_name, "description", description)
    _check_callable(function, tool_name)
    hints, doc = _hints(function, tool_name), _docstring(function)
    described = {p.arg_name: " ".join((p.description or "").split()) for p in doc.params}
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    contexts: list[str] = []
    for index, parameter in enumerate(_parameters(function, tool_name)):
        hint = hints.get(parameter.name, Any)
        if _is_context(hint):
            contexts.append(parameter.name)
            continue
        if _holds_context(hint):
            raise ConfigError(
                f"The parameter {parameter.name!r} of the tool {tool_name!r} combines ToolContext with other "
                "types. Annotate it ToolContext or ToolContext | None."
            )
        # `pN`: a parameter may be named `copy` or `_x`, a field of a pydantic model may not
        fields[f"p{index}"] = (hint, _field(parameter, described.get(parameter.name, "")))
        names[f"p{index}"] = parameter.name
    model, schema = _argument_model(tool_name, fields, names)
    spec = ToolSpec(tool_name, description or _summary(doc), schema, effect)
    orjson.dumps(spec.description)  # rejects half a surrogate pair
    return Signature(spec, model, names, tuple(contexts))


def _check_text(tool_name: str, key: str, value: object) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"The {key} of the tool {tool_name!r} must be a text.")


@contextmanager
def _config_errors(fault: str) -> Iterator[None]:
    """Translates errors of foreign code: hints, defaults and hooks of types may raise anything."""
    try:
        yield
    except ConfigError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise ConfigError(f"{fault}: {_error_text(error)}") from error


def _error_text(error: BaseException) -> str:
    """Returns the text of an error in one line."""
    if isinstance(error, PydanticUserError):
        return error.message
    text = " ".join(text_of(error).split())
    if isinstance(error, SchemaError):  # nested in the parts of the model
        return text.rpartition("SchemaError: ")[2]
    return f"{type(error).__name__}: {text}"


def _is_context(hint: Any) -> bool:
    """Whether the hint is `ToolContext` or a subclass, also optional, annotated or as an alias."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _is_context(get_args(hint)[0])
    if origin is Union or origin is UnionType:
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        return bool(kinds) and all(map(_is_context, kinds))
    if isinstance(origin, type) or isinstance(hint, type):  # `ToolContext[Deps]`, `ToolContext`
        return issubclass(cast("type[Any]", origin or hint), ToolContext)
    alias = getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None)  # NewType, TypeAliasType
    return alias is not None and _is_context(alias)


def _holds_context(hint: Any) -> bool:
    return _is_context(hint) or any(map(_holds_context, get_args(hint)))


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (asks whether the call is async, not whether it exists)
    )


def _check_callable(function: Callable[..., Any], tool_name: str) -> None:
    """Rejects functions that would fail, or return a useless value, when a model calls them."""
    bare = inspect.unwrap(function.func if isinstance(function, partial) else function)
    target = bare if inspect.isroutine(bare) or isinstance(bare, type) else type(bare).__call__
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise ConfigError(f"The tool {tool_name!r} is a generator. Return one value, e.g. a list, instead.")
    if _is_unbound(bare):
        owner, _, method = bare.__qualname__.rpartition(".")
        raise ConfigError(
            f"The tool {tool_name!r} is an unbound method. Offer a bound one, such as "
            f"`{method} = {owner.rpartition('.')[2]}(…).{method}` in the module."
        )


def _is_unbound(function: Callable[..., Any]) -> bool:
    """Whether this is an unbound method, which expects `self`."""
    if not inspect.isfunction(function) or "." not in function.__qualname__.rpartition("<locals>.")[2]:
        return False
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return first is not None and first.name in ("self", "cls") and first.default is first.empty


def _name(function: Callable[..., Any]) -> str:
    inner = function.func if isinstance(function, partial) else function
    return getattr(inner, "__name__", "") or type(inner).__name__


def _hints(function: Callable[..., Any], tool_name: str) -> dict[str, Any]:
    inner = function.func if isinstance(function, partial) else function
    if isinstance(inner, type):
        target = inner.__init__  # type: ignore[misc]
    else:
        target = inner if inspect.isroutine(inner) else type(inner).__call__
    try:
        return get_type_hints(inspect.unwrap(target), include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"The tool {tool_name!r} has a type hint that cannot be resolved: {error}."
        ) from error


def _parameters(function: Callable[..., Any], tool_name: str) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"The tool {tool_name!r} has the parameter {parameter}. Models pass arguments by name, so "
                "positional-only and variadic parameters are not possible."
            )
    return parameters


def _field(parameter: inspect.Parameter, description: str) -> Any:
    default = ... if parameter.default is parameter.empty else parameter.default
    return Field(default, alias=parameter.name, description=description or None)


def _argument_model(
    tool_name: str, fields: Mapping[str, Any], names: Mapping[str, str]
) -> tuple[type[BaseModel], JsonObject]:
    """Returns the validator of the arguments and its JSON Schema.

    Raises: ConfigError: names the parameter.
    """
    try:
        return _model_and_schema(tool_name, fields)
    except BaseException as error:
        if not is_failure(error):
            raise
        for field, parameter in names.items():
            of = f"The parameter {parameter!r} of the tool {tool_name!r}"
            with _config_errors(f"{of} has a hint or default that cannot be used"):
                _model_and_schema(tool_name, {field: fields[field]})
        raise


def _model_and_schema(tool_name: str, fields: Mapping[str, Any]) -> tuple[type[BaseModel], JsonObject]:
    model = create_model(tool_name, __base__=_Arguments, **fields)
    schema = model.model_json_schema(by_alias=True, schema_generator=_SchemaGenerator)
    schema.pop("title", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
    orjson.dumps(schema)  # as it is sent to models
    return model, {**schema, "type": "object", "properties": schema.get("properties", {})}


def _docstring(function: Callable[..., Any]) -> docstring_parser.Docstring:
    text = inspect.getdoc(function) or ""
    try:
        return docstring_parser.parse(text)
    except Exception:  # noqa: BLE001 (the parser raises e.g. IndexError): the docstring is used as it is
        whole = docstring_parser.Docstring()
        whole.short_description = text
        return whole


def _summary(doc: docstring_parser.Docstring) -> str:
    return "\n\n".join(part.strip() for part in (doc.short_description, doc.long_description) if part)


def _validation_message(tool: str, error: ValidationError) -> str:
    faults = "; ".join(
        f"{'.'.join(str(part) for part in fault['loc']) or 'arguments'}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    )
    return f"The arguments of {tool!r} are not valid: {faults}"
