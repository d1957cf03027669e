"""The server that the database is on: what it lets us do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from botpool.store.queries import Queries

if TYPE_CHECKING:
    from datetime import datetime

    from botpool.store.postgres.database import Database


class Rights(NamedTuple):
    """Whether the database's user may create tables and functions, and where."""

    user: str
    schema: str | None
    may_create: bool


class Server:
    """The queries of server.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "server")

    async def version(self) -> str:
        """The server's version."""
        (row,) = await self._queries.rows("version")
        version: str = row["server_version"]
        return version

    async def clock(self) -> datetime:
        """The server's own time."""
        (row,) = await self._queries.rows("clock")
        now: datetime = row["now"]
        return now

    async def rights(self) -> Rights:
        """What the user may do where new tables would be."""
        (row,) = await self._queries.rows("rights")
        return Rights(**row)

    async def connections_left(self) -> int:
        """How many connections others leave to botpools, those that botpools have included."""
        (row,) = await self._queries.rows("connections_left")
        left: int = row["connections"]
        return left
