"""How fast a key may be used, and how many wrong ones an address may send.

Each replica counts for itself, in memory.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from botpool.errors import TooManyRequests, TooManyWrongKeys
from botpool.models.addresses import network_of
from botpool.states import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from botpool.models.keys import ApiKey

_ADMIN_FACTOR = 10
_BURST_SECONDS = 2
_WRONG_KEYS_PER_SECOND = 1.0
_WRONG_KEYS_AT_ONCE = 20.0


class Buckets:
    """One bucket of tokens for each name, filled steadily.

    At most `most` buckets are kept. The one used least recently is dropped first: it is the first
    to be full again.
    """

    def __init__(self, *, most: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        # By name: how many tokens there were, and when. Least recently used first.
        self._buckets: dict[Hashable, tuple[float, float]] = {}

    def __len__(self) -> int:
        """How many buckets are kept."""
        return len(self._buckets)

    def take(self, name: Hashable, rate: float, size: float) -> int:
        """Take a token, and return 0. If there is none, return in how many seconds there is one.

        `rate` is how many are added in a second, and `size` how many there can be.
        """
        now = self._clock()
        tokens, at = self._buckets.get(name, (math.inf, now))
        tokens = min(size, tokens + (now - at) * rate)
        if tokens < 1:
            return math.ceil((1 - tokens) / rate)
        self._buckets.pop(name, None)
        self._buckets[name] = (tokens - 1, now)
        if len(self._buckets) > self._most:
            del self._buckets[next(iter(self._buckets))]
        return 0


class RateLimits:
    """How fast each key may be used. An admin's key may be used ten times as fast."""

    def __init__(
        self,
        per_second: float,
        *,
        most: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_second = per_second
        self._buckets = Buckets(most=most, clock=clock)

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._buckets)

    def take(self, key: ApiKey) -> None:
        """Count a request. If it raises `TooManyRequests`, the request is not counted."""
        rate = self._per_second * (_ADMIN_FACTOR if key.role is Role.ADMIN else 1)
        if seconds := self._buckets.take(key.id, rate, rate * _BURST_SECONDS):
            raise TooManyRequests(seconds)


class WrongKeys:
    """How many wrong keys, tokens and codes each address may send.

    Only requests that are refused anyway are counted: a valid key works from any address.
    """

    def __init__(self, *, most: int = 10_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._buckets = Buckets(most=most, clock=clock)

    def count(self, address: str) -> None:
        """Count a wrong key. Raises `TooManyWrongKeys` if there were too many."""
        caller = network_of(address)
        if seconds := self._buckets.take(caller, _WRONG_KEYS_PER_SECOND, _WRONG_KEYS_AT_ONCE):
            raise TooManyWrongKeys(seconds)
