"""Pools: how many slots a platform has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from botpool.states import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNumbers:
    """How many slots of a platform there are in each status, and how many bots wait for one.

    `warm` slots are kept idle, as far as there is room. While it is paused, no bot is launched.
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
    paused_at: datetime | None = None
    paused_by: str | None = None
    pause_reason: str | None = None

    @property
    def pause(self) -> str | None:
        """That it is paused, in a sentence; `None` if it is not."""
        if self.paused_at is None:
            return None
        why = f" ({self.pause_reason})" if self.pause_reason else ""
        since = f"{self.paused_at:%Y-%m-%d %H:%M:%S}"
        return f"{self.platform} is paused since {since} by {self.paused_by}{why}: its bots wait."


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStanding:
    """What keeps bots of a platform waiting."""

    full: bool
    """Whether it has as many slots as it may have."""
    paused_at: datetime | None = None
    pause_reason: str | None = None
    trouble: str | None = None
    """Why none of its hosts gets new work, if that is so: in what state each host is."""
