"""The queue in the database: the bots that wait for a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models.queue import QueueEntry, QueuePage, QueuePlace
from botpool.states import Platform
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from botpool.models.transitions import Transition
    from botpool.store.postgres.database import Database


class Queue:
    """The queries of queue.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "queue")

    async def assign_waiting(self, platform: Platform) -> list[Transition]:
        """Give free slots to the bots that wait."""
        return await self._queries.transitions("assign_waiting", platform)

    async def expire(self, limit: int) -> list[Transition]:
        """End at most `limit` bots that waited past their deadline."""
        return await self._queries.transitions("expire", limit)

    async def place(self, bot_id: int) -> QueuePlace | None:
        """Where a waiting bot stands in the queue of its platform."""
        row = await self._queries.row("place", bot_id)
        return None if row is None else QueuePlace(**row)

    async def page(self, page: QueuePage) -> list[QueueEntry]:
        """The bots that wait, by platform and in the order in which they will get a slot."""
        before_all = (page.platform or min(Platform), -1, 0)
        after = max(page.after or before_all, before_all)
        last = page.platform or max(Platform)
        rows = await self._queries.rows("page", *after, last, page.limit)
        return [QueueEntry(**{**row, "platform": Platform(row["platform"])}) for row in rows]

    async def overdue(self) -> list[int]:
        """Bots that wait past their deadline."""
        return [row["bot_id"] for row in await self._queries.rows("overdue")]
