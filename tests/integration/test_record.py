"""Who follows the record gets every transition once, in one order, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from botpool import record as module
from botpool.errors import DatabaseUnreachable
from botpool.record import STOPPING, TOO_SLOW, Event, Position, Record
from botpool.states import BotStatus
from botpool.store import Store, connect
from tests.following import ALL, WRITE, following, ids, take, write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.store import Database
    from tests.scene import Scene

OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture
async def record(database: Database) -> AsyncIterator[Record]:
    async with following(database) as record:
        # Only an announcement brings news: a test that waits for the poll waits in vain.
        record.poll_seconds = 3600
        yield record


# Order


async def test_a_transaction_that_commits_late_is_neither_skipped_nor_put_out_of_order(
    database: Database, database_url: str, record: Record
) -> None:
    late = await asyncpg.connect(database_url)
    live = await record.subscribe(None, ALL)
    transaction = late.transaction()
    await transaction.start()
    (first,) = await late.fetch(WRITE, 1)
    second = await write(database)
    page = await Store(database).read_record(live.position.xid, live.position.id, 10)
    assert (page.rows, page.held_back) == ([], True)
    await transaction.commit()
    await late.close()
    # Nothing announces it: who knows that something is held back looks again by itself.
    assert ids(await take(live, 2)) == [first["id"], *second]


async def test_a_row_whose_number_is_higher_and_transaction_older_comes_first(
    database: Database, database_url: str, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 1)
    late = await asyncpg.connect(database_url)
    transaction = late.transaction()
    await transaction.start()
    await late.execute("SELECT pg_current_xact_id()")
    low = await write(database)
    (high,) = await late.fetch(WRITE, 1)
    assert high["id"] > low[0]
    start = await record.subscribe(Position(0, 0, 2**45), ALL)
    await transaction.commit()
    await late.close()
    assert ids(await take(start, 2)) == [high["id"], *low]


async def test_what_is_rolled_back_never_comes(
    database: Database, database_url: str, record: Record
) -> None:
    live = await record.subscribe(None, ALL)
    other = await asyncpg.connect(database_url)
    transaction = other.transaction()
    await transaction.start()
    await other.fetch(WRITE, 1)
    after = await write(database)
    await transaction.rollback()
    await other.close()
    assert ids(await take(live, 1)) == after


async def test_every_change_of_the_pool_is_announced(scene: Scene, database: Database) -> None:
    async with following(database) as record:
        record.poll_seconds = 3600
        live = await record.subscribe(None, ALL)
        bot = (await scene.create()).bot
        assert [event.recorded.transition.machine for event in await take(live, 2)] == [
            "slot",
            "bot",
        ]
        slot = await scene.slot_of(bot.id)
        await scene.pool.advance(slot.id, slot.lease, BotStatus.JOINING_CALL, "claimed")
        await take(live, 2)
        # A step of the bot alone, which leaves a reconciler nothing to do.
        await scene.pool.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
        (event,) = await take(live, 1)
        assert event.recorded.transition.to_status == BotStatus.IN_CALL


async def test_what_nobody_announced_is_found_by_the_poll(database: Database) -> None:
    async with following(database) as record:
        record.poll_seconds = 0.01
        live = await record.subscribe(None, ALL)
        rows = await database.fetch(WRITE, 1)
        assert ids(await take(live, 1)) == [rows[0]["id"]]


# Bounds


async def test_a_reader_that_is_too_slow_is_dropped_and_can_resume(
    database: Database, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 3)
    slow, fast = [await record.subscribe(None, ALL) for _ in range(2)]
    rows = await write(database, 1)
    assert ids(await take(slow, 1)) == rows
    await take(fast, 1)
    for _ in range(4):
        rows += await write(database)
        await take(fast, 1)
    assert (slow.ended, len(slow._waiting), record.subscriptions) == (TOO_SLOW, 0, 1)
    assert [batch async for batch in slow.batches(3600)] == []
    assert fast.ended is None
    again = await record.subscribe(slow.position, ALL)
    assert ids(await take(again, 4)) == rows[1:]


async def test_more_at_a_time_than_a_page_holds_drops_nobody_who_reads(
    database: Database, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 3)
    monkeypatch.setattr(module, "_MOST_WAITING", 3)
    readers = [await record.subscribe(None, ALL) for _ in range(20)]
    reading = [asyncio.create_task(take(reader, 30)) for reader in readers]
    rows = await write(database, 30)
    assert [ids(await task) for task in reading] == [rows] * 20


async def test_each_row_is_read_and_written_out_once_however_many_listen(
    database: Database, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = [await record.subscribe(None, ALL) for _ in range(20)]
    store = record._store
    read = store.read_record
    found = []

    async def counted(*args: Any) -> Any:
        page = await read(*args)
        found.extend(page.rows)
        return page

    monkeypatch.setattr(store, "read_record", counted)
    await write(database, 3)
    events = [await take(reader, 3) for reader in readers]
    assert len(found) == 3
    assert len({id(event.text) for each in events for event in each}) == 3


async def test_nothing_is_read_while_nobody_listens(
    database: Database, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    (await record.subscribe(None, ALL)).close()
    assert record.position is None

    async def read(*_: object) -> None:
        pytest.fail("it was read for nobody")

    monkeypatch.setattr(record._store, "read_record", read)
    await write(database)
    assert await record._follow() == record.poll_seconds


async def test_what_was_read_for_one_that_left_is_not_handed_to_the_next(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record(Store(database))  # follows when it is told to
    first = await record.subscribe(None, ALL)
    late = await record.subscribe(first.position, ALL)
    store = record._store
    read = store.read_record

    async def leave_meanwhile(*args: Any) -> Any:
        page = await read(*args)
        first.close()
        late.join()
        return page

    rows = await write(database)
    await record._follow()
    rows += await write(database)
    monkeypatch.setattr(store, "read_record", leave_meanwhile)
    await record._follow()
    monkeypatch.undo()
    await record._follow()
    assert ids(await take(late, 2)) == rows


async def test_who_listens_first_sets_the_follower_to_work(database: Database) -> None:
    record = Record(Store(database))
    await record.subscribe(None, ALL)
    assert record._awake.is_set()


# Ends


async def test_it_goes_on_when_its_connections_are_cut(database_url: str) -> None:
    async with (
        connect(database_url) as database,
        connect(database_url) as elsewhere,
        following(database) as record,
    ):
        record.poll_seconds = 0.01
        live = await record.subscribe(None, ALL)
        rows = await write(elsewhere)
        assert ids(await take(live, 1)) == rows
        for _ in range(3):
            await elsewhere.execute(OTHERS)
            rows = await write(elsewhere)
            assert ids(await take(live, 1)) == rows


async def test_a_replay_goes_on_when_the_database_is_back(
    database: Database, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.poll_seconds = 0
    start = (await record.subscribe(None, ALL)).position
    rows = await write(database, 2)
    read = record.read

    async def fail(_: Position) -> list[Event]:
        monkeypatch.setattr(record, "read", read)
        raise DatabaseUnreachable

    monkeypatch.setattr(record, "read", fail)
    again = await record.subscribe(start, ALL)
    async with aclosing(again.batches(3600)) as batches:
        assert await anext(batches) == ()
        assert ids(await anext(batches)) == rows


async def test_every_subscription_ends_with_it(database: Database) -> None:
    async with following(database) as record:
        live = await record.subscribe(None, ALL)
        behind = await record.subscribe(live.position, ALL)
        waits = asyncio.create_task(anext(live.batches(3600), None))
        await asyncio.sleep(0)
        record.stop()
        assert await waits is None
    late = await record.subscribe(live.position, ALL)
    assert [each.ended for each in (live, behind, late)] == [STOPPING] * 3
    assert record.subscriptions == 0
