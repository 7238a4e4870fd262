"""Where the runs of an agent are stored that wait for a person."""

from __future__ import annotations

import shutil
import weakref
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

from astromesh.errors import ConfigError


class Place(NamedTuple):
    """Where an agent stores what its runs leave.

    Args:
        data_dir: A folder; None: `.astromesh`.
        storage_url: `storage.url` of its runtime; empty: a file in the folder.
    """

    data_dir: str | Path | None = None
    storage_url: str = ""


def place_of(store: str | None, data_dir: str | Path | None, owner: object) -> Place:
    """Returns where runs are stored that wait for a person.

    Args:
        store: `memory`, `sqlite:PATH`, or `postgres://…`.
        owner: What a store in memory lives as long as: it is a folder that goes with it.

    Raises:
        ConfigError: The text names no store.
    """
    if store is None:
        return Place(data_dir)
    kind, _, rest = store.partition(":")
    if store == "memory":
        folder = mkdtemp(prefix="astromesh-")
        weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
        return Place(data_dir or folder, f"sqlite:///{folder}/runs.db")
    if kind == "sqlite" and rest not in ("", ":memory:"):
        return Place(data_dir, f"sqlite:///{Path(rest.removeprefix('//')).absolute()}")
    if kind in ("postgres", "postgresql") and rest:
        return Place(data_dir, store)
    raise ConfigError(f"store={store!r} names no store. Pass 'memory', 'sqlite:PATH', or 'postgres://…'.")
