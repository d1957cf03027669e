"""A reader that resumes gets what came since, and then what comes: no gap, no duplicate."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from botpool.errors import InvalidPosition, PositionGone
from botpool.feed import stream as module
from botpool.feed.stream import Feed, Filter, Position, StreamEvent
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.states import Platform
from botpool.store import Store, connect
from tests.support.follower import (
    ALL,
    all_ids,
    following_feed,
    ids,
    new_ids,
    next_events,
)
from tests.support.scene import Scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.store import Database


@pytest.fixture
async def feed(database: Database) -> AsyncIterator[Feed]:
    async with following_feed(database) as feed:
        # Only an announcement brings news: a test that waits for the poll waits in vain.
        feed.poll_seconds = 3600
        yield feed


async def test_a_reader_resumes_exactly_where_it_was(database: Database, feed: Feed) -> None:
    first = await feed.subscribe(None, ALL)
    rows = await new_ids(database, 5)
    events = await next_events(first, 5)
    for number, event in enumerate(events[:-1], 1):
        again = await feed.subscribe(Position.parse(str(event.position)), ALL)
        assert ids(await next_events(again, 5 - number)) == rows[number:]


async def test_a_reader_that_had_no_event_yet_resumes_too(database: Database, feed: Feed) -> None:
    first = await feed.subscribe(None, ALL)
    first.close()
    rows = await new_ids(database, 2)
    again = await feed.subscribe(first.position, ALL)
    assert ids(await next_events(again, 2)) == rows


async def test_a_quiet_reader_comes_along_past_what_it_does_not_want(
    database: Database, feed: Feed
) -> None:
    other = await feed.subscribe(None, ALL)
    quiet = await feed.subscribe(None, Filter(platform=Platform.GOOGLE_MEET))
    await new_ids(database, 3)
    events = await next_events(other, 3)
    async with aclosing(quiet.batches(0)) as batches:
        assert await anext(batches) == ()
    assert quiet.position == events[-1].position


async def test_what_is_written_during_the_replay_comes_once_and_in_order(
    database: Database, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)
    also = await feed.subscribe(None, ALL)
    late = await feed.subscribe(also.position, ALL)
    await new_ids(database, 5)
    await next_events(also, 5)
    read = feed.read
    more = iter([1, 2, 3])

    async def read_and_write(after: Position) -> list[StreamEvent]:
        page = await read(after)
        # After each page more is written, and handed out before the reader goes on.
        if count := next(more, 0):
            await new_ids(database, count)
            await next_events(also, count)
        return page

    monkeypatch.setattr(feed, "read", read_and_write)
    got = await next_events(late, 11)
    await new_ids(database)
    assert ids(got + await next_events(late, 1)) == await all_ids(database)


async def test_what_is_handed_out_between_the_last_page_and_the_live_events_comes_once(
    database: Database, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    also = await feed.subscribe(None, ALL)
    late = await feed.subscribe(also.position, ALL)
    read = feed.read
    pages: list[list[StreamEvent]] = []

    async def read_and_write(after: Position) -> list[StreamEvent]:
        if pages:  # by now new events wait for it
            await new_ids(database)
            await next_events(also, 1)
        pages.append(await read(after))
        if len(pages) == 1:
            await new_ids(database, 2)
            await next_events(also, 2)
        return pages[-1]

    monkeypatch.setattr(feed, "read", read_and_write)
    got = await next_events(late, 2)
    assert pages[0] == []
    assert ids(got + await next_events(late, 1)) == await all_ids(database)


async def test_a_reader_that_was_ahead_elsewhere_gets_nothing_twice(database: Database) -> None:
    feed = Feed(Store(database))  # does not follow yet
    behind = await feed.subscribe(None, ALL)
    rows = await new_ids(database, 3)
    events = await feed.read(behind.position)
    moved = await feed.subscribe(events[1].position, ALL)
    assert ids(await next_events(moved, 1)) == rows[2:]
    async with aclosing(moved.batches(0)) as batches:
        assert await anext(batches) == (), "nothing is behind it any more"
    more = await new_ids(database)
    async with following_feed(database, feed):
        assert ids(await next_events(moved, 1)) == more
        assert ids(await next_events(behind, 4)) == rows + more


async def test_two_feeds_tell_the_same(scene: Scene, database: Database, database_url: str) -> None:
    async with (
        connect(database_url) as elsewhere,
        following_feed(database) as one,
        following_feed(elsewhere) as two,
    ):
        readers = [await feed.subscribe(None, ALL) for feed in (one, two)]
        await asyncio.gather(*(scene.running(platform) for platform in Platform))
        count = len(await all_ids(database))
        first, second = [await next_events(reader, count) for reader in readers]
    assert ids(first) == ids(second) == await all_ids(database)
    assert [event.position for event in first] == [event.position for event in second]


@pytest.mark.parametrize(
    "text", ["", "1", "1-2", "1-2-3-4", "-1-2-3", "a-b-c", f"{2**64}-1-1", f"1-{2**63}-1", "1-2-٣"]
)
def test_a_position_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidPosition):
        Position.parse(text)


async def test_a_position_that_is_still_to_come_is_refused(database: Database, feed: Feed) -> None:
    (row,) = await database.fetch("SELECT pg_snapshot_xmax(pg_current_snapshot()) AS next")
    (now,) = await database.fetch("SELECT extract(epoch FROM botpool_now()) * 1000 AS ms")
    with pytest.raises(PositionGone, match="hasn't reached"):
        await feed.subscribe(Position(row["next"] + 1, 0, int(now["ms"])), ALL)


async def test_a_position_older_than_what_is_kept_is_refused(database: Database) -> None:
    store = Store(database)
    await store.installation.use_virtual_clock()
    scene = Scene(database, store, Pool(store, Settings(retention_days=2)))
    await scene.pool.queue.configure()
    await scene.add_host()
    feed = Feed(store)
    early = (await feed.subscribe(None, ALL)).position
    await scene.idle()
    (kept,) = await scene.database.fetch(
        "SELECT * FROM transitions ORDER BY xid DESC, id DESC LIMIT 1"
    )
    ms = int(kept["at"].timestamp() * 1000)
    await scene.pass_time(days=1, hours=23)
    await feed.subscribe(Position(kept["xid"], kept["id"], ms), ALL)  # it is still there
    await scene.pass_time(hours=2)
    await scene.create()
    await scene.pool.retention.prune()
    assert kept["id"] not in await all_ids(scene.database)
    for gone in (early, Position(kept["xid"], kept["id"], ms)):
        with pytest.raises(PositionGone, match="doesn't go back"):
            await feed.subscribe(gone, ALL)


async def test_a_young_feed_goes_back_to_before_its_first_transition(scene: Scene) -> None:
    feed = Feed(scene.store)
    early = (await feed.subscribe(None, ALL)).position
    await scene.create()
    await scene.pass_time(hours=22)
    assert (await feed.subscribe(early, ALL)).position == early
