"""Runs a program that can look up no name: `python no_lookups.py PROGRAM ARGUMENT…`.

The Restate server asks for its newest release when it starts, and has no setting against it. Its lookup needs
a socket of datagrams. A filter of the kernel (seccomp) refuses those of IPv4 and IPv6, so nothing leaves the
machine; connections within it work. Where the kernel takes no such filter, the program just runs.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from errno import EACCES

#: architecture of the audit, and number of the system call `socket`
_SOCKET = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD, _IS_EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06
_REFUSE, _ALLOW = 0x00050000 | EACCES, 0x7FFF0000
_AF_INET, _AF_INET6, _SOCK_DGRAM, _TYPE_MASK = 2, 10, 2, 0xF
#: where the filter finds the number of the call, the architecture and the arguments
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _filter(architecture: int, number: int) -> bytes:
    """Instructions: code, how many to skip if true and if false, value."""
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IS_EQUAL, 0, 9, architecture),
        (_LOAD, 0, 0, _NUMBER),
        (_IS_EQUAL, 0, 7, number),
        (_LOAD, 0, 0, _FIRST),
        (_IS_EQUAL, 1, 0, _AF_INET),
        (_IS_EQUAL, 0, 4, _AF_INET6),
        (_LOAD, 0, 0, _SECOND),
        (_AND, 0, 0, _TYPE_MASK),
        (_IS_EQUAL, 0, 1, _SOCK_DGRAM),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def forbid_lookups() -> None:
    """Refuses this process and the programs that it becomes every socket of datagrams over IP."""
    if sys.platform != "linux" or platform.machine() not in _SOCKET:
        return
    code = _filter(*_SOCKET[platform.machine()])
    held = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(held))
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0)


if __name__ == "__main__":
    forbid_lookups()
    os.execv(sys.argv[1], sys.argv[1:])
