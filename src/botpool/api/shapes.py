"""Bots, slots and pools as a caller sees them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, SkipValidation

from botpool.api.wire import Asked, PlatformName, Problem, Wire
from botpool.models.bots import DEFAULT_PRIORITY, ContainerFacts
from botpool.models.replicas import ReplicaRole
from botpool.models.waiting import Wait
from botpool.states import (
    BotStatus,
    FailureCause,
    Platform,
    SlotStatus,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic.config import JsonDict

    from botpool.models.bots import Bot, CreatedBot
    from botpool.models.hosts import Host
    from botpool.models.pools import PoolNumbers
    from botpool.models.pulls import ImagePull
    from botpool.models.queue import QueueEntry, QueuePlace
    from botpool.models.replicas import Replica
    from botpool.models.sessions import Session
    from botpool.models.slots import Slot
    from botpool.models.waiting import WaitingFor

_EXAMPLE: JsonDict = {
    "meetingUrl": "https://meet.google.com/abc-defg-hij",
    "botDisplayName": "Notes",
    "metadata": {"customer": "42"},
}


_BOT: JsonDict = {
    "id": 99,
    "status": "IN_CALL",
    "platform": "google-meet",
    "meetingUrl": "https://meet.google.com/abc-defg-hij",
    "botDisplayName": "Notes",
    "priority": 100,
    "slotName": "pool-google-meet-001",
    "containerRef": "8f14e45f",
    "correlationId": "3a8f6f0e-0b43-4a43-9a5b-6f9a4c4b7a51",
    "createdAt": "2026-01-01T00:00:00Z",
    "startedAt": "2026-01-01T00:00:02Z",
    "joinedAt": "2026-01-01T00:00:07Z",
    "leftAt": None,
    "endedAt": None,
    "lastHeartbeat": "2026-01-01T00:01:00Z",
    "failureReason": None,
    "failureCause": None,
    "queueTimeoutMs": 300000,
    "launchAttempts": 1,
    "maxLaunchAttempts": None,
    "relaunchInCall": False,
    "maxDurationMs": None,
    "callbackUrl": None,
    "deduplicationKey": None,
    "metadata": {"customer": "42"},
}

_FOR_OPERATORS = "Only operators see it."
_EXIT_CODE = "What the container of its last launch ended with, if the engine told."
_RESTARTS = "How often the engine restarted that container by itself, if it tells."
_OF_ONE = "Not in lists."


class CreateBot(Asked):
    """A request to be in one meeting."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    meeting_url: str = Field(
        max_length=2000, description="A link to a Google Meet, Microsoft Teams or Zoom meeting."
    )
    bot_display_name: str = Field(default="Notes", min_length=1, max_length=200)
    platform: PlatformName | None = Field(
        default=None,
        description="By default the platform of the URL. Any other platform is refused.",
    )
    queue_timeout_ms: int | None = Field(
        default=None, ge=0, le=2**31 - 1, description="How long the bot may wait for a slot."
    )
    priority: int = Field(
        default=DEFAULT_PRIORITY,
        ge=0,
        le=2**31 - 1,
        description="Bots with a lower number get a slot first.",
    )
    max_launch_attempts: int | None = Field(
        default=None,
        ge=1,
        le=10,
        description="How many times to launch the bot if it fails before it is in its call."
        " By default `BOTPOOL_MAX_LAUNCH_ATTEMPTS`.",
    )
    relaunch_in_call: bool = Field(
        default=False,
        strict=True,
        description="Whether to launch the bot again also when it fails in its call.",
    )
    project_id: int | None = Field(
        default=None,
        ge=1,
        le=2**63 - 1,
        description="The project that the bot belongs to. By default the key's own; an admin's"
        " key, which has none, may name any, and creates in the default project.",
    )
    max_duration_ms: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="The longest stay, from the start of the bot's container. Then the bot is told"
        " to leave, and is `DONE` with the cause `max_duration`. By default the project's.",
    )
    callback_url: str | None = Field(
        default=None,
        max_length=2000,
        description="Gets a webhook for every change of the bot's status.",
    )
    deduplication_key: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        description="A second bot with the same key is refused until the first one has ended.",
    )
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="Your own data. botpool returns it unchanged."
    )
    config: dict[str, Any] = Field(
        default_factory=dict, description="The bot's configuration. The bot gets it unchanged."
    )


