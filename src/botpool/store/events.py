"""The queries of what bots say beside their status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models import BotEvent, LogLine
from botpool.store.base import Queries
from botpool.store.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.models import Json


class EventQueries(Queries):
    """The queries of sql/events.sql."""

    async def add_events(
        self, slot_id: int, lease: int, events: Sequence[tuple[str, Json]], most: int
    ) -> bool:
        """Keep the newest of what a bot tells; whether the lease is the current one."""
        types = [kind for kind, _ in events]
        return await self._found(
            "add_events", slot_id, lease, types, [data for _, data in events], most
        )

    async def add_log_lines(
        self, slot_id: int, lease: int, lines: Sequence[tuple[str, str]], most: int
    ) -> bool:
        """Keep the newest of what a bot logs; whether the lease is the current one."""
        levels = [level for level, _ in lines]
        return await self._found(
            "add_log_lines", slot_id, lease, levels, [line for _, line in lines], most
        )

    async def list_events(self, bot_id: int) -> list[BotEvent]:
        """What a bot told."""
        rows = await self._database.fetch(QUERIES["list_events"], bot_id)
        return [BotEvent(**row) for row in rows]

    async def list_log_lines(self, bot_id: int) -> list[LogLine]:
        """What a bot logged."""
        rows = await self._database.fetch(QUERIES["list_log_lines"], bot_id)
        return [LogLine(**row) for row in rows]
