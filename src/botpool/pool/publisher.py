"""Publishing changes: each is logged, and the processes that it concerns are woken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.logs import log_transitions
from botpool.states import SLOT_NEEDS_WORK
from botpool.store.installation import FEED, WEBHOOKS, WORK
from botpool.tasks.background import BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from botpool.models.transitions import Transition
    from botpool.store import Store


class Publisher:
    """Logs and announces what was written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._channels: set[str] = set()
        self._announcement = BackgroundCall(self._announce)

    async def publish(self, change: Awaitable[list[Transition]]) -> list[Transition]:
        """Wait for a change, and tell what it wrote."""
        return self.tell(await change)

    def tell(self, written: list[Transition]) -> list[Transition]:
        """Log what was written, wake the listeners that it concerns, and return it."""
        log_transitions(written)
        if written:
            channels = {FEED}
            for step in written:
                if step.machine == "bot" and step.from_status != step.to_status:
                    channels.add(WEBHOOKS)
                elif step.machine == "slot" and step.to_status in SLOT_NEEDS_WORK:
                    channels.add(WORK)
            self.wake(*channels)
        return written

    def wake(self, *channels: str) -> None:
        """Wake the listeners on these channels, soon."""
        self._channels.update(channels)
        self._announcement.request()

    async def _announce(self) -> None:
        channels, self._channels = self._channels, set()
        await self._store.installation.announce(sorted(channels))
