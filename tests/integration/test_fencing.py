"""A replica that was paused, or lost its claim, does no harm to what others have gone on with."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from botpool.engines.base import Traits
from botpool.errors import EngineRefused, ReservationLost
from botpool.reconciler.compare import CompareCounts
from botpool.states import (
    BotStatus,
    FailureCause,
    Platform,
    SlotStatus,
)
from tests.support.works import container, working

if TYPE_CHECKING:
    from botpool.models.slots import Slot
    from botpool.reconciler import Reconciler
    from botpool.store import Database

pytestmark = pytest.mark.older_postgres


async def taken_by(paused: Reconciler) -> Slot:
    """The slot that a replica has reserved, before it is paused for longer than that lasts."""
    (slot,) = await paused.reservations.take_due(1)
    return slot


async def test_a_late_release_does_not_stop_the_next_bot(database: Database) -> None:
    async with working(database, max_pool_size=1) as works:
        first = await works.launched(Platform.ZOOM)
        second = (await works.create(Platform.ZOOM)).bot
        await works.end(await works.slot_of(first.id))
        paused = await works.replica()
        stale = await taken_by(paused)
        await works.go(seconds=20)
        assert (await works.store.bots.get(second.id)).status is BotStatus.JOINING_CALL
        with pytest.raises(ReservationLost):
            await paused.step(stale)
        assert len(works.engine.running()) == 1
        # Even without a look at its reservation: the next bot's container has another name.
        await works.engine.stop(container(stale), 0)
        assert len(works.engine.running()) == 1


async def test_a_late_deployment_starts_nothing_and_fails_no_bot(database: Database) -> None:
    async with working(database) as works:
        bot = (await works.create(Platform.ZOOM)).bot
        paused = await works.replica()
        stale = await taken_by(paused)
        await works.go(seconds=20)
        await paused.step(stale)
        assert works.engine.counts["start"] == 1
        assert (await works.store.bots.get(bot.id)).status is BotStatus.JOINING_CALL


async def test_a_refusal_that_comes_late_fails_no_bot(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database) as works:
        bot = (await works.create(Platform.ZOOM)).bot
        paused = await works.replica()
        stale = await taken_by(paused)

        async def refused(*_: object) -> str:
            # While it waited for the answer, its reservation expired, and another replica went on.
            with monkeypatch.context() as patch:
                patch.setattr(works.engine, "create", created)
                await works.go(seconds=20)
            raise EngineRefused("it runs")

        created = works.engine.create
        monkeypatch.setattr(works.engine, "create", refused)
        with pytest.raises(ReservationLost):
            await paused.step(stale)
        assert (await works.store.bots.get(bot.id)).status is BotStatus.JOINING_CALL


async def test_a_container_that_runs_already_is_given_to_no_bot(database: Database) -> None:
    async with working(database) as works:
        slot = await works.warm(Platform.ZOOM)
        await works.engine.start(container(slot), {})  # by a replica that was late
        bot = await works.launched(Platform.ZOOM)
        assert (bot.status, bot.launch_attempts) == (BotStatus.JOINING_CALL, 2)
        assert works.engine.running() == [container(await works.slot_of(bot.id))]


async def test_an_idle_slot_whose_container_was_started_gets_another(database: Database) -> None:
    async with working(database) as works:
        slot = await works.warm(Platform.ZOOM)
        await works.engine.start(container(slot), {})
        assert (await works.reconciler.compare_once()).created_again == 1
        again = await works.store.slots.get(slot.id)
        assert works.engine.containers() == [container(again)]
        assert works.engine.running() == []


async def test_who_works_on_a_slot_does_not_take_it_twice(database: Database) -> None:
    async with working(database) as works:
        await works.create(Platform.ZOOM)
        slot = await taken_by(works.reconciler)
        reservations = works.reconciler.reservations
        async with reservations.working_on(slot):
            await works.pass_time(seconds=20)
            assert await reservations.take_due(10) == []
            async with reservations.take(slot.id) as again:
                assert again is None


async def test_two_tasks_that_take_a_slot_at_once_do_not_both_have_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reservation expires while one of them waits for the answer, and the other takes it."""
    async with working(database) as works, AsyncExitStack() as other:
        await works.create(Platform.ZOOM)
        slot = await taken_by(works.reconciler)
        reservations = works.reconciler.reservations
        reserve = works.store.reservations.reserve

        async def slow(slot_id: int, replica: str, ttl_ms: int) -> Slot | None:
            found = await reserve(slot_id, replica, ttl_ms)
            await works.pass_time(seconds=20)
            (again,) = await reservations.take_due(1)
            await other.enter_async_context(reservations.working_on(again))
            return found

        monkeypatch.setattr(works.store.reservations, "reserve", slow)
        await works.pass_time(seconds=20)
        async with reservations.take(slot.id) as taken:
            assert taken is None
        with pytest.raises(ReservationLost, match="Another task already works on"):
            async with reservations.working_on(slot):
                pytest.fail("it is not ours alone")
        await reservations.give_back(slot, 0)
        assert (await works.store.slots.get(slot.id)).reserved_by == works.reconciler.replica


