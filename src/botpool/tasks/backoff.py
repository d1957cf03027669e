"""How long to wait after a failure: longer each time, with some randomness."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

_SPREAD = 0.2
_MOST_DOUBLINGS = 30


def spread(seconds: float, random: Random) -> float:
    """About this many seconds, so that things that fail together aren't retried together."""
    return seconds * random.uniform(1 - _SPREAD, 1 + _SPREAD)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double with each failure, from the first to the longest."""

    first_seconds: float
    longest_seconds: float = inf

    def seconds(self, failures: int, random: Random | None = None) -> float:
        """How long to wait after this many failures in a row; spread if there is a `random`."""
        doublings = min(max(failures, 1) - 1, _MOST_DOUBLINGS)
        seconds = min(self.first_seconds * 2**doublings, self.longest_seconds)
        return seconds if random is None else spread(seconds, random)
