"""No connection is held across a call to an engine, so no transaction stays open over one."""

from __future__ import annotations

from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from botpool.states import SlotStatus
from botpool.store import Database
from tests.support.works import working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import pytest

    from botpool.store.postgres.database import Connection


STATEMENTS = ("fetch", "fetch_one", "execute")
CALLS = ("pull", "create", "start", "observe", "stop", "remove", "describe", "logs", "list")


async def test_no_transaction_is_open_while_an_engine_is_called(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task, and those that it starts, know what it holds: others may hold what they like."""
    holds = ContextVar("holds", default=False)
    held, calls = 0, 0
    across: list[bool] = []

    def held_during(statement: Callable[..., Awaitable[object]]) -> Callable[..., object]:
        async def run(*args: object, **options: object) -> object:
            nonlocal held
            held += 1
            before = holds.set(True)
            try:
                return await statement(*args, **options)
            finally:
                holds.reset(before)

        return run

    @asynccontextmanager
    async def transaction(database: Database) -> AsyncIterator[Connection]:
        before = holds.set(True)
        try:
            async with opened(database) as connection:
                yield connection
        finally:
            holds.reset(before)

    opened = Database.transaction

    def watched(call: Callable[..., Awaitable[object]]) -> Callable[..., object]:
        async def run(*args: object) -> object:
            nonlocal calls
            calls += 1
            across.append(holds.get())
            return await call(*args)

        return run

    monkeypatch.setattr(Database, "transaction", transaction)
    for name in STATEMENTS:
        monkeypatch.setattr(Database, name, held_during(getattr(Database, name)))
    async with working(database) as works:
        for name in CALLS:
            monkeypatch.setattr(works.engine, name, watched(getattr(works.engine, name)))
        slot = await works.warm()
        await works.reconciler.compare_once()
        await works.reconciler.recover_once()
    assert slot.status is SlotStatus.IDLE
    assert calls > 8
    assert not any(across)
    assert held > calls
