"""The request-forgery guard: hosts that models, users, documents or redirects choose must be public.

A host is resolved, every address is checked, and the connection goes to a checked address, so that a second
DNS answer cannot change it. Hosts that the operator configured are not checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from astromesh.errors import AddressForbidden

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# IPv6 ranges that embed an IPv4 address, which then decides (RFC 4291, 6052, 3056, 2765)
_EMBEDDING_NETWORKS = (ip_network("64:ff9b::/96"), ip_network("::/96"), ip_network("::ffff:0:0:0/96"))
# local ranges that Python takes for global: NAT64 and protocols of a site, its old addresses, documents, SRv6
_LOCAL_NETWORKS = tuple(
    map(ip_network, ("64:ff9b:1::/48", "192.0.0.0/24", "fec0::/10", "3fff::/20", "5f00::/16"))
)


def is_public(address: Address) -> bool:
    """Whether an address is public: not loopback, private, link-local, metadata or multicast."""
    inner = _embedded_ipv4(address)
    if inner is not None:
        return is_public(inner)
    is_local = any(address in network for network in _LOCAL_NETWORKS)
    return address.is_global and not (address.is_multicast or is_local)


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
