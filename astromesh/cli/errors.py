"""Errors of commands: messages, exit codes, and standard streams that are closed or full."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson
import typer

from astromesh.errors import (
    AgentUnavailable,
    ApprovalRequired,
    AstromeshError,
    ConfigError,
    GuardrailBlocked,
    InvalidConfiguration,
    InvalidInput,
    RequestError,
    StoreUnavailable,
)
from astromesh.storage.private_files import write_problem
from astromesh.text import counted

RUN_FAILED, USAGE_ERROR, CANCELLED = 1, 2, 130
_USAGE_ERRORS = (ConfigError, RequestError, AgentUnavailable)


def exit_code(error: AstromeshError) -> int:
    """Returns 2 where a file or the call must change, 1 where the run failed, e.g. a store is unavailable."""
    if isinstance(error, GuardrailBlocked) or (isinstance(error, AgentUnavailable) and error.temporary):
        return RUN_FAILED
    return USAGE_ERROR if isinstance(error, _USAGE_ERRORS) else RUN_FAILED


def reason_of(error: OSError | UnicodeDecodeError) -> str:
    """Returns why a file cannot be read, without its name."""
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror or str(error)


def report(error: AstromeshError, *, as_json: bool = False) -> int:
    """Prints an error to stderr and returns its exit code."""
    error = _data_folder_error(error)
    if as_json:
        body = {"error": {"code": error.code, "detail": str(error)}}
        print(orjson.dumps(body).decode(), file=sys.stderr)
    elif isinstance(error, InvalidConfiguration):
        print(f"{error}\n\n{counted(len(error.faults), 'fault')}. Nothing was started.", file=sys.stderr)
    else:
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, ApprovalRequired) and error.waiting_for is not None:
            print(_how_to_decide(error.run_id, error.waiting_for), file=sys.stderr)
    return exit_code(error)


def _how_to_decide(run_id: str, question: Mapping[str, object]) -> str:
    """Returns what a waiting run asks, and the command that answers."""
    arguments = orjson.dumps(question["arguments"]).decode()
    decision = "answer --answer TEXT" if question["kind"] in ("human", "interrupt") else "approve"
    return (
        f"  It asks for: {question['kind']} {question['name']} {arguments}\n"
        f"  Decide with: astromesh runs resume {run_id} {decision}\n"
        "  A server or a worker on this data folder continues it then."
    )


def _data_folder_error(error: AstromeshError) -> AstromeshError:
    """Returns an error of the call where a store is unavailable because the data folder cannot hold it."""
    folder = os.environ.get("ASTROMESH_DATA_DIR", "")
    is_store_error = isinstance(error, StoreUnavailable) or (
        isinstance(error, AgentUnavailable) and error.temporary
    )
    if not folder or not is_store_error:
        return error
    try:
        require_data_folder(Path(folder))
    except ConfigError as unusable:
        return unusable
    return error


def require_data_folder(folder: Path) -> None:
    """Creates the data folder if it is missing. Raises: ConfigError: nothing can be stored in it."""
    if fault := write_problem(folder):
        raise ConfigError(f"The data folder {folder} {fault}. Make it writable, or name another with --data.")


@contextmanager
def reported_errors(*, as_json: bool = False) -> Iterator[None]:
    """Reports an error or Ctrl-C of the block, and ends the command with its exit code.

    Raises:
        typer.Exit
    """
    try:
        yield
    except AstromeshError as error:
        raise typer.Exit(report(error, as_json=as_json)) from None
    except KeyboardInterrupt:
        print("cancelled", file=sys.stderr)
        raise typer.Exit(CANCELLED) from None


#: commands that do not answer on the standard output
_SERVING = ("serve", "dev", "worker")
#: errors of a write to a standard stream
_OUTPUT_ERRNOS = (errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.EPIPE)


def replace_closed_streams(words: Sequence[str]) -> None:
    """Replaces closed streams by the null device, before a file of astromesh gets one of their numbers.

    Raises:
        InvalidInput: the output is closed, and the command prints its result.
    """
    closed = sys.stdout is None
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:  # stdin, stdout, stderr
        pass
    os.close(free)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if closed and not {*words[:1]} & {*_SERVING}:
        raise InvalidInput("The standard output is closed, so the command cannot print its result.")


def report_os_error(error: OSError) -> int:
    """Reports an error of the files or streams of a user, and returns the exit code; 0 for other errors.

    It is a deleted working folder, a file that the user may not open, or an output that cannot be written.
    """
    if isinstance(error, FileNotFoundError) and error.filename is None and _working_folder_is_gone():
        print("error: The working folder no longer exists. Change to one that does.", file=sys.stderr)
        return USAGE_ERROR
    if isinstance(error, PermissionError) and error.filename is not None:
        print(f"error: Cannot open {error.filename}: {error.strerror}.", file=sys.stderr)
        return USAGE_ERROR
    if error.errno not in _OUTPUT_ERRNOS or error.filename is not None:  # a filename: not a standard stream
        return 0
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes the rest there at exit
    if not isinstance(error, BrokenPipeError):  # the reader has left, which is not a fault
        print(f"error: The output cannot be written: {error.strerror}.", file=sys.stderr)
    return RUN_FAILED


def _working_folder_is_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False
