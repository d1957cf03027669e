"""Callback URLs: where botpool may post to. Callers choose them, so they can't be trusted.

A callback URL is checked when its bot is created, and its host name is looked up once with each
delivery. Every address of the name must be public, and the connection goes to one of exactly these:
the name is not looked up a second time, when it might lead elsewhere.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address
from threading import Thread
from typing import TYPE_CHECKING

import httpx

from botpool.errors import AddressRefused, CallbackInvalid, CallbackPrivate
from botpool.tasks.sharing import SharedCall

if TYPE_CHECKING:
    from ipaddress import IPv6Address

MOST_CHARACTERS = 2000

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a name, for a port. Raises `OSError` if it has none."""

_CONNECT_SECONDS = 5.0
_PORTS = {"http": 80, "https": 443}
_HIGHEST_PORT = 65535

# Our own list: the result of Python's `is_global` has changed between its patch releases.
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
# All public addresses are in here; those with an IPv4 address inside (mapped, NAT64, …) are not.
_UNICAST_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocols, such as Teredo
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: an IPv4 address in disguise
            "3fff::/20",  # documentation
        ),
    )
)


def check_callback(url: str, *, allow_private: bool) -> None:
    """Raise `CallbackInvalid` or `CallbackPrivate` unless botpool may post to this URL.

    Its host name is not looked up here, but with each delivery.
    """
    if len(url) > MOST_CHARACTERS:
        raise CallbackInvalid(f"The callback URL has more than {MOST_CHARACTERS} characters.")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        raise CallbackInvalid("The callback URL is not a valid URL.") from None
    host = parsed.raw_host.decode("ascii")
    if parsed.scheme not in _PORTS or not host or "%" in host:
        raise CallbackInvalid("The callback URL must begin with http:// or https:// and a host.")
    if parsed.userinfo:
        raise CallbackInvalid("The callback URL must not have a user or a password.")
    if parsed.port is not None and not 1 <= parsed.port <= _HIGHEST_PORT:
        raise CallbackInvalid("The port of the callback URL must be between 1 and 65535.")
    if not allow_private and _is_private_literal(host):
        raise CallbackPrivate("The callback URL must not be a private address.")


def is_public(address: str) -> bool:
    """Whether an IP address is a public address of the internet."""
    return _is_public(ip_address(address))


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return address in _UNICAST_6 and not any(address in network for network in _NOT_PUBLIC_6)


def _is_private_literal(host: str) -> bool:
    """Whether a host is clearly not public, without looking up its name."""
    name = host.lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    with suppress(ValueError):
        return not _is_public(ip_address(name))
    # Resolvers also take these for IPv4 addresses: 127.1, 0x7f000001, 2130706433.
    with suppress(OSError):
        return not _is_public(IPv4Address(socket.inet_aton(name)))
    return False


class Resolver:
    """Looks names up with the system's resolver. Calls for the same name share one look-up.

    Each look-up has its own thread, and nothing waits for the thread. So a name server that doesn't
    answer delays neither other names nor the end of the program.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[str, int], SharedCall[Sequence[str]]] = {}

    async def __call__(self, name: str, port: int) -> Sequence[str]:
        """The addresses of a name, in the order in which to try them."""
        key = name, port
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = SharedCall(partial(_ask, name, port))
            call.begin().add_done_callback(lambda _: self._calls.pop(key))
        return await call()


async def _ask(name: str, port: int) -> Sequence[str]:
    answer: asyncio.Future[Sequence[str]] = asyncio.get_running_loop().create_future()
    Thread(target=_look_up, args=(name, port, answer), daemon=True).start()
    return await answer


def _look_up(name: str, port: int, answer: asyncio.Future[Sequence[str]]) -> None:
    found: Sequence[str] | OSError
    try:
        infos = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        found = list(dict.fromkeys(str(info[4][0]) for info in infos))
    except OSError as error:
        found = error
    except UnicodeError:
        found = OSError(f"{name!r} is not a host name")
    # If the loop is closed by now, nothing waits for the answer.
    with suppress(RuntimeError):
        answer.get_loop().call_soon_threadsafe(_answer, answer, found)


def _answer(answer: asyncio.Future[Sequence[str]], found: Sequence[str] | OSError) -> None:
    if isinstance(found, OSError):
        answer.set_exception(found)
        answer.exception()  # retrieved here: every caller may have been cancelled
    else:
        answer.set_result(found)


class PinnedTransport(httpx.AsyncBaseTransport):
    """Sends a request only to an address that was checked.

    The request keeps its `Host`, and its TLS server name, which the certificate has to match.
    Redirects, cookies and proxies are a client's job, so a transport has none of them. Raises
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
        # No connection is reused: two hosts with different certificates may share an address.
        self._transport = transport or httpx.AsyncHTTPTransport(
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the first address of its host that accepts a connection."""
        host = request.url.raw_host.decode("ascii")
        *others, last = await self._addresses(host, request.url.port or _PORTS[request.url.scheme])
        for address in others:
            with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                return await self._send(request, host, address)
        return await self._send(request, host, last)

    async def aclose(self) -> None:
        """Close the connections that are still open."""
        await self._transport.aclose()

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        try:
            addresses = await self._resolve(host, port)
        except OSError as error:
            raise httpx.ConnectError(f"{host} has no address: {error}") from error
        if not addresses:
            raise httpx.ConnectError(f"{host} has no address")
        # The address itself is not shown: it would reveal a private network to the caller.
        if not self._allow_private and not all(map(is_public, addresses)):
            raise AddressRefused(f"{host} has an address that is not public.")
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
