"""Pools: how many slots a platform has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from botpool.states import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNumbers:
    """How many slots of a platform there are in each status, and how many bots wait for one.

    `warm` slots are kept idle, as far as there is room.
    """

    platform: Platform
    max_size: int
    warm: int
    total: int
    idle: int
    deploying: int
    busy: int
    releasing: int
    error: int
    queued: int
