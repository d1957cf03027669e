"""A container on which launches fail again and again is made anew; then its slot is given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from botpool.engines.base import Traits
from botpool.states import BotStatus, SlotStatus
from tests.support.works import container, working

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.models.events import Event
    from botpool.models.slots import Slot
    from botpool.store import Database
    from tests.support.works import Works

pytestmark = pytest.mark.older_postgres

LIKE_COOLIFY = Traits(reusable=True, pulls_at_start=True)


async def launch_well(works: Works) -> None:
    """Let a bot go through its whole life on a slot that is there."""
    bot = await works.launched()
    slot = await works.slot_of(bot.id)
    await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
    await works.end(slot)
    await works.go(seconds=1)


async def fail_on(works: Works, slot: Slot) -> None:
    """Let a launch fail on this slot, while every other slot serves a bot well."""
    while True:
        await works.pass_time(seconds=1)
        bot = (await works.create(max_launch_attempts=1)).bot
        mine = (await works.slot_of(bot.id)).id == slot.id
        await works.reconciler.run_once()
        if mine:
            assert (await works.store.bots.get(bot.id)).status is BotStatus.FATAL
            return
        other = await works.slot_of(bot.id)
        await works.pool.assignments.advance(other.id, other.lease, BotStatus.IN_CALL, "admitted")
        await works.end(other)
        await works.reconciler.run_once()


async def slot_events(works: Works, slot: Slot) -> Sequence[Event]:
    """What happened to a slot, the newest first."""
    return (await works.store.events.of_slot(slot.id, 2**63 - 1, 1000, 2**20)).events


async def two_slots(works: Works) -> tuple[Slot, Slot]:
    """Two idle slots of one host, each with its container."""
    bots = [(await works.create()).bot for _ in range(2)]
    await works.go(seconds=1)
    slots = [await works.slot_of(bot.id) for bot in bots]
    for slot in slots:
        await works.end(slot)
    await works.go(seconds=1)
    first, second = [await works.store.slots.get(slot.id) for slot in slots]
    return first, second


async def test_after_two_failed_launches_a_container_is_made_anew_where_others_succeed(
    database: Database,
) -> None:
    async with working(database, traits=LIKE_COOLIFY, max_pool_size=2) as works:
        slot, _ = await two_slots(works)
        works.engine.ruin(container(slot))
        await fail_on(works, slot)
        once = await works.store.slots.get(slot.id)
        assert (once.container_ref, once.failed_launches) == (slot.container_ref, 1)
        await fail_on(works, slot)
        twice = await works.store.slots.get(slot.id)
        assert twice.container_ref != slot.container_ref
        assert (twice.status, twice.failed_launches, twice.remakes) == (SlotStatus.IDLE, 0, 1)
        assert container(slot) not in works.engine.containers()
        told = (await slot_events(works, slot))[1].data
        assert told["reason"] == (
            "container created again: launches failed on the old one, in a row: 2"
        )
        assert told["details"] == {
            "oldContainerRef": slot.container_ref,
            "newContainerRef": twice.container_ref,
            "attempt": 2,
        }


async def test_a_bot_that_is_heard_in_the_new_container_lets_the_past_be_forgotten(
    database: Database,
) -> None:
    async with working(database, traits=LIKE_COOLIFY, max_pool_size=2) as works:
        slot, _ = await two_slots(works)
        works.engine.ruin(container(slot))
        await fail_on(works, slot)
        await fail_on(works, slot)
        await launch_well(works)
        await launch_well(works)
        now = await works.store.slots.get(slot.id)
        assert (now.failed_launches, now.failing_since, now.remakes) == (0, None, 0)


async def test_a_container_is_kept_where_nothing_succeeds(database: Database) -> None:
    async with working(database, traits=LIKE_COOLIFY, max_pool_size=2, host_failures=50) as works:
        slots = await two_slots(works)
        for slot in slots:
            works.engine.ruin(container(slot))
        for _ in range(8):
            await works.pass_time(seconds=1)
            await works.launched(max_launch_attempts=1)
        for slot in slots:
            now = await works.store.slots.get(slot.id)
            assert (now.container_ref, now.failed_launches) == (slot.container_ref, 4)


async def test_the_only_container_of_a_host_is_made_anew(database: Database) -> None:
    async with working(database, traits=LIKE_COOLIFY, max_pool_size=1) as works:
        slot = await works.warm()
        works.engine.ruin(container(slot))
        for _ in range(2):
            await works.pass_time(seconds=1)
            await works.launched(max_launch_attempts=1)
        bot = await works.launched()
        assert bot.status is BotStatus.JOINING_CALL


async def test_a_slot_whose_container_was_made_anew_three_times_in_vain_is_deleted(
    database: Database,
) -> None:
    async with working(database, traits=LIKE_COOLIFY, max_pool_size=2, host_failures=50) as works:
        slot, _ = await two_slots(works)
        for _ in range(4):
            now = await works.store.slots.get(slot.id)
            works.engine.ruin(container(now))
            await fail_on(works, slot)
            await fail_on(works, slot)
        assert await works.store.slots.find(slot.id) is None
        assert (await slot_events(works, slot))[0].data["reason"] == (
            "launches failed on each of its last 4 containers"
        )
        assert len(works.engine.containers()) == 1
