"""Pulls in the database: which image is on which host, and which replica brings it there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models.pulls import ImagePull, PullKey
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from datetime import datetime

    from botpool.models.slots import Slot
    from botpool.store.postgres.database import Database


class Pulls:
    """The queries of pulls.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "pulls")

    async def take(
        self, key: PullKey, owner: str, ttl_ms: int, start_of: Slot | None = None
    ) -> ImagePull | None:
        """Reserve a pull if it is needed and free. In any case, return the pull as it is now.

        On engines whose starts bring the image, `start_of` is the slot that would do so.
        """
        slot_id, lease = (start_of.id, start_of.lease) if start_of else (None, None)
        row = await self._queries.row("take", *key, owner, ttl_ms, slot_id, lease)
        return None if row is None else ImagePull(**row)

    async def renew(
        self, key: PullKey, replica: str, ttl_ms: int, current: int, total: int
    ) -> bool:
        """Renew the reservation of a pull. Returns whether the replica still has it."""
        return await self._queries.found("renew", *key, replica, ttl_ms, current, total)

    async def finish(
        self, key: PullKey, replica: str, error: str | None, retry_in_ms: float
    ) -> None:
        """End a pull that the replica has: the image is there, or there was an error."""
        await self._queries.run("finish", *key, replica, error, retry_in_ms)

    async def settle(self, engine: str, host: str) -> list[PullKey]:
        """End the pulls on a host whose starts have succeeded or failed."""
        rows = await self._queries.rows("settle", engine, host)
        return [PullKey(engine, host, row["image"]) for row in rows]

    async def wake(self, key: PullKey, due_in_ms: float) -> None:
        """Make slots due that wait for this image."""
        await self._queries.run("wake", *key, due_in_ms)

    async def forget(self, key: PullKey) -> None:
        """Forget that an image is on a host."""
        await self._queries.run("forget", *key)

    async def all(self) -> list[ImagePull]:
        """Every image on every host."""
        return [ImagePull(**row) for row in await self._queries.rows("all")]

    async def expired(self) -> list[ImagePull]:
        """Pulls whose reservation has expired."""
        return [ImagePull(**row) for row in await self._queries.rows("expired")]

    async def abandon(self, key: PullKey) -> bool:
        """Free a pull whose reservation has expired. Returns whether it had."""
        return await self._queries.found("abandon", *key)

    async def prune(self, before: datetime) -> int:
        """Delete pulls from before `before` whose image no slot has."""
        return await self._queries.run("prune", before)
