"""Connections: what a client may send before anybody knows it, from real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import uvicorn
from starlette.responses import Response

from botpool.access.keys import Keys
from botpool.api import create_app
from botpool.api.connections import ConnectionLimits, server_config
from botpool.serving import _listen
from botpool.settings import Settings
from botpool.states import Role
from tests.support.scene import Scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import FastAPI

HOUR = 3600.0
# No time is over before a test says so.
PATIENT = ConnectionLimits(head_seconds=HOUR, body_seconds=HOUR, answer_seconds=HOUR)
ASK = b"GET /healthz HTTP/1.1\r\nHost: botpool\r\n"
BODY_OF = b"POST /api/v1/bots HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


class Client:
    """A client that writes what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send_many(self, data: bytes, times: int) -> None:
        for _ in range(times):
            await self.send(data)

    async def answer(self) -> tuple[int, Any]:
        """The status and the JSON of one answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return int(head.split()[1]), json.loads(await self.reader.readexactly(length))

    async def problem(self) -> tuple[int, str]:
        """The status and the code of an answer, after which the server hangs up."""
        status, body = await self.answer()
        assert await self.hung_up()
        return status, body["code"]

    async def hung_up(self) -> bool:
        """Return once the server has closed the connection."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True


@dataclass(frozen=True)
class Served(Scene):
    """A botpool that listens."""

    app: FastAPI
    keys: Keys
    address: tuple[str, int]
    server: uvicorn.Server
    clients: list[Client] = field(default_factory=list)

    async def client(self, address: str = "127.0.0.1") -> Client:
        streams = await asyncio.open_connection(*self.address, local_addr=(address, 0))
        self.clients.append(Client(*streams))
        return self.clients[-1]

    @property
    def open(self) -> int:
        return len(self.server.server_state.connections)

    async def until_open(self, count: int) -> None:
        while self.open != count:
            await asyncio.sleep(0)

    async def answers(self, key: str) -> None:
        """It answers a caller with a key."""
        caller = await self.client()
        await caller.send(
            b"GET /api/v1/bots HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n"
            % key.encode()
        )
        assert (await caller.answer())[0] == 200
        caller.writer.close()


@asynccontextmanager
async def serving(
    scene: Scene, limits: ConnectionLimits, *, trusted_proxies: str = "", host: str = "127.0.0.1"
) -> AsyncIterator[Served]:
    settings = Settings(rate_limit_per_second=100_000)
    keys = Keys(scene.store, settings)
    app = create_app(scene.store, scene.pool, settings, keys)
    server = uvicorn.Server(server_config(app, trusted_proxies, limits))
    with _listen(host, 0, "BOTPOOL_PORT") as listening:
        task = asyncio.create_task(server.serve(sockets=[listening]))
        address = ("127.0.0.1", listening.getsockname()[1])
        served = Served(scene.database, scene.store, scene.pool, app, keys, address, server)
        try:
            yield served
        finally:
            server.should_exit = server.force_exit = True
            await task
            for client in served.clients:
                client.writer.transport.abort()
                with suppress(ConnectionError):
                    await client.writer.wait_closed()


def test_a_connection_outlives_the_minute_for_which_load_balancers_keep_it(scene: Scene) -> None:
    app = create_app(scene.store, scene.pool, Settings(), Keys(scene.store, Settings()))
    assert server_config(app).timeout_keep_alive > 60


async def key_of(served: Served) -> str:
    return (await served.keys.create("notes", Role.CLIENT))[1]


async def test_an_answer_is_sent_without_a_delay(scene: Scene) -> None:
    async with serving(scene, PATIENT) as served:
        client = await served.client()
        await client.send(ASK + b"\r\n")
        assert await client.answer() == (200, {"status": "ok"})
        (connection,) = served.server.server_state.connections
        channel = connection.transport.get_extra_info("socket")
        assert channel.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# Headers


