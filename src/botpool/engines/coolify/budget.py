"""How many requests may be made in a minute, and which go first."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from contextlib import asynccontextmanager
from enum import IntEnum
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_SECONDS = 60.0


class Urgency(IntEnum):
    """What a request is for. A lower number goes first."""

    CHANGE = 0
    """Starts, stops and the calls that they need: a bot waits for them."""
    READ = 1
    DESCRIBE = 2


_SHARES = {Urgency.CHANGE: 1.0, Urgency.READ: 0.75, Urgency.DESCRIBE: 0.5}
"""How much of the budget may be used up before a request has to wait.

Less urgent requests leave some of it free, so that a start never waits for them.
"""


class Budget:
    """Lets a number of requests through in any minute, the most urgent first.

    A request counts from when it is let through until a minute after its answer. So whenever the
    server counts a request, it never counts more than that number in a minute.
    """

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self._under_way = 0
        self._answered: deque[float] = deque()
        self._waiting: list[tuple[Urgency, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._paused_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def spend(self, urgency: Urgency) -> AsyncIterator[None]:
        """Wait until one request may be made; make it within the block."""
        place = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (urgency, next(self._numbers), place))
        self._let_through()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._under_way -= 1
                self._let_through()
            raise
        try:
            yield
        finally:
            self._under_way -= 1
            self._answered.append(asyncio.get_running_loop().time())
            self._let_through()

    def pause(self, seconds: float) -> None:
        """Let no request through for this long, because the server asked for it."""
        until = asyncio.get_running_loop().time() + seconds
        self._paused_until = max(self._paused_until, until)

    def _let_through(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._answered and self._answered[0] + _SECONDS <= now:
            self._answered.popleft()
        while self._waiting and now >= self._paused_until:
            urgency, _, place = self._waiting[0]
            if not place.cancelled():
                if self._under_way + len(self._answered) >= self._most(urgency):
                    break  # there is no room for less urgent requests either
                self._under_way += 1
                place.set_result(None)
            heapq.heappop(self._waiting)
        self._look_again(now)

    def _most(self, urgency: Urgency) -> int:
        return max(1, int(self._requests * _SHARES[urgency]))

    def _look_again(self, now: float) -> None:
        """Set a timer for when the next request may be let through."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        if now < self._paused_until:
            at = self._paused_until
        elif self._answered:
            at = self._answered[0] + _SECONDS
        else:
            return
        self._timer = asyncio.get_running_loop().call_at(at, self._let_through)
