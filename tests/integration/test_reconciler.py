"""The loop: who works on what, when it is woken, and what becomes of what fails."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING

from structlog.testing import capture_logs

from botpool.pool import Pool
from botpool.states import BotStatus, Platform, SlotStatus
from botpool.store import Store, connect
from tests.support.scene import new_bot
from tests.support.waiting import a_moment
from tests.support.works import working

if TYPE_CHECKING:
    import pytest

    from botpool.store import Database
    from tests.support.works import Works

AN_HOUR = 3_600_000


async def until(works: Works, bot_id: int, status: BotStatus) -> None:
    """Wait for what somebody else does."""
    while (await works.store.bots.get(bot_id)).status is not status:
        await a_moment()


async def test_a_slot_that_a_replica_has_reserved_is_no_others_until_that_expires(
    database: Database,
) -> None:
    async with working(database) as works:
        bot = (await works.create(Platform.ZOOM)).bot
        # Reserved by a replica that is killed before it has done anything.
        (slot,) = await works.store.reservations.reserve_due(
            "dead",
            ttl_ms=15_000,
            most=10,
            hosts=[],
            deployment_limit_ms=1_500_000,
            engine="simulated",
        )
        await works.go(seconds=14)
        assert (await works.store.slots.get(slot.id)).reserved_by == "dead"
        await works.go(seconds=2)
        assert (await works.store.bots.get(bot.id)).status is BotStatus.JOINING_CALL


async def test_a_slot_on_a_host_that_a_replica_cannot_reach_is_left_to_others(
    database: Database,
) -> None:
    async with working(database) as works:
        await works.create(Platform.ZOOM)
        await database.execute("UPDATE bot_pool_slots SET host = 'elsewhere'")
        assert await works.reconciler.run_once() == 0


async def test_replicas_share_the_work_and_do_nothing_twice(database: Database) -> None:
    async with working(database, max_pool_size=40) as works:
        replicas = [works.reconciler, await works.replica(), await works.replica()]
        for _ in range(40):
            await works.create(Platform.ZOOM)
        await asyncio.gather(*(replica.run_once() for replica in replicas))
        await works.reconciler.run_once()
        assert works.engine.counts["start"] == 40
        assert works.engine.counts["create"] == 40
        assert len(works.engine.running()) == 40


async def test_a_step_that_raises_is_logged_counted_and_tried_again_ever_later(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database) as works:

        async def broken(*_: object) -> str:
            raise RuntimeError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(works.engine, "create", broken)
            bot = (await works.create(Platform.ZOOM)).bot
            waits = []
            for _ in range(8):
                with capture_logs() as lines:
                    await works.reconciler.run_once()
                (line,) = [line for line in lines if line["event"] == "step failed"]
                slot = await works.slot_of(bot.id)
                assert (line["slot_name"], line["error"]) == (slot.slot_name, "a bug")
                assert (line["bot_id"], line["correlation_id"]) == (bot.id, bot.correlation_id)
                assert slot.due_at is not None
                waits.append((slot.due_at - slot.read_at).total_seconds())
                assert slot.failed_steps == len(waits)
                await works.pass_time(seconds=waits[-1])
            assert works.reconciler.counts["failed"] == 8
            # The bot's timeline tells of it once.
            told = [reason for reason in await works.reasons(bot) if "a bug" in reason]
            assert told == ["attempt 1 failed: a bug"]
            # Ever later, and soon enough for who waits.
            assert all(later > earlier * 1.2 for earlier, later in pairwise(waits[:5]))
            assert all(10 <= wait <= 20 for wait in waits[5:])
        await works.reconciler.run_once()
        slot = await works.slot_of(bot.id)
        assert (slot.status, slot.failed_steps) == (SlotStatus.BUSY, 0)


async def test_one_slot_that_hangs_stops_no_other_and_is_tried_again(
    database: Database,
) -> None:
    async with working(database, hosts=("a", "b")) as works:
        works.reconciler.step_seconds = 1.0
        works.engine.hang("a")
        bots = [(await works.create(Platform.ZOOM)).bot for _ in range(2)]
        await works.reconciler.run_once()
        found = {(await works.store.bots.get(bot.id)).status for bot in bots}
        assert found == {BotStatus.DEPLOYING, BotStatus.JOINING_CALL}
        works.engine.bring_back("a")
        await works.go(seconds=1)
        assert works.engine.counts["start"] == 2


async def test_an_announcement_wakes_it_at_once(database_url: str) -> None:
    # With a poll every hour, nothing but an announcement can be the reason.
    async with (
        connect(database_url) as database,
        connect(database_url) as elsewhere,
        working(database, poll_interval_ms=AN_HOUR) as works,
    ):
        running = asyncio.create_task(works.reconciler.run(database))
        pool = Pool(Store(elsewhere), works.settings)
        for _ in range(3):
            bot = (await pool.creation.create_bot(new_bot(Platform.ZOOM))).bot
            await until(works, bot.id, BotStatus.JOINING_CALL)
        works.reconciler.stop()
        await running


async def test_a_poll_finds_what_was_not_announced(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database, poll_interval_ms=20) as works:

        async def silent(_: object) -> None:
            pass

        monkeypatch.setattr(works.store.installation, "announce", silent)
        running = asyncio.create_task(works.reconciler.run(database))
        pool = Pool(works.store, works.settings)
        await until(
            works,
            (await pool.creation.create_bot(new_bot(Platform.ZOOM))).bot.id,
            BotStatus.JOINING_CALL,
        )
        works.reconciler.stop()
        await running


async def test_it_goes_on_when_its_connections_are_cut(database_url: str) -> None:
    async with (
        connect(database_url) as database,
        connect(database_url) as elsewhere,
        working(database, poll_interval_ms=20) as works,
    ):
        running = asyncio.create_task(works.reconciler.run(database))
        pool = Pool(Store(elsewhere), works.settings)
        await until(
            works,
            (await pool.creation.create_bot(new_bot(Platform.ZOOM))).bot.id,
            BotStatus.JOINING_CALL,
        )
        await elsewhere.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        bot = (await pool.creation.create_bot(new_bot(Platform.ZOOM))).bot
        while (await works.store.bots.get(bot.id)).status is not BotStatus.JOINING_CALL:
            assert not running.done()
            await a_moment()
        works.reconciler.stop()
        await running


async def test_the_queue_is_looked_after(database: Database) -> None:
    async with working(database, max_pool_size=0, poll_interval_ms=20) as works:
        running = asyncio.create_task(works.reconciler.run(database))
        bot = (await works.create(queue_timeout_ms=1000)).bot
        await works.pass_time(seconds=2)
        await until(works, bot.id, BotStatus.FATAL)
        works.reconciler.stop()
        await running


async def test_it_ends_only_when_what_it_does_is_done_or_handed_over(
    database: Database,
) -> None:
    async with working(database) as works:
        works.reconciler.shutdown_seconds = 0.05
        works.engine.hang("a")
        bot = (await works.create(Platform.ZOOM)).bot
        running = asyncio.create_task(works.reconciler.run(database))
        while (await works.slot_of(bot.id)).deployment_started_at is None:
            await a_moment()
        works.reconciler.stop()
        await running
        slot = await works.slot_of(bot.id)
        assert slot.reserved_by is None
        works.engine.bring_back("a")
        # Without waiting for a claim to expire.
        await (await works.replica()).run_once()
        assert (await works.store.bots.get(bot.id)).status is BotStatus.JOINING_CALL


async def test_work_on_a_slot_that_is_somebody_elses_by_now_is_given_up(
    database: Database,
) -> None:
    async with working(database, reservation_ttl_ms=60) as works:
        works.engine.hang("a")
        bot = (await works.create(Platform.ZOOM)).bot
        running = asyncio.create_task(works.reconciler.run(database))
        while (await works.slot_of(bot.id)).deployment_started_at is None:
            await a_moment()
        await database.execute("UPDATE bot_pool_slots SET reserved_by = 'other'")
        while works.reconciler.busy:
            assert (await works.slot_of(bot.id)).reserved_by == "other"
        assert (await works.slot_of(bot.id)).reserved_by == "other"
        works.reconciler.stop()
        await running
