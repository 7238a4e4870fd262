"""Database drivers and numpy are loaded when a configuration names what needs them, and no sooner."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SHOWN = "import sys; print(sorted({'asyncpg', 'numpy', 'redis'} & sys.modules.keys()))"
_LOAD = "from astromesh.plugins import Plugins; Plugins().load({group!r}, {name!r})"


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import astromesh.api.app, astromesh.runtime.bootstrap, astromesh.cli.main", []),
        (_LOAD.format(group="conversation_stores", name="sqlite"), []),
        (_LOAD.format(group="conversation_stores", name="in_memory"), []),
        (_LOAD.format(group="episodic_stores", name="sqlite"), []),
        (_LOAD.format(group="embedders", name="hashing"), []),
        (_LOAD.format(group="conversation_stores", name="postgres"), ["asyncpg"]),
        (_LOAD.format(group="conversation_stores", name="redis"), ["redis"]),
        (_LOAD.format(group="semantic_stores", name="sqlite"), ["numpy"]),
        (_LOAD.format(group="semantic_stores", name="pgvector"), ["asyncpg"]),
    ],
)
def test_only_what_is_named_is_loaded(code: str, loaded: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {_SHOWN}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(loaded)
