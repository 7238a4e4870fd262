"""astromesh: an agent runtime."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

#: what stands here by name, and where it is; loaded when it is first asked for
_PUBLIC = {
    "build_agent": "astromesh.runtime.builder",
    "CallerContext": "astromesh.types",
    "get_current_caller": "astromesh.types",
}

__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604 (texts, all of them)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'astromesh' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
