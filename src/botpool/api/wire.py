"""What goes over the wire: JSON in camelCase. snake_case is accepted, unknown fields are not."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from botpool.meetings import PLATFORM_NAMES, read_platform
from botpool.states import BOT_MAY_SAY, BotStatus, Platform

Lease = Annotated[
    int,
    Field(strict=True, ge=1, le=2**63 - 1, description="Whose word it is, as the claim gave it."),
]


PlatformName = Annotated[
    Platform,
    BeforeValidator(lambda name: read_platform(name) if name == "teams" else name),
    WithJsonSchema({"type": "string", "enum": list(PLATFORM_NAMES)}),
]
"""A platform by any of its names."""


class Wire(BaseModel):
    """One body, of a request or an answer."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
    )


class ClaimRequest(Wire):
    """The slot's token says it all."""


class Claimed(Wire):
    """The bot that a container is to be."""

    bot_id: int
    lease: Lease
    correlation_id: str
    meeting_url: str
    bot_display_name: str
    platform: Platform
    config: dict[str, Any]
    heartbeat_interval_ms: int


class HeartbeatRequest(Wire):
    """A sign of life."""

    lease: Lease


class HeartbeatAnswer(Wire):
    """What the bot is to do."""

    action: Literal["continue", "leave"]
    log_level: str


class BotEventIn(Wire):
    """Something that happened in the call: a participant came, a message was written."""

    type: str = Field(min_length=1, max_length=100, pattern=r"^[\w.:-]+$")
    data: dict[str, Any] = Field(default_factory=dict)


class EventsRequest(Wire):
    """What a bot tells of its call."""

    lease: Lease
    events: list[BotEventIn] = Field(min_length=1, max_length=100)


class LogLineIn(Wire):
    """A line of a bot's log."""

    line: str = Field(max_length=4000)
    level: Literal["debug", "info", "warning", "error"] = "info"


class LogsRequest(Wire):
    """What a bot logs."""

    lease: Lease
    lines: list[LogLineIn] = Field(min_length=1, max_length=500)


class StatusRequest(Wire):
    """How far a bot says that it has come."""

    lease: Lease
    status: Annotated[BotStatus, WithJsonSchema({"type": "string", "enum": sorted(BOT_MAY_SAY)})]
    reason: str | None = Field(default=None, max_length=1000, description="Why, for people.")


class Problem(BaseModel):
    """What went wrong, as RFC 9457 has it. `code` never changes its meaning."""

    type: str
    title: str
    status: int
    code: str
    detail: str
