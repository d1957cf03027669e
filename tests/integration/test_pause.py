"""Paused pools: none of their bots is launched, whoever asks, until they are resumed."""

from __future__ import annotations

import asyncio

import pytest

from botpool.models.assignments import FailedLaunch
from botpool.models.replicas import ReplicaRole
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.states import BotStatus, FailureCause, Platform, SlotStatus
from botpool.store import Database, Store
from tests.integration.test_bots_api import opened
from tests.support.scene import Scene

pytestmark = pytest.mark.older_postgres

MEET, ZOOM = Platform.GOOGLE_MEET, Platform.ZOOM


async def paused(scene: Scene, platform: Platform = MEET) -> None:
    await scene.pool.queue.pause(platform, by="ops")


async def test_while_a_pool_is_paused_new_bots_wait_beside_its_idle_slots(scene: Scene) -> None:
    await scene.idle()
    await paused(scene)
    created = await scene.create()
    assert created.bot.status is BotStatus.QUEUED
    assert (created.queue_position, created.estimated_wait_ms) == (1, None)
    assert (await scene.create(ZOOM)).bot.status is BotStatus.DEPLOYING


async def test_bots_that_wait_are_not_served_while_their_pool_is_paused(scene: Scene) -> None:
    running = [(await scene.create()).bot.id for _ in range(3)]
    waiting = (await scene.create()).bot.id
    await paused(scene)
    slot = await scene.slot_of(running[0])
    await scene.end(slot)
    await scene.pool.slots.make_idle(slot.id, slot.lease)
    await scene.pool.queue.assign_waiting(MEET)
    await scene.pool.hosts.drain("process", "here", drain=False)
    assert (await scene.store.slots.get(slot.id)).status is SlotStatus.IDLE
    assert [entry.bot_id for entry in await scene.queue()] == [waiting]


async def test_a_slot_becomes_idle_without_waiting_for_a_paused_pool_of_another_platform(
    scene: Scene,
) -> None:
    _, slot = await scene.running(ZOOM)
    await paused(scene)
    await scene.create()
    await scene.end(slot)
    async with scene.database.transaction() as connection:
        await connection.fetch("SELECT pg_advisory_xact_lock(platform_lock('google-meet'))")
        await scene.pool.slots.make_idle(slot.id, slot.lease)
    assert (await scene.store.slots.get(slot.id)).status is SlotStatus.IDLE


async def test_running_bots_go_on_and_one_whose_launch_fails_waits(scene: Scene) -> None:
    bot, slot = await scene.running()
    failing = (await scene.create()).bot
    await paused(scene)
    await scene.pool.assignments.heartbeat(slot.id, slot.lease)
    on = await scene.slot_of(failing.id)
    await scene.pool.relaunch.fail_launch(
        FailedLaunch(
            slot_id=on.id, lease=on.lease, cause=FailureCause.ENGINE, reason="no", was=on.status
        )
    )
    assert (await scene.store.bots.get(bot.id)).status is BotStatus.IN_CALL
    assert (await scene.store.bots.get(failing.id)).status is BotStatus.QUEUED


async def test_resuming_serves_those_who_wait_in_order_at_once(scene: Scene) -> None:
    await scene.idle()
    await paused(scene)
    late, *waiting = [
        (await scene.create(priority=priority)).bot.id for priority in (200, 100, 100, 100)
    ]
    written = await scene.pool.queue.resume(MEET, by="ops")
    served = [t.bot_id for t in written if t.machine == "bot"]
    assert served == waiting
    assert [entry.bot_id for entry in await scene.queue()] == [late]


async def test_a_newcomer_does_not_overtake_those_who_waited_for_the_end_of_a_pause(
    scene: Scene,
) -> None:
    await scene.idle()
    await paused(scene)
    waiting = [(await scene.create()).bot.id for _ in range(3)]
    newcomers = [asyncio.create_task(scene.create()) for _ in range(5)]
    await scene.pool.queue.resume(MEET, by="ops")
    created = [(await task).bot for task in newcomers]
    served = [await scene.store.bots.get(each) for each in waiting]
    assert {bot.status for bot in served} == {BotStatus.DEPLOYING}
    assert {bot.status for bot in created} == {BotStatus.QUEUED}


