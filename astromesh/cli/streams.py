"""Standard streams that are closed or full, and a working folder that is gone."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from astromesh.cli.failure import CALL_WRONG, RUN_FAILED
from astromesh.errors import InvalidInput

#: commands that answer over other ways than the standard output
_SERVING = ("serve", "worker")
#: what writing to a stream fails with
_OF_OUTPUT = (errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.EPIPE)


def stand_in(words: Sequence[str]) -> None:
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


def told(error: OSError) -> int:
    """The exit code where the output cannot be written or we stand in no folder, having said so; else 0."""
    if isinstance(error, FileNotFoundError) and error.filename is None and _nowhere():
        print("error: The working folder does not exist any more: go to one that does.", file=sys.stderr)
        return CALL_WRONG
    if error.errno not in _OF_OUTPUT or error.filename is not None:  # what has a name is a file
        return 0
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where Python writes what is left when it ends
    if not isinstance(error, BrokenPipeError):  # nobody reads any more: that is no fault
        print(f"error: The output cannot be written: {error.strerror}.", file=sys.stderr)
    return RUN_FAILED


def _nowhere() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False
