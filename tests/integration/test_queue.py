"""The queue: its order, its deadlines, and what it promises about the wait."""

from __future__ import annotations

import asyncio

import pytest

from botpool.errors import BotNotFound
from botpool.models.assignments import FailedLaunch
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.states import (
    BOT_RELAUNCHABLE,
    BotStatus,
    FailureCause,
    Platform,
    SlotStatus,
)
from botpool.store.invariants import broken_invariants
from botpool.store.queries import named_queries
from tests.support.scene import Scene, new_bot

pytestmark = pytest.mark.older_postgres


async def full(scene: Scene) -> list[int]:
    """Bots on every slot that there can be."""
    return [(await scene.create()).bot.id for _ in range(3)]


async def free(scene: Scene, bot_id: int) -> str:
    """End a bot and free its slot; the name of the slot."""
    slot = await scene.slot_of(bot_id)
    await scene.end(slot)
    await scene.pool.slots.make_idle(slot.id, slot.lease)
    return slot.slot_name


async def test_a_slot_that_becomes_idle_goes_to_the_first_who_waits_in_the_same_transaction(
    scene: Scene,
) -> None:
    first, *_ = await full(scene)
    waiting = await scene.create()
    slot = await scene.slot_of(first)
    await scene.end(slot)
    freed = await scene.pool.slots.make_idle(slot.id, slot.lease)
    assert [(t.machine, t.from_status, t.to_status, t.bot_id, t.lease) for t in freed] == [
        ("slot", "releasing", "idle", first, 1),
        ("slot", "idle", "deploying", waiting.bot.id, 2),
        ("bot", "QUEUED", "DEPLOYING", waiting.bot.id, 2),
    ]
    assert len({t.at for t in freed}) == 1


async def test_a_lower_priority_number_is_first_then_the_time(scene: Scene) -> None:
    running = await full(scene)
    names = {}
    for name, priority in (("late", 200), ("a", 100), ("b", 100), ("urgent", 1)):
        await scene.pass_time(seconds=1)
        names[(await scene.create(priority=priority)).bot.id] = name
    order = await scene.queue()
    assert [(names[entry.bot_id], entry.position) for entry in order] == [
        ("urgent", 1),
        ("a", 2),
        ("b", 3),
        ("late", 4),
    ]
    served = []
    for bot_id in running:
        slot = await scene.slot_of(bot_id)
        await scene.end(slot)
        await scene.pool.slots.make_idle(slot.id, slot.lease)
        served.append(names[(await scene.store.slots.get(slot.id)).assigned_bot_id or 0])
    assert served == ["urgent", "a", "b"]


async def test_a_place_is_exact_whoever_joins_and_leaves(scene: Scene) -> None:
    """Also where the ids of those who wait go over into the next block of 1,024."""
    running = await full(scene)
    await scene.database.execute("ALTER SEQUENCE bots_id_seq RESTART 1022")
    waiting = [(await scene.create(priority=n % 2)).bot.id for n in range(8)]
    order = [*waiting[::2], *waiting[1::2]]

    async def check() -> None:
        assert [(e.bot_id, e.position) for e in await scene.queue()] == [
            (bot_id, n) for n, bot_id in enumerate(order, 1)
        ]
        for position, bot_id in enumerate(order, 1):
            place = await scene.store.queue.place(bot_id)
            assert place is not None
            assert place.position == position

    await check()
    for stopped in (order[1], order[5]):
        await scene.pool.assignments.stop_bot(stopped)
        order.remove(stopped)
    await check()
    await free(scene, running[0])
    served = order.pop(0)
    await check()
    slot = await scene.slot_of(served)
    await scene.pool.relaunch.fail_launch(
        FailedLaunch(slot_id=slot.id, lease=slot.lease, cause=FailureCause.ENGINE, reason="broken")
    )
    order.insert(0, served)
    await check()
    newcomers = await asyncio.gather(*(scene.create(priority=n % 2) for n in range(4)))
    assert [created.queue_position for created in newcomers] == [4, 9, 5, 10]


async def test_what_joins_and_leaves_is_added_up_before_it_is_much(scene: Scene) -> None:
    await full(scene)
    for _ in range(80):
        bot_id = (await scene.create()).bot.id
        await scene.pool.assignments.stop_bot(bot_id)
    row = await scene.database.fetch_one("SELECT count(*) AS rows FROM queue_changes")
    assert row is not None
    assert row["rows"] <= 101
    assert await broken_invariants(scene.database) == []


