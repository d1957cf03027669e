"""Who resumes in the record gets what came since, and then what comes: no gap, no duplicate."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from botpool import record as module
from botpool.errors import InvalidPosition, PositionGone
from botpool.pool import Pool
from botpool.record import Event, Filter, Position, Record
from botpool.settings import Settings
from botpool.states import Platform
from botpool.store import Store, connect
from tests.following import ALL, following, ids, take, write, written
from tests.scene import Scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.store import Database


@pytest.fixture
async def record(database: Database) -> AsyncIterator[Record]:
    async with following(database) as record:
        # Only an announcement brings news: a test that waits for the poll waits in vain.
        record.poll_seconds = 3600
        yield record


async def test_a_reader_resumes_exactly_where_it_was(database: Database, record: Record) -> None:
    first = await record.subscribe(None, ALL)
    rows = await write(database, 5)
    events = await take(first, 5)
    for number, event in enumerate(events[:-1], 1):
        again = await record.subscribe(Position.parse(str(event.position)), ALL)
        assert ids(await take(again, 5 - number)) == rows[number:]


async def test_a_reader_that_had_no_event_yet_resumes_too(
    database: Database, record: Record
) -> None:
    first = await record.subscribe(None, ALL)
    first.close()
    rows = await write(database, 2)
    again = await record.subscribe(first.position, ALL)
    assert ids(await take(again, 2)) == rows


async def test_a_quiet_reader_comes_along_past_what_it_does_not_want(
    database: Database, record: Record
) -> None:
    other = await record.subscribe(None, ALL)
    quiet = await record.subscribe(None, Filter(platform=Platform.GOOGLE_MEET))
    await write(database, 3)
    events = await take(other, 3)
    async with aclosing(quiet.batches(0)) as batches:
        assert await anext(batches) == ()
    assert quiet.position == events[-1].position


async def test_what_is_written_during_the_replay_comes_once_and_in_order(
    database: Database, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)
    also = await record.subscribe(None, ALL)
    late = await record.subscribe(also.position, ALL)
    await write(database, 5)
    await take(also, 5)
    read = record.read
    more = iter([1, 2, 3])

    async def read_and_write(after: Position) -> list[Event]:
        page = await read(after)
        # After each page more is written, and handed out before the reader goes on.
        if count := next(more, 0):
            await write(database, count)
            await take(also, count)
        return page

    monkeypatch.setattr(record, "read", read_and_write)
    got = await take(late, 11)
    await write(database)
    assert ids(got + await take(late, 1)) == await written(database)


async def test_what_is_handed_out_between_the_last_page_and_the_live_events_comes_once(
    database: Database, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    also = await record.subscribe(None, ALL)
    late = await record.subscribe(also.position, ALL)
    read = record.read
    pages: list[list[Event]] = []

    async def read_and_write(after: Position) -> list[Event]:
        if pages:  # by now new events wait for it
            await write(database)
            await take(also, 1)
        pages.append(await read(after))
        if len(pages) == 1:
            await write(database, 2)
            await take(also, 2)
        return pages[-1]

    monkeypatch.setattr(record, "read", read_and_write)
    got = await take(late, 2)
    assert pages[0] == []
    assert ids(got + await take(late, 1)) == await written(database)


async def test_a_reader_that_was_ahead_elsewhere_gets_nothing_twice(database: Database) -> None:
    record = Record(Store(database))  # follows when it is told to
    behind = await record.subscribe(None, ALL)
    rows = await write(database, 3)
    events = await record.read(behind.position)
    moved = await record.subscribe(events[1].position, ALL)
    assert ids(await take(moved, 1)) == rows[2:]
    async with aclosing(moved.batches(0)) as batches:
        assert await anext(batches) == (), "nothing is behind it any more"
    more = await write(database)
    await record._follow()
    assert ids(await take(moved, 1)) == more
    assert ids(await take(behind, 4)) == rows + more


async def test_two_followers_tell_the_same(
    scene: Scene, database: Database, database_url: str
) -> None:
    async with (
        connect(database_url) as elsewhere,
        following(database) as one,
        following(elsewhere) as two,
    ):
        readers = [await record.subscribe(None, ALL) for record in (one, two)]
        await asyncio.gather(*(scene.running(platform) for platform in Platform))
        count = len(await written(database))
        first, second = [await take(reader, count) for reader in readers]
    assert ids(first) == ids(second) == await written(database)
    assert [event.position for event in first] == [event.position for event in second]


@pytest.mark.parametrize(
    "text", ["", "1", "1-2", "1-2-3-4", "-1-2-3", "a-b-c", f"{2**64}-1-1", f"1-{2**63}-1", "1-2-٣"]
)
def test_a_position_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidPosition):
        Position.parse(text)


async def test_a_position_that_the_record_has_not_come_to_is_refused(
    database: Database, record: Record
) -> None:
    (row,) = await database.fetch("SELECT pg_snapshot_xmax(pg_current_snapshot()) AS next")
    (now,) = await database.fetch("SELECT extract(epoch FROM botpool_now()) * 1000 AS ms")
    with pytest.raises(PositionGone, match="has not come to"):
        await record.subscribe(Position(row["next"] + 1, 0, int(now["ms"])), ALL)


async def test_a_position_older_than_what_is_kept_is_refused(database: Database) -> None:
    store = Store(database)
    await store.use_virtual_clock()
    scene = Scene(database, store, Pool(store, Settings(retention_days=2)))
    await scene.pool.configure()
    record = Record(store)
    early = (await record.subscribe(None, ALL)).position
    await scene.idle()
    (kept,) = await scene.database.fetch(
        "SELECT * FROM transitions ORDER BY xid DESC, id DESC LIMIT 1"
    )
    ms = int(kept["at"].timestamp() * 1000)
    await scene.pass_time(days=1, hours=23)
    await record.subscribe(Position(kept["xid"], kept["id"], ms), ALL)  # it is still there
    await scene.pass_time(hours=2)
    await scene.create()
    await scene.pool.prune()
    assert kept["id"] not in await written(scene.database)
    for gone in (early, Position(kept["xid"], kept["id"], ms)):
        with pytest.raises(PositionGone, match="does not go back"):
            await record.subscribe(gone, ALL)


async def test_a_young_record_goes_back_to_before_its_first_row(scene: Scene) -> None:
    record = Record(scene.store)
    early = (await record.subscribe(None, ALL)).position
    await scene.create()
    await scene.pass_time(hours=22)
    assert (await record.subscribe(early, ALL)).position == early
