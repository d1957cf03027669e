"""Transitions in the database: every recorded change, by bot, or in the order of the feed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from botpool.store.postgres.database import LONG_SECONDS
from botpool.store.queries import Queries
from botpool.store.rows import transition

if TYPE_CHECKING:
    from datetime import datetime

    from botpool.models.transitions import Transition
    from botpool.store.postgres.database import Database


class Recorded(NamedTuple):
    """A transition, the transaction that wrote it, and the key of its bot."""

    xid: int
    transition: Transition
    key_id: int | None


class RecordPage(NamedTuple):
    """Transitions in order.

    If `held_back`, more are committed, but have to wait for a transaction that still runs.
    """

    rows: list[Recorded]
    held_back: bool


class RecordBounds(NamedTuple):
    """The first transition, where the order is settled, the next transaction, and the time."""

    oldest_xid: int | None
    oldest_id: int | None
    settled_xid: int
    next_xid: int
    read_at: datetime


class Transitions:
    """The queries of transitions.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "transitions")

    async def timeline(self, bot_id: int) -> list[Transition]:
        """What happened to a bot and to the slots that it was on, in order."""
        return await self._queries.transitions("timeline", bot_id)

    async def of_slot(self, slot_id: int, most: int) -> list[Transition]:
        """What happened to a slot and its bots, in order: the newest of it."""
        return await self._queries.transitions("of_slot", slot_id, most)

    async def read(self, xid: int, row_id: int, most: int) -> RecordPage:
        """The transitions after a row of a transaction, at most `most`."""
        rows = await self._queries.rows("read", xid, row_id, most)
        return RecordPage(
            [
                Recorded(row["xid"], transition(row), row["key_id"])
                for row in rows
                if row["xid"] is not None
            ],
            rows[0]["held_back"],
        )

    async def bounds(self) -> RecordBounds:
        """Where the transitions begin and end now."""
        (row,) = await self._queries.rows("bounds")
        return RecordBounds(**row)

    async def prune(self, before: datetime) -> int:
        """Delete transitions older than `before`, and return how many."""
        return await self._queries.run("prune", before, seconds=LONG_SECONDS)