async def test_a_header_of_300_mb_costs_nothing(scene: Scene) -> None:
    async with serving(scene, PATIENT) as served:
        key = await key_of(served)
        await served.answers(key)
        before = psutil.Process().memory_info().rss
        client = await served.client()
        await client.send(ASK + b"X-Large: ")
        with pytest.raises(ConnectionError):
            await client.send_many(b"x" * 2**20, 300)
        assert psutil.Process().memory_info().rss - before < 30 * 2**20
        await served.answers(key)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(ASK + b"X-Large: " + b"x" * 70_000 + b"\r\n\r\n", id="one header"),
        pytest.param(
            ASK + b"".join(b"X-%d: %b\r\n" % (n, b"x" * 1000) for n in range(70)) + b"\r\n",
            id="all headers",
        ),
        pytest.param(ASK + b"X: \r\n" * 100 + b"\r\n", id="their number"),
        pytest.param(b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % (b"x" * 70_000), id="the URL"),
        # More than one read brings: of that in which a request begins, only whole headers count.
        pytest.param(ASK + b"X-Large: " + b"x" * 400_000, id="unfinished"),
        pytest.param(b"GET /" + b"x" * 400_000, id="unfinished URL"),
        pytest.param(b"\r\n" * 40_000, id="nothing at all"),
    ],
)
@pytest.mark.parametrize("piece", [2**20, 1000], ids=["at once", "in pieces"])
async def test_too_large_a_head_is_refused(scene: Scene, head: bytes, piece: int) -> None:
    async with serving(scene, PATIENT) as served:
        client = await served.client()
        if head.startswith(b"\r"):
            # Some of it arrives by itself, so that it is not all one piece of data.
            await client.send(head[:2])
            await served.until_open(1)
        for start in range(0, len(head), piece):
            client.writer.write(head[start : start + piece])
        # The answer may be lost, because more was sent after it.
        with suppress(ConnectionResetError):
            assert await client.problem() == (431, "headers_too_large")
        await served.until_open(0)
        # As large as allowed, and as many: each request is counted for itself.
        client = await served.client()
        for _ in range(3):
            await client.send(ASK + b"X: \r\n" * 98 + b"Y: " + b"x" * 60_000 + b"\r\n\r\n")
            assert await client.answer() == (200, {"status": "ok"})


async def test_what_is_no_http_is_told_so(scene: Scene) -> None:
    async with serving(scene, PATIENT) as served:
        client = await served.client()
        await client.send(b"what is this\r\n\r\n")
        assert await client.problem() == (400, "bad_request")


# Time


@pytest.mark.parametrize("sent", [ASK + b"X-Slow", b"GET", b"\r\n", ASK + b"\r\n" + ASK], ids=str)
async def test_a_head_that_does_not_arrive_in_time_is_given_up(scene: Scene, sent: bytes) -> None:
    async with serving(scene, replace(PATIENT, head_seconds=0.2)) as served:
        client = await served.client()
        await client.send(sent)
        if sent.startswith(ASK + b"\r\n"):
            assert await client.answer() == (200, {"status": "ok"})
        assert await client.problem() == (408, "request_timeout")
        await served.until_open(0)


async def test_a_client_that_sends_nothing_is_hung_up_on(scene: Scene) -> None:
    async with serving(scene, replace(PATIENT, head_seconds=0.1)) as served:
        assert await (await served.client()).hung_up()
        await served.until_open(0)


async def test_a_client_that_goes_on_sending_a_little_gets_no_more_time(scene: Scene) -> None:
    async with serving(scene, replace(PATIENT, head_seconds=0.3)) as served:
        client = await served.client()
        await client.send(ASK)
        ended = asyncio.create_task(client.problem())
        while not ended.done():
            client.writer.write(b"X: \r\n")
            await asyncio.sleep(0.05)
        assert await ended == (408, "request_timeout")


@pytest.mark.parametrize("known", [True, False])
async def test_a_body_that_does_not_arrive_in_time_is_given_up(scene: Scene, known: bool) -> None:
    # Long enough for a stranger to be answered before.
    async with serving(scene, replace(PATIENT, body_seconds=0.2 if known else 3)) as served:
        key = await key_of(served)
        await served.answers(key)
        key = key if known else "wrong"
        client = await served.client()
        head = BODY_OF + b"Authorization: Bearer %b\r\n" % key.encode()
        await client.send(head + b"Content-Length: 10\r\n\r\n{")
        if known:
            assert await client.problem() == (408, "request_timeout")
        else:
            # A stranger is answered before the body is there; what follows is not waited for.
            assert (await client.answer())[0] == 401
            await client.hung_up()
        await served.until_open(0)


