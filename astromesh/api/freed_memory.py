"""Returns freed memory to the system: of long runs whose readers do not read, and of such readers who leave.

What runs and readers have held is thousands of small texts. The C library keeps the pages that they leave
until it is asked.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable

#: seconds until memory is returned: other runs end, and other readers leave, meanwhile
_PAUSE_SECONDS = 5.0


def _trim_of_c_library() -> Callable[[int], int] | None:
    """Returns malloc_trim(3), which a C library other than glibc may not have."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return trim


class FreedMemory:
    """The freed memory of this process."""

    def __init__(self, trim: Callable[[int], int] | None) -> None:
        self._trim, self._is_due = trim, False

    def return_soon(self) -> None:
        """Returns it in a moment, in a thread: the call takes milliseconds."""
        if self._trim is not None and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._return)

    def _return(self) -> None:
        self._is_due = False
        if self._trim is not None:
            asyncio.get_running_loop().run_in_executor(None, self._trim, 0)


freed_memory = FreedMemory(_trim_of_c_library())
