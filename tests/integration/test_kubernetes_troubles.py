"""A cluster in trouble: bots that are heard don't notice."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from botpool.engines.kubernetes.engine import KubernetesEngine
from botpool.pool import Pool
from botpool.reconciler import Reconciler
from botpool.settings import Settings
from botpool.states import BotStatus, FailureCause, Platform
from botpool.store import Store
from botpool.store.invariants import broken_invariants
from tests.fakes.kubernetes import Server, Trouble
from tests.support.kubernetes_engine import imitated_api
from tests.support.scene import Scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

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
async def trial(database: Database) -> AsyncIterator[Trial]:
    server = Server()
    store = Store(database)
    await store.installation.use_virtual_clock()
    settings = Settings(engine="kubernetes", image_google_meet=IMAGE, max_pool_size=10)
    installation = await store.installation.name()
    engine = KubernetesEngine(
        {"a": imitated_api(server)},
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
    database: Database, trouble: Trouble
) -> None:
    async with trial(database) as on:
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


async def test_a_bot_whose_node_object_was_deleted_is_judged_by_its_heartbeats(
    database: Database,
) -> None:
    async with trial(database) as on:
        bot = await on.in_call()
        slot = await on.slot_of(bot.id)
        pod = on.server.objects["pods", slot.container_ref or ""]
        # As the collector of pods does it, while the node may only be cut off.
        pod["metadata"]["deletionTimestamp"] = "2000-01-01T00:00:00Z"
        pod["status"]["phase"] = "Failed"
        for _ in range(STEPS):
            await on.go_on()
        found = await on.store.bots.get(bot.id)
        assert (found.status, found.launch_attempts) == (BotStatus.IN_CALL, 1)

        await on.pass_time(minutes=10)
        await on.reconciler.recover_once()
        found = await on.store.bots.get(bot.id)
        assert found.failure_cause is FailureCause.HEARTBEAT_LOST


async def test_a_pod_that_its_node_does_not_admit_fails_its_launch_and_its_slot_is_given_up(
    database: Database,
) -> None:
    async with trial(database) as on:
        on.server.too_many = 1
        bot = (await on.create()).bot
        first = await on.slot_of(bot.id)
        await on.reconciler.run_once()
        found = await on.store.bots.get(bot.id)
        assert found.status is BotStatus.JOINING_CALL
        assert (found.launch_attempts, (await on.slot_of(bot.id)).id != first.id) == (2, True)
        events = await on.store.transitions.timeline(bot.id)
        assert any("its node had no room for it: no cpu" in each.reason for each in events)
        # No kubelet ever says anything of its containers.
        assert await on.store.slots.find(first.id) is None
        (deleted,) = await database.fetch(
            "SELECT reason FROM transitions WHERE machine = 'slot' AND to_status IS NULL"
        )
        assert "given up, not proved stopped" in deleted["reason"]
