"""A feed that follows the transitions, and what the tests of it write and read."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

from botpool.feed.stream import Feed, Filter
from botpool.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from botpool.feed.stream import StreamEvent, Subscription
    from botpool.store import Database

ALL = Filter()
INSERTION = """
INSERT INTO transitions (at, machine, platform, bot_id, reason)
SELECT botpool_now(), 'bot', 'zoom', n, 'written by a test' FROM generate_series(1, $1::integer) n
RETURNING id
"""
ANNOUNCEMENT = "SELECT pg_notify('botpool_record', '')"


@asynccontextmanager
async def following_feed(database: Database, feed: Feed | None = None) -> AsyncIterator[Feed]:
    """A feed, or this one, that follows until the end of the block."""
    feed = feed or Feed(Store(database))
    running = asyncio.create_task(feed.run(database))
    try:
        yield feed
    finally:
        feed.stop()
        await running


async def next_events(
    subscription: Subscription, count: int, quiet: float = 3600
) -> list[StreamEvent]:
    """The next so many events, and never more."""
    events: list[StreamEvent] = []
    async with aclosing(subscription.batches(quiet)) as batches:
        async for batch in batches:
            events += batch
            if len(events) >= count:
                break
    assert len(events) == count, subscription.ended
    return events


def ids(events: Sequence[StreamEvent]) -> list[int]:
    return [event.position.id for event in events]


async def all_ids(database: Database) -> list[int]:
    """The id of every transition, in the order of the feed."""
    return [
        row["id"] for row in await database.fetch("SELECT id FROM transitions ORDER BY xid, id")
    ]


async def new_ids(database: Database, count: int = 1) -> list[int]:
    """The ids of so many transitions that are written now, and announced."""
    rows = await database.fetch(INSERTION, count)
    await database.execute(ANNOUNCEMENT)
    return [row["id"] for row in rows]
