"""Validators of JSON Schemas that models, tools and graphs bring along (jsonschema-rs).

The library is loaded with the first schema: graphs without one never need it, and loading it takes long.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any


def schema_validator(schema: Mapping[str, Any]) -> Any:
    """A compiled validator. No reference to another document is fetched, and patterns match in linear time.

    Raises:
        ValueError: it is no JSON Schema, or refers to another document.
    """
    library, linear = _library()
    try:
        return library.validator_for(dict(schema), offline=True, pattern_options=linear)
    except library.ReferencingError as error:
        raise ValueError(str(error)) from error


@cache
def _library() -> tuple[Any, Any]:
    library = importlib.import_module("jsonschema_rs")
    return library, library.RegexOptions()
