"""A cluster whose API server is in trouble for long: bots that are heard don't notice."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from botpool.engines.kubernetes.api import KubernetesApi
from botpool.engines.kubernetes.credentials import Access, User
from botpool.engines.kubernetes.engine import KubernetesEngine
from botpool.pool import Pool
from botpool.reconciler import Reconciler
from botpool.settings import Settings
from botpool.states import BotStatus, Platform
from botpool.store import Store
from botpool.store.invariants import broken_invariants
from tests.fakes.kubernetes import Server, Trouble
from tests.support.scene import Scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime
    from pathlib import Path

    from botpool.models.bots import Bot
    from botpool.store import Database

IMAGE = "bot:1"
STEP_SECONDS = 10
STEPS = 60
"""Ten minutes."""


@dataclass(frozen=True)
class Trial(Scene):
    """A pool on an imitated cluster, whose time a test sets."""

    server: Server
    reconciler: Reconciler

    async def pass_time(self, **time: float) -> datetime:
        now = await super().pass_time(**time)
        await self.pool.listening.note("test", timedelta(**time).total_seconds())
        return now

    async def go_on(self) -> None:
        """Do all that is due, some seconds later, in which all bots whose pods run are heard."""
        await self.pass_time(seconds=STEP_SECONDS)
        running = pods(self.server)
        for slot in await self.store.slots.all():
            if slot.container_ref in running and slot.assigned_bot_id is not None:
                await self.pool.assignments.heartbeat(slot.id, slot.lease)
        await self.reconciler.run_once()
        await self.reconciler.recover_once()
        await self.reconciler.compare_once()

    async def in_call(self) -> Bot:
        bot = (await self.create()).bot
        await self.reconciler.run_once()
        slot = await self.slot_of(bot.id)
        await self.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
        return await self.store.bots.get(bot.id)


@asynccontextmanager
async def trial(database: Database, folder: Path) -> AsyncIterator[Trial]:
    server = Server()
    access = Access("https://cluster", "bots", User({"token": "secret"}, folder, {}))
    store = Store(database)
    await store.installation.use_virtual_clock()
    settings = Settings(engine="kubernetes", image_google_meet=IMAGE, max_pool_size=10)
    installation = await store.installation.name()
    engine = KubernetesEngine(
        {"a": KubernetesApi("a", access, httpx.MockTransport(server))},
        installation=installation,
        stop_grace_seconds=1,
        images={Platform.GOOGLE_MEET: IMAGE},
    )
    pool = Pool(store, settings)
    reconciler = Reconciler(
        store, pool, {engine.name: engine}, settings, installation=installation, seed=0
    )
    await pool.queue.configure()
    await reconciler.report_hosts()
    yield Trial(database, store, pool, server, reconciler)
    await engine.close()
    assert await broken_invariants(database) == []


def pods(server: Server) -> dict[str, Any]:
    """The uid of each pod."""
    return {
        name: found["metadata"]["uid"]
        for (kind, name), found in server.objects.items()
        if kind == "pods"
    }


@pytest.mark.parametrize("trouble", Trouble)
async def test_ten_minutes_of_trouble_delete_nothing_and_fail_no_bot_that_is_heard(
    database: Database, tmp_path: Path, trouble: Trouble
) -> None:
    async with trial(database, tmp_path) as on:
        server = on.server
        heard = [await on.in_call() for _ in range(3)]
        await on.reconciler.compare_once()
        there = pods(server)
        assert len(there) == len(heard)

        server.trouble = trouble
        late = (await on.create()).bot
        for _ in range(STEPS):
            await on.go_on()
        assert server.refused
        for bot in heard:
            assert (await on.store.bots.get(bot.id)).status is BotStatus.IN_CALL
        assert pods(server).items() >= there.items()

        server.trouble = None
        while (found := await on.store.bots.get(late.id)).status is not BotStatus.JOINING_CALL:
            assert found.ended_at is None, found
            await on.go_on()
        # The one that came meanwhile was started once, and nothing else was.
        name = (await on.slot_of(late.id)).container_ref
        assert [each for each in server.made if each not in there] == [name]
        assert found.launch_attempts == 1
        # A Secret whose reply was lost is made again, before anything has run with it.
        assert not [each for each in server.deletions if each[0] == "pods" or each[1] in there]
        for bot in heard:
            assert (await on.store.bots.get(bot.id)).status is BotStatus.IN_CALL
