"""Replicas in the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models.replicas import Replica, ReplicaCounts, ReplicaRole
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from datetime import datetime

    from botpool.store.postgres.database import Database

SEEN_EVERY_SECONDS = 5.0
"""How often a replica notes that it is there."""

_LIVE_MS = 20_000
"""A replica that was not seen for so long is gone."""


class Replicas:
    """The queries of replicas.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "replicas")

    async def seen(self, name: str, role: ReplicaRole, version: str, host: str) -> None:
        """Note that a replica is there."""
        await self._queries.run("seen", name, role, version, host)

    async def gone(self, name: str) -> None:
        """Note that a replica has ended."""
        await self._queries.run("gone", name)

    async def live(self) -> list[Replica]:
        """The replicas that are there now, the oldest first."""
        rows = await self._queries.rows("live", _LIVE_MS)
        return [Replica(**{**row, "role": ReplicaRole(row["role"])}) for row in rows]

    async def counts(self) -> ReplicaCounts:
        """How many replicas answer, and how many work."""
        return ReplicaCounts.of(await self.live())

    async def workers(self) -> tuple[int, datetime | None]:
        """How many workers there are now, and when one last worked, if one ever did."""
        (row,) = await self._queries.rows("workers", _LIVE_MS)
        return row["live"], row["worked_at"]

    async def prune(self, before: datetime) -> int:
        """Forget replicas that were last seen before then."""
        return await self._queries.run("prune", before)
