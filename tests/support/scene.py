"""What the tests of the pool act with."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from botpool.models.assignments import Ending
from botpool.models.bots import NewBot
from botpool.models.hosts import HostReport
from botpool.models.queue import QueuePage
from botpool.states import BotStatus, Platform
from tests.support.waiting import a_moment

if TYPE_CHECKING:
    import asyncio
    from datetime import datetime

    from botpool.models.bots import Bot, CreatedBot
    from botpool.models.queue import QueueEntry
    from botpool.models.slots import Slot
    from botpool.models.transitions import Transition
    from botpool.pool import Pool
    from botpool.store import Database, Store


def new_bot(platform: Platform = Platform.GOOGLE_MEET, **changes: Any) -> NewBot:
    """A request that leaves nothing to chance."""
    return NewBot(
        **{
            "platform": platform,
            "meeting_url": "https://meet.google.com/abc-defg-hij",
            "bot_display_name": "Notes",
            "queue_timeout_ms": 300_000,
            **changes,
        }
    )


async def add_host(pool: Pool, host: str = "here", capacity: int | None = None) -> None:
    """Let a pool have a host on which slots can be."""
    report = HostReport(host=host, capacity=capacity, open=True)
    await pool.hosts.report("process", [report])


@dataclass(frozen=True)
class Scene:
    """A pool on a database of its own, and the verbs that most tests need."""

    database: Database
    store: Store
    pool: Pool

    async def add_host(self, host: str = "here", capacity: int | None = None) -> None:
        await add_host(self.pool, host, capacity)

    async def create(self, platform: Platform = Platform.GOOGLE_MEET, **changes: Any) -> CreatedBot:
        return await self.pool.creation.create_bot(new_bot(platform, **changes))

    async def running(self, platform: Platform = Platform.GOOGLE_MEET) -> tuple[Bot, Slot]:
        """A bot in its call, and its slot."""
        bot = (await self.create(platform)).bot
        slot = await self.slot_of(bot.id)
        await self.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
        return await self.store.bots.get(bot.id), await self.slot_of(bot.id)

    async def idle(self, platform: Platform = Platform.GOOGLE_MEET) -> Slot:
        """A slot that has served a bot and is idle again."""
        bot = (await self.create(platform)).bot
        slot = await self.slot_of(bot.id)
        await self.end(slot)
        await self.pool.slots.make_idle(slot.id, slot.lease)
        return await self.store.slots.get(slot.id)

    async def queue(self) -> list[QueueEntry]:
        """The bots that wait, in the order in which they will get a slot."""
        return await self.store.queue.page(QueuePage(limit=1000))

    async def end(self, slot: Slot, status: BotStatus = BotStatus.DONE) -> list[Transition]:
        return await self.pool.assignments.end_assignment(
            Ending(slot_id=slot.id, lease=slot.lease, bot_status=status, reason="the bot is done")
        )

    async def delete(self, slot: Slot) -> None:
        """End a slot's bot, find that the slot can't be stopped, and give it up."""
        await self.end(slot)
        await self.pool.slots.fail(slot.id, slot.lease, "stuck")
        await self.pool.slots.delete(slot.id, slot.lease, "given up")

    async def slot_of(self, bot_id: int) -> Slot:
        slot = await self.store.slots.of_bot(bot_id)
        assert slot is not None
        return slot

    async def until_blocked(self, *tasks: asyncio.Task[Any]) -> None:
        """Wait until each of the tasks waits for a lock in the database, as it must."""
        waiting = "SELECT DISTINCT pid FROM pg_locks WHERE NOT granted"
        while len(await self.database.fetch(waiting)) < len(tasks):
            assert not any(task.done() for task in tasks), "it waited for nobody"
            await a_moment()

    async def pass_time(self, **time: float) -> datetime:
        """Let so much time go by."""
        now = await self.store.installation.now() + timedelta(**time)
        await self.store.installation.set_virtual_time(now)
        return now
