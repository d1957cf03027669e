"""Listening in the database: the times in which bots could be heard."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from botpool.store.queries import Queries

if TYPE_CHECKING:
    from datetime import datetime

    from botpool.store.postgres.database import Database


class Listening:
    """The queries of listening.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "listening")

    async def note(self, replica: str, for_ms: int) -> None:
        """Note that a replica could hear bots for the last `for_ms`."""
        await self._queries.run("note", replica, for_ms)

    async def take_back(self, replica: str, milliseconds: int) -> None:
        """Take back the end of what a replica has noted last."""
        await self._queries.run("take_back", replica, milliseconds)

    async def heard_for(self, since: datetime) -> timedelta:
        """For how long bots could be heard since `since`."""
        row = await self._queries.row("heard_for", since)
        return row["time"] if row else timedelta()

    async def prune(self, before: datetime) -> int:
        """Delete times of listening that ended before `before`."""
        return await self._queries.run("prune", before)
