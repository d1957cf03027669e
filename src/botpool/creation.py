"""How a bot comes to be: on an idle slot, on a new one, or in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from botpool.changes import Changes
from botpool.combine import Combiner
from botpool.errors import (
    ConstraintViolated,
    DuplicateBot,
    IdempotencyMismatch,
    InvalidRequest,
)
from botpool.models import CreatedBot
from botpool.states import Platform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.models import NewBot, Transition
    from botpool.settings import Settings
    from botpool.store import Store


class Creation(Changes):
    """Creates bots. Those that arrive together are written together."""

    def __init__(self, store: Store, settings: Settings) -> None:
        super().__init__(store, settings)
        self._create_on_idle = {
            platform: Combiner(self._create_bots_on_idle_slots) for platform in Platform
        }
        self._create = {platform: Combiner(self._create_bots) for platform in Platform}

    async def create_bot(self, bot: NewBot) -> CreatedBot:
        """Create a bot on the idle slot least recently used, on a new slot, or in the queue.

        A newcomer never overtakes those who wait. The same request again, by its idempotency key,
        gets the same answer. Raises `InvalidRequest` for a queue timeout out of bounds or a value
        that the database can't hold, `IdempotencyMismatch` for another request with the same key,
        and `DuplicateBot` for a deduplication key of a live bot; then nothing is written.
        """
        longest = self._settings.max_queue_timeout_ms
        if not 0 <= bot.queue_timeout_ms <= longest:
            raise InvalidRequest(f"The queue timeout must be between 0 and {longest} ms.")
        try:
            created = await self._create_on_idle[bot.platform](bot)
            return created or await self._create[bot.platform](bot)
        except ConstraintViolated as error:
            return await self._created_before(bot, error)

    async def _created_before(self, bot: NewBot, error: ConstraintViolated) -> CreatedBot:
        """What the same request was answered with. Raises if it is not the same, or no request."""
        if error.constraint == "bots_deduplication" and bot.deduplication_key is not None:
            live = await self._store.get_bot_of_deduplication_key(bot.key_id, bot.deduplication_key)
            if live is not None:
                raise DuplicateBot(live.id)
        if error.constraint != "bots_idempotency" or bot.idempotency_key is None:
            raise error
        before = await self._store.get_bot_of_request(bot.key_id, bot.idempotency_key)
        if before is None:
            raise error
        if before.request_digest != bot.request_digest:
            raise IdempotencyMismatch
        birth = next(t for t in await self._store.timeline(before.id) if t.machine == "bot")
        return CreatedBot.born(bot, birth)

    async def _create_bots_on_idle_slots(self, bots: Sequence[NewBot]) -> list[CreatedBot | None]:
        correlation_ids = [bot.correlation_id or str(uuid4()) for bot in bots]
        written = await self._logged(self._store.create_bots_on_idle_slots(bots, correlation_ids))
        created = _created(bots, written)
        return [*created, *(None for _ in bots[len(created) :])]

    async def _create_bots(self, bots: Sequence[NewBot]) -> list[CreatedBot]:
        correlation_ids = [bot.correlation_id or str(uuid4()) for bot in bots]
        written = await self._logged(self._store.create_bots(bots, correlation_ids))
        return _created(bots, written)


def _created(bots: Sequence[NewBot], written: Sequence[Transition]) -> list[CreatedBot]:
    """The first of `bots`, as the transitions say that they were created, in order."""
    births = [t for t in written if t.machine == "bot" and t.from_status is None]
    return [CreatedBot.born(bot, birth) for bot, birth in zip(bots, births, strict=False)]
