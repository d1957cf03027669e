"""Both state machines: every status, and every step from one to another.

`SLOT_STEPS` and `BOT_STEPS` are the single source. The database's triggers, the pool's guards, the
tests and the diagrams in docs/ are made from them. `None` means that there is no row: before the
first status, or after the row is deleted.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Platform(StrEnum):
    """The meeting service. A pool is per platform."""

    GOOGLE_MEET = "google-meet"
    MICROSOFT_TEAMS = "microsoft-teams"
    ZOOM = "zoom"


PLATFORM_ALIASES = {"teams": Platform.MICROSOFT_TEAMS}
"""Other accepted names of a platform."""


class SlotStatus(StrEnum):
    """What a slot is doing."""

    IDLE = "idle"
    DEPLOYING = "deploying"
    BUSY = "busy"
    RELEASING = "releasing"
    ERROR = "error"


class BotStatus(StrEnum):
    """How far a bot has come. The order is the order in time."""

    PENDING = "PENDING"
    QUEUED = "QUEUED"
    DEPLOYING = "DEPLOYING"
    JOINING_CALL = "JOINING_CALL"
    IN_WAITING_ROOM = "IN_WAITING_ROOM"
    IN_CALL = "IN_CALL"
    LEAVING = "LEAVING"
    DONE = "DONE"
    FATAL = "FATAL"
    CANCELLED = "CANCELLED"


class FailureCause(StrEnum):
    """Why a bot is `FATAL`. Its `failure_reason` has the evidence.

    A bot that left because its longest stay was over is `DONE`, with `max_duration`.
    """

    QUEUE_TIMEOUT = "queue_timeout"
    IMAGE_PULL = "image_pull"
    ENGINE = "engine"
    START_TIMEOUT = "start_timeout"
    CRASHED = "crashed"
    HEARTBEAT_LOST = "heartbeat_lost"
    LEFT_BY_HOST = "left_by_host"
    NOT_ADMITTED = "not_admitted"
    BOT_FAILED = "bot_failed"
    MAX_DURATION = "max_duration"


class Role(StrEnum):
    """What a key allows: everything, to see everything, or what belongs to its project."""

    ADMIN = "admin"
    VIEWER = "viewer"
    CLIENT = "client"


SLOT_HOLDS_BOT = frozenset({SlotStatus.DEPLOYING, SlotStatus.BUSY})
"""A slot in one of these has a bot; in any other it has none."""

SLOT_NEEDS_WORK = frozenset({SlotStatus.DEPLOYING, SlotStatus.RELEASING, SlotStatus.ERROR})
"""The reconciler has work to do for a slot in one of these."""

BOT_HOLDS_SLOT = frozenset(
    {
        BotStatus.DEPLOYING,
        BotStatus.JOINING_CALL,
        BotStatus.IN_WAITING_ROOM,
        BotStatus.IN_CALL,
        BotStatus.LEAVING,
    }
)
"""A bot in one of these has a slot."""

BOT_ENDED = frozenset({BotStatus.DONE, BotStatus.FATAL, BotStatus.CANCELLED})
"""A bot in one of these never changes again."""

BOT_RELAUNCHABLE = frozenset(
    {BotStatus.DEPLOYING, BotStatus.JOINING_CALL, BotStatus.IN_WAITING_ROOM}
)
"""A bot in one of these was not in its call yet, so it may be relaunched, under a new lease.

A bot that was created with `relaunch_in_call` may be relaunched from `IN_CALL`, too.
"""

BOT_MAY_SAY = (BOT_HOLDS_SLOT - {BotStatus.DEPLOYING}) | {BotStatus.DONE, BotStatus.FATAL}
"""The statuses that a bot may report."""

BOT_MAY_BLAME = frozenset(
    {FailureCause.LEFT_BY_HOST, FailureCause.NOT_ADMITTED, FailureCause.BOT_FAILED}
)
"""The causes that a bot may report with `FATAL`."""

SLOT_STEPS: Mapping[SlotStatus | None, frozenset[SlotStatus | None]] = {
    # A slot without a bot is `releasing` until its container is made, and proved stopped.
    None: frozenset({SlotStatus.DEPLOYING, SlotStatus.RELEASING}),
    # `releasing` without a bot: its container is started only to bring the image.
    SlotStatus.IDLE: frozenset({SlotStatus.DEPLOYING, SlotStatus.RELEASING, None}),
    SlotStatus.DEPLOYING: frozenset({SlotStatus.BUSY, SlotStatus.RELEASING, SlotStatus.ERROR}),
    SlotStatus.BUSY: frozenset({SlotStatus.RELEASING, SlotStatus.ERROR}),
    SlotStatus.RELEASING: frozenset({SlotStatus.IDLE, SlotStatus.ERROR, None}),
    SlotStatus.ERROR: frozenset({SlotStatus.IDLE, None}),
}

_CALL = (BotStatus.JOINING_CALL, BotStatus.IN_WAITING_ROOM, BotStatus.IN_CALL, BotStatus.LEAVING)
_RELAUNCH = frozenset({BotStatus.QUEUED, BotStatus.DEPLOYING})


def _forward(status: BotStatus) -> frozenset[BotStatus | None]:
    """The statuses of a call that come after `status`, and the ends that it may have."""
    ahead = _CALL[_CALL.index(status) + 1 :] if status in _CALL else _CALL
    return frozenset({*ahead, BotStatus.DONE, BotStatus.FATAL})


BOT_STEPS: Mapping[BotStatus | None, frozenset[BotStatus | None]] = {
    None: frozenset({BotStatus.PENDING, BotStatus.QUEUED, BotStatus.DEPLOYING}),
    BotStatus.PENDING: frozenset(
        {BotStatus.QUEUED, BotStatus.DEPLOYING, BotStatus.FATAL, BotStatus.CANCELLED}
    ),
    BotStatus.QUEUED: frozenset({BotStatus.DEPLOYING, BotStatus.FATAL, BotStatus.CANCELLED}),
    BotStatus.DEPLOYING: _forward(BotStatus.DEPLOYING) | {BotStatus.QUEUED, BotStatus.CANCELLED},
    BotStatus.JOINING_CALL: _forward(BotStatus.JOINING_CALL) | _RELAUNCH,
    BotStatus.IN_WAITING_ROOM: _forward(BotStatus.IN_WAITING_ROOM) | _RELAUNCH,
    # Back only for a bot that was created with `relaunch_in_call`.
    BotStatus.IN_CALL: _forward(BotStatus.IN_CALL) | _RELAUNCH,
    BotStatus.LEAVING: _forward(BotStatus.LEAVING),
    BotStatus.DONE: frozenset({None}),
    BotStatus.FATAL: frozenset({None}),
    BotStatus.CANCELLED: frozenset({None}),
}


def bot_sources(target: BotStatus) -> frozenset[BotStatus]:
    """The statuses from which a bot may go to `target`."""
    return frozenset(
        status for status, targets in BOT_STEPS.items() if status and target in targets
    )
