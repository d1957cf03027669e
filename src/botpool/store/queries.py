"""Named queries: each noun has a file of queries, such as `bots.sql` beside `bots.py`.

A query starts with `-- name: its_name` and at least one comment line that says what it does.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING

from botpool.store.rows import slot, transition

if TYPE_CHECKING:
    from collections.abc import Mapping

    import asyncpg

    from botpool.models.slots import Slot
    from botpool.models.transitions import Transition
    from botpool.store.postgres.database import Database

_NAMED = re.compile(
    r"^-- name: (?P<name>\w+)\n(?P<doc>(?:-- .+\n)+)(?P<sql>(?:(?!-- name:).*\n?)*)", re.MULTILINE
)


@cache
def named_queries(noun: str) -> Mapping[str, str]:
    """The SQL of a noun's queries, by name."""
    text = resources.files(__package__).joinpath(f"{noun}.sql").read_text("utf-8")
    found = {match["name"]: match["sql"].strip().rstrip(";") for match in _NAMED.finditer(text)}
    if len(found) != text.count("-- name:"):
        raise ValueError(f"{noun}.sql: a query has no comment, or two have the same name")
    return MappingProxyType(found)


class Queries:
    """The named queries of one noun, run on one database."""

    def __init__(self, database: Database, noun: str) -> None:
        self._database = database
        self._sql = named_queries(noun)

    async def rows(self, query: str, *args: object) -> list[asyncpg.Record]:
        """All rows that the query returns."""
        return await self._database.fetch(self._sql[query], *args)

    async def row(self, query: str, *args: object) -> asyncpg.Record | None:
        """The first row that the query returns, if it returns one."""
        return await self._database.fetch_one(self._sql[query], *args)

    async def found(self, query: str, *args: object) -> bool:
        """Whether the query returns a row."""
        return await self.row(query, *args) is not None

    async def run(self, query: str, *args: object, seconds: float | None = None) -> int:
        """Run the query, for `seconds` at most, and return how many rows it touched."""
        return await self._database.execute(self._sql[query], *args, seconds=seconds)

    async def transitions(self, query: str, *args: object) -> list[Transition]:
        """The transitions that the query wrote or found."""
        return [transition(row) for row in await self.rows(query, *args)]

    async def slots(self, query: str, *args: object) -> list[Slot]:
        """The slots that the query returns."""
        return [slot(row) for row in await self.rows(query, *args)]

    async def slot(self, query: str, *args: object) -> Slot | None:
        """The slot that the query returns, if it returns one."""
        return next(iter(await self.slots(query, *args)), None)
