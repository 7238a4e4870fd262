"""What a process that serves leaves out of its start."""

from __future__ import annotations

import importlib
import os
import sys

#: pydantic looks for plugins in every installed distribution; an empty variable lets it
_NO_PLUGINS = ("PYDANTIC_DISABLE_PLUGINS", "__all__")


def begin() -> None:
    """To be called before anything else is loaded."""
    os.environ.setdefault(*_NO_PLUGINS)
    _load_structlog()


def _load_structlog() -> None:
    """Loads structlog without rich, which takes it longer than all else in it.

    Structlog needs it for one thing: tracebacks in a terminal. Ours are texts before they are rendered.
    """
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # how Python is told that there is none
    try:
        importlib.import_module("structlog")
    finally:
        del sys.modules["rich"]
