"""How a bot is created: on an idle slot, on a new one, or in the queue.

In a project, requests with the same idempotency key create one bot, only one live bot has a
deduplication key, and the project's limits hold.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from botpool.errors import (
    BotpoolError,
    ConstraintViolated,
    DatabaseBusy,
    DuplicateBot,
    DurationTooLong,
    IdempotencyMismatch,
    ProjectNotFound,
    QueueTimeoutOutOfBounds,
    TooManyBots,
    TooManyCreations,
)
from botpool.models.bots import CreatedBot
from botpool.models.projects import Ruling
from botpool.states import Platform
from botpool.tasks.batches import Batcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.models.bots import NewBot
    from botpool.pool.publisher import Publisher
    from botpool.settings import Settings
    from botpool.store import Store


_MOST_AT_ONCE = 500
"""A batch looks at the queue and takes the platform's lock once, so a burst wants few batches."""

_ATTEMPTS = 5
"""How often a creation is tried while bots that are in its way come and go."""


class Creation:
    """Creates bots. Requests that arrive together are written together."""

    def __init__(self, store: Store, settings: Settings, publisher: Publisher) -> None:
        self._store = store
        self._settings = settings
        self._publisher = publisher
        self._on_idle_slots = self._batchers(grow=False)
        self._anywhere = self._batchers(grow=True)

    async def create_bot(self, bot: NewBot) -> CreatedBot:
        """Create a bot on the idle slot least recently used, on a new slot, or in the queue.

        A new bot never overtakes the bots that wait. A request that is repeated with its
        idempotency key gets the same answer. Raises `QueueTimeoutOutOfBounds`, `InvalidRequest` for
        a value that the database can't store, `IdempotencyMismatch` if another request used the
        idempotency key, `DuplicateBot` if a live bot has the deduplication key, `ProjectNotFound`,
        what a limit of the project refuses it with (`TooManyBots`, `TooManyCreations` or
        `DurationTooLong`), and `DatabaseBusy` if others hold what it needs. Then nothing is
        written.
        """
        longest = self._settings.max_queue_timeout_ms
        if not 0 <= bot.queue_timeout_ms <= longest:
            raise QueueTimeoutOutOfBounds(f"The queue timeout must be between 0 and {longest} ms.")
        named = replace(bot, correlation_id=bot.correlation_id or str(uuid4()))
        for _ in range(_ATTEMPTS):
            try:
                created = await self._on_idle_slots[bot.platform](named)
                # The second way takes the platform's lock; the first needs none, but an idle slot.
                created = created or await self._anywhere[bot.platform](named)
            except ConstraintViolated as error:
                created = await self._created_before(bot, error)
                if created is None:
                    continue
            if created is None:
                raise RuntimeError("the database created no bot and gave no reason")
            if isinstance(created, Ruling):
                raise _refusal(created)
            return created
        raise DatabaseBusy

    def _batchers(
        self, *, grow: bool
    ) -> dict[Platform, Batcher[NewBot, CreatedBot | Ruling | None]]:
        return {
            platform: Batcher(partial(self._create, platform, grow=grow), most=_MOST_AT_ONCE)
            for platform in Platform
        }

    async def _create(
        self, platform: Platform, bots: Sequence[NewBot], *, grow: bool
    ) -> list[CreatedBot | Ruling | None]:
        """Create the bots for which there is a slot; with `grow`, all that limits let in."""
        written, rulings = await self._store.bots.create(platform, bots, grow=grow)
        self._publisher.tell(written)
        ruled = {ruling.place: ruling for ruling in rulings}
        births = (t for t in written if t.machine == "bot" and t.from_status is None)
        created: list[CreatedBot | Ruling | None] = []
        for place, bot in enumerate(bots):
            ruling = ruled.get(place)
            if ruling is not None and ruling.refused_by is not None:
                created.append(ruling)
            else:
                birth = next(births, None)
                if ruling is not None:
                    bot = replace(bot, max_duration_ms=ruling.max_duration_ms)  # noqa: PLW2901
                created.append(None if birth is None else CreatedBot.born(bot, birth))
        return created

    async def _created_before(self, bot: NewBot, error: ConstraintViolated) -> CreatedBot | None:
        """The earlier answer to the same request. Raises if it was another request.

        None if the bot that was in the way has ended, or is deleted, since.
        """
        if error.constraint == "bots_deduplication" and bot.deduplication_key is not None:
            live = await self._store.bots.of_deduplication_key(
                bot.project_id, bot.deduplication_key
            )
            if live is not None:
                raise DuplicateBot(live.id)
            return None
        if error.constraint == "bot_project":
            raise ProjectNotFound(f"There is no project {bot.project_id}.") from error
        if error.constraint != "bots_idempotency" or bot.idempotency_key is None:
            raise error
        before = await self._store.bots.of_request(bot.project_id, bot.idempotency_key)
        if before is None:
            return None
        if before.request_digest != bot.request_digest:
            raise IdempotencyMismatch
        timeline = await self._store.transitions.timeline(before.id)
        return CreatedBot.born(bot, next(step for step in timeline if step.machine == "bot"))


def _refusal(ruling: Ruling) -> BotpoolError:
    """What to raise for a bot that a limit of its project refuses."""
    match ruling.refused_by:
        case "max_live_bots":
            return TooManyBots(f"The project may have {ruling.most} bots at once, and has them.")
        case "max_creations_per_minute":
            return TooManyCreations(ruling.most or 0, ruling.retry_in_seconds or 1)
        case _:
            return DurationTooLong(f"The project's bots may stay for at most {ruling.most} ms.")
