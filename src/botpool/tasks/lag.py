"""How late the event loop is for what is due: something kept it busy, or the machine is."""

from __future__ import annotations

import asyncio
from collections import deque

_EVERY_SECONDS = 0.25
_WINDOW_SECONDS = 60.0


class EventLoopLag:
    """Measures a few times a second how late a timer is."""

    def __init__(self) -> None:
        # By time. One that is no longer than a later one tells nothing any more, and is left out.
        self._longest: deque[tuple[float, float]] = deque()

    def worst(self) -> float:
        """The longest delay of the last minute, in seconds."""
        return self._longest[0][1] if self._longest else 0.0

    async def keep_measuring(self) -> None:
        """Measure until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            due = now() + _EVERY_SECONDS
            await asyncio.sleep(_EVERY_SECONDS)
            self.note(now(), max(now() - due, 0.0))

    def note(self, now: float, lag: float) -> None:
        """Note a delay."""
        while self._longest and self._longest[-1][1] <= lag:
            self._longest.pop()
        self._longest.append((now, lag))
        while self._longest[0][0] <= now - _WINDOW_SECONDS:
            self._longest.popleft()
