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
class QueuePlace:
    """Where a waiting bot stands. The wait is `None` until a slot has been released once."""

    position: int
    estimated_wait_ms: int | None
