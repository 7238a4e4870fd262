"""What went wrong, for people and for scripts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import orjson

from astromesh.errors import (
    AgentUnavailable,
    AstromeshError,
    ConfigError,
    GuardrailBlocked,
    InvalidConfiguration,
    RequestError,
    StoreUnavailable,
)
from astromesh.storage.folder import trouble_with

RUN_FAILED = 1
CALL_WRONG = 2
CANCELLED = 130

_WRONG = (ConfigError, RequestError, AgentUnavailable)


def exit_code(error: AstromeshError) -> int:
    """2 where a file or the call must change, 1 where the run failed: a query blocked, a store away."""
    if isinstance(error, GuardrailBlocked) or (isinstance(error, AgentUnavailable) and error.passing):
        return RUN_FAILED
    return CALL_WRONG if isinstance(error, _WRONG) else RUN_FAILED


def report(error: AstromeshError, *, as_json: bool = False) -> int:
    """Prints an error to stderr and answers the exit code."""
    error = _of_the_folder(error)
    if as_json:
        body = {"error": {"code": error.code, "detail": str(error)}}
        print(orjson.dumps(body).decode(), file=sys.stderr)
    elif isinstance(error, InvalidConfiguration):
        count = len(error.faults)
        print(f"{error}\n\n{count} fault{'s' if count != 1 else ''}; nothing was started.", file=sys.stderr)
    else:
        print(f"error: {error}", file=sys.stderr)
    return exit_code(error)


def _of_the_folder(error: AstromeshError) -> AstromeshError:
    """A store that is away because the folder that was named cannot hold it: the call is wrong."""
    folder = os.environ.get("ASTROMESH_DATA_DIR", "")
    away = isinstance(error, StoreUnavailable) or (isinstance(error, AgentUnavailable) and error.passing)
    if not folder or not away:
        return error
    trouble = trouble_with(Path(folder))
    return ConfigError(f"The data folder {folder} {trouble}.") if trouble else error