async def test_the_safety_net_adds_up_what_only_left(scene: Scene) -> None:
    await full(scene)
    bots = await asyncio.gather(*(scene.create() for _ in range(110)))
    for created in bots:
        await scene.pool.assignments.stop_bot(created.bot.id)
    assert await scene.database.fetch("SELECT FROM queue_changes") != []
    await scene.pool.queue.assign_waiting(Platform.GOOGLE_MEET)
    assert await scene.database.fetch("SELECT FROM waiting_bots") == []


async def test_slots_that_become_idle_at_once_do_not_wait_for_each_other(scene: Scene) -> None:
    first, second, _ = await full(scene)
    waiting = [(await scene.create()).bot.id for _ in range(2)]
    slots = [await scene.slot_of(first), await scene.slot_of(second)]
    for slot in slots:
        await scene.end(slot)
    async with scene.database.transaction() as connection:
        await connection.fetch(
            named_queries("slots")["make_idle"],
            *([slots[0].id], [slots[0].lease], "releasing", "container stopped"),
        )
        await scene.pool.slots.make_idle(slots[1].id, slots[1].lease)
        assert (await scene.store.slots.get(slots[1].id)).assigned_bot_id == waiting[1]


async def idle_beside_the_queue(scene: Scene) -> tuple[int, int]:
    """A bot that waits, and a slot that is idle all the same: what a killed process can leave."""
    first, *_ = await full(scene)
    waiting = await scene.create()
    slot = await scene.slot_of(first)
    await scene.end(slot)
    await scene.database.execute("UPDATE bot_pool_slots SET status = 'idle' WHERE id = $1", slot.id)
    await scene.database.execute(
        "INSERT INTO transitions (at, machine, platform, from_status, to_status, slot_id, reason)"
        " VALUES (botpool_now(), 'slot', 'google-meet', 'releasing', 'idle', $1, 'by hand')",
        slot.id,
    )
    return waiting.bot.id, slot.id


async def test_a_newcomer_never_overtakes_the_queue(scene: Scene) -> None:
    waiting, slot_id = await idle_beside_the_queue(scene)
    newcomer = await scene.create()
    assert (newcomer.bot.status, newcomer.queue_position) == (BotStatus.QUEUED, 1)
    assert (await scene.store.slots.get(slot_id)).assigned_bot_id == waiting


async def test_a_newcomer_does_not_overtake_when_the_clock_is_set_back(scene: Scene) -> None:
    await full(scene)
    waiting = await scene.create()
    await scene.pass_time(seconds=-10)
    newcomer = await scene.create()
    assert newcomer.queue_position == 2
    assert [entry.bot_id for entry in await scene.queue()] == [waiting.bot.id, newcomer.bot.id]


async def test_a_newcomer_does_not_overtake_one_whose_place_is_locked(scene: Scene) -> None:
    """Whoever has locked it may yet give it up."""
    waiting, slot_id = await idle_beside_the_queue(scene)
    async with scene.database.transaction() as connection:
        await connection.execute("SELECT FROM bot_pool_queue WHERE bot_id = $1 FOR UPDATE", waiting)
        newcomer = await scene.create()
        assert (newcomer.bot.status, newcomer.queue_position) == (BotStatus.QUEUED, 2)
    await scene.pool.queue.assign_waiting(Platform.GOOGLE_MEET)
    assert (await scene.store.slots.get(slot_id)).assigned_bot_id == waiting


async def test_every_slot_that_becomes_idle_serves_another_bot(scene: Scene) -> None:
    running = await full(scene)
    waiting = {(await scene.create()).bot.id for _ in range(3)}
    pools = [Pool(scene.store, Settings()) for _ in running]
    slots = [await scene.slot_of(bot_id) for bot_id in running]
    for slot in slots:
        await scene.end(slot)
    await asyncio.gather(
        *(
            pool.slots.make_idle(slot.id, slot.lease)
            for pool, slot in zip(pools, slots, strict=True)
        )
    )
    await scene.pool.queue.assign_waiting(Platform.GOOGLE_MEET)
    assert {slot.assigned_bot_id for slot in await scene.store.slots.all()} == waiting


