"""So many slots are kept made and idle as the settings say."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from botpool.engines.base import ContainerState, Traits
from botpool.errors import EngineRefused
from botpool.states import BotStatus, Platform, SlotStatus
from tests.support.works import container, working

if TYPE_CHECKING:
    from botpool.models.slots import Slot
    from botpool.store import Database
    from tests.support.works import Works

pytestmark = pytest.mark.older_postgres


async def keep(works: Works) -> list[Slot]:
    """Look after the queue once, make what is due, and return every slot."""
    for platform in Platform:
        await works.pool.queue.assign_waiting(platform)
    await works.reconciler.run_once()
    return await works.store.slots.all()


async def test_warm_slots_are_made_idle_and_ready(database: Database) -> None:
    async with working(database, warm_slots="google-meet=2,zoom=1") as works:
        works.engine.add_image("a", "bot:1")
        slots = await keep(works)
        assert Counter(slot.platform for slot in slots) == {
            Platform.GOOGLE_MEET: 2,
            Platform.ZOOM: 1,
        }
        assert {slot.status for slot in slots} == {SlotStatus.IDLE}
        assert {works.engine.state(container(slot)) for slot in slots} == {ContainerState.CREATED}
        assert works.engine.counts["start"] == 0
        assert len(await keep(works)) == 3


async def test_a_bot_takes_a_warm_slot_and_another_one_is_made(database: Database) -> None:
    async with working(database, warm_slots="1") as works:
        works.engine.add_image("a", "bot:1")
        await keep(works)
        created = works.engine.counts["create"]
        bot = await works.launched(Platform.ZOOM)
        assert bot.status is BotStatus.JOINING_CALL
        assert works.engine.counts["create"] == created
        slots = [slot for slot in await keep(works) if slot.platform is Platform.ZOOM]
        assert sorted(slot.status for slot in slots) == [SlotStatus.BUSY, SlotStatus.IDLE]


async def test_warm_slots_stay_within_the_room_of_hosts_and_are_spread(database: Database) -> None:
    async with working(
        database, hosts=("a", "b"), warm_slots="google-meet=9", max_slots_per_host=3
    ) as works:
        slots = await keep(works)
        assert Counter(slot.host for slot in slots) == {"a": 3, "b": 3}


async def test_a_warm_slot_gets_the_room_of_an_idle_one_that_nobody_keeps(
    database: Database,
) -> None:
    async with working(database, warm_slots="zoom=1", max_slots_per_host=2) as works:
        bots = [await works.launched() for _ in range(2)]
        for bot in bots:
            await works.end(await works.slot_of(bot.id))
        await works.reconciler.run_once()
        assert [slot.status for slot in await works.store.slots.all()] == [SlotStatus.IDLE] * 2
        assert [slot.platform for slot in await keep(works)] == [
            Platform.GOOGLE_MEET,
            Platform.ZOOM,
        ]


async def test_warm_slots_that_no_bot_can_have_are_made_elsewhere(database: Database) -> None:
    """The pool is as large as it may be, and its idle slots are on a host that is drained."""
    async with working(
        database, hosts=("a", "b"), warm_slots="google-meet=2", max_pool_size=2
    ) as works:
        await works.pool.hosts.drain("simulated", "b")
        assert [slot.host for slot in await keep(works)] == ["a", "a"]
        await works.pool.hosts.drain("simulated", "b", drain=False)
        await works.pool.hosts.drain("simulated", "a")
        assert [slot.host for slot in await keep(works)] == ["b", "b"]


async def test_warm_slots_stay_within_the_maximum(database: Database) -> None:
    async with working(database, warm_slots="google-meet=9", max_pool_size=4) as works:
        assert len(await keep(works)) == 4


async def test_no_slot_is_made_for_later_while_a_bot_waits(database: Database) -> None:
    async with working(database, warm_slots="5", max_slots_per_host=2) as works:
        for _ in range(3):
            await works.create()
        slots = await keep(works)
        assert [slot.status for slot in slots] == [SlotStatus.BUSY] * 2


async def test_a_warm_slot_gets_its_container_when_its_image_has_come(database: Database) -> None:
    async with working(database, warm_slots="google-meet=1") as works:
        (slot,) = await keep(works)
        assert (slot.status, slot.container_ref) == (SlotStatus.IDLE, None)
        await works.reconciler.bring_images("simulated", "a")
        await works.reconciler.pulls_finished()
        await works.reconciler.compare_once()
        (slot,) = await works.store.slots.all()
        assert works.engine.state(container(slot)) is ContainerState.CREATED


async def test_warm_slots_are_made_where_starts_bring_the_image(database: Database) -> None:
    traits = Traits(reusable=True, pulls_at_start=True)
    async with working(database, traits=traits, warm_slots="google-meet=2") as works:
        slots = await keep(works)
        assert [slot.status for slot in slots] == [SlotStatus.IDLE] * 2
        assert len(works.engine.containers()) == 2


async def test_slots_that_are_kept_warm_make_no_way_for_another_platform(
    database: Database,
) -> None:
    async with working(
        database, warm_slots="google-meet=2", max_slots_per_host=2, image_google_meet=None
    ) as works:
        await keep(works)
        bot = (await works.create(Platform.ZOOM)).bot
        assert bot.status is BotStatus.QUEUED


async def test_slots_that_can_not_be_made_are_not_made_again_and_again(database: Database) -> None:
    async with working(database, warm_slots="google-meet=2") as works:

        async def refuse(*_: object) -> str:
            raise EngineRefused("no init program")

        works.engine.create = refuse  # type: ignore[method-assign, assignment]
        for _ in range(5):
            slots = await keep(works)
        assert [slot.status for slot in slots] == [SlotStatus.ERROR] * 2
