"""How many requests may be made in a minute, and which go first.

Coolify counts the requests of one user in windows of a minute, whoever makes them, and says with
each answer how many are left. So the count that all replicas share is Coolify's own: nobody has to
tell another how much was spent.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

_SECONDS = 60.0

USUAL_LIMIT = 200
"""Coolify's limit, unless it says another one."""

_SURE_SECONDS = 5.0
"""What Coolify said longer ago may have been spent by others since."""
_MOST_UNSURE = 4
"""While that is so, no more requests than this are under way: the next answer tells."""


class Urgency(IntEnum):
    """What a request is for. A lower number goes first."""

    CHANGE = 0
    """Starts, stops and what they need: a bot waits for them. And the lists that all slots share,
    which are read the less often, the more is spent."""
    CREATE = 1
    """New applications: however many there are, they don't hold up what can start already."""
    READ = 2
    """What is asked for a single slot: how its deployment does, whether it has stopped."""
    DESCRIBE = 3


_SHARES = {
    Urgency.CHANGE: 1.0,
    Urgency.CREATE: 0.975,
    Urgency.READ: 0.95,
    Urgency.DESCRIBE: 0.9,
}
"""How much of the budget may be used up before a request has to wait.

Less urgent requests leave some of it free, so that a start never waits for them.
"""


@dataclass(frozen=True, slots=True)
class _Window:
    """What Coolify has counted in its present minute."""

    used: int
    told_at: float
    ends_by: float
    """It ends then at the latest: it had begun when we were first told of it."""


class Budget:
    """Lets requests through as long as Coolify's count leaves room for them, the most urgent first.

    `most` is less than Coolify's limit if it is to leave some to others. What has been sent by the
    other `replicas` and is not told yet is taken to be as much, for each, as what is under way
    here. If Coolify doesn't tell its count, requests are counted here: each from when it is let
    through until a minute after its answer, so no minute has more than the limit.
    """

    def __init__(self, most: int | None = None, *, replicas: Callable[[], int] = lambda: 1) -> None:
        self._most = most
        self._replicas = replicas
        self._limit: int | None = None
        self._window: _Window | None = None
        self._under_way = 0
        self._heard = False
        self._answered: deque[float] = deque()
        self._waiting: list[tuple[Urgency, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._paused_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def limit(self) -> int:
        """How many requests may be made in a minute."""
        limit = self._limit or self._most or USUAL_LIMIT
        return min(limit, self._most or limit)

    @property
    def spent(self) -> float:
        """Which part of the budget of this minute is used up: from 0 to 1."""
        return min(1.0, self._used(asyncio.get_running_loop().time()) / self.limit)

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
            self._heard = True
            self._answered.append(asyncio.get_running_loop().time())
            self._let_through()

    def told(self, sent_at: float, limit: int, remaining: int) -> None:
        """Note what Coolify said of its count, in the answer to a request that was sent then."""
        now = asyncio.get_running_loop().time()
        self._limit = limit
        used, old = max(0, limit - remaining), self._window
        if old is not None and sent_at < old.ends_by <= now:
            return  # it may be the count of the window that is over
        if old is not None and now < old.ends_by:
            if used < old.used and sent_at < old.told_at:
                return  # the two were under way together, and this one was counted first
            if used >= old.used:
                self._window = _Window(used, now, old.ends_by)
                return
        self._window = _Window(used, now, now + _SECONDS)

    def pause(self, seconds: float) -> None:
        """Let no request through for this long, because the server asked for it."""
        until = asyncio.get_running_loop().time() + seconds
        self._paused_until = max(self._paused_until, until)
        if self._window is not None:  # until then, if its count is why we have to wait
            self._window = replace(self._window, ends_by=min(self._window.ends_by, until))

    def _used(self, now: float) -> int:
        """How many requests of this minute Coolify has counted, as far as we know."""
        if self._limit is None:
            return len(self._answered)
        window = self._window
        return 0 if window is None or now >= window.ends_by else window.used

    def _sure(self, now: float) -> bool:
        """Whether others can't have spent much since Coolify told its count."""
        if self._limit is None:
            return self._heard  # if it was, it doesn't tell, so there is nothing to wait for
        window = self._window
        return window is not None and now < min(window.ends_by, window.told_at + _SURE_SECONDS)

    def _let_through(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._answered and self._answered[0] + _SECONDS <= now:
            self._answered.popleft()
        while self._waiting and now >= self._paused_until:
            urgency, _, place = self._waiting[0]
            if not place.cancelled():
                if not self._has_room(urgency, now):
                    break  # there is no room for less urgent requests either
                self._under_way += 1
                place.set_result(None)
            heapq.heappop(self._waiting)
        self._look_again(now)

    def _has_room(self, urgency: Urgency, now: float) -> bool:
        if self._under_way >= _MOST_UNSURE and not self._sure(now):
            return False
        unknown = self._under_way if self._limit is None else self._under_way * self._replicas()
        return self._used(now) + unknown < max(1, int(self.limit * _SHARES[urgency]))

    def _look_again(self, now: float) -> None:
        """Set a timer for when the next request may be let through."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        if now < self._paused_until:
            at = self._paused_until
        elif self._limit is None:
            if not self._answered:
                return
            at = self._answered[0] + _SECONDS
        elif self._window is not None and now < self._window.ends_by:
            at = self._window.ends_by
        else:
            return
        self._timer = asyncio.get_running_loop().call_at(at, self._let_through)