class BulkBot(CreateBot):
    """A request to be in one meeting, among others."""

    idempotency_key: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        description="As the header `Idempotency-Key` of a single request.",
    )


class CreateBots(Wire):
    """Requests for bots, at most 100."""

    # Checked one by one, so that each has an answer of its own.
    bots: list[SkipValidation[BulkBot]] = Field(
        min_length=1,
        max_length=100,
        json_schema_extra={"items": {"$ref": "#/components/schemas/BulkBot"}},
    )


class StopBots(Asked):
    """The bots to stop, at most 100, and why."""

    ids: list[Annotated[int, Field(strict=True)]] = Field(min_length=1, max_length=100)
    reason: str | None = Field(default=None, max_length=1000)


class StopBot(Asked):
    """The reason for stopping a bot."""

    reason: str | None = Field(default=None, max_length=1000)


class WaitingForOut(Wire):
    """What a bot or its slot waits for, since when, how far it is, and the last error."""

    what: Wait
    since: datetime
    detail: str
    error: str | None = Field(description="The last error, in the engine's words.")
    attempt: int | None
    current: int | None = Field(description="How many bytes of the image are there.")
    total: int | None

    @classmethod
    def of(cls, waiting: WaitingFor | None, *, for_operator: bool = True) -> Self | None:
        """A wait as it goes over the wire. Only operators see images, hosts and engines' words."""
        if waiting is None:
            return None
        shown = cls(**{name: getattr(waiting, name) for name in cls.model_fields})
        hidden = {"detail": waiting.what.sentence, "error": None}
        return shown if for_operator else shown.model_copy(update=hidden)


def _did(container: ContainerFacts | None) -> dict[str, Any]:
    return asdict(container or ContainerFacts())


class SlotOut(Wire):
    """A reusable container of one platform."""

    id: int
    slot_name: str
    status: SlotStatus
    platform: Platform
    engine: str | None = Field(description=_FOR_OPERATORS)
    host: str | None = Field(description=_FOR_OPERATORS)
    node: str | None = Field(
        description="The node that its container was seen on, if its host is a cluster, until it is"
        f" proved stopped. {_FOR_OPERATORS}"
    )
    image: str | None = Field(description=_FOR_OPERATORS)
    container_ref: str | None
    assigned_bot_id: int | None
    lease: int
    last_used_at: datetime
    last_assigned_at: datetime
    last_released_at: datetime | None
    recovery_attempts: int
    error_message: str | None = Field(description=_FOR_OPERATORS)
    draining: bool
    compare_asked_at: datetime | None = Field(description="Set until the engine has answered.")
    compared_at: datetime | None = Field(description="When the engine was last asked on request.")
    compared_state: str | None = Field(
        description="What the engine said: `created`, `starting`, `running`, `exited`, `failed` or"
        f" `missing`; `none` without a container, `unknown` without an answer. {_FOR_OPERATORS}"
    )
    compared_said: str | None = Field(
        description=f"The same in words, and what was done. {_FOR_OPERATORS}"
    )
    deployment_status: str | None = Field(description=_FOR_OPERATORS)
    exit_code: int | None = Field(default=None, description=f"{_EXIT_CODE} {_OF_ONE}")
    restarts: int | None = Field(default=None, description=f"{_RESTARTS} {_OF_ONE}")
    waiting_for: WaitingForOut | None = None
    created_at: datetime

    @classmethod
    def of(
        cls,
        slot: Slot,
        waiting: WaitingFor | None = None,
        container: ContainerFacts | None = None,
        *,
        for_operator: bool = True,
    ) -> Self:
        """A slot as it goes over the wire, with what it waits for, and how its container did."""
        more = {"deployment_status", "waiting_for", "exit_code", "restarts"}
        own = cls.model_fields.keys() - more
        shown = cls(
            **{name: getattr(slot, name) for name in own},
            **_did(container),
            deployment_status=slot.deployment,
            waiting_for=WaitingForOut.of(waiting, for_operator=for_operator),
        )
        hidden = (
            *("engine", "host", "node", "image", "error_message", "deployment_status"),
            *("compared_state", "compared_said"),
        )
        return shown if for_operator else shown.model_copy(update=dict.fromkeys(hidden))


