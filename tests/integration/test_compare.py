"""What the engine has, compared with what the slots say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from botpool.engines.base import ContainerSpec
from botpool.reconciler.compare import CompareCounts
from botpool.states import BotStatus, FailureCause, Platform, SlotStatus
from tests.support.works import container, working

if TYPE_CHECKING:
    from botpool.engines.base import ListedContainer
    from botpool.store import Database

pytestmark = pytest.mark.older_postgres

NOTHING = CompareCounts()


async def test_where_everything_is_as_it_should_be_nothing_is_done(database: Database) -> None:
    async with working(database) as works:
        await works.warm()
        await works.launched()
        await works.launched()
        assert await works.reconciler.compare_once() == NOTHING


async def test_a_bot_in_its_call_whose_container_ended_has_crashed(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
        works.engine.say(container(slot), "segmentation fault")
        works.engine.exit(container(slot), 139)
        assert await works.reconciler.compare_once() == CompareCounts(crashed=1)
        bot = await works.store.bots.get(bot.id)
        assert (bot.status, bot.failure_cause) == (BotStatus.FATAL, FailureCause.CRASHED)
        assert "with code 139" in (bot.failure_reason or "")
        assert "segmentation fault" in (bot.failure_reason or "")
        await works.reconciler.run_once()
        assert (await works.store.slots.get(slot.id)).status is SlotStatus.IDLE


async def test_a_bot_that_crashed_before_its_call_is_tried_again(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched()
        works.engine.lose(container(await works.slot_of(bot.id)))
        await works.reconciler.compare_once()
        await works.reconciler.run_once()
        bot = await works.store.bots.get(bot.id)
        assert (bot.status, bot.launch_attempts) == (BotStatus.JOINING_CALL, 2)


async def test_a_bot_that_left_and_whose_container_ended_well_is_done(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.LEAVING, "asked to")
        works.engine.exit(container(slot), 0)
        await works.reconciler.compare_once()
        assert (await works.store.bots.get(bot.id)).status is BotStatus.DONE


async def test_an_idle_slot_gets_back_a_container_that_was_lost(database: Database) -> None:
    async with working(database) as works:
        slot = await works.warm()
        works.engine.lose(container(slot))
        assert await works.reconciler.compare_once() == CompareCounts(created_again=1)
        again = await works.store.slots.get(slot.id)
        assert again.status is SlotStatus.IDLE
        assert [found.container for found in await works.engine.list("a")] == [container(again)]
        assert again.reserved_by is None


async def test_a_container_that_no_slot_has_is_stopped_and_removed(database: Database) -> None:
    async with working(database) as works:
        slot = await works.warm()
        spec = ContainerSpec(
            host="a",
            name="pool-zoom-009-leftover",
            slot_id=999,
            slot_name="pool-zoom-009",
            platform=Platform.ZOOM,
            image=None,
            environment={},
        )
        await works.engine.create(spec)
        await works.engine.start(next(iter(set(works.engine.containers()) - {container(slot)})), {})
        assert await works.reconciler.compare_once() == CompareCounts(removed=1)
        assert [found.container for found in await works.engine.list("a")] == [container(slot)]


async def test_a_container_whose_slot_somebody_works_on_is_left_alone(
    database: Database,
) -> None:
    async with working(database) as works:
        slot = await works.warm()
        spec = ContainerSpec(
            host="a",
            name="pool-google-meet-001-newone",
            slot_id=slot.id,
            slot_name=slot.slot_name,
            platform=slot.platform,
            image=None,
            environment={},
        )
        await works.engine.create(spec)
        await works.store.reservations.reserve(slot.id, "other", 15_000)
        assert await works.reconciler.compare_once() == NOTHING
        await works.pass_time(seconds=20)
        assert await works.reconciler.compare_once() == CompareCounts(removed=1)


@pytest.mark.parametrize("how", ["away", "hangs"])
async def test_a_list_that_fails_changes_nothing(database: Database, how: str) -> None:
    async with working(database, hosts=("a", "b")) as works:
        bots = [await works.launched() for _ in range(2)]
        if how == "away":
            works.engine.take_away("a")
        else:
            works.reconciler.step_seconds = 1.0
            works.engine.hang("a")
        assert await works.reconciler.compare_once() == NOTHING
        for bot in bots:
            assert (await works.store.bots.get(bot.id)).status is BotStatus.JOINING_CALL
        # The other host is compared all the same.
        lost = next(found for found in works.engine.running() if found.host == "b")
        works.engine.lose(lost)
        await works.pass_time(seconds=10)
        assert await works.reconciler.compare_once() == CompareCounts(crashed=1)


async def test_a_comparison_is_made_by_one_replica_at_a_time(database: Database) -> None:
    async with working(database) as works:
        await works.warm()
        other = await works.replica()
        await works.reconciler.compare_once()
        before = works.engine.counts["calls"]
        await other.compare_once()
        assert works.engine.counts["calls"] == before
        await works.pass_time(seconds=6)
        await other.compare_once()
        assert works.engine.counts["calls"] == before + 1


async def test_a_slot_that_is_released_while_it_is_compared_has_not_crashed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        listed = works.engine.list

        async def late(host: str) -> list[ListedContainer]:
            await works.end(slot)
            works.engine.exit(container(slot), 0)
            return await listed(host)

        monkeypatch.setattr(works.engine, "list", late)
        assert (await works.reconciler.compare_once()).crashed == 0
        assert (await works.store.slots.get(slot.id)).status is SlotStatus.RELEASING
