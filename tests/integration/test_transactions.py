"""No transaction stays open across a call to an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from botpool.states import SlotStatus
from tests.reconciling import working

if TYPE_CHECKING:
    import pytest

    from botpool.store import Database

OPEN = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND state LIKE 'idle in transaction%'
"""


async def test_no_transaction_is_open_while_an_engine_is_called(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = await asyncpg.connect(database_url)
    calls = 0
    async with working(database) as works:
        called = works.engine._call

        async def watched(host: str) -> None:
            nonlocal calls
            calls += 1
            assert await watcher.fetchval(OPEN) == 0
            await called(host)

        monkeypatch.setattr(works.engine, "_call", watched)
        slot = await works.warm()
        await works.reconciler.sync_once()
        await works.reconciler.recover_once()
        assert slot.status is SlotStatus.IDLE
        assert calls > 8
    await watcher.close()
