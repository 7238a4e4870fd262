"""astromesh: an agent runtime."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

#: public name -> its module, which is imported on first access
_PUBLIC = {
    "build_agent": "astromesh.runtime.builder",
    "CallerContext": "astromesh.types",
    "get_current_caller": "astromesh.types",
}

__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604 (all are strings)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'astromesh' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
