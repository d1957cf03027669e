"""The feed over HTTP, from a real server: what a reader hears, where it resumes, how it ends."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn
from structlog.testing import capture_logs

from botpool.access.keys import Keys
from botpool.access.projects import Projects
from botpool.api import create_app
from botpool.api import stream as module
from botpool.feed import stream as feed_module
from botpool.feed.stream import Feed
from botpool.settings import Settings
from botpool.states import BotStatus, Platform, Role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.scene import Scene

URL = "/api/v1/stream"
LARGE = """
INSERT INTO transitions (at, machine, platform, reason, details)
SELECT botpool_now(), 'bot', 'zoom', 'large', jsonb_build_object('x', repeat('x', 100000))
FROM generate_series(1, 20)
"""


class Served:
    """A server of one app, its feed and its keys."""

    def __init__(self, url: str, feed: Feed, keys: Keys) -> None:
        self.url = url
        self.feed = feed
        self.keys = keys

    async def key(self, role: Role) -> tuple[int, str]:
        key, text = await self.keys.create("test", role)
        return key.id, text

    @asynccontextmanager
    async def stream(
        self, key: str, headers: dict[str, str] | None = None, **query: Any
    ) -> AsyncIterator[Stream]:
        """An open stream: what happens from now on is heard."""
        sent = {"Authorization": f"Bearer {key}", **(headers or {})}
        async with (
            httpx.AsyncClient(base_url=self.url, timeout=60) as http,
            http.stream("GET", URL, params=query, headers=sent) as response,
        ):
            yield Stream(response)

    async def gone(self) -> None:
        """Wait until there is no reader."""
        while self.feed.subscriptions:
            await asyncio.sleep(0)


class Stream:
    """What a reader makes of a stream, as the standard has it."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.last_id = ""
        self._lines = response.aiter_lines()

    async def block(self) -> dict[str, str]:
        """The next block: its fields, and its comment under the name ''."""
        fields: dict[str, str] = {}
        async for line in self._lines:
            if not line:
                self.last_id = fields.get("id", self.last_id)
                return fields
            name, _, value = line.partition(": ")
            fields[name] = value
        return {}

    async def events(self, count: int) -> list[dict[str, Any]]:
        """The data of the next so many events."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            block = await self.block()
            assert block, "the stream has ended"
            if "data" in block:
                data = json.loads(block["data"])
                assert block["event"] == data["type"]
                found.append(data)
        return found


@pytest.fixture
async def served(scene: Scene) -> AsyncIterator[Served]:
    settings = Settings()
    feed, keys = Feed(scene.store), Keys(scene.store, settings)
    feed.poll_seconds = 3600
    app = create_app(scene.store, scene.pool, settings, keys, feed)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(
            uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=60)
        )
        following = asyncio.create_task(feed.run(scene.database))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}", feed, keys)
        finally:
            feed.stop()
            server.should_exit = True
            await asyncio.gather(following, serving)


@pytest.fixture
async def admin(served: Served) -> str:
    return (await served.key(Role.ADMIN))[1]


def tell(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (event["type"].partition(".")[0], event["data"]["previousStatus"], event["data"]["status"])
        for event in events
    ]


# What a reader hears


async def test_an_admin_hears_of_every_change_as_it_happens(
    scene: Scene, served: Served, admin: str
) -> None:
    async with served.stream(admin) as stream:
        headers = stream.response.headers
        assert headers["content-type"].startswith("text/event-stream")
        assert headers["cache-control"] == "no-store"
        bot = (await scene.create(correlation_id="c-1")).bot
        slot_event, bot_event = await stream.events(2)
        assert tell([slot_event]) == [("slot", None, "deploying")]
        (step,) = [t for t in await scene.store.transitions.timeline(bot.id) if t.machine == "bot"]
        assert bot_event == {
            "id": f"evt_{step.id}",
            "type": "bot.status_changed",
            "timestamp": f"{step.at:%Y-%m-%dT%H:%M:%S.%f}Z",
            "data": {
                "botId": bot.id,
                "platform": "google-meet",
                "meetingUrl": bot.meeting_url,
                "botDisplayName": bot.bot_display_name,
                "correlationId": "c-1",
                "metadata": {},
                "status": "DEPLOYING",
                "previousStatus": None,
                "reason": "assigned to a new slot",
                "details": {},
                "failureCause": None,
                "failureReason": None,
                "slotId": step.slot_id,
                "slotName": "pool-google-meet-001",
                "containerRef": None,
                "lease": 1,
            },
        }
        slot = await scene.slot_of(bot.id)
        await scene.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
        assert tell(await stream.events(2)) == [
            ("slot", "deploying", "busy"),
            ("bot", "DEPLOYING", "IN_CALL"),
        ]


async def test_a_client_hears_of_its_own_bots_and_of_no_slots(scene: Scene, served: Served) -> None:
    mine, theirs = [(await Projects(scene.store).create(name))[0].id for name in ("a", "b")]
    made, key = await served.keys.create("key", Role.CLIENT, mine)
    async with served.stream(key) as stream:
        start = (await stream.block())["id"]
        others = [await scene.create(project_id=owner) for owner in (theirs, 1)]
        own = await scene.create(Platform.ZOOM, project_id=mine)
        await scene.pool.assignments.stop_bot(others[0].bot.id)
        await scene.pool.assignments.stop_bot(own.bot.id)
        expected = [
            ("bot", None, "DEPLOYING"),
            ("bot", "DEPLOYING", "CANCELLED"),
        ]
        events = await stream.events(2)
        assert tell(events) == expected
        assert {event["data"]["botId"] for event in events} == {own.bot.id}
    async with served.stream(key, lastEventId=start) as replayed:
        assert await replayed.events(2) == events
    async with served.stream(key, lastEventId=start, botId=others[0].bot.id) as replayed:
        await scene.pool.assignments.stop_bot(others[1].bot.id)
        await served.keys.revoke(made.id)
        served.feed.stop()
        while block := await replayed.block():
            assert "data" not in block


@pytest.mark.parametrize("platform", ["teams", "microsoft-teams"])
async def test_a_stream_can_be_of_one_platform(
    scene: Scene, served: Served, admin: str, platform: str
) -> None:
    async with served.stream(admin, platform=platform) as stream:
        await scene.create(Platform.ZOOM)
        bot = (await scene.create(Platform.MICROSOFT_TEAMS)).bot
        assert [event["data"]["botId"] for event in await stream.events(2)] == [bot.id] * 2


async def test_a_stream_can_be_of_one_bot(scene: Scene, served: Served, admin: str) -> None:
    bot = (await scene.create()).bot
    async with served.stream(admin, botId=bot.id) as stream:
        await scene.create()
        await scene.pool.assignments.stop_bot(bot.id)
        assert tell(await stream.events(2)) == [
            ("slot", "deploying", "releasing"),
            ("bot", "DEPLOYING", "CANCELLED"),
        ]


# Resuming


async def test_a_reader_resumes_by_the_last_id_that_it_had(
    scene: Scene, served: Served, admin: str
) -> None:
    async with served.stream(admin) as stream:
        await scene.create()
        first = await stream.events(1)
        seen = stream.last_id
        rest = await stream.events(1)
    await scene.create(Platform.ZOOM)
    async with served.stream(admin, {"Last-Event-ID": seen}) as again:
        events = await again.events(3)
        assert events[:1] == rest
        assert first[0] not in events
    newest = again.last_id
    bot = (await scene.create(Platform.MICROSOFT_TEAMS)).bot
    # A browser that reconnects sends both, and the header is the newer one.
    async with served.stream(admin, {"Last-Event-ID": newest}, lastEventId=seen) as again:
        assert [event["data"]["botId"] for event in await again.events(2)] == [bot.id] * 2


async def test_a_reader_for_whom_nothing_came_yet_resumes_too(
    scene: Scene, served: Served, admin: str
) -> None:
    async with served.stream(admin) as stream:
        block = await stream.block()
        assert list(block) == ["id"]
    await served.gone()
    await scene.create()
    async with served.stream(admin, lastEventId=stream.last_id) as again:
        assert len(await again.events(2)) == 2


async def test_a_line_now_and_then_keeps_a_quiet_stream_open_and_its_id_new(
    scene: Scene, served: Served, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEEP_ALIVE_SECONDS", 0.01)
    async with served.stream(admin, platform="zoom") as stream:
        first = await stream.block()
        await scene.create()
        while (block := await stream.block())["id"] == first["id"]:
            assert block[""] == "nothing new"
        (last,) = await scene.database.fetch("SELECT max(id) AS id FROM transitions")
        assert block["id"].split("-")[1] == str(last["id"])


# What is refused


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"lastEventId": "yesterday"}, 400, "invalid_position"),
        ({"lastEventId": "1-1-1"}, 410, "position_gone"),
        ({"lastEventId": f"{2**64 - 1}-1-1"}, 410, "position_gone"),
        ({"botId": "mine"}, 422, "invalid_request"),
        ({"botId": str(2**63)}, 422, "invalid_request"),
        ({"platform": "telephone"}, 422, "invalid_request"),
    ],
)
async def test_what_cannot_be_met_is_a_problem_and_no_stream(
    served: Served, admin: str, query: dict[str, Any], status: int, code: str
) -> None:
    async with served.stream(admin, **query) as stream:
        problem = json.loads(await stream.response.aread())
        assert (stream.response.status_code, problem["code"]) == (status, code)
    assert served.feed.subscriptions == 0


async def test_nothing_is_heard_without_a_key(served: Served) -> None:
    async with served.stream("bp_client_unknown") as stream:
        assert stream.response.status_code == 401


# Ends


async def test_a_reader_that_goes_away_is_forgotten_at_once(served: Served, admin: str) -> None:
    async with served.stream(admin) as stream:
        await stream.block()
        assert served.feed.subscriptions == 1
    await served.gone()


async def test_a_key_that_is_revoked_hears_no_more(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEEP_ALIVE_SECONDS", 0.01)
    key_id, key = await served.key(Role.ADMIN)
    async with served.stream(key) as stream:
        await stream.block()
        await served.keys.revoke(key_id)
        blocks = []
        while block := await stream.block():
            blocks.append(block)
        assert blocks[-1][""].startswith(module.REVOKED)
    await served.gone()


async def test_every_stream_ends_with_the_server_and_says_so(served: Served, admin: str) -> None:
    async with served.stream(admin) as stream:
        await stream.block()
        served.feed.stop()
        assert await stream.block() == {"": "botpool is stopping; resume after the last id"}
        assert await stream.block() == {}


@asynccontextmanager
async def standing_still(served: Served, key: str) -> AsyncIterator[asyncio.StreamReader]:
    """A stream whose reader reads nothing, with little room for what it doesn't read."""
    host, port = served.url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=connection, limit=4096)
        request = f"GET {URL} HTTP/1.1\r\nHost: botpool\r\nAuthorization: Bearer {key}\r\n\r\n"
        writer.write(request.encode())
        await reader.readuntil(b"\r\n\r\n")
        try:
            yield reader
        finally:
            writer.close()


