"""How fast a key may be used. Each replica counts for itself, in memory."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from botpool.errors import TooManyRequests
from botpool.states import Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from botpool.models.keys import ApiKey

_ADMIN_FACTOR = 10
_BURST_SECONDS = 2


class RateLimits:
    """One bucket of tokens for each key, filled steadily. An admin's is ten times as large.

    At most `most` buckets are kept. The one used least recently is dropped first: it is the first
    to be full again.
    """

    def __init__(
        self,
        per_second: float,
        *,
        most: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_second = per_second
        self._most = most
        self._clock = clock
        # By a key's id: how many tokens there were, and when. Least recently used first.
        self._buckets: dict[int, tuple[float, float]] = {}

    def __len__(self) -> int:
        """How many buckets are kept."""
        return len(self._buckets)

    def take(self, key: ApiKey) -> None:
        """Count a request. If it raises `TooManyRequests`, the request is not counted."""
        rate = self._per_second * (_ADMIN_FACTOR if key.role is Role.ADMIN else 1)
        now = self._clock()
        tokens, at = self._buckets.get(key.id, (math.inf, now))
        tokens = min(rate * _BURST_SECONDS, tokens + (now - at) * rate)
        if tokens < 1:
            raise TooManyRequests(math.ceil((1 - tokens) / rate))
        self._buckets.pop(key.id, None)
        self._buckets[key.id] = (tokens - 1, now)
        if len(self._buckets) > self._most:
            del self._buckets[next(iter(self._buckets))]
