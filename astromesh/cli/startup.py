"""What a process that serves leaves out of its start, and of its work."""

from __future__ import annotations

import gc
import importlib
import os
import sys

#: pydantic looks for plugins in every installed distribution; an empty variable lets it
_NO_PLUGINS = ("PYDANTIC_DISABLE_PLUGINS", "__all__")
#: new containers between two looks of the garbage collector. 300 runs that wait for a model are 90,000, and
#: looking at them again and again, as at Python's 700, takes a tenth of their time; runs leave no circles.
_GC_THRESHOLD = 200_000


def prepare_imports() -> None:
    """To be called before anything else is loaded."""
    os.environ.setdefault(*_NO_PLUGINS)
    _load_structlog()


def freeze_memory() -> None:
    """To be called once what stays is there: the garbage collector looks at the rest alone, and seldom."""
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    gc.enable()


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
