"""Errors of commands: messages, exit codes, and standard streams that are closed or full."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from astromesh.errors import (
    AgentUnavailable,
    AstromeshError,
    ConfigError,
    GuardrailBlocked,
    InvalidConfiguration,
    InvalidInput,
    RequestError,
    StoreUnavailable,
)
from astromesh.storage.private_files import write_problem

RUN_FAILED = 1


USAGE_ERROR = 2


CANCELLED = 130


_USAGE_ERRORS = (ConfigError, RequestError, AgentUnavailable)


def exit_code(error: AstromeshError) -> int:
    """2 where a file or the call must change, 1 where the run failed: a query blocked, a store away."""
    if isinstance(error, GuardrailBlocked) or (isinstance(error, AgentUnavailable) and error.temporary):
        return RUN_FAILED
    return USAGE_ERROR if isinstance(error, _USAGE_ERRORS) else RUN_FAILED


def report(error: AstromeshError, *, as_json: bool = False) -> int:
    """Prints an error to stderr and answers the exit code."""
    error = _data_folder_error(error)
    if as_json:
        body = {"error": {"code": error.code, "detail": str(error)}}
        print(orjson.dumps(body).decode(), file=sys.stderr)
    elif isinstance(error, InvalidConfiguration):
        count = len(error.faults)
        print(f"{error}\n\n{count} fault{'s' if count != 1 else ''}; nothing was started.", file=sys.stderr)
    else:
        print(f"error: {error}", file=sys.stderr)
    return exit_code(error)


def _data_folder_error(error: AstromeshError) -> AstromeshError:
    """A store that is away because the folder that was named cannot hold it: the call is wrong."""
    folder = os.environ.get("ASTROMESH_DATA_DIR", "")
    away = isinstance(error, StoreUnavailable) or (isinstance(error, AgentUnavailable) and error.temporary)
    if not folder or not away:
        return error
    trouble = write_problem(Path(folder))
    return ConfigError(f"The data folder {folder} {trouble}.") if trouble else error


# Standard streams that are closed or full, and a working folder that is gone.

#: commands that answer over other ways than the standard output
_SERVING = ("serve", "worker")


#: what writing to a stream fails with
_OUTPUT_ERRNOS = (errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.EPIPE)


def replace_closed_streams(words: Sequence[str]) -> None:
    """Puts nothing in the place of closed streams, before a file of ours gets a number of theirs.

    Raises:
        InvalidInput: the output is closed, and the command would print what it is asked for.
    """
    closed = sys.stdout is None
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:  # stdin, stdout, stderr
        pass
    os.close(free)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if closed and not {*words[:1]} & {*_SERVING}:
        raise InvalidInput("The standard output is closed: there is nowhere to print the answer.")


def report_os_error(error: OSError) -> int:
    """The exit code where the output cannot be written or we stand in no folder, having said so; else 0."""
    if isinstance(error, FileNotFoundError) and error.filename is None and _working_folder_is_gone():
        print("error: The working folder does not exist any more: go to one that does.", file=sys.stderr)
        return USAGE_ERROR
    if error.errno not in _OUTPUT_ERRNOS or error.filename is not None:  # what has a name is a file
        return 0
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where Python writes what is left when it ends
    if not isinstance(error, BrokenPipeError):  # nobody reads any more: that is no fault
        print(f"error: The output cannot be written: {error.strerror}.", file=sys.stderr)
    return RUN_FAILED


def _working_folder_is_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False
