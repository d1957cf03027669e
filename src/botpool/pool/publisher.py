"""Publishing changes: each is logged, and the processes that it concerns are woken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from botpool.logs import log_transitions
from botpool.states import SLOT_NEEDS_WORK
from botpool.store.installation import FEED, WEBHOOKS, WORK
from botpool.tasks.background import BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from botpool.models.pulls import PullKey
    from botpool.models.transitions import Transition
    from botpool.store import Store


class Listener(Protocol):
    """Hears of what this replica wrote: of each change once, after it was committed."""

    def hear(self, written: Sequence[Transition]) -> None:
        """Hear of transitions."""
        ...

    def hear_of_pulls(self, ended: Sequence[PullKey]) -> None:
        """Hear of pulls by a start that have ended."""
        ...


class Publisher:
    """Logs and announces what was written, and lets the listener know."""

    def __init__(self, store: Store, listener: Listener | None = None) -> None:
        self._store = store
        self._listener = listener
        self._channels: set[str] = set()
        self._announcement = BackgroundCall(self._announce)

    async def publish(self, change: Awaitable[list[Transition]]) -> list[Transition]:
        """Wait for a change, and tell what it wrote."""
        return self.tell(await change)

    def tell(self, written: list[Transition]) -> list[Transition]:
        """Log what was written, wake the listeners that it concerns, and return it."""
        log_transitions(written)
        if written:
            if self._listener is not None:
                self._listener.hear(written)
            channels = {FEED}
            for step in written:
                if step.machine == "bot" and step.from_status != step.to_status:
                    channels.add(WEBHOOKS)
                elif step.machine == "slot" and step.to_status in SLOT_NEEDS_WORK:
                    channels.add(WORK)
            self.wake(*channels)
        return written

    def tell_pulls(self, ended: Sequence[PullKey]) -> None:
        """Let it be known that pulls by a start have ended."""
        if ended and self._listener is not None:
            self._listener.hear_of_pulls(ended)

    def wake(self, *channels: str) -> None:
        """Wake the listeners on these channels, soon."""
        self._channels.update(channels)
        self._announcement.request()

    async def _announce(self) -> None:
        channels, self._channels = self._channels, set()
        await self._store.installation.announce(sorted(channels))
