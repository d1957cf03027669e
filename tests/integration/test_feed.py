"""A reader of the feed gets every transition once, in one order, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from botpool.errors import DatabaseUnreachable
from botpool.feed import stream as module
from botpool.feed.stream import STOPPING, TOO_SLOW, Feed, Position, StreamEvent
from botpool.models.events import EventType
from botpool.states import BotStatus
from botpool.store import Store, connect
from tests.support.follower import (
    ALL,
    INSERTION,
    following_feed,
    ids,
    new_ids,
    next_events,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.store import Database
    from tests.support.scene import Scene

pytestmark = pytest.mark.older_postgres

OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture
def store(database: Database) -> Store:
    return Store(database)


@pytest.fixture
async def feed(database: Database, store: Store) -> AsyncIterator[Feed]:
    feed = Feed(store)
    # Only an announcement brings news: a test that waits for the poll waits in vain.
    feed.poll_seconds = 3600
    async with following_feed(database, feed):
        yield feed


def watched_reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of the transitions that are read from now on, each time that they are."""
    read = store.events.read
    found: list[int] = []

    async def watched(*args: Any) -> Any:
        page = await read(*args)
        found.extend(row.id for row in page.rows)
        return page

    monkeypatch.setattr(store.events, "read", watched)
    return found


# Order


async def test_a_transaction_that_commits_late_is_neither_skipped_nor_put_out_of_order(
    database: Database, database_url: str, store: Store, feed: Feed
) -> None:
    late = await asyncpg.connect(database_url)
    live = await feed.subscribe(None, ALL)
    transaction = late.transaction()
    await transaction.start()
    (first,) = await late.fetch(INSERTION, 1)
    second = await new_ids(database)
    page = await store.events.read(live.position.xid, live.position.id, 10)
    assert (page.rows, page.held_back) == ([], True)
    await transaction.commit()
    await late.close()
    # Nothing announces it: a feed that knows that something is held back looks again by itself.
    assert ids(await next_events(live, 2)) == [first["id"], *second]


async def test_a_row_whose_number_is_higher_and_transaction_older_comes_first(
    database: Database, database_url: str, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 1)
    late = await asyncpg.connect(database_url)
    transaction = late.transaction()
    await transaction.start()
    await late.execute("SELECT pg_current_xact_id()")
    low = await new_ids(database)
    (high,) = await late.fetch(INSERTION, 1)
    assert high["id"] > low[0]
    start = await feed.subscribe(Position(0, 0, 2**45), ALL)
    await transaction.commit()
    await late.close()
    assert ids(await next_events(start, 2)) == [high["id"], *low]


async def test_what_is_rolled_back_never_comes(
    database: Database, database_url: str, feed: Feed
) -> None:
    live = await feed.subscribe(None, ALL)
    other = await asyncpg.connect(database_url)
    transaction = other.transaction()
    await transaction.start()
    await other.fetch(INSERTION, 1)
    after = await new_ids(database)
    await transaction.rollback()
    await other.close()
    assert ids(await next_events(live, 1)) == after


async def test_every_change_of_the_pool_is_announced(scene: Scene, database: Database) -> None:
    async with following_feed(database) as feed:
        feed.poll_seconds = 3600
        live = await feed.subscribe(None, ALL)
        bot = (await scene.create()).bot
        assert [told.event.type for told in await next_events(live, 2)] == [
            EventType.SLOT_STATUS_CHANGED,
            EventType.BOT_STATUS_CHANGED,
        ]
        slot = await scene.slot_of(bot.id)
        await scene.pool.assignments.advance(slot.id, slot.lease, BotStatus.JOINING_CALL, "claimed")
        await next_events(live, 2)
        # A step of the bot alone, which leaves a reconciler nothing to do.
        await scene.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
        (told,) = await next_events(live, 1)
        assert told.event.data["status"] == BotStatus.IN_CALL
        await scene.pool.assignments.add_events(slot.id, slot.lease, [("chat", {})])
        (told,) = await next_events(live, 1)
        assert told.event.type is EventType.BOT_EVENT


async def test_what_is_not_announced_is_found_by_the_poll(database: Database) -> None:
    async with following_feed(database) as feed:
        feed.poll_seconds = 0.01
        live = await feed.subscribe(None, ALL)
        rows = await database.fetch(INSERTION, 1)
        assert ids(await next_events(live, 1)) == [rows[0]["id"]]


# Bounds


