"""Output schemas of nodes: pydantic models, dataclasses, TypedDicts and JSON Schemas behind one interface."""

from __future__ import annotations

import importlib
import sys
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from astromesh.graph.extract import extract_values
from astromesh.node.json_schemas import schema_validator


class OutputSchema:
    """What an output must look like.

    Args:
        schema: a pydantic model, a dataclass, a TypedDict or another type with a JSON form, or a JSON Schema.

    Raises:
        TypeError: it is none of these.
    """

    def __init__(self, schema: Any) -> None:
        self._check: Callable[[Any], Any]
        if isinstance(schema, Mapping):
            self.json_schema: dict[str, Any] = dict(schema)
            self._check = partial(_fits, _validator(self.json_schema))
        else:
            adapter = _adapter(schema)
            self.json_schema = adapter.json_schema()
            self._check = adapter.validate_python

    def validate(self, value: Any) -> Any:
        """The value as the schema's type; JSON Schema leaves it as it is.

        Raises:
            ValueError: it does not fit; the message names the faults with their places.
        """
        return self._check(value)  # pydantic's ValidationError is a ValueError

    def parse(self, text: str) -> Any:
        """A model's text as a valid value: JSON, also in a fence or in prose.

        Raises:
            ValueError: there is no JSON in it, or none that fits.
        """
        misfit = ValueError("There is no JSON in the answer.")
        for value in extract_values(text):
            try:
                return self.validate(value)
            except ValueError as error:
                misfit = error
        raise misfit


@lru_cache(maxsize=256)
def _of_type(schema: type) -> OutputSchema:
    return OutputSchema(schema)


#: JSON Schemas of nodes, compiled; each is kept beside its reader, so that its identity stays its own
_OF_MAPPINGS: dict[int, tuple[Mapping[str, Any], OutputSchema]] = {}
_MOST_MAPPINGS = 256


def output_schema(schema: Any) -> OutputSchema:
    """The reader of a schema; types and JSON Schemas are compiled once per process."""
    if isinstance(schema, type):
        return _of_type(schema)
    if not isinstance(schema, Mapping):
        return OutputSchema(schema)
    known = _OF_MAPPINGS.get(id(schema))
    if known is None:
        if len(_OF_MAPPINGS) >= _MOST_MAPPINGS:
            _OF_MAPPINGS.clear()
        known = _OF_MAPPINGS[id(schema)] = schema, OutputSchema(schema)
    return known[1]


def _fits(validator: Any, value: Any) -> Any:
    faults = [
        f"{'.'.join(str(part) for part in fault.instance_path) or 'output'}: {fault.message}"
        for fault in validator.iter_errors(value)
    ]
    if faults:
        raise ValueError("; ".join(faults[:8]))
    return value


def _validator(schema: dict[str, Any]) -> Any:
    try:
        return schema_validator(schema)
    except ValueError as error:
        raise TypeError(f"output_schema is no JSON Schema: {error}") from error


def _adapter(schema: Any) -> Any:
    # loaded on first use: graphs without typed outputs never need pydantic, and it doubles the time to import
    pydantic = importlib.import_module("pydantic")
    try:
        return pydantic.TypeAdapter(_readable(schema))
    except pydantic.PydanticUserError as error:
        raise TypeError(f"output_schema {schema!r} has no JSON form: {error}") from error


def _readable(hint: Any) -> Any:
    """The same type with `typing.TypedDict`s in the form pydantic can read before Python 3.12."""
    if sys.version_info >= (3, 12):
        return hint
    if is_typeddict(hint) and type(hint).__module__ == "typing":
        extensions = importlib.import_module("typing_extensions")
        hints = get_type_hints(hint, include_extras=True)
        fields = {name: _readable_field(hint, name, kind) for name, kind in hints.items()}
        return extensions.TypedDict(hint.__name__, fields)
    origin, args = get_origin(hint), tuple(map(_readable, get_args(hint)))
    if not args or args == get_args(hint):
        return hint
    return Union[args] if origin in (Union, UnionType) else origin[args]  # noqa: UP007


def _readable_field(owner: Any, name: str, hint: Any) -> Any:
    if get_origin(hint) in (typing.Required, typing.NotRequired):
        return get_origin(hint)[_readable(get_args(hint)[0])]
    inner = _readable(hint)
    return inner if name in owner.__required_keys__ else typing.NotRequired[inner]
