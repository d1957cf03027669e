"""A backup, restored into another server, as docs/how-to/backup.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from botpool.errors import PositionGone
from botpool.feed.stream import Position
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.store import Store, connect, migrate
from botpool.store.invariants import broken_invariants
from botpool.store.postgres.embedded import embedded_postgres, postgres_programs
from tests.support.command import run
from tests.support.follower import ALL, all_ids, following_feed, ids, new_ids, next_events
from tests.support.scene import Scene

ROOT = Path(__file__).parents[2]
YEARS_OF_TRANSACTIONS = 10**9
SKIP_NUMBERS = "SELECT setval(pg_get_serial_sequence('bots', 'id'), max(id) + 100000) FROM bots;"


async def program(name: str, *options: str) -> None:
    code, _, error = await run(str(postgres_programs() / name), *options)
    assert code == 0, error


async def test_streams_go_on_after_a_restore_and_tell_of_nothing_twice(
    scene: Scene, database_url: str, tmp_path: Path
) -> None:
    bots = [await scene.create() for _ in range(4)]
    # The server that is lost has seen more transactions than a new one will for long.
    for table in ("transitions", "bot_events"):
        await scene.database.execute(
            f"UPDATE {table} SET xid = (xid::text::bigint + {YEARS_OF_TRANSACTIONS})::text::xid8"
        )
    file = tmp_path / "botpool.dump"
    await program("pg_dump", "--format=custom", f"--file={file}", database_url)
    async with embedded_postgres(tmp_path / "other") as url:
        await program("pg_restore", "--exit-on-error", "--no-owner", f"--dbname={url}", str(file))
        async with connect(url) as database:
            assert await migrate(database) == []
            store = Store(database)
            before = await all_ids(database)
            assert before == await all_ids(scene.database)
            page = await store.events.read(0, 0, 1000)
            assert ([row.id for row in page.rows], page.held_back) == (before, False)
            assert (await store.bots.get(bots[0].bot.id)).status == bots[0].bot.status
            assert await broken_invariants(database) == []
            async with following_feed(database) as feed:
                subscription = await feed.subscribe(None, ALL)
                written = await new_ids(database, 3)
                assert ids(await next_events(subscription, 3)) == written
                with pytest.raises(PositionGone):
                    await feed.subscribe(Position(YEARS_OF_TRANSACTIONS, 1, 0), ALL)
            # So that nobody's number is given to another bot.
            await database.fetch(SKIP_NUMBERS)
            created = await Scene(database, store, Pool(store, Settings())).create()
            assert created.bot.id == bots[-1].bot.id + 100_001


async def test_the_docs_have_the_statement_that_skips_numbers() -> None:
    assert SKIP_NUMBERS in (ROOT / "docs" / "how-to" / "backup.md").read_text("utf-8")
