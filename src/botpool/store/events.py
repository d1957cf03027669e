"""Events as they are read from the database: the timelines, and all of them in one order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from botpool.models.events import Event, EventPage, EventType
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from datetime import datetime

    import asyncpg

    from botpool.models.json import Json
    from botpool.store.postgres.database import Database


class Recorded(NamedTuple):
    """An event, its place in the order of all events, and the project of its bot."""

    xid: int
    id: int
    at: datetime
    project_id: int | None
    event: Event


class RecordPage(NamedTuple):
    """Events in order.

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


class Events:
    """The queries of events.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "events")

    async def of_bot(self, bot_id: int, after: int, most: int, most_bytes: int) -> EventPage:
        """What happened to a bot and its slots, and what it reported, in order, after a place.

        The page has at most `most` events, and ends with the one that makes `most_bytes` full.
        """
        return _page(await self._queries.rows("of_bot", bot_id, after, most, most_bytes))

    async def of_slot(self, slot_id: int, before: int, most: int, most_bytes: int) -> EventPage:
        """What happened to a slot before a place, the newest first, in pages as `of_bot` has."""
        return _page(await self._queries.rows("of_slot", slot_id, before, most, most_bytes))

    async def read(self, xid: int, row_id: int, most: int) -> RecordPage:
        """The events after a row of a transaction, at most `most`."""
        rows = await self._queries.rows("read", xid, row_id, most)
        return RecordPage(
            [
                Recorded(row["xid"], row["id"], row["at"], row["project_id"], _event(row["event"]))
                for row in rows
                if row["xid"] is not None
            ],
            rows[0]["held_back"],
        )

    async def bounds(self) -> RecordBounds:
        """Where the record begins and ends now."""
        (row,) = await self._queries.rows("bounds")
        return RecordBounds(**row)


def _page(rows: list[asyncpg.Record]) -> EventPage:
    more = bool(rows) and rows[0]["found"] > len(rows)
    return EventPage(
        events=[_event(row["event"]) for row in rows], last=rows[-1]["id"] if more else None
    )


def _event(told: Json) -> Event:
    return Event(**{**told, "type": EventType(told["type"])})
