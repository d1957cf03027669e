"""Which addresses botpool posts to, and that it posts to no other."""

from __future__ import annotations

import asyncio
import socket
from threading import Event
from typing import TYPE_CHECKING

import httpx
import pytest

from botpool.errors import AddressRefused, InvalidRequest
from botpool.feed.addresses import PinnedTransport, Resolver, check_callback, is_public

if TYPE_CHECKING:
    from collections.abc import Sequence

PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.0", "172.15.255.255"),
    *("172.32.0.0", "168.63.129.15", "168.63.129.17", "192.0.1.0", "198.17.255.255", "198.20.0.0"),
    *("223.255.255.255", "2606:4700:4700::1111", "2001:4860:4860::8888", "2a00:1450:4001::1"),
]
NOT_PUBLIC = [
    *("0.1.2.3", "10.0.0.1", "10.255.255.255"),
    *("100.64.0.0", "100.100.100.200", "100.127.255.255"),
    *("127.0.0.1", "127.255.255.255", "168.63.129.16", "169.254.0.1", "169.254.169.254"),
    *("172.16.0.0", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1"),
    *("198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1"),
    *("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fe80::1%1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1"),
    # An IPv4 address in disguise, public or not.
    *("::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "::8.8.8.8"),
    *("64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::a00:1", "2002:7f00:1::", "2002:808:808::"),
    *("2001::1", "2001:0:53aa:64c:0:0:0:0", "2001:10::1", "2001:20::1", "2001:db8::1"),
    *("3fff::1", "100::1", "5f00::1", "4000::1"),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_any_other_address_is_not(address: str) -> None:
    assert not is_public(address)


LONG = "https://hooks.example.com/"


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com",
        "https://hooks.example.com:8443/a?b=c#d",
        "HTTPS://HOOKS.EXAMPLE.COM/",
        "https://bücher.example/",
        "https://8.8.8.8/",
        "https://[2606:4700:4700::1111]:8443/",
        LONG + "a" * (2000 - len(LONG)),
    ],
)
def test_a_callback_url_is_accepted(url: str) -> None:
    assert refusal(url) is None


def refusal(url: str) -> str | None:
    """Why a callback URL is refused, if it is."""
    try:
        check_callback(url, allow_private=False)
    except InvalidRequest as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (LONG + "a" * (2001 - len(LONG)), "2000 characters"),
        ("", "begin with http"),
        ("hooks.example.com", "begin with http"),
        ("//hooks.example.com", "begin with http"),
        ("ftp://hooks.example.com/", "begin with http"),
        ("file:///etc/passwd", "begin with http"),
        ("https:///a", "begin with http"),
        ("https:hooks.example.com", "begin with http"),
        ("https://me:secret@hooks.example.com/", "user or a password"),
        ("https://secret@hooks.example.com/", "user or a password"),
        ("https://hooks.example.com\\@127.0.0.1/", "user or a password"),
        ("https://hooks.example.com:0/", "port"),
        ("https://hooks.example.com:65536/", "port"),
        ("https://hooks.example.com:secret/", "not a valid URL"),
        ("https://[::/secret", "not a valid URL"),
        ("https://hooks.example.com/\n", "not a valid URL"),
        ("https://a b/", "and a host"),
    ],
)
@pytest.mark.parametrize("allow_private", [False, True])
def test_what_is_no_callback_url_is_refused(url: str, problem: str, *, allow_private: bool) -> None:
    with pytest.raises(InvalidRequest, match=problem) as raised:
        check_callback(url, allow_private=allow_private)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.0.0.1.", "127.1"),
        *("0x7f000001", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.1"),
        *("169.254.169.254", "[fd00:ec2::254]"),
    ],
)
def test_an_address_that_is_seen_to_be_private_is_refused_unless_allowed(host: str) -> None:
    with pytest.raises(InvalidRequest, match="private"):
        check_callback(f"http://{host}/", allow_private=False)
    check_callback(f"http://{host}/", allow_private=True)


class Names:
    """A resolver that answers as it is told, and differently each time."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, name: str, port: int) -> Sequence[str]:
        self.asked.append((name, port))
        return self.answers.pop(0)


class Network:
    """What is sent, and to where. Some addresses can't be connected to."""

    def __init__(self, *dead: str) -> None:
        self.dead = dead
        self.sent: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        if request.url.host in self.dead:
            raise httpx.ConnectError("refused")
        return httpx.Response(204)

    @property
    def hosts(self) -> list[str]:
        return [request.url.host for request in self.sent]


