"""What the pool speaks of: frozen values, as they were in the database when they were read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from botpool.states import BotStatus, FailureCause, Platform, Role, SlotStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

Json = dict[str, Any]

WAITS_FOR_ROOM = "waits for room on the host"
"""The deployment status of a slot on whose host too many start at a time."""

WAITS_FOR_IMAGE = "waits for the image"
"""The deployment status of a slot whose image somebody brings to its host."""

RESTS = "waits after a failed launch"
"""The deployment status of a slot on whose host its bot has just failed."""

WAITS_FOR_HOST = "waits for a host"
"""The deployment status of a slot for which no host is open and has room."""

DEFAULT_PRIORITY = 100
"""A lower number is served first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBot:
    """A request to be in one meeting.

    Of one caller (`key_id`), an `idempotency_key` makes one bot, and a `deduplication_key` one that
    lives.
    """

    platform: Platform
    meeting_url: str
    bot_display_name: str
    queue_timeout_ms: int
    priority: int = DEFAULT_PRIORITY
    correlation_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    key_id: int | None = None
    callback_url: str | None = None
    deduplication_key: str | None = None
    idempotency_key: str | None = None
    request_digest: bytes | None = None
    max_launch_attempts: int | None = None
    relaunch_in_call: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """One request to be in one meeting, from creation to its end.

    `slot_name`, `container_ref` and `lease` tell where it last ran; they stay after the release.
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
    key_id: int | None = None
    callback_url: str | None = None
    deduplication_key: str | None = None
    request_digest: bytes | None = None
    max_launch_attempts: int | None = None
    relaunch_in_call: bool = False
    avoid_host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedBot:
    """A bot as it was created, and its place in the queue if it has to wait."""

    bot: Bot
    queue_position: int | None = None
    estimated_wait_ms: int | None = None

    @classmethod
    def born(cls, request: NewBot, birth: Transition) -> Self:
        """The bot of a request, as its first transition tells of it."""
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
            key_id=request.key_id,
            callback_url=request.callback_url,
            deduplication_key=request.deduplication_key,
            request_digest=request.request_digest,
            max_launch_attempts=request.max_launch_attempts,
            relaunch_in_call=request.relaunch_in_call,
        )
        return cls(
            bot=bot,
            queue_position=birth.details.get("queuePosition"),
            estimated_wait_ms=birth.details.get("estimatedWaitMs"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BotEvent:
    """Something that a bot told of its call."""

    at: datetime
    type: str
    data: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line that a bot has sent."""

    at: datetime
    level: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BotPage:
    """Which bots to list: those before an id, newest first, by whichever of these is given."""

    before: int = 2**63 - 1
    limit: int = 50
    key_id: int | None = None
    platform: Platform | None = None
    statuses: Collection[BotStatus] | None = None
    container_ref: str | None = None
    correlation_id: str | None = None
    deduplication_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A reusable container of one platform, on one engine and one host.

    `due_at` is when the reconciler looks at it next, `claimed_by` who does so now, and `read_at`
    the database's time when this was read.
    """

    id: int
    platform: Platform
    number: int
    slot_name: str
    engine: str
    host: str | None
    image: str | None
    container_ref: str | None
    status: SlotStatus
    assigned_bot_id: int | None
    lease: int
    last_used_at: datetime
    last_assigned_at: datetime
    last_released_at: datetime | None
    recovery_attempts: int
    error_message: str | None
    draining: bool
    held: bool
    deployment_ref: str | None
    deployment_status: str | None
    deployment_started_at: datetime | None
    creations: int
    runtime_url: str | None
    last_bot_id: int | None
    due_at: datetime | None
    claimed_by: str | None
    claimed_until: datetime | None
    wakes: int
    failed_steps: int
    step_error: str | None
    created_at: datetime
    read_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSlot:
    """A slot to be, whose container another pool has made."""

    platform: Platform
    number: int
    engine: str
    host: str
    image: str | None
    container_ref: str

    @property
    def slot_name(self) -> str:
        """What it is called here."""
        return f"pool-{self.platform}-{self.number:03}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePull:
    """An image on a host: `pulling`, `present` or `failed`.

    `slot_id` and `lease` tell whose start brings it, where a start does.
    """

    engine: str
    host: str
    image: str
    status: Literal["pulling", "present", "failed"]
    claimed_by: str | None
    claimed_until: datetime | None
    attempts: int
    current_bytes: int
    total_bytes: int
    error: str | None
    started_at: datetime
    finished_at: datetime | None
    retry_at: datetime | None
    slot_id: int | None
    lease: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine of an engine. While it is ill (`ill_since`), it gets no new work but a probe."""

    engine: str
    host: str
    slots: int
    failures: int
    reason: str | None
    ill_since: datetime | None
    probe_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFailure:
    """Something that failed on a host. The same `what` is the same failure."""

    engine: str
    host: str
    what: str
    reason: str
    image: str = ""
    """What it may be the fault of, if not of the host."""


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
    """Where a waiting bot stands. The wait is `None` while no slot was ever given back."""

    position: int
    estimated_wait_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One recorded change of a slot or a bot; with `from_status` for `to_status`, a note on it."""

    id: int
    at: datetime
    machine: Literal["slot", "bot"]
    platform: Platform
    from_status: str | None
    to_status: str | None
    slot_id: int | None
    slot_name: str | None
    container_ref: str | None
    lease: int | None
    bot_id: int | None
    correlation_id: str | None
    reason: str
    details: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an assignment ends: what becomes of the bot and of its slot.

    A bot heard since `unless_heard_since` is left alone; so is a slot that is not what it `was`.
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
class Heartbeat:
    """What a heartbeat under the current lease found."""

    slot_id: int
    lease: int
    slot_status: SlotStatus
    bot_status: BotStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNumbers:
    """How many slots of a platform there are in each status, and how many bots wait for one."""

    platform: Platform
    max_size: int
    total: int
    idle: int
    deploying: int
    busy: int
    releasing: int
    error: int
    queued: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key as people know it. `prefix` is how it begins, if it was made by us."""

    id: int
    name: str
    role: Role
    prefix: str
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """A key that opens something, what it hashes to, and the database's time when it was read."""

    key: ApiKey
    digest: bytes = field(repr=False)
    read_at: datetime