async def test_a_deadline_runs_on_while_its_pool_is_paused(scene: Scene) -> None:
    await scene.idle()
    await paused(scene)
    bot = (await scene.create(queue_timeout_ms=60_000)).bot
    await scene.pass_time(seconds=61)
    await scene.pool.queue.expire()
    ended = await scene.store.bots.get(bot.id)
    assert ended.failure_cause is FailureCause.QUEUE_TIMEOUT
    assert "paused" in (ended.failure_reason or "")
    assert await scene.pool.queue.resume(MEET, by="ops") != []
    assert (await scene.store.bots.get(bot.id)).status is BotStatus.FATAL


async def test_a_pause_is_recorded_once_and_outlives_a_restart(scene: Scene) -> None:
    await scene.pool.queue.pause(MEET, by="ops", reason="a bad image")
    since = await scene.store.installation.now()
    await scene.pass_time(minutes=5)
    await scene.pool.queue.pause(MEET, by="another", reason="again")
    again = Pool(Store(scene.database), Settings(max_pool_size=3))
    await again.queue.configure()
    meet = next(each for each in await scene.store.pools.numbers() if each.platform is MEET)
    assert (meet.paused_at, meet.paused_by, meet.pause_reason) == (since, "ops", "a bad image")
    assert (meet.pause or "").endswith(" by ops (a bad image): its bots wait.")
    assert [t.to_status for t in await again.queue.resume(MEET, by="ops")] == ["open"]
    assert await again.queue.resume(MEET, by="ops") == []


async def test_no_slot_is_kept_warm_while_its_pool_is_paused(database: Database) -> None:
    store = Store(database)
    pool = Pool(store, Settings(max_pool_size=3, warm_slots="2"))
    scene = Scene(database, store, pool)
    await pool.queue.configure()
    await scene.add_host()
    await paused(scene)
    await pool.queue.assign_waiting(MEET)
    assert await store.slots.all() == []
    await pool.queue.resume(MEET, by="ops")
    await pool.queue.assign_waiting(MEET)
    assert len(await store.slots.all()) == 2


async def test_an_admin_pauses_and_resumes_a_pool_over_http(database: Database) -> None:
    async with opened(database) as api:
        await api.store.replicas.seen("w", ReplicaRole.WORKER, "1", "here")
        answer = await api.admin.post("/api/v1/pools/google-meet/pause", json={"reason": "why"})
        assert answer.status_code == 200
        assert (answer.json()["pauseReason"], answer.json()["pausedBy"]) == ("why", "admin")
        bot = (await api.ask()).json()["bot"]
        told = (await api.alice.get(f"/api/v1/bots/{bot['id']}")).json()
        assert (told["status"], told["waitingFor"]["what"]) == ("QUEUED", "paused")
        assert told["waitingFor"]["detail"] == "launches of its platform are paused"
        seen = (await api.admin.get(f"/api/v1/bots/{bot['id']}")).json()
        assert seen["waitingFor"]["detail"] == "launches of google-meet are paused: why"
        pools = (await api.admin.get("/api/v1/pool")).json()["platforms"]
        assert [p["platform"] for p in pools if p["pausedAt"]] == ["google-meet"]
        assert (await api.alice.post("/api/v1/pools/zoom/pause")).status_code == 403
        assert (await api.admin.post("/api/v1/pools/skype/pause")).status_code == 422
        assert (await api.admin.post("/api/v1/pools/google-meet/resume")).json()["pausedAt"] is None
        assert (await api.alice.get(f"/api/v1/bots/{bot['id']}")).json()["status"] == "DEPLOYING"


async def test_readers_of_the_stream_are_told_of_a_pause_but_clients_are_not(
    scene: Scene,
) -> None:
    await paused(scene)
    await scene.create()
    page = await scene.store.events.read(0, 0, 100)
    assert [(row.event.type, row.project_id) for row in page.rows] == [
        ("pool.status_changed", None),
        ("bot.status_changed", 1),
    ]
    assert page.rows[0].event.data["details"] == {"by": "ops"}
