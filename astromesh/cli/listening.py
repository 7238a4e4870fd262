"""Where a server listens, and where it may (reliability.md S2)."""

from __future__ import annotations

import errno
import ipaddress
import socket

from astromesh.errors import ConfigError

BACKLOG = 2048
#: what the operating system says → what to do
_REASONS = {
    errno.EADDRINUSE: "the port is in use by another process; stop that, or take another --port (0: any)",
    errno.EACCES: "this user may not listen on that port; ports below 1024 are the system's",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}
_OPEN = """\
{host} can be reached from other machines, and without authentication anybody could run the agents.
Do one of these:
  - listen on this machine only: --host 127.0.0.1
  - ask for API keys: under spec in runtime.yaml 'auth: {{mode: api_key}}', then 'astromesh keys create me'"""


def listen(host: str, port: int, *, authenticated: bool) -> socket.socket:
    """A socket that takes connections from now on, so that nobody is refused while the server starts.

    Args:
        host: address or name.
        port: 0 for any free one.
        authenticated: whether callers must prove who they are; without it only loopback will do.

    Raises:
        ConfigError: the address cannot be used, or must not be.
    """
    family, address = _resolved(host, port)
    if not authenticated and not is_loopback(address[0]):
        raise ConfigError(_OPEN.format(host=host))
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
        raise ConfigError(f"Cannot listen on {host}:{port}: {reason}.") from error
    listener.setblocking(False)
    return listener


def is_loopback(address: str) -> bool:
    """Whether an IP address is this machine's own; IPv4 inside IPv6 counts as IPv4."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback


def url_of(listener: socket.socket) -> str:
    """`http://127.0.0.1:8000`; every address of the machine becomes its loopback, which works from here."""
    host, port = listener.getsockname()[:2]
    if is_everywhere(listener):
        host = "::1" if listener.family is socket.AF_INET6 else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_everywhere(listener: socket.socket) -> bool:
    """Whether other machines reach it, at every address of this one."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_unspecified


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """The address that is bound is the one that is judged: a name is looked up once."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"Cannot listen on {host}:{port}: there is no such host.") from error
    family, _, _, _, address = found[0]
    return family, address  # type: ignore[return-value]  # of the families that AI_PASSIVE finds here
