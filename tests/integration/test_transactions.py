"""No connection is held across a call to an engine, so no transaction stays open over one."""

from __future__ import annotations

from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from botpool.states import SlotStatus
from botpool.store import Database
from tests.support.works import working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from botpool.store.postgres.database import Connection


async def test_no_transaction_is_open_while_an_engine_is_called(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task, and those that it starts, know what it holds: others may hold what they like."""
    holds = ContextVar("holds", default=False)
    connected = Database._connection
    held, calls = 0, 0
    across: list[bool] = []

    @asynccontextmanager
    async def holding(self: Database) -> AsyncIterator[Connection]:
        nonlocal held
        held += 1
        before = holds.set(True)
        try:
            async with connected(self) as connection:
                yield connection
        finally:
            holds.reset(before)

    monkeypatch.setattr(Database, "_connection", holding)
    async with working(database) as works:
        called = works.engine._call

        async def watched(host: str) -> None:
            nonlocal calls
            calls += 1
            across.append(holds.get())
            await called(host)

        monkeypatch.setattr(works.engine, "_call", watched)
        slot = await works.warm()
        await works.reconciler.compare_once()
        await works.reconciler.recover_once()
    assert slot.status is SlotStatus.IDLE
    assert calls > 8
    assert not any(across)
    assert held > calls
