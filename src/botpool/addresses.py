"""Where botpool may post to: addresses that somebody else chose.

A callback's address is read when its bot is created, and its name looked up once with each
delivery. Every address that the name has must be public, and the connection goes to one of exactly
these: a name that leads elsewhere the next time it is looked up is not looked up again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address
from threading import Thread
from typing import TYPE_CHECKING

import httpx

from botpool.errors import AddressRefused, InvalidRequest

if TYPE_CHECKING:
    from ipaddress import IPv6Address

MOST_CHARACTERS = 2000

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a name, for a port. Raises `OSError` if it has none."""

_CONNECT_SECONDS = 5.0
_PORTS = {"http": 80, "https": 443}
_HIGHEST_PORT = 65535

# Written out: what Python's own `is_global` says has changed between its patch releases.
_NOT_PUBLIC_4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network, and unspecified
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # carrier NAT, and a cloud's metadata
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # a cloud's metadata, among public addresses
            "169.254.0.0/16",  # link-local, and most clouds' metadata
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocols, and a cloud's metadata
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # measurements
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
# All that is public is in here; what holds an IPv4 address (mapped, compatible, NAT64) is not.
_UNICAST_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocols, Teredo among them
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: an IPv4 address in disguise
            "3fff::/20",  # documentation
        ),
    )
)


def check_callback(url: str, *, allow_private: bool) -> None:
    """Raise `InvalidRequest` unless this is an address that botpool may be told to post to.

    A name is not looked up: where it leads is seen with each delivery.
    """
    if len(url) > MOST_CHARACTERS:
        raise InvalidRequest(f"The callback URL has more than {MOST_CHARACTERS} characters.")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        raise InvalidRequest("The callback URL can't be read.") from None
    host = parsed.raw_host.decode("ascii")
    if parsed.scheme not in _PORTS or not host or "%" in host:
        raise InvalidRequest("The callback URL must begin with http:// or https:// and a host.")
    if parsed.userinfo:
        raise InvalidRequest("The callback URL must not have a user or a password.")
    if parsed.port is not None and not 1 <= parsed.port <= _HIGHEST_PORT:
        raise InvalidRequest("The port of the callback URL must be between 1 and 65535.")
    if not allow_private and _is_private_literal(host):
        raise InvalidRequest("The callback URL must not lead to a private address.")


def is_public(address: str) -> bool:
    """Whether an IP address is one that anybody on the internet may be reached at."""
    return _is_public(ip_address(address))


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return address in _UNICAST_6 and not any(address in network for network in _NOT_PUBLIC_6)


def _is_private_literal(host: str) -> bool:
    """Whether a host says by itself that it is not public: no name needs to be looked up."""
    name = host.lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    with suppress(ValueError):
        return not _is_public(ip_address(name))
    # What else resolvers take for an IPv4 address: 127.1, 0x7f000001, 2130706433.
    with suppress(OSError):
        return not _is_public(IPv4Address(socket.inet_aton(name)))
    return False


class Resolver:
    """Looks names up with the system's resolver. Those who ask for the same name share an answer.

    Each look-up has a thread of its own, which nobody waits for: a name server that doesn't answer
    holds up neither other names nor the end of the program.
    """

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, int], asyncio.Future[Sequence[str]]] = {}

    async def __call__(self, name: str, port: int) -> Sequence[str]:
        """The addresses of a name, in the order in which to try them."""
        key = name, port
        answer = self._under_way.get(key)
        if answer is None:
            answer = asyncio.get_running_loop().create_future()
            Thread(target=_look_up, args=(name, port, answer), daemon=True).start()
            self._under_way[key] = answer
            answer.add_done_callback(lambda _: self._under_way.pop(key))
        # Who gives up waiting leaves the answer to the others.
        return await asyncio.shield(answer)


def _look_up(name: str, port: int, answer: asyncio.Future[Sequence[str]]) -> None:
    found: Sequence[str] | OSError
    try:
        infos = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        found = list(dict.fromkeys(str(info[4][0]) for info in infos))
    except OSError as error:
        found = error
    except UnicodeError:
        found = OSError(f"{name!r} is no name of a host")
    # The loop may be closed by now, and then nobody asks any more.
    with suppress(RuntimeError):
        answer.get_loop().call_soon_threadsafe(_answer, answer, found)


def _answer(answer: asyncio.Future[Sequence[str]], found: Sequence[str] | OSError) -> None:
    if isinstance(found, OSError):
        answer.set_exception(found)
        answer.exception()  # seen: there may be nobody left who waits for it
    else:
        answer.set_result(found)


class PinnedTransport(httpx.AsyncBaseTransport):
    """Sends a request to an address that was checked, and to no other.

    The request keeps its `Host`, and its TLS server name, by which the certificate is checked. It
    follows no redirect, keeps no cookie and asks no proxy, for only a client does so. Raises
    `AddressRefused` if an address of the host is not public, unless `allow_private`.
    """

    def __init__(
        self,
        *,
        allow_private: bool,
        resolve: Resolve | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._allow_private = allow_private
        self._resolve = resolve or Resolver()
        # A connection to an address is not used again: it may be for another host's certificate.
        self._transport = transport or httpx.AsyncHTTPTransport(
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the first address of its host that can be connected to."""
        host = request.url.raw_host.decode("ascii")
        *others, last = await self._addresses(host, request.url.port or _PORTS[request.url.scheme])
        for address in others:
            with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                return await self._send(request, host, address)
        return await self._send(request, host, last)

    async def aclose(self) -> None:
        """Close what is still open."""
        await self._transport.aclose()

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        try:
            addresses = await self._resolve(host, port)
        except OSError as error:
            raise httpx.ConnectError(f"{host} has no address: {error}") from error
        if not addresses:
            raise httpx.ConnectError(f"{host} has no address")
        # Not told which: it would show names of a private network to who is not in it.
        if not self._allow_private and not all(map(is_public, addresses)):
            raise AddressRefused(f"{host} leads to an address that is not public.")
        return addresses

    async def _send(self, request: httpx.Request, host: str, address: str) -> httpx.Response:
        timeout = {"connect": _CONNECT_SECONDS, **request.extensions.get("timeout", {})}
        return await self._transport.handle_async_request(
            httpx.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": host, "timeout": timeout},
            )
        )
