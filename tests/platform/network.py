"""No test reaches beyond this machine.

An audit hook refuses every connection to, and every name lookup of, an address that is not loopback. The
caller sees an OSError, as if the network were down; `violations` keeps what was tried, so that a test fails
even when the code under test swallows that error. The names reserved for tests (RFC 2606: `*.test`,
`*.invalid`) may be looked up and are not found. Connections that uvloop opens by itself raise no audit event.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
from typing import Any

CONNECTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
LOOKUPS = frozenset({"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"})
RESERVED = (".test", ".invalid")


class NetworkForbiddenError(OSError):
    """A test tried to reach another machine."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.ENETUNREACH, message)


class NetworkGuard:
    """Installed once per process; an audit hook can't be taken away again."""

    def __init__(self, report: str | None = None) -> None:
        self.violations: list[str] = []
        self._report = report

    def install(self) -> None:
        sys.addaudithook(self._audit)

    def take(self) -> list[str]:
        """What was tried since the last call."""
        taken, self.violations = self.violations, []
        return taken

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in CONNECTS:
            connected, address = arguments
            if (
                connected.family in (socket.AF_INET, socket.AF_INET6)
                and address
                and not is_loopback(address[0])
            ):
                self._refuse(f"connect to {address[0]}:{address[1]}")
        elif event in LOOKUPS:
            host = arguments[0]
            if str(host).endswith(RESERVED):
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            if not may_be_looked_up(host):
                self._refuse(f"look up {host!r}")

    def _refuse(self, what: str) -> None:
        self.violations.append(what)
        if self._report:
            with open(self._report, "a") as report:  # noqa: PTH123 - no pathlib: this runs inside an audit hook
                report.write(what + "\n")
        raise NetworkForbiddenError(f"tests stay on this machine, but this one tried to {what}")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def may_be_looked_up(host: str | bytes | None) -> bool:
    """Names of this machine, and addresses: to parse one asks nobody."""
    if host is None:
        return True
    name = os.fsdecode(host)
    if name in {"", "localhost"} or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