async def test_a_bot_that_joins_the_queue_while_a_slot_becomes_idle_gets_it(scene: Scene) -> None:
    """Neither may miss the other: the lock of the platform keeps them apart."""
    for _ in range(20):
        running = await full(scene)
        pools = [Pool(scene.store, Settings()) for _ in range(6)]
        slots = [await scene.slot_of(bot_id) for bot_id in running]
        for slot in slots:
            await scene.end(slot)
        freeing = (p.slots.make_idle(s.id, s.lease) for p, s in zip(pools[:3], slots, strict=True))
        creating = (pool.creation.create_bot(new_bot()) for pool in pools[3:])
        await asyncio.gather(
            *(call for pair in zip(freeing, creating, strict=True) for call in pair)
        )
        assert await broken_invariants(scene.database) == []
        assert {slot.status for slot in await scene.store.slots.all()} == {SlotStatus.DEPLOYING}
        for slot in await scene.store.slots.all():
            await scene.end(slot)
            await scene.pool.slots.make_idle(slot.id, slot.lease)


async def test_a_slot_that_is_deleted_makes_room_for_one_who_waits(scene: Scene) -> None:
    first, *_ = await full(scene)
    waiting = await scene.create()
    slot = await scene.slot_of(first)
    await scene.delete(slot)
    assert (await scene.slot_of(waiting.bot.id)).slot_name == slot.slot_name


async def test_who_waits_past_its_deadline_ends_with_the_cause(scene: Scene) -> None:
    await full(scene)
    short = await scene.create(queue_timeout_ms=1000)
    long = await scene.create(queue_timeout_ms=5000)
    await scene.pass_time(milliseconds=999)
    assert await scene.pool.queue.expire() == []
    await scene.pass_time(milliseconds=1)
    (expired,) = await scene.pool.queue.expire()
    bot = await scene.store.bots.get(short.bot.id)
    assert (bot.status, bot.failure_cause) == (BotStatus.FATAL, FailureCause.QUEUE_TIMEOUT)
    assert bot.failure_reason == "no slot became free within 1 s"
    assert bot.ended_at == expired.at
    assert expired.details["failureCause"] == "queue_timeout"
    place = await scene.store.queue.place(long.bot.id)
    assert place is not None
    assert place.position == 1


async def test_a_slot_is_not_given_to_a_bot_past_its_deadline(scene: Scene) -> None:
    first, *_ = await full(scene)
    overdue = await scene.create(queue_timeout_ms=1000)
    patient = await scene.create()
    await scene.pass_time(seconds=1)
    slot_name = await free(scene, first)
    assert (await scene.store.bots.get(patient.bot.id)).slot_name == slot_name
    await scene.pool.queue.expire()
    assert (await scene.store.bots.get(overdue.bot.id)).status is BotStatus.FATAL


async def test_a_newcomer_passes_a_bot_that_is_past_its_deadline(scene: Scene) -> None:
    first, *_ = await full(scene)
    await scene.create(queue_timeout_ms=1000)
    await scene.pass_time(seconds=1)
    slot_name = await free(scene, first)
    assert (await scene.create()).bot.slot_name == slot_name


async def test_the_estimated_wait_is_absent_while_nothing_is_known(scene: Scene) -> None:
    await full(scene)
    created = await scene.create()
    assert (created.queue_position, created.estimated_wait_ms) == (1, None)
    place = await scene.store.queue.place(created.bot.id)
    assert place is not None
    assert place.estimated_wait_ms is None


async def test_the_estimated_wait_comes_from_how_long_slots_were_really_held(scene: Scene) -> None:
    """Three slots, each held for 60 s: one becomes free every 20 s."""
    running = await full(scene)
    await scene.create(Platform.ZOOM)
    await scene.pass_time(seconds=60)
    for bot_id in running:
        await free(scene, bot_id)
    running = await full(scene)
    waits = [(await scene.create()).estimated_wait_ms for _ in range(3)]
    assert waits == [20_000, 40_000, 60_000]
    (entry,) = (await scene.queue())[2:]
    await free(scene, running[0])
    place = await scene.store.queue.place(entry.bot_id)
    assert place is not None
    # Four holds are known now: three of 60 s and one of no time.
    assert (place.position, place.estimated_wait_ms) == (2, 30_000)