class BotOut(Wire):
    """One request to be in one meeting, from creation to its end."""

    model_config = ConfigDict(json_schema_extra={"examples": [_BOT]})

    id: int
    project_id: int
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
    joined_at: datetime | None = Field(description="When it was in its call.")
    left_at: datetime | None = Field(description="When it left its call, or was told to.")
    ended_at: datetime | None
    last_heartbeat: datetime | None
    failure_reason: str | None
    failure_cause: FailureCause | None = Field(
        description="Why it is `FATAL`; or `max_duration` for a bot that is `DONE` because its"
        " longest stay was over."
    )
    queue_timeout_ms: int
    launch_attempts: int
    max_launch_attempts: int | None = Field(description="Null for `BOTPOOL_MAX_LAUNCH_ATTEMPTS`.")
    relaunch_in_call: bool
    max_duration_ms: int | None
    callback_url: str | None
    deduplication_key: str | None
    metadata: dict[str, Any]
    exit_code: int | None = Field(default=None, description=f"{_EXIT_CODE} {_OF_ONE}")
    restarts: int | None = Field(default=None, description=f"{_RESTARTS} {_OF_ONE}")
    queue_position: int | None = None
    estimated_wait_ms: int | None = None
    waiting_for: WaitingForOut | None = Field(
        default=None,
        description="Null once it is heard, after its end, and in the answer to its creation, which"
        " looks at nothing else.",
    )
    slot: SlotOut | None = None

    @classmethod
    def of(
        cls,
        bot: Bot,
        place: QueuePlace | None = None,
        slot: Slot | None = None,
        waiting: WaitingFor | None = None,
        container: ContainerFacts | None = None,
        *,
        for_operator: bool = True,
    ) -> Self:
        """A bot as it goes over the wire: its place in the queue, its slot, what it waits for."""
        more = {"queue_position", "estimated_wait_ms", "waiting_for", "slot"}
        own = cls.model_fields.keys() - more - {"exit_code", "restarts"}
        return cls(
            **{name: getattr(bot, name) for name in own},
            **_did(container),
            queue_position=place.position if place else None,
            estimated_wait_ms=place.estimated_wait_ms if place else None,
            waiting_for=WaitingForOut.of(waiting, for_operator=for_operator),
            slot=None
            if slot is None
            else SlotOut.of(slot, waiting, container, for_operator=for_operator),
        )


class CreatedBotOut(Wire):
    """A new bot, and its place in the queue if it has to wait."""

    bot: BotOut
    queue_position: int | None = None
    estimated_wait_ms: int | None = None

    @classmethod
    def of(cls, created: CreatedBot) -> Self:
        """A new bot as it goes over the wire."""
        return cls(
            bot=BotOut.of(created.bot),
            queue_position=created.queue_position,
            estimated_wait_ms=created.estimated_wait_ms,
        )


class FailedOut(Wire):
    """Why one of several requests was refused."""

    error: Problem


class StoppedBotOut(Wire):
    """A bot that was stopped."""

    bot: BotOut


class CreatedBots(Wire):
    """What came of each request, in the order of the requests."""

    results: list[CreatedBotOut | FailedOut]


class StoppedBots(Wire):
    """What came of each bot that was to be stopped, in the order of the request."""

    results: list[StoppedBotOut | FailedOut]


class BotList(Wire):
    """One page of bots. The last page has no `nextCursor`."""

    bots: list[BotOut]
    next_cursor: str | None = None


class LogLineOut(Wire):
    """A log line that a bot sent."""

    at: datetime
    level: str
    line: str


class Logs(Wire):
    """One page of the log lines that a bot sent, and the output of its containers."""

    lines: list[LogLineOut]
    container: list[str] = Field(description="On the first page.")
    next_cursor: str | None = None
    end_cursor: str | None = Field(
        description="The cursor of the lines that come after this page, also of those that the bot"
        " has not sent yet; null if it has sent none."
    )


class PoolNumbersOut(Wire):
    """How many slots and waiting bots a platform has."""

    platform: Platform
    max_size: int
    warm: int = Field(description="How many slots are kept idle, as far as there is room.")
    total: int
    idle: int
    deploying: int
    busy: int
    releasing: int
    error: int
    queued: int
    paused_at: datetime | None = Field(description="Since when no bot is launched; null if not.")
    paused_by: str | None = Field(description="The name of the key that asked for it.")
    pause_reason: str | None

    @classmethod
    def of(cls, numbers: PoolNumbers) -> Self:
        """Numbers as they go over the wire."""
        return cls(**{name: getattr(numbers, name) for name in cls.model_fields})


