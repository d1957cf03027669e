"""The queue of a platform: the bots that wait for a slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from botpool.states import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """A bot that waits for a slot. Position 1 is next."""

    id: int
    bot_id: int
    platform: Platform
    priority: int
    queued_at: datetime
    timeout_at: datetime
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePage:
    """Which waiting bots to list: those after a place, of one platform or of all.

    A place is a platform, a priority and the id of a bot; the bot need not wait any more.
    """

    after: tuple[Platform, int, int] | None = None
    platform: Platform | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlace:
    """Where a waiting bot stands. The wait is `None` until a slot has been released once."""

    position: int
    estimated_wait_ms: int | None
