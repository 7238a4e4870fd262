"""Python objects by name, for YAML: `module:qualname`, or a name that the caller gives. Never code."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def name_of(value: Any, objects: Mapping[str, Any]) -> str:
    """The name by which an object can be found again.

    Args:
        objects: objects that the caller names, for those that no module does.

    Raises:
        ValueError: it has none: a lambda, a function within a function, an instance.
    """
    for name, known in objects.items():
        if known is value:
            return name
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not qualname:
        raise ValueError(
            f"{value!r} has no name: give it one in `objects`, or use a function or class of a module."
        )
    if "<lambda>" in qualname:
        raise ValueError("A lambda cannot be written: use a function of a module, or name it in `objects`.")
    name = f"{module}:{qualname}"
    if "<locals>" in qualname or _find(module, qualname) is not value:
        raise ValueError(f"{name} cannot be found by its name: move it to a module, or name it in `objects`.")
    return name


def object_of(name: str, objects: Mapping[str, Any]) -> Any:
    """The object of a name.

    Raises:
        ValueError: there is no such module or object.
    """
    if name in objects:
        return objects[name]
    module, colon, qualname = name.partition(":")
    if not colon or not module or not qualname:
        raise ValueError(f"{name!r} is no Python object: write `module:name`, or name it in `objects`.")
    try:
        found = _find(module, qualname)
    except ImportError as error:
        raise ValueError(f"{name!r} cannot be loaded: {error}.") from error
    except Exception as error:  # a module is anybody's code, and runs when it is loaded
        raise ValueError(f"{name!r} cannot be loaded: {type(error).__name__}: {error}.") from error
    if found is None:
        raise ValueError(f"There is no {qualname!r} in the module {module!r}.")
    return found


def _find(module: str, qualname: str) -> Any:
    # the same door as plugins: a module is loaded when a file names it
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found