async def test_a_reader_that_is_too_slow_is_dropped_and_can_resume(
    database: Database, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 3)
    slow, fast = [await feed.subscribe(None, ALL) for _ in range(2)]
    rows = await new_ids(database, 1)
    assert ids(await next_events(slow, 1)) == rows
    await next_events(fast, 1)
    waiting = []
    for _ in range(4):
        rows += await new_ids(database)
        waiting += [weakref.ref(event) for event in await next_events(fast, 1)]
    assert (slow.ended, feed.subscriptions) == (TOO_SLOW, 1)
    gc.collect()
    assert [event() for event in waiting] == [None] * 4, "what waited is forgotten"
    assert [batch async for batch in slow.batches(3600)] == []
    assert fast.ended is None
    again = await feed.subscribe(slow.position, ALL)
    assert ids(await next_events(again, 4)) == rows[1:]


async def test_more_at_a_time_than_a_page_holds_drops_no_reader_that_reads(
    database: Database, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 3)
    monkeypatch.setattr(module, "_MOST_WAITING", 3)
    readers = [await feed.subscribe(None, ALL) for _ in range(20)]
    reading = [asyncio.create_task(next_events(reader, 30)) for reader in readers]
    rows = await new_ids(database, 30)
    assert [ids(await task) for task in reading] == [rows] * 20


async def test_each_row_is_read_and_written_out_once_however_many_readers_there_are(
    database: Database, store: Store, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = [await feed.subscribe(None, ALL) for _ in range(20)]
    found = watched_reads(store, monkeypatch)
    await new_ids(database, 3)
    events = [await next_events(reader, 3) for reader in readers]
    assert len(found) == 3
    assert len({id(event.text) for each in events for event in each}) == 3


async def test_nothing_is_read_while_there_is_no_reader(
    database: Database, store: Store, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    (await feed.subscribe(None, ALL)).close()
    assert feed.position is None
    found = watched_reads(store, monkeypatch)
    await new_ids(database)
    live = await feed.subscribe(None, ALL)
    rows = await new_ids(database)
    assert ids(await next_events(live, 1)) == rows
    assert found == rows, "what was announced before had no reader"


async def test_what_was_read_for_one_that_left_is_not_handed_to_the_next(
    database: Database, store: Store, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await feed.subscribe(None, ALL)
    late = await feed.subscribe(first.position, ALL)
    rows = await new_ids(database)
    await next_events(first, 1)  # so the two are apart
    read = store.events.read

    async def leave_meanwhile(*args: Any) -> Any:
        page = await read(*args)
        if page.rows:
            monkeypatch.undo()
            first.close()
            late.join()
        return page

    monkeypatch.setattr(store.events, "read", leave_meanwhile)
    while first.ended is None:
        rows += await new_ids(database)
    assert ids(await next_events(late, len(rows))) == rows


async def test_the_first_reader_sets_the_feed_to_work(
    database: Database, store: Store, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await feed.subscribe(None, ALL)
    await new_ids(database)
    await next_events(before, 1)
    before.close()
    # From here on it has no reader, and waits for an announcement.
    bounds = store.events.bounds
    rows: list[int] = []

    async def bounds_before_a_row() -> Any:
        found = await bounds()
        rows.extend(row["id"] for row in await database.fetch(INSERTION, 1))
        return found

    monkeypatch.setattr(store.events, "bounds", bounds_before_a_row)
    first = await feed.subscribe(None, ALL)
    assert ids(await next_events(first, 1)) == rows


# Ends


async def test_it_goes_on_when_its_connections_are_cut(database_url: str) -> None:
    async with (
        connect(database_url) as database,
        connect(database_url) as elsewhere,
        following_feed(database) as feed,
    ):
        feed.poll_seconds = 0.01
        live = await feed.subscribe(None, ALL)
        rows = await new_ids(elsewhere)
        assert ids(await next_events(live, 1)) == rows
        for _ in range(3):
            await elsewhere.execute(OTHERS)
            rows = await new_ids(elsewhere)
            assert ids(await next_events(live, 1)) == rows


async def test_a_replay_goes_on_when_the_database_is_back(
    database: Database, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.poll_seconds = 0
    start = (await feed.subscribe(None, ALL)).position
    rows = await new_ids(database, 2)
    read = feed.read

    async def fail(_: Position) -> list[StreamEvent]:
        monkeypatch.setattr(feed, "read", read)
        raise DatabaseUnreachable

    monkeypatch.setattr(feed, "read", fail)
    again = await feed.subscribe(start, ALL)
    async with aclosing(again.batches(3600)) as batches:
        assert await anext(batches) == ()
        assert ids(await anext(batches)) == rows


async def test_every_subscription_ends_with_it(database: Database) -> None:
    async with following_feed(database) as feed:
        live = await feed.subscribe(None, ALL)
        behind = await feed.subscribe(live.position, ALL)
        waits = asyncio.create_task(anext(live.batches(3600), None))
        await asyncio.sleep(0)
        feed.stop()
        assert await waits is None
    late = await feed.subscribe(live.position, ALL)
    assert [each.ended for each in (live, behind, late)] == [STOPPING] * 3
    assert feed.subscriptions == 0
