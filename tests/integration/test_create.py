"""Creating bots: the idle slot least recently used, or a new one, or a place in the queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from botpool.errors import InvalidRequest, TransitionRefused
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.states import BotStatus, Platform, SlotStatus
from botpool.store import Store
from tests.support.scene import Scene, new_bot

if TYPE_CHECKING:
    from botpool.models.bots import CreatedBot
    from botpool.store import Database

pytestmark = pytest.mark.older_postgres


async def crowd(scene: Scene, size: int, max_size: int, platform: Platform) -> list[CreatedBot]:
    pool = Pool(scene.store, Settings(max_pool_size=max_size))
    await pool.queue.configure()
    return await asyncio.gather(*(pool.creation.create_bot(new_bot(platform)) for _ in range(size)))


async def test_ten_at_once_on_an_empty_table_get_ten_slots_with_ten_names(scene: Scene) -> None:
    created = await crowd(scene, 10, 100, Platform.GOOGLE_MEET)
    assert sorted(str(one.bot.slot_name) for one in created) == [
        f"pool-google-meet-{number:03}" for number in range(1, 11)
    ]
    assert {one.bot.status for one in created} == {BotStatus.DEPLOYING}


async def test_ten_pools_at_once_on_an_empty_table_make_ten_slots(scene: Scene) -> None:
    """Nothing is combined here: every creation is a transaction of its own, against the others."""
    pools = [Pool(scene.store, Settings()) for _ in range(10)]
    await pools[0].queue.configure()
    created = await asyncio.gather(*(pool.creation.create_bot(new_bot()) for pool in pools))
    assert len({one.bot.slot_name for one in created}) == 10


async def test_what_is_returned_is_what_was_written(scene: Scene) -> None:
    changes: dict[str, Any] = {
        "priority": 7,
        "metadata": {"team": "a", "n": [1, None]},
        "config": {"sample": {"stayMs": 1}},
        "correlation_id": "trace-1",
    }
    await scene.idle()
    for created in [
        await scene.create(**changes),
        *[await scene.create(**changes) for _ in range(3)],
    ]:
        assert created.bot == await scene.store.bots.get(created.bot.id)
    assert created.queue_position == 1


async def test_the_idle_slot_least_recently_used_is_taken(scene: Scene) -> None:
    slots = [await scene.slot_of((await scene.create()).bot.id) for _ in range(3)]
    for slot in (slots[1], slots[2], slots[0]):
        await scene.end(slot)
        await scene.pool.slots.make_idle(slot.id, slot.lease)
    await scene.pass_time(seconds=1)
    assert [(await scene.create()).bot.slot_name for _ in range(3)] == [s.slot_name for s in slots]


async def test_an_idle_slot_is_taken_before_the_pool_grows(scene: Scene) -> None:
    slot = await scene.idle()
    assert (await scene.create()).bot.slot_name == slot.slot_name
    assert len(await scene.store.slots.all()) == 1


async def test_a_bot_of_one_platform_never_gets_a_slot_of_another(scene: Scene) -> None:
    meet = await scene.idle(Platform.GOOGLE_MEET)
    zoom = [await scene.create(Platform.ZOOM) for _ in range(4)]
    assert [one.bot.slot_name for one in zoom] == [
        "pool-zoom-001",
        "pool-zoom-002",
        "pool-zoom-003",
        None,
    ]
    taken = await scene.create(Platform.GOOGLE_MEET)
    slot = await scene.slot_of(taken.bot.id)
    await scene.end(slot)
    await scene.pool.slots.make_idle(slot.id, slot.lease)
    assert (await scene.store.slots.get(meet.id)).status is SlotStatus.IDLE
    assert (await scene.store.bots.get(zoom[3].bot.id)).status is BotStatus.QUEUED


async def test_the_first_gap_in_the_names_is_reused(scene: Scene) -> None:
    bots = [(await scene.create()).bot for _ in range(3)]
    middle = await scene.slot_of(bots[1].id)
    await scene.delete(middle)
    again = await scene.create()
    slot = await scene.slot_of(again.bot.id)
    assert slot.slot_name == "pool-google-meet-002"
    assert (slot.id != middle.id, slot.lease) == (True, 1)


async def test_names_grow_beyond_three_digits(scene: Scene) -> None:
    row = await scene.database.fetch_one("SELECT slot_name('zoom', 7), slot_name('zoom', 1234)")
    assert row is not None
    assert tuple(row) == ("pool-zoom-007", "pool-zoom-1234")


async def test_a_maximum_lowered_below_the_number_of_slots_adds_none(scene: Scene) -> None:
    bots = [(await scene.create()).bot for _ in range(3)]
    first = await scene.slot_of(bots[0].id)
    await scene.delete(first)
    small = Pool(scene.store, Settings(max_pool_size=2))
    await small.queue.configure()
    assert (await small.creation.create_bot(new_bot())).bot.status is BotStatus.QUEUED
    assert len(await scene.store.slots.all()) == 2


async def test_a_maximum_that_is_raised_serves_those_who_wait(scene: Scene) -> None:
    waiting = [await scene.create() for _ in range(5)][3:]
    large = Pool(scene.store, Settings(max_pool_size=4))
    await large.queue.configure()
    assert [(await scene.store.bots.get(one.bot.id)).slot_name for one in waiting] == [
        "pool-google-meet-004",
        None,
    ]
    await scene.pool.assignments.stop_bot(waiting[1].bot.id)


async def test_a_maximum_that_is_lowered_meanwhile_queues_who_comes(scene: Scene) -> None:
    small = Pool(scene.store, Settings(max_pool_size=1))
    creating = [Pool(scene.store, Settings()).creation.create_bot(new_bot()) for _ in range(6)]
    await asyncio.gather(small.queue.configure(), *creating)
    numbers = {row.platform: row for row in await scene.store.pools.numbers()}[Platform.GOOGLE_MEET]
    assert numbers.total + numbers.queued == 6
    await scene.pool.queue.configure()


async def test_an_idle_slot_that_somebody_holds_is_waited_for(scene: Scene) -> None:
    """Who passes it over would wait in the queue beside it."""
    bots = [(await scene.create()).bot for _ in range(3)]
    slot = await scene.slot_of(bots[0].id)
    await scene.end(slot)
    await scene.pool.slots.make_idle(slot.id, slot.lease)
    async with scene.database.transaction() as connection:
        await connection.execute("SELECT FROM bot_pool_slots WHERE id = $1 FOR UPDATE", slot.id)
        creation = asyncio.create_task(scene.create())
        await scene.until_blocked(creation)
    assert (await creation).bot.slot_name == slot.slot_name


async def test_without_a_pool_there_is_no_bot(database: Database) -> None:
    pool = Pool(Store(database), Settings())
    with pytest.raises(TransitionRefused, match="there is no pool of google-meet: configure it"):
        await pool.creation.create_bot(new_bot())


@pytest.mark.parametrize("timeout", [-1, 600_001])
async def test_a_queue_timeout_out_of_bounds_is_refused(scene: Scene, timeout: int) -> None:
    with pytest.raises(InvalidRequest, match="between 0 and 600000 ms"):
        await scene.create(queue_timeout_ms=timeout)
    assert await scene.store.slots.all() == []


async def test_a_value_that_cannot_be_stored_fails_alone(scene: Scene) -> None:
    """Creations that arrive together are written together, but fail apart."""
    good, bad, other = await asyncio.gather(
        scene.create(),
        scene.create(bot_display_name="nul\0byte"),
        scene.create(),
        return_exceptions=True,
    )
    assert isinstance(bad, InvalidRequest)
    assert not isinstance(good, BaseException)
    assert not isinstance(other, BaseException)
    assert {good.bot.slot_name, other.bot.slot_name} == {
        "pool-google-meet-001",
        "pool-google-meet-002",
    }
