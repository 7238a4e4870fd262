"""Base classes and field types of all configuration records: strict, frozen, closed to unknown keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, cast, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PrivateAttr,
    SecretStr,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
)
from pydantic_core import CoreSchema, core_schema

from astromesh.config.base import Steps

#: name of an agent, pipeline or server: part of URLs and file names, and a model's name for OpenAI clients
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
#: function name that providers accept
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
#: at most ten years: longer times are mistakes, and timers count whole nanoseconds
Seconds = Annotated[float, Field(gt=0, le=315_360_000)]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")


def _seconds_of(value: object) -> object:
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    return float(found[1]) * _UNITS[found[2]] if found else value


#: seconds, or a number with a unit: `30s`, `15m`, `12h`, `7d`, `2w`
Duration = Annotated[
    float,
    Field(gt=0, le=315_360_000),
    BeforeValidator(_seconds_of),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 315_360_000},
                   {"type": "string", "pattern": f"^{_DURATION.pattern}$"}]}
    ),
]  # fmt: skip
Count = Annotated[int, Field(ge=1)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0)]
JsonMap = dict[str, Any]


@dataclass(frozen=True, slots=True)
class IsJsonSchema:
    """Marks a field that holds a JSON Schema, or None.

    Args:
        of_arguments: whether it must have `type: object`.
    """

    of_arguments: bool = False


@dataclass(frozen=True, slots=True)
class IsTemplate:
    """Marks a field that holds a Jinja template, or None.

    Args:
        expression: whether it is a single expression, without `{{ }}`.
    """

    expression: bool = False


class Record(BaseModel):
    """A mapping in YAML: rejects unknown keys, converts no types, frozen.

    Validators are built with the first use: most records are parts of others, or of files that are not there.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    @classmethod
    def empty(cls) -> Self:
        """Returns the record of an empty mapping without building a validator."""
        return cast(Self, cls.model_construct())


@dataclass(frozen=True, slots=True)
class NamesPlugin:
    """Marks the key of a block that names a plugin of this group."""

    group: str


class Block(Record):
    """A mapping that names a plugin; keys that the record does not declare belong to the plugin's `Options`.

    Those keys are neither printed nor dumped: only the plugin knows which of them are secret.
    """

    model_config = ConfigDict(extra="allow")

    _options: BaseModel | None = PrivateAttr(default=None)

    @classmethod
    def plugin_keys(cls) -> dict[str, str]:
        """Returns each key that names a plugin, with the group of the plugin."""
        marks = {name: field.metadata for name, field in cls.model_fields.items()}
        return {name: m.group for name, found in marks.items() for m in found if isinstance(m, NamesPlugin)}

    @property
    def options(self) -> Any:
        """The plugin's validated `Options`, ready for `plugin.open(options, deps)`."""
        return self._options

    def bind(self, options: BaseModel | None) -> None:
        """Stores the validated options; called once, at load."""
        self._options = options

    def plugin_value(self, key: str) -> Any:
        """Returns a key of the plugin as written in YAML, or None."""
        return (self.model_extra or {}).get(key)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        return ((key, value) for key, value in super().__repr_args__() if key in type(self).model_fields)

    @model_serializer(mode="wrap")
    def _without_plugin_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if key in type(self).model_fields}


class Secret(SecretStr):
    """Text that prints as `***`; only `get_secret_value()` returns it."""

    def _display(self) -> str:
        return "***"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        as_stars = core_schema.plain_serializer_function_ser_schema(str, when_used="json")
        return {**super().__get_pydantic_core_schema__(source, handler), "serialization": as_stars}


class RateLimit(Record):
    max_calls: Count = Field(description="Calls within the window.")
    window_seconds: Seconds = Field(60.0, description="Length of the window.")


def one_or_list(value: Any) -> str:
    """Returns the tag of a value that may be one thing or a list, so that a fault is reported once."""
    return "list" if isinstance(value, list | tuple) else "one"


# -- what records contain ------------------------------------------------------------------------------------


def records_in(value: Any, at: Steps = ()) -> Iterator[tuple[Steps, BaseModel]]:
    """Yields every record in a value with its path, each before what it contains."""
    if isinstance(value, BaseModel):
        yield at, value
        for name, field in type(value).model_fields.items():
            yield from records_in(getattr(value, name), (*at, field.alias or name))
    elif isinstance(value, tuple):
        for i, one in enumerate(value):
            yield from records_in(one, (*at, i))
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from records_in(one, (*at, key))


_Class = TypeVar("_Class", bound=BaseModel)


def subclasses_of(above: type[_Class]) -> Iterator[type[_Class]]:
    """Yields every class below a class of records."""
    for record in above.__subclasses__():
        yield record
        yield from subclasses_of(record)


_Mark = TypeVar("_Mark")


def marked_fields(record: Any, kind: type[_Mark], at: Steps = ()) -> Iterator[tuple[Steps, _Mark, Any]]:
    """Yields each field with a mark of a class in its annotation, at any depth: path, mark and value."""
    for above, one in records_in(record, at):
        for name, field in type(one).model_fields.items():
            for mark in field.metadata:
                if isinstance(mark, kind):
                    yield (*above, field.alias or name), mark, getattr(one, name)


# -- the head of every file: apiVersion, kind, metadata, spec ------------------------------------------------

ApiVersion = Literal["astromesh/v1"]


class Metadata(Record):
    """Name and labels; the name is optional where a folder can contain only one such file."""

    name: Name | Literal[""] = Field("", description="Unique among all files of this kind.")
    version: str = Field("", description="Version of this manifest, free text; quote it.")
    namespace: str = Field("", description="Group of agents, free text.")
    labels: dict[str, str] = Field(default_factory=dict, description="Free key-value pairs.")


class NamedMetadata(Metadata):
    name: Name = Field(description="Unique among all files of this kind; part of URLs.")


class Manifest(Record):
    """One file."""

    apiVersion: ApiVersion = Field(description="Always astromesh/v1.")  # noqa: N815 (the YAML key)

    _file: Path = PrivateAttr(default=Path())

    @property
    def file(self) -> Path:
        """The file that it was read from; relative paths in it start in this file's folder."""
        return self._file

    @classmethod
    def absent(cls) -> Self:
        """Returns the record of a file that does not exist and need not."""
        (kind,) = get_args(cls.model_fields["kind"].annotation)
        return cls.model_validate({"apiVersion": "astromesh/v1", "kind": kind})

    def read_from(self, file: Path) -> None:
        """Stores the path of the file; called once, at load."""
        self._file = file