async def test_a_reader_that_is_too_slow_is_cut_off_and_told(
    scene: Scene, served: Served, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "_MOST_WAITING", 50)
    async with standing_still(served, admin) as reader:
        while served.feed.subscriptions:
            await scene.database.execute(LARGE)
            await scene.store.installation.announce(["botpool_record"])
        received = await reader.read(2**20)
        while piece := await reader.read(2**20):
            received = (received + piece)[-1000:]
            if b"resume after the last id" in received:
                break
        assert b": events came faster than they were read; resume after the last id" in received


async def test_a_reader_that_stands_still_for_too_long_is_let_go(
    scene: Scene, served: Served, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SEND_SECONDS", 0.05)
    with capture_logs() as lines:
        async with standing_still(served, admin):
            while served.feed.subscriptions:
                await scene.database.execute(LARGE)
                await scene.store.installation.announce(["botpool_record"])
    assert "a reader of the stream does not read" in {line["event"] for line in lines}


# What is said of it


async def test_the_openapi_document_tells_of_the_stream(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url) as http:
        document = (await http.get("/openapi.json")).json()
    call = document["paths"][URL]["get"]
    assert list(call["responses"]["200"]["content"]) == ["text/event-stream"]
    assert set(call["responses"]) >= {"200", "400", "401", "410", "422", "429"}
    names = {(each["in"], each["name"]) for each in call["parameters"]}
    assert names == {
        ("query", "platform"),
        ("query", "botId"),
        ("query", "lastEventId"),
        ("header", "last-event-id"),
    }
