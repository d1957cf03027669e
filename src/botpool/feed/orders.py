"""Orders to leave, brought to bots that wait for them.

A bot that is told to leave learns it at its next heartbeat. One that waits here learns it at once:
with each announcement of changes one query finds every bot that was told to leave, for all that
wait in this process. So a bot that waits costs a little memory, and no connection to the database.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from botpool.tasks.background import BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botpool.models.assignments import Lease
    from botpool.settings import Settings
    from botpool.store import Store


class Orders:
    """The bots that wait for an order to leave, by slot and lease."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._waiting: dict[Lease, set[asyncio.Event]] = {}
        self._look = BackgroundCall(self._find)
        self._stopped = False
        self.patience_seconds = 25.0
        """How long a bot waits at most. Less than proxies wait for an answer."""

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    def changed(self) -> None:
        """Look for orders, because something has changed."""
        if self._waiting:
            self._look.request()

    def stop(self) -> None:
        """Let nobody wait any longer, now and later."""
        self._stopped = True
        for events in self._waiting.values():
            for event in events:
                event.set()

    @contextmanager
    def expected(self, lease: Lease) -> Iterator[Expected]:
        """Whatever is ordered within the block reaches the one who waits in it."""
        event = asyncio.Event()
        self._waiting.setdefault(lease, set()).add(event)
        try:
            yield Expected(event, 0.0 if self._stopped else self.patience_seconds)
        finally:
            self._waiting[lease].discard(event)
            if not self._waiting[lease]:
                del self._waiting[lease]

    async def _find(self) -> None:
        # Whoever is told has the whole grace from then on; a reservation may hide it for a while.
        within_ms = self._settings.leave_grace_ms + self._settings.reservation_ttl_ms
        for lease in await self._store.bots.leaving(within_ms):
            for event in self._waiting.get(lease, ()):
                event.set()


class Expected:
    """An order that may come."""

    def __init__(self, event: asyncio.Event, seconds: float) -> None:
        self._event = event
        self._seconds = seconds

    async def wait(self) -> None:
        """Return when the order has come, or after a while."""
        try:
            async with asyncio.timeout(self._seconds):
                await self._event.wait()
        except TimeoutError:
            return
