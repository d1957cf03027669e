"""The longest stay of a bot: it is told to leave when that is over, and ended if it doesn't."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from botpool.states import BotStatus, FailureCause
from tests.support.works import working

if TYPE_CHECKING:
    from botpool.models.bots import Bot
    from botpool.store import Database
    from tests.support.works import Works

pytestmark = pytest.mark.older_postgres

MINUTE = 60_000


async def in_call(works: Works, max_duration_ms: int | None = 10 * MINUTE) -> Bot:
    bot = await works.launched(max_duration_ms=max_duration_ms)
    slot = await works.slot_of(bot.id)
    await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
    return await works.store.bots.get(bot.id)


async def go(works: Works, bot: Bot, **time: float) -> Bot:
    """Let time go by in which the bot is heard."""
    slot = await works.slot_of(bot.id)
    await works.pass_time(**time)
    await works.pool.assignments.heartbeat(slot.id, slot.lease)
    await works.reconciler.run_once()
    return await works.store.bots.get(bot.id)


async def test_a_bot_is_told_to_leave_when_its_longest_stay_is_over(database: Database) -> None:
    async with working(database) as works:
        bot = await in_call(works)
        others = [await in_call(works, None), await in_call(works, 60 * MINUTE)]
        assert (await go(works, bot, minutes=9, seconds=59)).status is BotStatus.IN_CALL
        at = await works.store.installation.now()
        told = await go(works, bot, seconds=1)
        assert (told.status, told.joined_at) == (BotStatus.LEAVING, bot.joined_at)
        assert told.left_at is not None
        assert (told.left_at - at).total_seconds() == 1
        step = (await works.store.transitions.timeline(bot.id))[-1]
        assert step.reason == "its longest stay of 600000 ms is over"
        assert step.details == {"cause": "max_duration"}
        slot = await works.slot_of(bot.id)
        await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.DONE, "it says so")
        ended = await works.store.bots.get(bot.id)
        assert (ended.status, ended.failure_cause) == (BotStatus.DONE, FailureCause.MAX_DURATION)
        event = (await works.store.events.of_bot(bot.id, 0, 100, 2**20)).events[-1]
        assert (event.data["status"], event.data["failureCause"]) == ("DONE", "max_duration")
        for other in others:
            assert (await works.store.bots.get(other.id)).status is BotStatus.IN_CALL


async def test_a_bot_that_does_not_leave_then_is_ended(database: Database) -> None:
    async with working(database, leave_grace_ms=30_000) as works:
        bot = await in_call(works)
        assert (await go(works, bot, minutes=10)).status is BotStatus.LEAVING
        assert (await go(works, bot, seconds=29)).status is BotStatus.LEAVING
        ended = await go(works, bot, seconds=1)
        assert (ended.status, ended.failure_cause) == (BotStatus.DONE, FailureCause.MAX_DURATION)
        assert await works.store.slots.of_bot(bot.id) is None


async def test_it_is_not_the_cause_of_another_end(database: Database) -> None:
    async with working(database) as works:
        stopped, failed = await in_call(works), await in_call(works)
        await works.pool.assignments.stop_bot(stopped.id)
        await go(works, failed, minutes=10)
        for bot, status in ((stopped, BotStatus.DONE), (failed, BotStatus.FATAL)):
            slot = await works.store.slots.of_bot(bot.id)
            if slot is not None:
                await works.pool.assignments.advance(slot.id, slot.lease, status, "over")
        assert (await works.store.bots.get(stopped.id)).failure_cause is None
        assert (await works.store.bots.get(failed.id)).failure_cause is FailureCause.BOT_FAILED


async def test_a_look_before_it_is_over_changes_nothing(database: Database) -> None:
    async with working(database) as works:
        bot = await in_call(works)
        slot = await works.slot_of(bot.id)
        await database.execute("UPDATE bot_pool_slots SET due_at = botpool_now()")
        assert (await go(works, bot, seconds=1)).status is BotStatus.IN_CALL
        (row,) = await database.fetch("SELECT due_at FROM bot_pool_slots WHERE id = $1", slot.id)
        assert bot.started_at is not None
        assert (row["due_at"] - bot.started_at).total_seconds() == 600
        assert (await go(works, bot, minutes=10)).status is BotStatus.LEAVING
