"""Events as a caller gets them, in timelines, in the stream and in webhooks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, RootModel, WithJsonSchema

from botpool.api.paging import cursor_of
from botpool.api.wire import Wire
from botpool.states import BotStatus, FailureCause, Platform, SlotStatus

if TYPE_CHECKING:
    from botpool.models.events import EventPage

MOST_BYTES = 2**20
"""A page of a timeline ends with the event that makes so many bytes full."""

# As the database wrote it: the text is the same wherever an event is told.
Timestamp = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
EventId = Annotated[str, Field(description="The same wherever this event is told.")]


class BotChangeData(Wire):
    """A bot's status, the one before, and where it is now."""

    bot_id: int
    platform: Platform
    meeting_url: str | None
    bot_display_name: str | None
    correlation_id: str | None
    metadata: dict[str, Any]
    status: BotStatus
    previous_status: BotStatus | None = Field(description="Null for a new bot.")
    reason: str
    details: dict[str, Any]
    failure_cause: FailureCause | None
    failure_reason: str | None
    slot_id: int | None
    slot_name: str | None
    container_ref: str | None
    lease: int | None


class BotChange(Wire):
    """A bot has a new status; or something was noted about it, and its status is what it was."""

    id: EventId
    type: Literal["bot.status_changed", "bot.noted"]
    timestamp: Timestamp
    data: BotChangeData


class Reported(Wire):
    """An event as the bot reported it."""

    type: str
    data: dict[str, Any]


class BotReportData(Wire):
    """What a bot reported, and which bot it is."""

    bot_id: int
    platform: Platform
    meeting_url: str
    bot_display_name: str
    correlation_id: str
    metadata: dict[str, Any]
    event: Reported


class BotReport(Wire):
    """A bot reported something about its call."""

    id: EventId
    type: Literal["bot.event"]
    timestamp: Timestamp
    data: BotReportData


class SlotChangeData(Wire):
    """A slot's status, the one before, and its bot."""

    slot_id: int
    slot_name: str
    platform: Platform
    container_ref: str | None
    lease: int | None
    status: SlotStatus | None = Field(description="Null for a slot that is deleted.")
    previous_status: SlotStatus | None = Field(description="Null for a new slot.")
    reason: str
    details: dict[str, Any]
    bot_id: int | None
    correlation_id: str | None


class SlotChange(Wire):
    """A slot has a new status; or something was noted about it, and its status is what it was."""

    id: EventId
    type: Literal["slot.status_changed", "slot.noted"]
    timestamp: Timestamp
    data: SlotChangeData


class PoolChangeData(Wire):
    """Whether the launches of a platform are paused."""

    platform: Platform
    status: Literal["open", "paused"]
    previous_status: Literal["open", "paused"]
    reason: str
    details: dict[str, Any] = Field(description="`by`: who asked for it.")


class PoolChange(Wire):
    """The launches of a platform are paused, or go on."""

    id: EventId
    type: Literal["pool.status_changed"]
    timestamp: Timestamp
    data: PoolChangeData


class HostNoteData(Wire):
    """What was done on a host."""

    platform: None = Field(description="Null: a host is of no platform.")
    status: Literal["healthy", "unhealthy"]
    previous_status: Literal["healthy", "unhealthy"]
    reason: str
    details: dict[str, Any] = Field(description="`engine`, `host`, `image`, `outcome`, `error`.")


class HostNote(Wire):
    """An image that was asked for is on a host, or could not be brought there."""

    id: EventId
    type: Literal["host.noted"]
    timestamp: Timestamp
    data: HostNoteData


class DoctorNoteData(Wire):
    """How doctor's checks came out."""

    platform: None = Field(description="Null: doctor examines the whole installation.")
    status: Literal["ok", "warning", "problem"]
    previous_status: Literal["ok", "warning", "problem"]
    reason: str
    details: dict[str, Any] = Field(description="`problems`, `warnings`; `by`: who asked for it.")


class DoctorNote(Wire):
    """Doctor has examined this installation: `GET /doctor` has what it found."""

    id: EventId
    type: Literal["doctor.noted"]
    timestamp: Timestamp
    data: DoctorNoteData


class Event(
    RootModel[
        Annotated[
            BotChange | BotReport | SlotChange | PoolChange | HostNote | DoctorNote,
            Field(discriminator="type"),
        ]
    ]
):
    """Something that happened, told alike in timelines, in the stream and in webhooks."""


class Timeline(Wire):
    """One page of what happened. The last page has no `nextCursor`."""

    events: list[Event]
    next_cursor: str | None = None

    @classmethod
    def of(cls, page: EventPage, *, for_operator: bool = True) -> Self:
        """A page as it goes over the wire. Only operators see what an engine calls a deployment."""
        told = [asdict(event) for event in page.events]
        if not for_operator:
            for event in told:
                event["data"].get("details", {}).pop("deployment", None)
        return cls(
            events=[Event.model_validate(event) for event in told],
            next_cursor=None if page.last is None else cursor_of((page.last,)),
        )
