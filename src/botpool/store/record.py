"""The queries of those who follow the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from botpool.store.base import Queries
from botpool.store.queries import QUERIES
from botpool.store.rows import transition

if TYPE_CHECKING:
    from datetime import datetime

    from botpool.models import Transition


class Recorded(NamedTuple):
    """A row of the record: the transaction that wrote it, and the key whose bot it tells of."""

    xid: int
    transition: Transition
    key_id: int | None


class RecordPage(NamedTuple):
    """Rows in order. `held_back`: more are committed, and wait for a transaction that runs."""

    rows: list[Recorded]
    held_back: bool


class RecordBounds(NamedTuple):
    """Where the record begins, where it is settled, where it ends, and when it was so."""

    oldest_xid: int | None
    oldest_id: int | None
    settled_xid: int
    next_xid: int
    read_at: datetime


class RecordQueries(Queries):
    """The queries of sql/record.sql."""

    async def read_record(self, xid: int, row_id: int, most: int) -> RecordPage:
        """What comes after a row of a transaction, at most so many rows."""
        rows = await self._database.fetch(QUERIES["read_record"], xid, row_id, most)
        return RecordPage(
            [
                Recorded(row["xid"], transition(row), row["key_id"])
                for row in rows
                if row["xid"] is not None
            ],
            rows[0]["held_back"],
        )

    async def get_record_bounds(self) -> RecordBounds:
        """Where the record begins and ends now."""
        (row,) = await self._database.fetch(QUERIES["get_record_bounds"])
        return RecordBounds(**row)
