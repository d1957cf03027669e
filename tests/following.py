"""What the tests of the record act with."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

from botpool.record import Filter, Record
from botpool.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from botpool.record import Event, Subscription
    from botpool.store import Database

ALL = Filter()
WRITE = """
INSERT INTO transitions (at, machine, platform, bot_id, reason)
SELECT botpool_now(), 'bot', 'zoom', n, 'written by a test' FROM generate_series(1, $1::integer) n
RETURNING id
"""
ANNOUNCE = "SELECT pg_notify('botpool_record', '')"


@asynccontextmanager
async def following(database: Database) -> AsyncIterator[Record]:
    record = Record(Store(database))
    running = asyncio.create_task(record.run(database))
    try:
        yield record
    finally:
        record.stop()
        await running


async def take(subscription: Subscription, count: int, quiet: float = 3600) -> list[Event]:
    """The next so many events, and never more."""
    events: list[Event] = []
    async with aclosing(subscription.batches(quiet)) as batches:
        async for batch in batches:
            events += batch
            if len(events) >= count:
                break
    assert len(events) == count, subscription.ended
    return events


def ids(events: Sequence[Event]) -> list[int]:
    return [event.recorded.transition.id for event in events]


async def written(database: Database) -> list[int]:
    """Every row, in the order of the record."""
    return [
        row["id"] for row in await database.fetch("SELECT id FROM transitions ORDER BY xid, id")
    ]


async def write(database: Database, count: int = 1) -> list[int]:
    rows = await database.fetch(WRITE, count)
    await database.execute(ANNOUNCE)
    return [row["id"] for row in rows]
