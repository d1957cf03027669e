"""What every change of the pool goes through: it is logged, and those whom it concerns woken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.announcer import Announcer
from botpool.logs import log_transitions
from botpool.lookups import Lookups
from botpool.states import SLOT_NEEDS_WORK

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from collections.abc import Set as AbstractSet

    from botpool.models import Transition
    from botpool.settings import Settings
    from botpool.store import Store

WORK, RECORD, WEBHOOKS = "botpool_work", "botpool_record", "botpool_webhooks"
"""On what reconcilers, followers of the record, and those who deliver webhooks are woken."""


class Changes(Lookups):
    """Writes, logs and announces."""

    def __init__(self, store: Store, settings: Settings) -> None:
        super().__init__(store)
        self._settings = settings
        self._channels: set[str] = set()
        self._announcer = Announcer(self._notify)

    async def _logged(self, change: Awaitable[list[Transition]]) -> list[Transition]:
        """Log what a change wrote, and wake those whom it concerns."""
        written = await change
        log_transitions(written)
        if written:
            channels = {RECORD}
            for step in written:
                if step.machine == "bot" and step.from_status != step.to_status:
                    channels.add(WEBHOOKS)
                elif step.machine == "slot" and step.to_status in SLOT_NEEDS_WORK:
                    channels.add(WORK)
            self._announce(channels)
        return written

    def _announce(self, channels: AbstractSet[str]) -> None:
        self._channels |= channels
        self._announcer.announce()

    async def _notify(self) -> None:
        channels, self._channels = self._channels, set()
        await self._store.announce(sorted(channels))
