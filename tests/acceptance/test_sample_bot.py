"""The sample bot as a process of its own, on a real API, a real pool and a real database."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

from botpool.access.keys import Keys
from botpool.api import create_app
from botpool.models.keys import token_digest
from botpool.settings import Settings
from botpool.states import BotStatus, FailureCause
from tests.support.waiting import a_moment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import FastAPI
    from starlette.types import Message, Receive, Scope, Send

    from botpool.models.bots import Bot
    from tests.support.scene import Scene

FOREVER_MS = 60 * 60 * 1000
PATIENCE_SECONDS = 30


def bound_to(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


class Office:
    """A botpool that hears who sends heartbeats, while it is open."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.heartbeats: Counter[str] = Counter()
        self._app = self._new_app()
        self._news = asyncio.Condition()
        # Bound and not listening: it refuses connections, and no other program gets the port.
        self._socket = bound_to(0)
        self._port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        if self._socket.fileno() < 0:
            self._socket = bound_to(self._port)
            self._app = self._new_app()
        config = uvicorn.Config(self._hear, interface="asgi3", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        try:
            yield
        finally:
            server.should_exit = True
            self._app.state.orders.stop()
            await serving
            self._socket.close()

    def _new_app(self) -> FastAPI:
        store, settings = self.scene.store, Settings(heartbeat_interval_ms=10)
        return create_app(store, self.scene.pool, settings, Keys(store, settings))

    async def heard(self, token: str, more: int) -> None:
        """Return once so many more heartbeats were answered."""
        enough = self.heartbeats[token] + more
        async with self._news:
            await self._news.wait_for(lambda: self.heartbeats[token] >= enough)

    async def _hear(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.start" and scope["path"].endswith("/heartbeat"):
                await self._count(dict(scope["headers"])[b"authorization"].decode())

        await self._app(scope, receive, answer)

    async def _count(self, authorization: str) -> None:
        async with self._news:
            self.heartbeats[authorization.removeprefix("Bearer ")] += 1
            self._news.notify_all()


class Container:
    """A process that runs the sample bot with the token of a slot."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.lines: list[str] = []
        self.send_signal = process.send_signal

    async def says(self, line: str) -> None:
        """Return once it has written this line."""
        assert self._process.stdout
        while line not in self.lines:
            said = await self._process.stdout.readline()
            assert said, f"it ended, and never said {line!r} but {self.lines}"
            self.lines.append(said.decode().rstrip("\n"))

    async def complains(self) -> str:
        """What it writes next to standard error."""
        assert self._process.stderr
        return (await self._process.stderr.readline()).decode()

    async def ends(self) -> int | None:
        """Its exit code, once it has ended, or is over and was stopped.

        What it complained of is shown if the test fails.
        """
        assert self._process.stdout
        async for said in self._process.stdout:
            if said == b"waits to be stopped\n":
                self._process.terminate()
            else:
                self.lines.append(said.decode().rstrip("\n"))
        _, complaints = await self._process.communicate()
        sys.stderr.write(complaints.decode())
        return self._process.returncode

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@pytest.fixture
async def office(scene: Scene) -> AsyncIterator[Office]:
    office = Office(scene)
    async with office.open():
        yield office


@asynccontextmanager
async def container(office: Office, token: str) -> AsyncIterator[Container]:
    """A started container, gone at the end. A test that waits in vain fails in the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "botpool.bot.sample"),
        env={"PATH": os.environ["PATH"], "BOTPOOL_URL": office.url, "BOTPOOL_SLOT_TOKEN": token},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    running = Container(process)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield running
    finally:
        await running.kill()


async def ordered(office: Office, **orders: Any) -> tuple[Bot, str]:
    """A bot with these orders, and the token of its slot."""
    bot = (await office.scene.create(config={"sample": {"joinMs": 0, **orders}})).bot
    slot = await office.scene.slot_of(bot.id)
    token = f"the-token-of-{slot.slot_name}"
    await office.scene.database.execute(
        "UPDATE bot_pool_slots SET token_hash = $2 WHERE id = $1", slot.id, token_digest(token)
    )
    return bot, token


async def status_of(office: Office, bot: Bot) -> BotStatus:
    return (await office.scene.store.bots.get(bot.id)).status


# A life as it should be


async def test_a_bot_goes_through_its_call_to_its_end(office: Office) -> None:
    bot, token = await ordered(office, stayMs=20, joinMs=10)
    async with container(office, token) as running:
        assert await running.ends() == 0
    steps = ["JOINING_CALL", "IN_WAITING_ROOM", "IN_CALL", "LEAVING", "DONE"]
    timeline = await office.scene.store.transitions.timeline(bot.id)
    assert [t.to_status for t in timeline if t.machine == "bot"] == ["DEPLOYING", *steps]
    assert running.lines[1:] == steps
    assert running.lines[0].endswith("Notes for https://meet.google.com/abc-defg-hij")


@pytest.mark.parametrize("by", ["heartbeat", "signal"])
@pytest.mark.parametrize(
    ("orders", "when"),
    [({"stayMs": FOREVER_MS}, "IN_CALL"), ({"joinMs": FOREVER_MS}, "JOINING_CALL")],
    ids=["in its call", "before"],
)
async def test_a_bot_that_is_told_to_leave_does(
    office: Office, by: str, orders: dict[str, int], when: str
) -> None:
    bot, token = await ordered(office, **orders)
    async with container(office, token) as running:
        await running.says(when)
        if by == "signal":
            running.send_signal(signal.SIGTERM)
        else:
            await office.scene.pool.assignments.stop_bot(bot.id)
        assert await running.ends() == 0
    assert running.lines[-3:] == [when, "LEAVING", "DONE"]
    assert await status_of(office, bot) is BotStatus.DONE


async def test_a_container_that_comes_back_goes_on_with_its_bot(office: Office) -> None:
    bot, token = await ordered(office, stayMs=FOREVER_MS)
    async with container(office, token) as first:
        await first.says("IN_CALL")
        await first.kill()
    async with container(office, token) as second:
        await second.says("IN_CALL")
        # It is said before it is told.
        while await status_of(office, bot) is not BotStatus.IN_CALL:
            await a_moment()
        second.send_signal(signal.SIGTERM)
        assert await second.ends() == 0
    assert second.lines[0] == first.lines[0]
    assert await status_of(office, bot) is BotStatus.DONE


async def test_a_bot_outlives_a_botpool_that_restarts(scene: Scene) -> None:
    office = Office(scene)
    bot, token = await ordered(office, stayMs=FOREVER_MS)
    async with container(office, token) as running:
        assert (await running.complains()).startswith("claim: botpool can't be reached")
        async with office.open():
            await running.says("IN_CALL")
        while "heartbeat: botpool can't be reached" not in await running.complains():
            await a_moment()
        running.send_signal(signal.SIGTERM)
        while "status: botpool can't be reached" not in await running.complains():
            await a_moment()
        async with office.open():
            assert await running.ends() == 0
    assert await status_of(office, bot) is BotStatus.DONE


async def test_a_container_whose_assignment_is_over_ends_quietly(office: Office) -> None:
    bot, token = await ordered(office, stayMs=FOREVER_MS)
    async with container(office, token) as running:
        await running.says("IN_CALL")
        await office.scene.end(await office.scene.slot_of(bot.id))
        assert await running.ends() == 0
        assert await running.complains() == ""
    async with container(office, token) as late:
        assert await late.ends() == 0
    assert (running.lines[-1], late.lines) == ("the assignment is over", ["the assignment is over"])


async def test_a_container_with_a_token_of_no_slot_says_so(office: Office) -> None:
    async with container(office, "unknown") as running:
        complaint = await running.complains()
        assert await running.ends() == 1
    assert complaint == "sample bot: BOTPOOL_SLOT_TOKEN is not a slot's token (401).\n"


# What it does wrong when it is told to


@pytest.mark.parametrize(
    ("orders", "code", "last_line"),
    [
        ({"behaviour": "crash", "atMs": 10, "joinMs": FOREVER_MS}, 1, "crashes"),
        ({"behaviour": "exit", "atMs": 10, "joinMs": FOREVER_MS}, 0, "exits without a word"),
        ({"behaviour": "crash_on_join", "joinMs": 10}, 1, "crashes on joining"),
    ],
)
async def test_a_bot_that_ends_without_a_word_leaves_its_status_as_it_was(
    office: Office, orders: dict[str, Any], code: int, last_line: str
) -> None:
    bot, token = await ordered(office, **orders)
    async with container(office, token) as running:
        assert await running.ends() == code
    assert running.lines[-1] == last_line
    assert await status_of(office, bot) is BotStatus.JOINING_CALL


async def test_a_bot_does_nothing_wrong_before_its_time(office: Office) -> None:
    bot, token = await ordered(office, behaviour="crash", atMs=FOREVER_MS, stayMs=1)
    async with container(office, token) as running:
        assert await running.ends() == 0
    assert await status_of(office, bot) is BotStatus.DONE


async def test_a_bot_that_hangs_sends_no_heartbeat_and_does_nothing(office: Office) -> None:
    bot, token = await ordered(office, behaviour="hang", atMs=10, joinMs=20)
    _, others = await ordered(office, stayMs=FOREVER_MS)
    async with container(office, token) as hanging, container(office, others) as living:
        await living.says("IN_CALL")
        await hanging.says("hangs")
        # One may have been under way; the other bot's tell the time.
        await office.heard(others, more=5)
        before = office.heartbeats[token]
        await office.heard(others, more=10)
        assert office.heartbeats[token] == before
        hanging.send_signal(signal.SIGTERM)
        assert await hanging.ends() == -signal.SIGTERM
    assert await status_of(office, bot) is BotStatus.JOINING_CALL


async def test_a_bot_that_ignores_sigterm_stays_until_a_heartbeat_tells_it_to_leave(
    office: Office,
) -> None:
    bot, token = await ordered(office, behaviour="ignore_sigterm", stayMs=FOREVER_MS)
    async with container(office, token) as running:
        await running.says("ignores SIGTERM")
        await running.says("IN_CALL")
        running.send_signal(signal.SIGTERM)
        await office.heard(token, more=5)
        assert await status_of(office, bot) is BotStatus.IN_CALL
        await office.scene.pool.assignments.stop_bot(bot.id)
        assert await running.ends() == 0
    assert await status_of(office, bot) is BotStatus.DONE


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ({"stay": 5}, "config.sample may only have stayMs, joinMs, behaviour, atMs."),
        ("stay", "config.sample may only have stayMs, joinMs, behaviour, atMs."),
        (
            {"behaviour": "dance"},
            "config.sample.behaviour must be one of"
            " normal, crash, crash_on_join, hang, ignore_sigterm, exit.",
        ),
        ({"stayMs": "5"}, "config.sample.stayMs must be a whole number between 0 and 86400000."),
        ({"joinMs": True}, "config.sample.joinMs must be a whole number between 0 and 86400000."),
        ({"atMs": -1}, "config.sample.atMs must be a whole number between 0 and 86400000."),
        ({"atMs": 10**12}, "config.sample.atMs must be a whole number between 0 and 86400000."),
    ],
)
async def test_orders_that_it_does_not_know_are_fatal_and_it_says_what_it_accepts(
    office: Office, sample: object, reason: str
) -> None:
    bot, token = await ordered(office)
    await office.scene.database.execute(
        "UPDATE bots SET config = $2 WHERE id = $1", bot.id, {"sample": sample}
    )
    async with container(office, token) as running:
        assert await running.ends() == 0
    after = await office.scene.store.bots.get(bot.id)
    assert (after.status, after.failure_cause) == (BotStatus.FATAL, FailureCause.BOT_FAILED)
    assert after.failure_reason == reason
    assert running.lines[-1] == f"FATAL: {reason}"