async def test_a_lost_reservation_is_an_error_and_not_the_end_of_its_task(
    database: Database,
) -> None:
    async with working(database) as works:
        await works.create(Platform.ZOOM)
        slot = await taken_by(works.reconciler)
        reservations = works.reconciler.reservations

        async def work() -> str:
            try:
                async with reservations.working_on(slot):
                    await asyncio.Event().wait()
            except ReservationLost:
                return "goes on"
            return "never"

        working_task = asyncio.create_task(work())
        await asyncio.sleep(0)
        await database.execute("UPDATE bot_pool_slots SET reserved_by = 'other'")
        await reservations.renew()
        assert await working_task == "goes on"


async def test_one_crash_that_cannot_be_told_keeps_no_other_from_being_seen(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database) as works:
        bots = [await works.launched(Platform.ZOOM) for _ in range(3)]
        for bot in bots:
            slot = await works.slot_of(bot.id)
            await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
            works.engine.say(container(slot), "bad \x00 byte")
            works.engine.exit(container(slot), 1)
        observe = works.engine.observe
        broken = container(await works.slot_of(bots[0].id))

        async def refuses(asked: object) -> object:
            if asked == broken:
                raise EngineRefused("not this one")
            return await observe(asked)  # type: ignore[arg-type]

        monkeypatch.setattr(works.engine, "observe", refuses)
        assert await works.reconciler.compare_once() == CompareCounts(crashed=2)
        for bot in bots[1:]:
            found = await works.store.bots.get(bot.id)
            assert found.failure_cause is FailureCause.CRASHED
            assert "bad \N{REPLACEMENT CHARACTER} byte" in (found.failure_reason or "")


async def test_a_container_that_broke_has_crashed(database: Database) -> None:
    async with working(database, max_launch_attempts=1) as works:
        bot = await works.launched(Platform.ZOOM)
        works.engine.fail(container(await works.slot_of(bot.id)))
        assert await works.reconciler.compare_once() == CompareCounts(crashed=1)
        assert (await works.store.bots.get(bot.id)).status is BotStatus.FATAL


async def test_a_deployment_on_a_host_that_nobody_reaches_fails_in_time(
    database: Database,
) -> None:
    async with working(database) as works:
        bot = (await works.create(Platform.ZOOM)).bot
        await database.execute("UPDATE bot_pool_slots SET host = 'gone'")
        await works.go(minutes=24)
        assert (await works.store.bots.get(bot.id)).status is BotStatus.DEPLOYING
        await works.go(minutes=2)
        found = await works.store.bots.get(bot.id)
        assert (found.status, found.launch_attempts) == (BotStatus.JOINING_CALL, 2)


async def test_the_output_of_every_launch_is_kept(database: Database) -> None:
    async with working(database) as works:
        said = iter(["first", "second"])
        works.engine.started = lambda started, _: works.engine.say(started, next(said))
        bot = await works.launched(Platform.ZOOM)
        works.engine.exit(container(await works.slot_of(bot.id)), 1)
        await works.reconciler.compare_once()
        await works.reconciler.run_once()
        await works.end(await works.slot_of(bot.id))
        await works.reconciler.run_once()
        assert await works.store.bots.container_logs(bot.id) == ["first", "second"]


async def test_a_bot_that_claims_makes_room_for_the_next_deployment(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database, max_concurrent_deployments=1) as works:
        monkeypatch.setattr(type(works.engine), "traits", Traits(lags=True))
        works.engine.faults = type(works.engine.faults)(start=(60.0, 60.0))
        first = await works.launched(Platform.ZOOM)
        second = await works.launched(Platform.ZOOM)
        await works.pool.assignments.claim(await works.slot_of(first.id))
        await works.reconciler.run_once()
        assert (await works.slot_of(second.id)).deployment_started_at is not None


async def test_containers_that_vanish_again_and_again_are_not_made_in_a_hurry(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database) as works:
        create = works.engine.create

        async def vanishes(spec: object) -> str:
            ref = await create(spec)  # type: ignore[arg-type]
            works.engine.lose(works.engine.containers()[-1])
            return ref

        monkeypatch.setattr(works.engine, "create", vanishes)
        await works.launched(Platform.ZOOM)
        assert works.engine.counts["create"] <= 2
        for _ in range(10):
            await works.go(seconds=6)
        assert works.engine.counts["create"] < 30


async def test_a_bot_that_does_not_leave_within_its_time_is_ended(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched(Platform.ZOOM)
        slot = await works.slot_of(bot.id)
        await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
        await works.pool.assignments.stop_bot(bot.id)
        await works.go(seconds=29)
        assert (await works.store.bots.get(bot.id)).status is BotStatus.LEAVING
        await works.go(seconds=2)
        assert (await works.store.bots.get(bot.id)).status is BotStatus.DONE
        assert works.engine.running() == []
        assert (await works.store.slots.get(slot.id)).status is SlotStatus.IDLE


async def test_a_busy_slot_that_needs_nothing_is_looked_at_once(database: Database) -> None:
    async with working(database) as works:
        slot = await works.slot_of((await works.launched(Platform.ZOOM)).id)
        await database.execute("UPDATE bot_pool_slots SET due_at = botpool_now()")
        assert await works.reconciler.run_once() == 1
        assert (await works.store.slots.get(slot.id)).due_at is None


async def test_a_drained_slot_is_deleted_when_its_bot_has_ended(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched(Platform.ZOOM)
        slot = await works.slot_of(bot.id)
        await works.pool.slots.drain(slot.id)
        await works.end(slot)
        await works.reconciler.run_once()
        assert await works.store.slots.find(slot.id) is None
        await works.reconciler.compare_once()
        assert works.engine.containers() == []