class ImageOut(Wire):
    """An image on a host: being pulled, there, or not to be had."""

    image: str
    status: Literal["asked", "pulling", "present", "failed"]
    current: int = Field(description="How many bytes are there.")
    total: int = Field(description="How many bytes are known to be needed; it may grow.")
    attempt: int
    error: str | None = Field(description="Why the last attempt failed.")
    asked_at: datetime | None = Field(description="Set while it is asked for and not answered.")
    started_at: datetime
    finished_at: datetime | None

    @classmethod
    def of(cls, pull: ImagePull) -> Self:
        """An image as it goes over the wire."""
        return cls(
            image=pull.image,
            status=pull.status,
            current=pull.current_bytes,
            total=pull.total_bytes,
            attempt=pull.attempts,
            error=pull.error,
            asked_at=pull.asked_at,
            started_at=pull.started_at,
            finished_at=pull.finished_at,
        )


class HostOut(Wire):
    """A machine of an engine. While it is unhealthy, it gets no new work except a probe."""

    engine: str
    host: str
    status: Literal["healthy", "unhealthy"]
    open: bool = Field(description="Whether it answers.")
    capacity: int | None = Field(description="How many slots it may have; null for any number.")
    room: int | None = Field(description="How many more it can take now; null for any number.")
    slots: int
    running: int = Field(description="How many of its slots have a bot.")
    drained_at: datetime | None
    failures: int
    reason: str | None = Field(description="Why the last failure on this host happened.")
    unhealthy_since: datetime | None
    probe_at: datetime | None
    images: list[ImageOut]

    @classmethod
    def of(cls, host: Host, pulls: Iterable[ImagePull]) -> Self:
        """A host as it goes over the wire, with its images among these pulls."""
        more = {"status", "images"}
        return cls(
            status="healthy" if host.healthy else "unhealthy",
            images=[
                ImageOut.of(pull)
                for pull in pulls
                if (pull.engine, pull.host) == (host.engine, host.host)
            ],
            **{name: getattr(host, name) for name in cls.model_fields.keys() - more},
        )


class ReplicaOut(Wire):
    """One running botpool."""

    name: str
    role: ReplicaRole
    version: str
    host: str
    started_at: datetime
    last_seen_at: datetime

    @classmethod
    def of(cls, replica: Replica) -> Self:
        """A replica as it goes over the wire."""
        return cls(**{name: getattr(replica, name) for name in cls.model_fields})


class ReplicaList(Wire):
    """Every running botpool on this database."""

    replicas: list[ReplicaOut]


class ReplicaCountsOut(Wire):
    """How many replicas answer, and how many work on slots."""

    api: int
    worker: int


class Ready(Wire):
    """Whether botpool can do its work, and how many replicas do."""

    status: Literal["ready"] = "ready"
    replicas: ReplicaCountsOut


class HostList(Wire):
    """Every host that slots are or can be on."""

    hosts: list[HostOut]


class PoolList(Wire):
    """The pool of each platform, and the hosts that slots are on."""

    platforms: list[PoolNumbersOut]
    hosts: list[HostOut]


class SlotList(Wire):
    """One page of slots. The last page has no `nextCursor`."""

    slots: list[SlotOut]
    next_cursor: str | None = None


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
    """One page of the bots that wait for a slot. The last page has no `nextCursor`."""

    entries: list[QueueEntryOut]
    next_cursor: str | None = None


class SignInLink(Wire):
    """A link that signs one browser in, once."""

    url: str
    expires_at: datetime


class SessionOut(Wire):
    """A browser that is signed in."""

    id: int
    key_id: int
    key_name: str
    created_at: datetime
    expires_at: datetime
    current: bool = Field(description="Whether it is the session of the one who asks.")

    @classmethod
    def of(cls, session: Session, *, current: bool) -> Self:
        """A session as it goes over the wire."""
        return cls(
            id=session.id,
            key_id=session.key.id,
            key_name=session.key.name,
            created_at=session.created_at,
            expires_at=session.expires_at,
            current=current,
        )


class SessionList(Wire):
    """The browsers that are signed in."""

    sessions: list[SessionOut]
