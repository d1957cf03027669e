"""A pool never grows beyond the room that its hosts have, and no bot waits beside room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from botpool.errors import HostNotFound
from botpool.models.hosts import HostReport
from botpool.states import BotStatus, Platform
from tests.support.works import new_reconciler, working

if TYPE_CHECKING:
    from botpool.models.bots import Bot
    from botpool.store import Database
    from tests.support.scene import Scene
    from tests.support.works import Works

pytestmark = pytest.mark.older_postgres

MEET, ZOOM = Platform.GOOGLE_MEET, Platform.ZOOM


async def statuses(works: Works, bots: list[Bot]) -> list[BotStatus]:
    return [(await works.store.bots.get(bot.id)).status for bot in bots]


async def test_bots_that_find_no_room_wait_in_the_queue_and_are_not_overtaken(
    database: Database,
) -> None:
    """Four bots on a host with room for two, and a fifth later: they are served in order."""
    async with working(database, max_slots_per_host=2) as works:
        bots = [await works.launched() for _ in range(4)]
        assert await statuses(works, bots) == [BotStatus.JOINING_CALL] * 2 + [BotStatus.QUEUED] * 2
        fifth = (await works.create()).bot
        assert fifth.status is BotStatus.QUEUED
        for done in bots[:2]:
            await works.end(await works.slot_of(done.id))
        await works.reconciler.run_once()
        assert await statuses(works, [*bots[2:], fifth]) == [
            BotStatus.JOINING_CALL,
            BotStatus.JOINING_CALL,
            BotStatus.QUEUED,
        ]
        assert len(await works.store.slots.all()) == 2


async def test_all_platforms_share_the_room_of_a_host(scene: Scene) -> None:
    await scene.add_host(capacity=2)
    placed = [(await scene.create(platform)).bot.status for platform in (MEET, ZOOM, MEET, ZOOM)]
    assert placed == [BotStatus.DEPLOYING] * 2 + [BotStatus.QUEUED] * 2


async def test_room_that_appears_serves_the_queue_at_once(scene: Scene) -> None:
    await scene.add_host(capacity=1)
    waiting = [(await scene.create()).bot for _ in range(3)][1:]
    await scene.add_host("another", capacity=1)
    await scene.add_host(capacity=2)
    assert [(await scene.store.bots.get(bot.id)).status for bot in waiting] == [
        BotStatus.DEPLOYING
    ] * 2
    hosts = [slot.host for slot in await scene.store.slots.all()]
    assert hosts == ["here", "another", "here"]


async def test_a_host_that_is_away_has_no_room_until_it_is_back(scene: Scene) -> None:
    away = HostReport(host="here", capacity=None, open=False)
    await scene.pool.hosts.report("process", [away])
    bot = (await scene.create()).bot
    assert bot.status is BotStatus.QUEUED
    await scene.add_host()
    assert (await scene.store.bots.get(bot.id)).status is BotStatus.DEPLOYING


async def test_a_drained_host_gets_no_new_work_until_it_is_undrained(scene: Scene) -> None:
    idle = await scene.idle()
    await scene.pool.hosts.drain("process", "here")
    bot = (await scene.create()).bot
    assert bot.status is BotStatus.QUEUED
    host = await scene.pool.hosts.drain("process", "here", drain=False)
    assert (host.drained_at, host.slots) == (None, 1)
    assert (await scene.slot_of(bot.id)).id == idle.id


async def test_a_host_that_does_not_exist_can_t_be_drained(scene: Scene) -> None:
    with pytest.raises(HostNotFound, match="There is no host nowhere of the engine process"):
        await scene.pool.hosts.drain("process", "nowhere")


async def test_an_idle_slot_makes_way_for_another_platform_that_has_no_room(scene: Scene) -> None:
    await scene.add_host(capacity=2)
    bots = [(await scene.create(MEET)).bot for _ in range(2)]
    slots = [await scene.slot_of(bot.id) for bot in bots]
    for slot in reversed(slots):
        await scene.pass_time(seconds=1)
        await scene.end(slot)
        await scene.pool.slots.make_idle(slot.id, slot.lease)
    bot = (await scene.create(ZOOM)).bot
    assert bot.status is BotStatus.DEPLOYING
    left = [slot.slot_name for slot in await scene.store.slots.all()]
    assert left == ["pool-google-meet-002", "pool-zoom-001"]
    (gone,) = await scene.database.fetch("SELECT reason FROM transitions WHERE to_status IS NULL")
    assert gone["reason"] == "its room was needed for zoom"


async def test_a_slot_that_is_kept_warm_makes_no_way(scene: Scene) -> None:
    await scene.add_host(capacity=1)
    await scene.idle(MEET)
    await scene.database.execute("UPDATE pools SET warm = 1 WHERE platform = 'google-meet'")
    assert (await scene.create(ZOOM)).bot.status is BotStatus.QUEUED


async def test_bots_are_spread_by_what_runs_on_hosts(scene: Scene) -> None:
    """Two hosts with idle slots: four bots run two and two, whichever slots were used last."""
    await scene.database.execute("UPDATE pools SET max_size = 10")
    await scene.add_host("another")
    bots = [(await scene.create()).bot for _ in range(10)]
    slots = [await scene.slot_of(bot.id) for bot in bots]
    for slot in sorted(slots, key=lambda slot: str(slot.host)):
        await scene.pass_time(seconds=1)
        await scene.end(slot)
        await scene.pool.slots.make_idle(slot.id, slot.lease)
    chosen = [(await scene.slot_of((await scene.create()).bot.id)).host for _ in range(4)]
    assert sorted(map(str, chosen)) == ["another", "another", "here", "here"]


async def test_a_host_that_no_replica_has_compared_for_long_gets_no_new_slot(
    database: Database,
) -> None:
    async with working(database, hosts=("a", "b")) as works:
        await works.reconciler.compare_once()
        await works.pass_time(minutes=11)
        await works.database.execute(
            "UPDATE duties SET due_at = botpool_now() WHERE name = 'compare simulated/b'"
        )
        slots = [await works.slot_of((await works.create()).bot.id) for _ in range(2)]
        assert [slot.host for slot in slots] == ["b", "b"]


async def test_hosts_of_an_engine_that_new_slots_are_not_on_are_not_told_of(
    database: Database,
) -> None:
    async with working(database) as works:
        other = await new_reconciler(
            works.store,
            works.pool,
            works.engine,
            works.settings.model_copy(update={"engine": "process"}),
        )
        await works.database.execute("DELETE FROM hosts")
        await other.compare_once()
        assert await works.store.hosts.all() == []
