"""How a named query is run, and what becomes of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.store.queries import QUERIES
from botpool.store.rows import slot, transition

if TYPE_CHECKING:
    from botpool.models import Slot, Transition
    from botpool.store.database import Database


class Queries:
    """Named queries on one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def _change(self, query: str, *args: object) -> list[Transition]:
        return [transition(row) for row in await self._database.fetch(QUERIES[query], *args)]

    async def _slots(self, query: str, *args: object) -> list[Slot]:
        return [slot(row) for row in await self._database.fetch(QUERIES[query], *args)]

    async def _slot(self, query: str, *args: object) -> Slot | None:
        return next(iter(await self._slots(query, *args)), None)

    async def _found(self, query: str, *args: object) -> bool:
        return await self._database.fetch_one(QUERIES[query], *args) is not None
