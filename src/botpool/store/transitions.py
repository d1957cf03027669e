"""Transitions in the database: every recorded change. As events they are read in events.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.store.postgres.database import LONG_SECONDS
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from datetime import datetime

    from botpool.models.transitions import Transition
    from botpool.store.postgres.database import Database


class Transitions:
    """The queries of transitions.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "transitions")

    async def timeline(self, bot_id: int) -> list[Transition]:
        """What happened to a bot and to the slots that it was on, in order."""
        return await self._queries.transitions("timeline", bot_id)

    async def latest(self, most: int) -> list[Transition]:
        """What happened last to bots, as far as people want to hear of it, the newest first."""
        return await self._queries.transitions("latest", most)

    async def prune(self, before: datetime) -> int:
        """Delete transitions older than `before`, and return how many."""
        return await self._queries.run("prune", before, seconds=LONG_SECONDS)
