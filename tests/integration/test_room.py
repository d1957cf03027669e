"""A pool never grows beyond the room that its hosts have, and no bot waits beside room."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from botpool.errors import HostNotFound
from botpool.models.hosts import HostReport
from botpool.states import BotStatus, Platform
from tests.support.scene import new_bot
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


async def away(scene: Scene, host: str = "here") -> None:
    await scene.pool.hosts.report("process", [HostReport(host=host, capacity=None, open=False)])


async def test_the_idle_slots_of_a_host_that_is_away_get_no_bot_until_it_is_back(
    scene: Scene,
) -> None:
    idle = await scene.idle()
    await scene.add_host("another")
    await away(scene)
    first = await scene.slot_of((await scene.create()).bot.id)
    assert (first.id, first.host) != (idle.id, "here")
    await scene.pool.hosts.drain("process", "another")
    second = (await scene.create()).bot
    assert second.status is BotStatus.QUEUED
    await scene.add_host()
    assert (await scene.slot_of(second.id)).id == idle.id


@pytest.mark.parametrize("then", ["undrained", "healthy"])
async def test_slots_get_no_bot_before_all_is_well_with_their_host(scene: Scene, then: str) -> None:
    """It is drained or unhealthy, and away: the end of the one is not that of the other."""
    await scene.idle()
    hosts = scene.pool.hosts
    if then == "undrained":
        await hosts.drain("process", "here")
        await away(scene)
        await hosts.drain("process", "here", drain=False)
    else:
        await scene.database.execute(
            "UPDATE hosts SET unhealthy_since = botpool_now(), probe_at = botpool_now()"
        )
        await away(scene)
        await hosts.note_healthy("process", "here")
    bot = (await scene.create()).bot
    assert bot.status is BotStatus.QUEUED
    await scene.add_host()
    assert (await scene.store.bots.get(bot.id)).status is BotStatus.DEPLOYING


@pytest.mark.parametrize("closed", ["drained", "away"])
async def test_idle_slots_of_a_host_without_work_do_not_keep_the_pool_from_growing(
    scene: Scene, closed: str
) -> None:
    """The pool is as large as it may be, but for slots that no bot can have."""
    await scene.database.execute("UPDATE pools SET max_size = 2")
    bots = [(await scene.create()).bot for _ in range(2)]
    useless = [await scene.slot_of(bot.id) for bot in bots]
    await scene.end(useless[0])
    await scene.pool.slots.make_idle(useless[0].id, useless[0].lease)
    if closed == "drained":
        await scene.pool.hosts.drain("process", "here")
    else:
        await away(scene)
    # Nobody needs its place: there is no other host yet.
    waiting = [(await scene.create()).bot for _ in range(2)]
    assert len(await scene.store.slots.all()) == 2
    await scene.add_host("another")
    assert (await scene.slot_of(waiting[0].id)).host == "another"
    assert (await scene.store.bots.get(waiting[1].id)).status is BotStatus.QUEUED
    # The other becomes idle, and its place is needed at once.
    await scene.end(useless[1])
    await scene.pool.slots.make_idle(useless[1].id, useless[1].lease)
    assert (await scene.slot_of(waiting[1].id)).host == "another"
    gone = await scene.database.fetch("SELECT reason FROM transitions WHERE to_status IS NULL")
    assert [row["reason"] for row in gone] == [
        "its host gets no new work, and its pool is as large as it may be"
    ] * 2


async def test_a_bot_does_not_wait_for_the_probe_of_a_host_beside_room_on_another(
    scene: Scene,
) -> None:
    await scene.database.execute("UPDATE pools SET max_size = 1")
    await scene.idle()
    await scene.database.execute(
        "UPDATE hosts SET unhealthy_since = botpool_now(), probe_at = botpool_now()"
    )
    await scene.database.execute("SELECT hold_slots('process', 'here')")
    bot = (await scene.create()).bot
    assert bot.status is BotStatus.QUEUED  # its own slot is there to probe it
    await scene.add_host("another")
    assert (await scene.store.bots.get(bot.id)).status is BotStatus.DEPLOYING


async def test_idle_slots_of_a_drained_host_make_way_for_the_probe_of_one_without_slots(
    scene: Scene,
) -> None:
    await scene.database.execute("UPDATE pools SET max_size = 1")
    await scene.idle()
    await scene.pool.hosts.drain("process", "here")
    await scene.add_host("another")
    await scene.database.execute(
        "UPDATE hosts SET unhealthy_since = botpool_now(), probe_at = botpool_now()"
        " WHERE host = 'another'"
    )
    assert (await scene.slot_of((await scene.create()).bot.id)).host == "another"


async def test_a_slot_that_was_put_on_a_host_while_it_was_drained_gets_no_bot(
    scene: Scene,
) -> None:
    idle = await scene.idle()
    await scene.pool.hosts.drain("process", "here")
    await scene.database.execute("UPDATE bot_pool_slots SET held = false")
    await scene.pool.hosts.report("process", [HostReport(host="here", capacity=None, open=None)])
    assert (await scene.store.slots.get(idle.id)).held
    assert (await scene.create()).bot.status is BotStatus.QUEUED


async def test_who_does_not_know_whether_a_host_answers_undoes_nothing_that_is_told_meanwhile(
    scene: Scene,
) -> None:
    async with scene.database.transaction() as connection:
        await connection.execute(
            """SELECT report_hosts('process', '[{"host": "here", "open": false}]')"""
        )
        unsure = HostReport(host="here", capacity=None, open=None)
        report = asyncio.create_task(scene.pool.hosts.report("process", [unsure]))
        await scene.until_blocked(report)
    await report
    (host,) = await scene.store.hosts.all()
    assert not host.open


async def test_a_host_with_more_slots_than_its_limit_takes_no_room_from_others(
    scene: Scene,
) -> None:
    await scene.add_host(capacity=3)
    bots = [(await scene.create(MEET)).bot for _ in range(3)]
    slot = await scene.slot_of(bots[0].id)
    await scene.end(slot)
    await scene.pool.slots.make_idle(slot.id, slot.lease)
    await scene.add_host(capacity=1)
    await scene.add_host("another", capacity=1)
    assert (await scene.slot_of((await scene.create(ZOOM)).bot.id)).host == "another"
    assert len(await scene.store.slots.all()) == 4


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


async def test_nobody_of_another_platform_is_overtaken_by_those_who_wait_for_the_same_room(
    scene: Scene,
) -> None:
    await scene.add_host(capacity=1)
    running = (await scene.create(MEET)).bot
    waiting = [(await scene.create(platform)).bot for platform in (ZOOM, MEET, ZOOM, MEET)]
    served = []
    for _ in waiting:
        slot = await scene.slot_of(running.id)
        await scene.end(slot)
        await scene.pool.slots.make_idle(slot.id, slot.lease)
        (running,) = [
            bot
            for bot in [await scene.store.bots.get(bot.id) for bot in waiting]
            if bot.status is BotStatus.DEPLOYING
        ]
        served.append(running.id)
    assert served == [bot.id for bot in waiting]


async def test_room_for_several_goes_to_all_platforms_in_one_order(scene: Scene) -> None:
    await scene.add_host(capacity=1)
    bots = [(await scene.create(platform)).bot for platform in (MEET, MEET, ZOOM, MEET, ZOOM)]
    await scene.add_host(capacity=3)
    assert [(await scene.store.bots.get(bot.id)).status for bot in bots] == [
        BotStatus.DEPLOYING
    ] * 3 + [BotStatus.QUEUED] * 2


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


async def test_a_host_whose_comparison_hangs_gets_bots_while_a_replica_keeps_it(
    database: Database,
) -> None:
    async with working(database, hosts=("a",)) as works:
        await works.reconciler.compare_once()
        await works.reconciler.keep_hosts()
        await works.pass_time(minutes=11)
        await works.reconciler.keep_hosts()
        assert (await works.create()).bot.status is BotStatus.DEPLOYING


async def test_a_bot_gets_the_room_of_a_host_that_was_given_up_as_soon_as_a_replica_keeps_it(
    database: Database,
) -> None:
    async with working(database, hosts=("a",)) as works:
        await works.reconciler.keep_hosts()
        await works.pass_time(minutes=11)
        bot = (await works.create()).bot
        assert bot.status is BotStatus.QUEUED
        await works.reconciler.keep_hosts()
        assert await statuses(works, [bot]) == [BotStatus.DEPLOYING]


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


async def test_a_host_is_drained_while_several_bots_get_its_slots(scene: Scene) -> None:
    """Whoever drains takes the slots by their id; whoever has bots for them, as it needs them."""
    await scene.add_host(capacity=3)
    slots = [await scene.slot_of((await scene.create()).bot.id) for _ in range(3)]
    for slot in slots:
        await scene.end(slot)
        await scene.pool.slots.make_idle(slot.id, slot.lease)
    async with scene.database.transaction() as connection:
        await connection.fetch("SELECT FROM bot_pool_slots WHERE id = $1 FOR UPDATE", slots[1].id)
        draining = asyncio.create_task(scene.pool.hosts.drain("process", "here"))
        await scene.until_blocked(draining)
        bots = [new_bot(correlation_id=name) for name in ("one", "another")]
        creating = asyncio.create_task(scene.store.bots.create(MEET, bots, grow=True))
        await scene.until_blocked(draining, creating)
    await draining
    written, _ = await creating
    assert [step.to_status for step in written] == [BotStatus.QUEUED] * 2


@pytest.mark.parametrize("again", ["resumed", "configured"])
async def test_a_pool_is_launched_from_again_while_its_idle_slot_makes_way(
    scene: Scene, again: str
) -> None:
    """Whoever serves a queue has the room of all, before anything is written of a pool."""
    await scene.add_host(capacity=1)
    idle = await scene.idle()
    await scene.pool.queue.pause(MEET, by="me")
    waits = (await scene.create()).bot
    if again == "configured":
        resumed = "UPDATE pools SET paused_at = NULL, paused_by = NULL, pause_reason = NULL"
        await scene.database.execute(resumed)
    async with scene.database.transaction() as connection:
        await connection.fetch("SELECT FROM bot_pool_slots WHERE id = $1 FOR UPDATE", idle.id)
        await connection.fetch("SELECT pg_advisory_xact_lock(room_lock('process'))")
        creating = asyncio.create_task(scene.create(ZOOM))
        await scene.until_blocked(creating)
        serving = asyncio.create_task(
            scene.pool.queue.resume(MEET, by="me")
            if again == "resumed"
            else scene.pool.queue.configure()
        )
        await scene.until_blocked(creating, serving)
    await serving
    assert (await creating).bot.status is BotStatus.DEPLOYING
    assert (await scene.store.bots.get(waits.id)).status is BotStatus.QUEUED
