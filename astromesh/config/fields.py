"""What all records of the configuration are made of: strict, frozen, closed to unknown keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PrivateAttr,
    SecretStr,
    SerializerFunctionWrapHandler,
    model_serializer,
)
from pydantic_core import CoreSchema, core_schema

#: agents, pipelines, servers …: stands in URLs, file names and as a model's name for OpenAI clients
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
#: what providers accept as a function name
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
#: ten years at most: what is longer, or endless, is a slip of the pen, and timers count in whole nanoseconds
Seconds = Annotated[float, Field(gt=0, le=315_360_000)]
Count = Annotated[int, Field(ge=1)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0)]
JsonMap = dict[str, Any]


class Record(BaseModel):
    """A mapping in YAML: unknown keys refused, types as written, frozen.

    Validators are built with the first use: most records are parts of others, or of files that are not there.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    @classmethod
    def empty(cls) -> Self:
        """What an empty mapping comes to. Calling the class would build a validator for this alone."""
        return cast(Self, cls.model_construct())


class Block(Record):
    """A mapping that names a plugin; keys that the record does not declare belong to the plugin's `Options`.

    Those keys are neither printed nor dumped: only the plugin knows which of them are secret.
    """

    model_config = ConfigDict(extra="allow")

    _options: BaseModel | None = PrivateAttr(default=None)

    @property
    def options(self) -> Any:
        """The plugin's validated `Options`, ready for `plugin.open(options, deps)`."""
        return self._options

    def bind(self, options: BaseModel | None) -> None:
        """Called once, at load."""
        self._options = options

    def own(self, key: str) -> Any:
        """A key of the plugin as written in YAML, None where it is absent."""
        return (self.model_extra or {}).get(key)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        return ((key, value) for key, value in super().__repr_args__() if key in type(self).model_fields)

    @model_serializer(mode="wrap")
    def _without_plugin_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if key in type(self).model_fields}


class Secret(SecretStr):
    """Text that prints as `***`; `get_secret_value()` is the only way to it."""

    def _display(self) -> str:
        return "***"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        as_stars = core_schema.plain_serializer_function_ser_schema(str, when_used="json")
        return {**super().__get_pydantic_core_schema__(source, handler), "serialization": as_stars}
