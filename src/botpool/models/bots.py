"""Bots: the request for a bot, the bot itself, and what it reports about its call."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from botpool.models.projects import DEFAULT_PROJECT
from botpool.states import BotStatus, FailureCause, Platform

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from botpool.models.json import Json
    from botpool.models.transitions import Transition

DEFAULT_PRIORITY = 100
"""Bots with a lower number get a slot first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBot:
    """A request to be in one meeting.

    In a project, an `idempotency_key` creates one bot, and only one live bot has a
    `deduplication_key`. `key_id` is the key that it was asked for with.
    """

    platform: Platform
    meeting_url: str
    bot_display_name: str
    queue_timeout_ms: int
    priority: int = DEFAULT_PRIORITY
    correlation_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    project_id: int = DEFAULT_PROJECT
    key_id: int | None = None
    callback_url: str | None = None
    deduplication_key: str | None = None
    idempotency_key: str | None = None
    request_digest: bytes | None = None
    max_launch_attempts: int | None = None
    relaunch_in_call: bool = False
    max_duration_ms: int | None = None
    """The longest stay: from the start of the container to when the bot is told to leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """One request to be in one meeting, from creation to its end.

    `slot_name`, `container_ref` and `lease` say where it last ran; they stay after the release.
    """

    id: int
    platform: Platform
    meeting_url: str
    bot_display_name: str
    status: BotStatus
    priority: int
    queue_timeout_ms: int
    correlation_id: str
    metadata: Json
    config: Json
    launch_attempts: int
    slot_name: str | None
    container_ref: str | None
    lease: int | None
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    last_heartbeat: datetime | None = None
    failure_reason: str | None = None
    failure_cause: FailureCause | None = None
    project_id: int = DEFAULT_PROJECT
    key_id: int | None = None
    callback_url: str | None = None
    deduplication_key: str | None = None
    request_digest: bytes | None = None
    max_launch_attempts: int | None = None
    relaunch_in_call: bool = False
    max_duration_ms: int | None = None
    joined_at: datetime | None = None
    left_at: datetime | None = None
    avoid_host: str | None = None
    avoid_node: str | None = None
    relaunched_at: datetime | None = None
    image_at: datetime | None = None
    """When the image of its last launch was there."""

    def stays_too_long(self, now: datetime) -> bool:
        """Whether its longest stay is over."""
        if self.max_duration_ms is None or self.started_at is None:
            return False
        return now - self.started_at >= timedelta(milliseconds=self.max_duration_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedBot:
    """A new bot, and its place in the queue if it has to wait."""

    bot: Bot
    queue_position: int | None = None
    estimated_wait_ms: int | None = None

    @classmethod
    def born(cls, request: NewBot, birth: Transition) -> Self:
        """The bot of a request, made from its first transition."""
        bot = Bot(
            id=cast("int", birth.bot_id),
            platform=request.platform,
            meeting_url=request.meeting_url,
            bot_display_name=request.bot_display_name,
            status=BotStatus(cast("str", birth.to_status)),
            priority=request.priority,
            queue_timeout_ms=request.queue_timeout_ms,
            correlation_id=cast("str", birth.correlation_id),
            metadata=dict(request.metadata),
            config=dict(request.config),
            launch_attempts=0 if birth.slot_id is None else 1,
            slot_name=birth.slot_name,
            container_ref=birth.container_ref,
            lease=birth.lease,
            created_at=birth.at,
            project_id=request.project_id,
            key_id=request.key_id,
            callback_url=request.callback_url,
            deduplication_key=request.deduplication_key,
            request_digest=request.request_digest,
            max_launch_attempts=request.max_launch_attempts,
            relaunch_in_call=request.relaunch_in_call,
            max_duration_ms=request.max_duration_ms,
        )
        return cls(
            bot=bot,
            queue_position=birth.details.get("queuePosition"),
            estimated_wait_ms=birth.details.get("estimatedWaitMs"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A log line that a bot sent."""

    at: datetime
    level: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """A page of a bot's log.

    `end` is the place of its last line; `last` is the same if there are more lines now.
    """

    lines: Sequence[LogLine]
    last: int | None
    end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFacts:
    """How a bot's container did until now, or until its end, as far as its engine tells."""

    exit_code: int | None = None
    restarts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BotPage:
    """Which bots to list: ids below `before`, newest first, filtered by the other fields.

    `metadata` has a pair of values for each condition, of which a bot's has to contain one.
    """

    before: int = 2**63 - 1
    limit: int = 50
    project_id: int | None = None
    platform: Platform | None = None
    statuses: Collection[BotStatus] | None = None
    container_ref: str | None = None
    correlation_id: str | None = None
    deduplication_key: str | None = None
    meeting_url: str | None = None
    metadata: Collection[tuple[Json, Json]] | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None


BotSort = Literal["created", "name", "platform", "status", "slot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BotSearch:
    """Which bots a person looks for, and in which order: by `sort`, then by their ids.

    `text` is in a bot's name, meeting URL, slot or deduplication key, or is its id or correlation.
    `after_value` and `after_id` are of the last bot of the page before.
    """

    text: str | None = None
    project_id: int | None = None
    platform: Platform | None = None
    statuses: Collection[BotStatus] | None = None
    sort: BotSort = "created"
    descending: bool = True
    after_value: str | None = None
    after_id: int | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentLaunches:
    """How long bots took from their creation into their call: half of them, and all but 5 %."""

    launches: int
    p50_ms: float | None
    p95_ms: float | None
