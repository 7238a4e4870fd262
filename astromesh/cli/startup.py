"""Prepares a process: secrets from files, a short import time, a quiet garbage collector for servers."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

from astromesh.errors import ConfigError

SECRETS_VARIABLE = "ASTROMESH_SECRETS_DIR"
#: pydantic searches every installed distribution for plugins, unless this variable is set
_NO_PLUGINS = ("PYDANTIC_DISABLE_PLUGINS", "__all__")
#: what libraries load if it is installed, and a server does not use. structlog spends most of its import on
#: rich, for tracebacks that astromesh renders before. uvicorn reloads itself with watchfiles.
_UNUSED_EXTRAS: Mapping[str, tuple[str, ...]] = {
    "structlog": ("rich", "greenlet"),
    "uvicorn": ("watchfiles",),
}
#: new containers between two runs of the garbage collector. 300 runs that wait for a model have 90,000. At
#: Python's 700, a tenth of their time goes to collections, which find nothing: runs leave no cycles.
_GC_THRESHOLD = 200_000
#: bytes from which an allocation has pages of its own, which return to the system when it is freed. glibc's
#: limit grows with what is freed, up to 32 MiB: then the holes that long answers leave stay with the process.
_OWN_PAGES_BYTES = 256 * 1024
#: `M_MMAP_THRESHOLD` of mallopt(3)
_MMAP_THRESHOLD = -3


def load_secret_files(env: MutableMapping[str, str]) -> None:
    """Adds each file of `ASTROMESH_SECRETS_DIR` as a variable of its name, e.g. `OPENAI_API_KEY`.

    Containers mount secrets as files (`/run/secrets/openai_api_key`), because everybody who may inspect a
    container sees its environment. Empty files do not count, and variables that are set keep their values.

    Raises:
        ConfigError: the folder or a file of it cannot be read.
    """
    folder = Path(env[SECRETS_VARIABLE])
    try:
        for file in sorted(folder.iterdir()):
            # mounted folders hold hidden folders beside the files
            is_secret = file.is_file() and not file.name.startswith(".")
            if content := file.read_text(encoding="utf-8").strip() if is_secret else "":
                env.setdefault(file.name.upper(), content)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{SECRETS_VARIABLE}: cannot read the secrets in {folder}: {error}.") from error


def prepare_imports() -> None:
    """Shortens the imports of a server. Call it before any other import."""
    os.environ.setdefault(*_NO_PLUGINS)
    for library, extras in _UNUSED_EXTRAS.items():
        _import_without(library, extras)


def _import_without(library: str, extras: Iterable[str]) -> None:
    """Imports a library that finds none of its extras, as where they are not installed."""
    hidden = [name for name in extras if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # Python's sign of a module that is missing
    try:
        importlib.import_module(library)
    finally:
        for name in hidden:
            del sys.modules[name]


def freeze_memory() -> None:
    """Keeps what exists now out of garbage collection, makes collections rare, and returns freed memory."""
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    gc.enable()
    with suppress(AttributeError, OSError, TypeError):  # a C library without mallopt
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _OWN_PAGES_BYTES)
