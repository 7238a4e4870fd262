"""A test that would call a real network fails."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Callable

#: what the audit events of `socket` name a host by; each answers the host of its arguments, or None
_HOST_OF: dict[str, Callable[[tuple[object, ...]], object]] = {
    "socket.connect": lambda args: args[1][0] if isinstance(args[1], tuple) else None,
    "socket.sendto": lambda args: args[1][0] if isinstance(args[1], tuple) else None,
    "socket.getaddrinfo": lambda args: args[0],
}
_LOCAL_NAMES = {"", "localhost", "0.0.0.0", "::"}  # noqa: S104 - to recognise, not to bind

_installed: list[bool] = []


def forbid_network() -> None:
    """From now on this process may talk to itself and its neighbours on loopback only.

    An audit hook (PEP 578): nothing is patched, and it stays until the process ends. The reserved names
    `*.invalid` and `*.test` (RFC 2606) may be looked up in vain.

    Raises (in the code that tries):
        ConnectionRefusedError: it would have left the machine.
    """
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_audit)


def _audit(event: str, args: tuple[object, ...]) -> None:
    host_of = _HOST_OF.get(event)
    if host_of is not None and not _is_local(host_of(args)):
        raise ConnectionRefusedError(f"A test may not use the network: {event} to {host_of(args)!r}")


def _is_local(host: object) -> bool:
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if (
        not isinstance(name, str)
        or name in _LOCAL_NAMES
        or name.endswith((".invalid", ".test", ".localhost"))
    ):
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False
