"""A worker's doctor: it examines the installation when somebody asks, and now and then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from botpool.store.installation import ASKED
from botpool.store.postgres.listening import listening
from botpool.tasks.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from botpool.models.diagnoses import Finding
    from botpool.pool import Pool
    from botpool.store import Database, Store

_EVERY_MS = 3_600_000
_LOOK_SECONDS = 20.0
"""Whoever asks announces it, so this is only a safety net, and how soon the first one is made."""
_LONGEST_SECONDS = 180.0
"""Longer than all checks may take together. Then another replica may try."""


class Rounds:
    """Keeps the newest diagnosis in the database. However many replicas run, one makes it."""

    def __init__(
        self,
        store: Store,
        pool: Pool,
        replica: str,
        *,
        examine: Callable[[], Awaitable[Sequence[Finding]]],
    ) -> None:
        self._store = store
        self._pool = pool
        self._replica = replica
        self._examine = examine
        self._busy_until = 0.0

    async def run(self, database: Database) -> None:
        """Make diagnoses for ever."""
        # A botpool that has just started has better things to do, unless somebody asks.
        self._busy_until = asyncio.get_running_loop().time() + _LOOK_SECONDS
        loop = Loop(
            self._look, poll_seconds=_LOOK_SECONDS, failed="can't examine this installation"
        )
        async with listening(database, ASKED, loop.wake):
            await loop.run()

    async def _look(self) -> float:
        await self.look(only_asked=asyncio.get_running_loop().time() < self._busy_until)
        return _LOOK_SECONDS

    async def look(self, *, only_asked: bool = False) -> bool:
        """Make a diagnosis if one is wanted, and return whether it was."""
        ttl_ms = int(_LONGEST_SECONDS * 1000)
        if not await self._store.diagnoses.take(
            self._replica, ttl_ms, _EVERY_MS, only_asked=only_asked
        ):
            return False
        async with asyncio.timeout(_LONGEST_SECONDS):
            findings = await self._examine()
        await self._pool.diagnoses.record(self._replica, findings)
        return True
