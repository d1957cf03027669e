"""The addresses that requests come from, and the proxies whose word about them counts."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv4Network, IPv6Network

_IPV6_NETWORK_BITS = 64
"""One caller has at least that many IPv6 addresses."""


def plain_address(text: str) -> str:
    """An address as it is written most often: IPv4 in IPv6, such as `::ffff:10.0.0.1`, is IPv4."""
    address = _read(text)
    return text if address is None else str(address)


def network_of(text: str) -> str:
    """What counts as one caller: an IPv4 address, or the /64 that an IPv6 address is in."""
    address = _read(text)
    if isinstance(address, IPv6Address):
        return str(ip_network((address.packed, _IPV6_NETWORK_BITS), strict=False))
    return text if address is None else str(address)


class TrustedProxies:
    """Addresses and networks, separated by commas. Raises `ValueError` for anything else."""

    def __init__(self, text: str) -> None:
        parts = [part.strip() for part in text.split(",")]
        self._networks: list[IPv4Network | IPv6Network] = [
            ip_network(part) for part in parts if part
        ]

    def __bool__(self) -> bool:
        """Whether any proxy is trusted."""
        return bool(self._networks)

    def __contains__(self, text: str) -> bool:
        """Whether an address is a trusted proxy's."""
        address = _read(text)
        return address is not None and any(address in network for network in self._networks)


def _read(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