async def send(url: str, names: Names, network: Network, *, allow_private: bool = False) -> None:
    async with PinnedTransport(
        allow_private=allow_private, resolve=names, transport=httpx.MockTransport(network)
    ) as transport:
        await transport.handle_async_request(httpx.Request("POST", url, content=b"{}"))


async def test_a_request_goes_to_the_address_that_was_checked() -> None:
    """A name that leads somewhere else the second time is not asked a second time."""
    names, network = Names(["93.184.216.34"], ["127.0.0.1"]), Network()
    await send("https://hooks.example.com:8443/a?b=c", names, network)
    (request,) = network.sent
    assert str(request.url) == "https://93.184.216.34:8443/a?b=c"
    assert request.headers["host"] == "hooks.example.com:8443"
    assert request.extensions["sni_hostname"] == "hooks.example.com"
    assert names.asked == [("hooks.example.com", 8443)]


async def test_each_request_looks_the_name_up_anew() -> None:
    names, network = Names(["93.184.216.34"], ["127.0.0.1"]), Network()
    await send("https://hooks.example.com/", names, network)
    with pytest.raises(AddressRefused):
        await send("https://hooks.example.com/", names, network)
    assert network.hosts == ["93.184.216.34"]


async def test_one_private_address_among_public_ones_is_refused() -> None:
    network = Network()
    with pytest.raises(AddressRefused) as raised:
        await send("http://hooks.example.com/", Names(["8.8.8.8", "10.0.0.1"]), network)
    assert "10.0.0.1" not in str(raised.value)
    assert network.sent == []


async def test_a_private_address_is_used_if_that_is_allowed() -> None:
    network = Network()
    await send("http://a.example.com/", Names(["10.0.0.1"]), network, allow_private=True)
    assert network.hosts == ["10.0.0.1"]


async def test_an_address_that_refuses_makes_way_for_the_next() -> None:
    network = Network("2606:4700:4700::1111")
    await send("http://a.example.com/", Names(["2606:4700:4700::1111", "8.8.8.8"]), network)
    assert network.hosts == ["2606:4700:4700::1111", "8.8.8.8"]


async def test_the_last_address_that_refuses_is_an_error() -> None:
    with pytest.raises(httpx.ConnectError):
        await send("http://a.example.com/", Names(["8.8.8.8"]), Network("8.8.8.8"))


async def test_a_name_without_an_address_is_an_error() -> None:
    with pytest.raises(httpx.ConnectError, match=r"a\.example\.com has no address"):
        await send("http://a.example.com/", Names([]), Network())


async def test_the_name_that_is_looked_up_is_the_one_on_the_wire() -> None:
    names, network = Names(["8.8.8.8"]), Network()
    await send("https://bücher.example/", names, network)
    assert names.asked == [("xn--bcher-kva.example", 443)]
    assert network.sent[0].extensions["sni_hostname"] == "xn--bcher-kva.example"


# The system's resolver


async def test_an_address_is_its_own_name() -> None:
    resolve = Resolver()
    assert await resolve("127.1", 80) == ["127.0.0.1"]
    assert await resolve("::1", 80) == ["::1"]


async def test_a_name_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    with pytest.raises(OSError, match="is not a host name"):
        await Resolver()("a" * 64 + ".example.com", 80)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(OSError, match="unknown"):
        await Resolver()("a.example.com", 80)


async def test_those_who_ask_for_a_name_together_share_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, answer = [], Event()

    def slow(name: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(name)
        if name == "slow.example.com":
            answer.wait()
        return [(0, 0, 0, "", ("8.8.8.8", port))] * 2

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    resolve = Resolver()
    impatient, *patient = [asyncio.create_task(resolve("slow.example.com", 80)) for _ in range(3)]
    assert await resolve("fast.example.com", 80) == ["8.8.8.8"], "it waits for no other name"
    impatient.cancel()
    answer.set()
    assert await asyncio.gather(*patient) == [["8.8.8.8"]] * 2
    assert impatient.cancelled()
    assert asked.count("slow.example.com") == 1
    assert await resolve("slow.example.com", 80) == ["8.8.8.8"]
    assert asked.count("slow.example.com") == 2, "and an answer is not kept"
