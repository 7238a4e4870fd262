"""The keys that a record accepts, and suggestions for misspelled ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AliasChoices, AliasPath, BaseModel

from astromesh.config.base import Steps
from astromesh.text import did_you_mean


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Returns a hint with the most similar known name, else with all of them, or that there are none."""
    names = sorted(set(known))
    listed = f"Known: {', '.join(f'`{one}`' for one in names)}." if names else "None is declared."
    return did_you_mean(name, names) or listed


@cache
def keys_of(model: type[BaseModel]) -> tuple[str, ...]:
    """Returns every key that a model accepts in YAML, including aliases."""
    by_name = model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name")
    return tuple(
        key for name, field in model.model_fields.items() for key in _names(name, field, bool(by_name))
    )


def accepts_key(model: type[BaseModel], key: str) -> bool:
    """Returns whether a model accepts a key."""
    return model.model_config.get("extra") == "allow" or key in keys_of(model)


def _names(name: str, field: Any, by_name: bool) -> Sequence[str]:
    alias = field.validation_alias or field.alias
    if alias is None:
        return (name,)
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    texts = [str(c.path[0]) if isinstance(c, AliasPath) else c for c in choices]
    return (*texts, name) if by_name else texts


def keys_at(model: type[BaseModel], steps: Steps) -> tuple[str, ...]:
    """Returns the keys of the mapping at a path below a model; nothing where that is not a model."""
    return tuple(key for one in _models_at(model, steps) for key in keys_of(one))


def description_at(model: type[BaseModel], steps: Steps) -> str:
    """Returns the description of the field at a path."""
    found = [one.model_fields.get(str(steps[-1])) for one in _models_at(model, steps[:-1])]
    return next((field.description for field in found if field and field.description), "")


#: matches every pattern of names
_SAMPLE_NAME = "placeholder"
#: type → placeholder for a value of it
_SAMPLES: dict[Any, Any] = {str: _SAMPLE_NAME, int: 1, float: 1, dict: {}, list: [], tuple: []}


def sample_value(model: type[BaseModel], steps: Steps) -> Any:
    """Returns a placeholder for the required value at a path, or None where its type is unknown."""
    for one in _models_at(model, steps[:-1]):
        for name, field in one.model_fields.items():
            if steps[-1] in tuple(_names(name, field, True)):
                return _sample(field.annotation)
    return None


def _sample(annotation: Any) -> Any:
    for one in _union_members(annotation):
        if get_origin(one) is Literal and len(get_args(one)) == 1:
            return get_args(one)[0]
        if isinstance(one, type) and issubclass(one, BaseModel):
            needed = {name: field for name, field in one.model_fields.items() if field.is_required()}
            return {
                _names(name, field, False)[0]: _sample(field.annotation) for name, field in needed.items()
            }
        if (found := _SAMPLES.get(get_origin(one) or one)) is not None:
            return found
    return None


def _models_at(model: type[BaseModel], steps: Steps) -> list[type[BaseModel]]:
    types: list[Any] = [model]
    for step in steps:
        types = [found for one in types for found in _types_below(one, step)]
    return [one for one in types if isinstance(one, type) and issubclass(one, BaseModel)]


def _types_below(annotation: Any, step: str | int) -> Iterable[Any]:
    """Returns the types one step below a type; the type itself where the step is a union's tag."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        found = [f for n, f in annotation.model_fields.items() if step in tuple(_names(n, f, True))]
        return [one for f in found for one in _union_members(f.annotation)] or [annotation]
    arguments = [a for a in get_args(annotation) if a is not Ellipsis]
    return _union_members(arguments[-1]) if arguments else [annotation]


def _union_members(annotation: Any) -> list[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _union_members(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [one for member in get_args(annotation) for one in _union_members(member)]
    return [annotation]
