"""Events: what happened, as everyone is told: in a webhook, in the stream, and in a timeline.

Their one shape is made in the database, by store/schema/functions/events.sql.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.models.json import Json


class EventType(StrEnum):
    """What an event tells of. The first word says whose event it is."""

    BOT_STATUS_CHANGED = "bot.status_changed"
    """A bot has a new status."""
    BOT_NOTED = "bot.noted"
    """Something was noted about a bot. Its status is what it was."""
    BOT_EVENT = "bot.event"
    """A bot reported something about its call."""
    SLOT_STATUS_CHANGED = "slot.status_changed"
    """A slot has a new status, or none any more."""
    SLOT_NOTED = "slot.noted"
    """Something was noted about a slot. Its status is what it was."""
    POOL_STATUS_CHANGED = "pool.status_changed"
    """The launches of a platform are paused, or go on."""
    HOST_NOTED = "host.noted"
    """Something that an operator asked for was done on a host, or failed there."""

    DOCTOR_NOTED = "doctor.noted"
    """Doctor has examined this installation."""

    @property
    def of_bot(self) -> bool:
        """Whether it tells of a bot, and of nothing else."""
        return self.startswith("bot.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. The id of a happening is the same wherever it is told."""

    id: str
    type: EventType
    timestamp: str
    data: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """A page of a timeline. `last` is the place of its last event if there are more."""

    events: Sequence[Event]
    last: int | None
