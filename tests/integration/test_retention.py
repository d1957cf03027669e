"""Nothing grows for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.pool import Pool
from botpool.settings import Settings
from botpool.store import Store
from tests.support.scene import Scene

if TYPE_CHECKING:
    from botpool.store import Database


async def test_what_is_older_than_the_retention_is_forgotten(database: Database) -> None:
    store = Store(database)
    await store.installation.use_virtual_clock()
    scene = Scene(database, store, Pool(store, Settings(retention_days=30)))
    await scene.pool.queue.configure()
    await scene.add_host()
    _, slot = await scene.running()
    await scene.end(slot)
    await scene.pool.slots.make_idle(slot.id, slot.lease)
    written = await scene.database.fetch("SELECT id FROM transitions")
    await scene.pass_time(days=29)
    live, _ = await scene.running()
    assert await scene.pool.retention.prune() == 0
    await scene.pass_time(days=1, seconds=1)
    assert await scene.pool.retention.prune() == len(written) + 1
    remaining = await scene.database.fetch("SELECT id FROM bots")
    assert [row["id"] for row in remaining] == [live.id]
    assert await scene.store.transitions.timeline(live.id) != []
