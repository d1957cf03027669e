"""What bots and their containers say last is kept, and what they say is read while they run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from botpool.engines.base import Traits
from botpool.engines.simulated import Faults
from botpool.errors import EngineUnavailable, StaleLease
from botpool.models.events import EventType
from botpool.models.replicas import ReplicaRole
from botpool.states import BotStatus, SlotStatus
from tests.support.works import container, working

if TYPE_CHECKING:
    from botpool.models.slots import Slot
    from botpool.store import Database
    from tests.support.works import Works

pytestmark = pytest.mark.older_postgres


async def speak(works: Works, slot: Slot, line: str) -> None:
    """What a bot in this slot sends under its lease."""
    await works.pool.assignments.add_log_lines(slot.id, slot.lease, [("INFO", line)])
    await works.pool.assignments.add_events(slot.id, slot.lease, [("said", {"line": line})])


async def heard(works: Works, bot_id: int) -> tuple[list[str], list[object]]:
    lines = (await works.store.bots.log_lines(bot_id, 0, 1000, 2**20)).lines
    events = (await works.store.events.of_bot(bot_id, 0, 1000, 2**20)).events
    told = [event.data["event"] for event in events if event.type is EventType.BOT_EVENT]
    return [line.line for line in lines], [event["data"]["line"] for event in told]


@pytest.mark.parametrize("end", [BotStatus.DONE, BotStatus.FATAL])
async def test_what_a_bot_says_after_its_end_is_kept_until_its_container_is_proved_stopped(
    database: Database, end: BotStatus
) -> None:
    async with working(database, faults=Faults(stop=(20, 20)), stop_grace_ms=30_000) as works:
        slot = await works.slot_of((await works.launched()).id)
        bot_id = slot.assigned_bot_id or 0
        await works.pool.assignments.advance(slot.id, slot.lease, end, "it says so")
        await speak(works, slot, "why")
        await works.go(seconds=1)
        await speak(works, slot, "and how")
        assert await heard(works, bot_id) == (["why", "and how"], ["why", "and how"])
        bot = await works.store.bots.get(bot_id)
        assert (bot.status, bot.last_heartbeat) == (end, None)
        assert (await works.store.slots.get(slot.id)).status is SlotStatus.RELEASING
        with pytest.raises(StaleLease):
            await works.pool.assignments.heartbeat(slot.id, slot.lease)
        await works.go(seconds=30)
        await works.go(seconds=30)
        assert (await works.store.slots.get(slot.id)).status is SlotStatus.IDLE
        with pytest.raises(StaleLease):
            await speak(works, slot, "too late")


async def test_nothing_of_one_bot_is_kept_for_the_next(database: Database) -> None:
    async with working(database, max_pool_size=1) as works:
        slot = await works.warm()
        bot = await works.launched()
        with pytest.raises(StaleLease):
            await speak(works, slot, "of the last one")
        assert await heard(works, bot.id) == ([], [])


async def test_the_output_of_a_running_container_is_read_when_somebody_wants_it(
    database: Database,
) -> None:
    async with working(database) as works:
        await works.store.replicas.seen("worker", ReplicaRole.WORKER, "1", "here")
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        works.engine.say(container(slot), "joining")
        calls = works.engine.counts["calls"]
        await works.reconciler.read_logs_once()
        assert works.engine.counts["calls"] == calls  # nobody wants it

        async def wanted() -> list[str]:
            asking = asyncio.create_task(works.pool.container_logs.refresh(bot.id))
            while not asking.done():
                await works.reconciler.read_logs_once()
            await asking
            return await works.store.bots.container_logs(bot.id)

        assert await wanted() == ["joining"]
        works.engine.say(container(slot), "in call")
        assert await wanted() == ["joining"]  # read a moment ago
        await works.pass_time(seconds=3)
        assert await wanted() == ["joining", "in call"]
        works.engine.say(container(slot), "the last line")
        await works.end(slot)
        await works.reconciler.run_once()
        assert await works.store.bots.container_logs(bot.id) == [
            "joining",
            "in call",
            "the last line",
        ]
        assert not await works.store.bots.want_container_logs(bot.id, 0)


async def test_output_that_can_not_be_read_now_leaves_what_was_read_before(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        works.engine.say(container(slot), "joining")
        await works.store.bots.want_container_logs(bot.id, 0)
        await works.reconciler.read_logs_once()

        async def away(*_: object) -> list[str]:
            raise EngineUnavailable

        monkeypatch.setattr(works.engine, "logs", away)
        assert await works.store.bots.want_container_logs(bot.id, 0)
        await works.reconciler.read_logs_once()
        assert not await works.store.bots.wants_container_logs(bot.id)
        assert await works.store.bots.container_logs(bot.id) == ["joining"]


async def test_nobody_waits_for_output_that_no_worker_can_read(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched()
        await works.pool.container_logs.refresh(bot.id)
        assert not await works.store.bots.wants_container_logs(bot.id)


async def test_output_of_the_next_bot_is_never_kept_for_the_one_before(database: Database) -> None:
    async with working(database, traits=Traits(reusable=True)) as works:
        first = await works.launched()
        slot = await works.slot_of(first.id)
        await works.store.bots.want_container_logs(first.id, 0)
        await works.end(slot)
        # A worker that was paused has read what the container writes for the next bot.
        await works.store.bots.keep_container_logs(
            first.id, slot.id, slot.lease, ["of another"], final=False
        )
        assert await works.store.bots.container_logs(first.id) == []
        assert not await works.store.bots.wants_container_logs(first.id)
