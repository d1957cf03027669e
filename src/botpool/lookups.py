"""What can be asked of the pool without changing anything."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from botpool.errors import BotNotFound, SlotNotFound

if TYPE_CHECKING:
    from botpool.models import (
        Bot,
        BotEvent,
        BotPage,
        Host,
        LogLine,
        PoolNumbers,
        QueueEntry,
        QueuePlace,
        Slot,
        Transition,
    )
    from botpool.states import Platform
    from botpool.store import Store


def token_digest(token: str) -> bytes:
    """What the database keeps of a slot's token. Tokens are random, so a plain hash will do."""
    return hashlib.sha256(token.encode()).digest()


class Lookups:
    """Every question that has its answer in the database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get_bot(self, bot_id: int) -> Bot:
        """One bot. Raises `BotNotFound`."""
        bot = await self._store.get_bot(bot_id)
        if bot is None:
            raise BotNotFound(f"There is no bot {bot_id}.")
        return bot

    async def get_slot(self, slot_id: int) -> Slot:
        """One slot. Raises `SlotNotFound`."""
        slot = await self._store.get_slot(slot_id)
        if slot is None:
            raise SlotNotFound(f"There is no slot {slot_id}.")
        return slot

    async def slot_of_bot(self, bot_id: int) -> Slot | None:
        """The slot that a bot is on now."""
        return await self._store.get_slot_of_bot(bot_id)

    async def slot_of_token(self, token: str) -> Slot | None:
        """The slot whose present container has this token."""
        return await self._store.get_slot_of_token(token_digest(token))

    async def bot_of_container(self, container_ref: str) -> Bot | None:
        """The bot that a container serves now; after the release, the one that it served last."""
        return await self._store.get_bot_of_container(container_ref)

    async def container_logs(self, bot_id: int) -> list[str]:
        """What the containers of a bot wrote, as far as it was kept when they were released."""
        return await self._store.get_container_logs(bot_id)

    async def bot_events(self, bot_id: int) -> list[BotEvent]:
        """What a bot told of its call, in order."""
        return await self._store.list_events(bot_id)

    async def bot_logs(self, bot_id: int) -> list[LogLine]:
        """What a bot has logged, in order."""
        return await self._store.list_log_lines(bot_id)

    async def list_bots(self, page: BotPage) -> list[Bot]:
        """One page of bots, newest first."""
        return await self._store.list_bots(page)

    async def queue_place(self, bot_id: int) -> QueuePlace | None:
        """Where a waiting bot stands in the queue of its platform."""
        return await self._store.get_queue_place(bot_id)

    async def queue(self, platform: Platform) -> list[QueueEntry]:
        """The bots that wait for a slot of a platform, in the order in which they will get one."""
        return await self._store.list_queue(platform)

    async def slots(self) -> list[Slot]:
        """Every slot, by name."""
        return await self._store.list_slots()

    async def hosts(self) -> list[Host]:
        """Every host that something was tried on, or that has slots."""
        return await self._store.list_hosts()

    async def check_schema(self) -> None:
        """Raise a `SetupError` unless the database answers and has the schema of this code."""
        await self._store.check_schema()

    async def numbers(self) -> list[PoolNumbers]:
        """How each platform's pool stands."""
        return await self._store.pool_numbers()

    async def timeline(self, bot_id: int) -> list[Transition]:
        """What happened to a bot and to the slots that it was on, in order."""
        return await self._store.timeline(bot_id)
