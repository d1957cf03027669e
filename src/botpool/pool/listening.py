"""Listening: a bot counts as silent only while it could have been heard.

Each replica with an API notes how long it could hear bots. A time in which no replica could,
because it was down, paused, or without its database, doesn't count as a bot's silence.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from botpool.errors import BotpoolError

if TYPE_CHECKING:
    from botpool.settings import Settings
    from botpool.store import Store

_NOTED_SECONDS = 10.0
_TICKS = 10
_LATE = 2
"""A tick that takes this many times as long as it should means that the process was paused."""


class Listening:
    """Notes for how long this replica could hear bots."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    @property
    def noted_seconds(self) -> float:
        """How often to note it: several times within the time that a bot may be silent."""
        return min(_NOTED_SECONDS, self._settings.heartbeat_freshness_ms / 1000 / 10)

    async def note(self, replica: str, seconds: float) -> None:
        """Note that a replica could hear bots for the last `seconds`."""
        await self._store.listening.note(replica, round(seconds * 1000))

    async def keep_noting(self, replica: str) -> None:
        """Note it again and again, until cancelled.

        A process that was paused heard nothing meanwhile. So it ticks, and the time between two
        ticks counts only if the second one came in time.
        """
        clock = asyncio.get_running_loop().time
        tick = self.noted_seconds / _TICKS
        since = last = clock()
        while True:
            await asyncio.sleep(tick)
            now = clock()
            if now - last > _LATE * tick:
                since = now
            last = now
            if now - since >= self.noted_seconds:
                # A time that can't be noted doesn't count: without the database no bot is heard.
                with suppress(BotpoolError):
                    await self.note(replica, now - since)
                    # Paused before it was written, the process noted a time that had passed since.
                    if clock() - now > _LATE * tick:
                        await self._store.listening.take_back(replica, round((now - since) * 1000))
                since = now