async def test_a_waiting_bot_that_is_stopped_is_cancelled(scene: Scene) -> None:
    await full(scene)
    waiting = await scene.create()
    (stopped,) = await scene.pool.assignments.stop_bot(waiting.bot.id, "not needed")
    assert (stopped.from_status, stopped.to_status, stopped.reason) == (
        "QUEUED",
        "CANCELLED",
        "not needed",
    )
    assert await scene.queue() == []
    assert await scene.pool.assignments.stop_bot(waiting.bot.id) == []


async def test_a_bot_that_deploys_and_is_stopped_is_cancelled_and_its_slot_released(
    scene: Scene,
) -> None:
    bot = (await scene.create()).bot
    slot = await scene.slot_of(bot.id)
    await scene.pass_time(seconds=2)
    released, cancelled = await scene.pool.assignments.stop_bot(bot.id)
    assert (released.slot_id, released.to_status) == (slot.id, "releasing")
    assert released.details == {"botStatus": "CANCELLED", "heldMs": 2000}
    assert (cancelled.machine, cancelled.to_status) == ("bot", "CANCELLED")


async def test_a_bot_in_its_call_that_is_stopped_is_told_to_leave(scene: Scene) -> None:
    bot, slot = await scene.running()
    (told,) = await scene.pool.assignments.stop_bot(bot.id)
    assert (told.from_status, told.to_status) == ("IN_CALL", "LEAVING")
    assert (await scene.store.slots.get(slot.id)).status is SlotStatus.BUSY
    assert (
        await scene.pool.assignments.heartbeat(slot.id, slot.lease)
    ).bot_status is BotStatus.LEAVING
    assert await scene.pool.assignments.stop_bot(bot.id) == []


async def test_a_bot_that_moves_while_it_is_stopped_is_followed(scene: Scene) -> None:
    """It is on a slot when the stop begins, and in the queue when the stop gets the slot."""
    first, *_ = await full(scene)
    slot = await scene.slot_of(first)
    async with scene.database.transaction() as connection:
        await connection.fetch(
            named_queries("slots")["relaunch"],
            FailedLaunch(
                slot_id=slot.id,
                lease=slot.lease,
                cause=FailureCause.ENGINE,
                reason="it did not start",
            ),
            list(BOT_RELAUNCHABLE),
            2,
        )
        stop = asyncio.create_task(scene.pool.assignments.stop_bot(first))
        await scene.until_blocked(stop)
    (stopped,) = await stop
    assert (stopped.from_status, stopped.to_status) == ("QUEUED", "CANCELLED")
    assert await scene.queue() == []


async def test_a_bot_that_does_not_exist_cannot_be_stopped(scene: Scene) -> None:
    with pytest.raises(BotNotFound, match="There is no bot 4711"):
        await scene.pool.assignments.stop_bot(4711)


async def test_stopping_and_assigning_at_once_never_leaves_a_bot_between_places(
    scene: Scene,
) -> None:
    for _ in range(20):
        running = await full(scene)
        waiting = (await scene.create()).bot.id
        slot = await scene.slot_of(running[0])
        await scene.end(slot)
        await asyncio.gather(
            scene.pool.slots.make_idle(slot.id, slot.lease),
            Pool(scene.store, Settings()).assignments.stop_bot(waiting),
        )
        assert (await scene.store.bots.get(waiting)).status is BotStatus.CANCELLED
        assert await broken_invariants(scene.database) == []
        for one in await scene.store.slots.all():
            if one.assigned_bot_id:
                await scene.pool.assignments.stop_bot(one.assigned_bot_id)
            if one.status is not SlotStatus.IDLE:
                await scene.pool.slots.make_idle(one.id, one.lease)


async def test_a_bot_that_is_launched_again_keeps_its_place_among_those_created_with_it(
    scene: Scene,
) -> None:
    bots = await asyncio.gather(
        *(scene.pool.creation.create_bot(new_bot(queue_timeout_ms=0)) for _ in range(6))
    )
    assert len({created.bot.created_at for created in bots}) < 6
    first = next(created.bot for created in bots if created.bot.status is BotStatus.DEPLOYING)
    slot = await scene.slot_of(first.id)
    await scene.pool.relaunch.fail_launch(
        FailedLaunch(slot_id=slot.id, lease=slot.lease, cause=FailureCause.ENGINE, reason="broken")
    )
    assert [entry.bot_id for entry in await scene.queue()] == [
        first.id,
        *(created.bot.id for created in bots if created.bot.status is BotStatus.QUEUED),
    ]