async def test_a_slow_request_in_time_is_answered(scene: Scene) -> None:
    async with serving(scene, PATIENT) as served:
        key = await key_of(served)
        client = await served.client()
        body = b'{"meetingUrl": "https://meet.google.com/abc-defg-hij"}'
        head = BODY_OF + b"Authorization: Bearer %b\r\n" % key.encode()
        for byte in head + b"Content-Length: %d\r\n\r\n" % len(body) + body:
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.answer())[0] == 201


async def test_a_body_that_never_ends_is_cut_off(scene: Scene) -> None:
    async with serving(scene, PATIENT) as served:
        client = await served.client()
        key = await key_of(served)
        head = BODY_OF + b"Authorization: Bearer %b\r\n" % key.encode()
        await client.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
        with pytest.raises(ConnectionError):
            await client.send_many(b"100000\r\n%b\r\n" % (b" " * 2**20), 100)
        await served.until_open(0)


async def test_an_answer_that_nobody_reads_is_given_up(scene: Scene) -> None:
    async with serving(scene, replace(PATIENT, answer_seconds=0.2)) as served:

        @served.app.get("/large")
        async def large() -> Response:
            return Response(b"x" * 30 * 2**20)

        client = await served.client()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await served.until_open(1)
        await served.until_open(0)


# Number


async def test_strangers_of_an_address_make_way_and_callers_with_keys_do_not(
    scene: Scene,
) -> None:
    limits = replace(PATIENT, strangers=5, grace_seconds=0.05)
    async with serving(scene, limits) as served:
        key = (await key_of(served)).encode()
        for _ in range(10):
            client = await served.client()
            await client.send(
                b"GET /api/v1/bots HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n" % key
            )
            assert (await client.answer())[0] == 200
        elsewhere = [await served.client("127.0.0.2") for _ in range(5)]
        strangers = [await served.client() for _ in range(20)]
        for client in strangers:
            client.writer.write(ASK)
        # The first ones make way; the last five, those from elsewhere and the callers stay.
        await served.until_open(10 + 5 + 5)
        for client in strangers[:-5]:
            assert await client.hung_up()
        for client in (*elsewhere, *strangers[-5:]):
            await client.send(b"\r\n" if client in strangers else ASK + b"\r\n")
            assert await client.answer() == (200, {"status": "ok"})
        await served.answers(key.decode())


async def test_any_number_of_requests_may_begin_at_once(scene: Scene) -> None:
    async with serving(scene, replace(PATIENT, strangers=5, grace_seconds=10)) as served:
        key = await key_of(served)
        await asyncio.gather(*(served.answers(key) for _ in range(50)))


async def test_who_waits_for_an_answer_does_not_make_way(scene: Scene) -> None:
    async with serving(scene, replace(PATIENT, strangers=2, grace_seconds=0.05)) as served:
        ready = asyncio.Event()

        @served.app.get("/slow")
        async def slow() -> str:
            await ready.wait()
            return "done"

        waiting = [await served.client() for _ in range(2)]
        for client in waiting:
            await client.send(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        idle = [await served.client() for _ in range(5)]
        for client in idle:
            assert await client.hung_up()
        await served.until_open(2)
        ready.set()
        assert [await client.answer() for client in waiting] == [(200, "done")] * 2


async def test_a_trusted_proxys_connections_are_not_counted(scene: Scene) -> None:
    limits = replace(PATIENT, strangers=2, grace_seconds=0.05)
    async with serving(scene, limits, trusted_proxies="127.0.0.0/31") as served:
        proxied = [await served.client() for _ in range(10)]
        others = [await served.client("127.0.0.2") for _ in range(10)]
        await served.until_open(12)
        for client in others[:8]:
            assert await client.hung_up()
        for client in proxied:
            await client.send(ASK + b"\r\n")
            assert await client.answer() == (200, {"status": "ok"})


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
async def test_an_ipv4_client_of_an_ipv6_socket_counts_by_its_own_address(scene: Scene) -> None:
    limits = replace(PATIENT, strangers=2, grace_seconds=0.05)
    async with serving(scene, limits, host="::") as served:
        one = [await served.client("127.0.0.1") for _ in range(2)]
        another = [await served.client("127.0.0.2") for _ in range(4)]
        await served.until_open(4)
        assert [await client.hung_up() for client in another[:2]] == [True, True]
        for client in one:
            await client.send(ASK + b"\r\n")
            assert await client.answer() == (200, {"status": "ok"})
