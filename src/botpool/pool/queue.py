"""The queue: bots that wait get slots in order, and end at their deadline.

The rules that must lock before they look are in the database: who is served next in
store/schema/functions/queue.sql, the estimate of a wait in estimate.sql beside it. Who has waited
too long is the query `expire` of store/queue.sql.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.states import Platform

if TYPE_CHECKING:
    from botpool.models.transitions import Transition
    from botpool.pool.publisher import Publisher
    from botpool.settings import Settings
    from botpool.store import Store

_BATCH = 1000


class Queue:
    """Gives slots to the bots that wait, and ends bots that waited too long."""

    def __init__(self, store: Store, settings: Settings, publisher: Publisher) -> None:
        self._store = store
        self._settings = settings
        self._publisher = publisher

    async def configure(self) -> None:
        """Update the pools to match the settings. If that makes room, waiting bots get slots."""
        for platform in Platform:
            await self._publisher.publish(
                self._store.pools.set(
                    platform,
                    self._settings.max_pool_size,
                    self._settings.warm(platform),
                    self._settings.engine,
                    self._settings.image(platform),
                )
            )

    async def assign_waiting(self, platform: Platform) -> list[Transition]:
        """Give free slots to the bots that wait, and grow the pool if it may grow.

        Every change that frees a slot does this itself. This is the safety net. It also makes the
        slots that are kept warm.
        """
        return await self._publisher.publish(self._store.queue.assign_waiting(platform))

    async def pause(self, platform: Platform, *, by: str, reason: str | None = None) -> None:
        """Launch no bot of a platform until it is resumed. Bots that have a slot stay on it.

        Those that wait keep their deadlines. A pool that is paused already stays as it is.
        """
        await self._publisher.publish(self._store.pools.pause(platform, by, reason))

    async def resume(self, platform: Platform, *, by: str) -> list[Transition]:
        """Launch bots of a platform again. Those that wait are served at once, in order."""
        return await self._publisher.publish(self._store.pools.resume(platform, by))

    async def expire(self) -> list[Transition]:
        """End the bots that waited past their deadline: `FATAL`, cause `queue_timeout`."""
        written: list[Transition] = []
        while expired := await self._publisher.publish(self._store.queue.expire(_BATCH)):
            written += expired
        return written
