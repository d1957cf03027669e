"""Bots, slots and pools as a caller sees them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ConfigDict, Field

from botpool.api.wire import Asked, PlatformName, Wire
from botpool.models import DEFAULT_PRIORITY
from botpool.states import BotStatus, FailureCause, Platform, SlotStatus

if TYPE_CHECKING:
    from pydantic.config import JsonDict

    from botpool.models import (
        Bot,
        BotEvent,
        Host,
        PoolNumbers,
        QueueEntry,
        QueuePlace,
        Slot,
        Transition,
    )

_EXAMPLE: JsonDict = {
    "meetingUrl": "https://meet.google.com/abc-defg-hij",
    "botDisplayName": "Notes",
    "metadata": {"customer": "42"},
}


class CreateBot(Asked):
    """A request to be in one meeting."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    meeting_url: str = Field(
        max_length=2000, description="Of Google Meet, Microsoft Teams or Zoom."
    )
    bot_display_name: str = Field(default="Notes", min_length=1, max_length=200)
    platform: PlatformName | None = Field(
        default=None, description="Follows from the URL; if given, it must be the same."
    )
    queue_timeout_ms: int | None = Field(
        default=None, ge=0, le=2**31 - 1, description="How long to wait for a slot at most."
    )
    priority: int = Field(
        default=DEFAULT_PRIORITY, ge=0, le=2**31 - 1, description="A lower one is served first."
    )
    max_launch_attempts: int | None = Field(
        default=None,
        ge=1,
        le=10,
        description="How often to launch it, if it fails before it was in its call; 2 by default.",
    )
    relaunch_in_call: bool = Field(
        default=False,
        strict=True,
        description="Whether to launch it again, as often, also when it fails in its call.",
    )
    callback_url: str | None = Field(
        default=None, max_length=2000, description="Is told of every change of the bot's status."
    )
    deduplication_key: str | None = Field(
        default=None, min_length=1, max_length=255, description="One live bot has it at a time."
    )
    metadata: dict[str, Any] = Field(default_factory=dict, description="Kept, and given back.")
    config: dict[str, Any] = Field(default_factory=dict, description="Handed to the bot.")


class StopBot(Asked):
    """Why a bot is stopped."""

    reason: str | None = Field(default=None, max_length=1000)


class SlotOut(Wire):
    """A reusable container of one platform."""

    id: int
    slot_name: str
    status: SlotStatus
    platform: Platform
    engine: str
    host: str | None
    image: str | None
    container_ref: str | None
    assigned_bot_id: int | None
    lease: int
    last_used_at: datetime
    last_assigned_at: datetime
    last_released_at: datetime | None
    recovery_attempts: int
    error_message: str | None
    draining: bool
    deployment_status: str | None
    created_at: datetime

    @classmethod
    def of(cls, slot: Slot) -> Self:
        """A slot as it goes over the wire."""
        return cls(**{name: getattr(slot, name) for name in cls.model_fields})


class BotOut(Wire):
    """One request to be in one meeting, from creation to its end."""

    id: int
    status: BotStatus
    platform: Platform
    meeting_url: str
    bot_display_name: str
    priority: int
    slot_name: str | None
    container_ref: str | None
    correlation_id: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    last_heartbeat: datetime | None
    failure_reason: str | None
    failure_cause: FailureCause | None
    launch_attempts: int
    callback_url: str | None
    deduplication_key: str | None
    metadata: dict[str, Any]
    queue_position: int | None = None
    estimated_wait_ms: int | None = None
    slot: SlotOut | None = None

    @classmethod
    def of(cls, bot: Bot, place: QueuePlace | None = None, slot: Slot | None = None) -> Self:
        """A bot as it goes over the wire, with its place in the queue and its slot."""
        own = cls.model_fields.keys() - {"queue_position", "estimated_wait_ms", "slot"}
        return cls(
            **{name: getattr(bot, name) for name in own},
            queue_position=place.position if place else None,
            estimated_wait_ms=place.estimated_wait_ms if place else None,
            slot=SlotOut.of(slot) if slot else None,
        )


class CreatedBotOut(Wire):
    """A bot as it was created, and its place in the queue if it has to wait."""

    bot: BotOut
    queue_position: int | None = None
    estimated_wait_ms: int | None = None


class BotList(Wire):
    """One page of bots. Without a cursor it is the last one."""

    bots: list[BotOut]
    next_cursor: str | None = None


class TimelineEntry(Wire):
    """Something that happened: a change of the bot or of its slot, or what the bot told."""

    at: datetime
    kind: Literal["bot", "slot", "event"]
    from_status: str | None = None
    to_status: str | None = None
    slot_name: str | None = None
    container_ref: str | None = None
    lease: int | None = None
    type: str | None = None
    reason: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of_transition(cls, step: Transition) -> Self:
        """A change."""
        return cls(
            at=step.at,
            kind=step.machine,
            from_status=step.from_status,
            to_status=step.to_status,
            slot_name=step.slot_name,
            container_ref=step.container_ref,
            lease=step.lease,
            reason=step.reason,
            data=step.details,
        )

    @classmethod
    def of_event(cls, event: BotEvent) -> Self:
        """What a bot told."""
        return cls(at=event.at, kind="event", type=event.type, data=event.data)


class Timeline(Wire):
    """All that happened to a bot, in order."""

    entries: list[TimelineEntry]


class LogLineOut(Wire):
    """A line that a bot has sent."""

    at: datetime
    level: str
    line: str


class Logs(Wire):
    """What a bot has sent, and what its containers wrote by themselves."""

    lines: list[LogLineOut]
    container: list[str]


class PoolNumbersOut(Wire):
    """How a platform's pool stands."""

    platform: Platform
    max_size: int
    total: int
    idle: int
    deploying: int
    busy: int
    releasing: int
    error: int
    queued: int

    @classmethod
    def of(cls, numbers: PoolNumbers) -> Self:
        """Numbers as they go over the wire."""
        return cls(**{name: getattr(numbers, name) for name in cls.model_fields})


class HostOut(Wire):
    """A machine of an engine. While it is ill it gets no new work, but for a probe now and then."""

    engine: str
    host: str
    slots: int
    status: Literal["well", "ill"]
    failures: int
    reason: str | None = Field(description="Why the last thing that failed there has.")
    ill_since: datetime | None
    probe_at: datetime | None

    @classmethod
    def of(cls, host: Host) -> Self:
        """A host as it goes over the wire."""
        return cls(
            status="well" if host.ill_since is None else "ill",
            **{name: getattr(host, name) for name in cls.model_fields if name != "status"},
        )


class PoolList(Wire):
    """The pool of each platform, and the hosts that slots are on."""

    platforms: list[PoolNumbersOut]
    hosts: list[HostOut]


class SlotList(Wire):
    """Every slot."""

    slots: list[SlotOut]


class QueueEntryOut(Wire):
    """A bot that waits for a slot. Position 1 is next."""

    bot_id: int
    platform: Platform
    priority: int
    position: int
    queued_at: datetime
    timeout_at: datetime

    @classmethod
    def of(cls, entry: QueueEntry) -> Self:
        """An entry as it goes over the wire."""
        return cls(**{name: getattr(entry, name) for name in cls.model_fields})


class QueueList(Wire):
    """The bots that wait."""

    entries: list[QueueEntryOut]
