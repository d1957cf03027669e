"""Pools in the database: how many slots each platform has, and how many it may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models.pools import PoolNumbers, PoolStanding
from botpool.states import Platform
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from botpool.models.transitions import Transition
    from botpool.store.postgres.database import Database


class Pools:
    """The queries of pools.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "pools")

    async def set(
        self, platform: Platform, max_size: int, warm: int, engine: str, image: str | None
    ) -> list[Transition]:
        """Set how far a pool may grow, how many of its slots are kept warm, and what new ones are.

        New slots are on this engine, and made of this image.
        """
        return await self._queries.transitions("set", platform, max_size, warm, engine, image)

    async def pause(self, platform: Platform, by: str, reason: str | None) -> list[Transition]:
        """Launch no bot of a platform until it is resumed."""
        return await self._queries.transitions("pause", platform, by, reason)

    async def resume(self, platform: Platform, by: str) -> list[Transition]:
        """Launch bots of a platform again. Those that wait are served at once, in order."""
        return await self._queries.transitions("resume", platform, by)

    async def standing(self, platforms: Iterable[Platform]) -> dict[Platform, PoolStanding]:
        """What keeps bots of these platforms waiting."""
        rows = await self._queries.rows("standing", [*platforms])
        return {
            Platform(row["platform"]): PoolStanding(
                **{name: row[name] for name in ("full", "paused_at", "pause_reason", "trouble")}
            )
            for row in rows
        }

    async def numbers(self) -> list[PoolNumbers]:
        """How many slots and waiting bots each platform has."""
        rows = await self._queries.rows("numbers")
        return [PoolNumbers(**{**row, "platform": Platform(row["platform"])}) for row in rows]
