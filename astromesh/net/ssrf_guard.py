"""The request-forgery guard: hosts that models, users, documents or redirects choose must be public.

A host is resolved, every address is checked, and the connection goes to a checked address, so that a second
DNS answer cannot change it. Hosts that the operator configured are not checked.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from aiohttp import ClientRequest, ClientTimeout, TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection
from aiohttp.resolver import DefaultResolver
from aiohttp.tracing import Trace

from astromesh.errors import AddressForbidden

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# IPv6 ranges that embed an IPv4 address, which then decides (RFC 4291, 6052, 3056), or are local to a site
_EMBEDDING_NETWORKS = (ip_network("64:ff9b::/96"), ip_network("::/96"))
_SITE_LOCAL = ip_network("fec0::/10")


def is_public(address: Address) -> bool:
    """Whether an address is public: not loopback, private, link-local, metadata or multicast."""
    inner = _embedded_ipv4(address)
    if inner is not None:
        return is_public(inner)
    return address.is_global and not address.is_multicast and address not in _SITE_LOCAL


def _embedded_ipv4(address: Address) -> IPv4Address | None:
    if isinstance(address, IPv4Address):
        return None
    if any(address in network for network in _EMBEDDING_NETWORKS):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def _parse_address(host: str) -> Address | None:
    try:
        return ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None


class SsrfGuard:
    """Decides which hosts untrusted calls may reach.

    Args:
        allow_hosts: `network.allow_hosts`: names (`wiki.local`), suffixes (`*.corp.local`), addresses and
            networks (`10.1.0.0/16`) that are allowed although they are not public.

    Raises:
        ValueError: an entry has another form.
    """

    def __init__(self, allow_hosts: Iterable[str] = ()) -> None:
        self._names: set[str] = set()
        self._suffixes: tuple[str, ...] = ()
        self._networks: list[Network] = []
        for entry in allow_hosts:
            self._allow(entry.strip().lower().rstrip("."))

    def _allow(self, entry: str) -> None:
        if entry.startswith("*."):
            self._suffixes = (*self._suffixes, entry[1:])
        elif "/" in entry or _parse_address(entry):
            self._networks.append(ip_network(entry.strip("[]")))
        elif entry and "*" not in entry:
            self._names.add(entry)
        else:
            raise ValueError(
                f"{entry!r} is not a host name, *.suffix, IP address or network such as 10.0.0.0/8"
            )

    def allows_name(self, host: str) -> bool:
        """Whether the operator allowed this name, independent of its addresses."""
        name = host.lower().rstrip(".")
        return name in self._names or name.endswith(self._suffixes or ("\0",))

    def permits(self, address: str) -> bool:
        """Whether a connection may go to this address."""
        found = _parse_address(address)
        if found is None:
            return False
        return is_public(found) or any(found in network for network in self._networks)

    def check_literal(self, host: str) -> None:
        """Checks a host that is an address and therefore never reaches the resolver.

        Raises:
            AddressForbidden
        """
        if _parse_address(host) is not None and not self.allows_name(host) and not self.permits(host):
            raise address_forbidden(host)


def address_forbidden(host: str) -> AddressForbidden:
    return AddressForbidden(
        f"{host} is not a public address. An operator can allow it with network.allow_hosts."
    )


class GuardedResolver(AbstractResolver):
    """Returns only addresses that the guard permits."""

    def __init__(self, guard: SsrfGuard, inner: AbstractResolver | None = None) -> None:
        self._guard, self._inner = guard, inner or DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        if self._guard.allows_name(host):
            return found
        permitted = [one for one in found if self._guard.permits(one["host"])]
        if not permitted:
            raise address_forbidden(host)
        return permitted

    async def close(self) -> None:
        await self._inner.close()


class GuardedConnector(TCPConnector):
    """Connections to untrusted hosts, in a pool of their own: none is shared with trusted calls."""

    def __init__(self, guard: SsrfGuard, resolver: AbstractResolver | None = None) -> None:
        # no DNS cache: the address is checked when the connection opens
        super().__init__(limit=64, use_dns_cache=False, resolver=GuardedResolver(guard, resolver))
        self._guard = guard

    async def connect(
        self, req: ClientRequest, traces: Sequence[Trace] | list[Trace], timeout: ClientTimeout
    ) -> Connection:
        self._guard.check_literal(req.url.host or "")
        return await super().connect(req, list(traces), timeout)
