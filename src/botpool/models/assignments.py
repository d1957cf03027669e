"""Assignments: a bot on a slot under one lease."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from botpool.states import BotStatus, FailureCause, SlotStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from botpool.models.bots import Bot
    from botpool.models.json import Json
    from botpool.models.slots import Slot

Lease = tuple[int, int]
"""A slot's id and the lease of one assignment of it."""


def what_a_bot_is_told(
    bot: Bot, lease: int, *, heartbeat_interval_ms: int, max_silence_ms: int
) -> Json:
    """What a container needs to know about its bot. A claim returns it, and `BOT_DATA` holds it."""
    return {
        "botId": bot.id,
        "lease": lease,
        "correlationId": bot.correlation_id,
        "meetingUrl": bot.meeting_url,
        "botDisplayName": bot.bot_display_name,
        "platform": bot.platform,
        "config": bot.config,
        "heartbeatIntervalMs": heartbeat_interval_ms,
        "maxSilenceMs": max_silence_ms,
    }


def last_heard(bot: Bot, slot: Slot) -> datetime:
    """When a bot was last heard on its slot. Its assignment and its start count as well.

    The database's function `last_heard` does the same.
    """
    return max(filter(None, (bot.last_heartbeat, bot.started_at, slot.last_assigned_at)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an assignment ends: the new statuses of the bot and of its slot.

    Nothing changes if the bot was heard since `unless_heard_since`, or if the slot's status is not
    `was`.
    """

    slot_id: int
    lease: int
    bot_status: BotStatus
    reason: str
    slot_status: SlotStatus = SlotStatus.RELEASING
    failure_cause: FailureCause | None = None
    unless_heard_since: datetime | None = None
    was: SlotStatus | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLaunch:
    """Why a launch failed.

    Nothing changes if the bot was heard since `unless_heard_since`, or if the slot's status is not
    `was`. `details` are recorded with the transitions.
    """

    slot_id: int
    lease: int
    cause: FailureCause
    reason: str
    unless_heard_since: datetime | None = None
    was: SlotStatus | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    elsewhere: bool = False
    """Whether only another host can do better, so that the bot ends if there is none."""
    counts: bool = True
    """Whether it counts as one of the bot's launches. A launch that never began doesn't, and its
    slot is deleted."""

    @property
    def ending(self) -> Ending:
        """How the assignment ends if the bot has no launches left."""
        return Ending(
            slot_id=self.slot_id,
            lease=self.lease,
            bot_status=BotStatus.FATAL,
            slot_status=SlotStatus.ERROR,
            failure_cause=self.cause,
            reason=self.reason,
            unless_heard_since=self.unless_heard_since,
            was=self.was,
            details=self.details,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The statuses of the slot and the bot when a heartbeat arrived."""

    slot_id: int
    lease: int
    slot_status: SlotStatus
    bot_status: BotStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a bot has come, and whether the bot itself says so (`heard`)."""

    slot_id: int
    lease: int
    status: BotStatus
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)
    heard: bool = True
