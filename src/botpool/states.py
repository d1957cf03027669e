"""Both state machines: every status, and every step from one to another.

`SLOT_STEPS` and `BOT_STEPS` are the single source. The database's triggers, the pool's guards, the
tests and the diagrams in docs/ are made from them. `None` stands for "not there": before the first
status, or after the row is deleted.
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


class SlotStatus(StrEnum):
    """What a slot is doing."""

    IDLE = "idle"
    DEPLOYING = "deploying"
    BUSY = "busy"
    RELEASING = "releasing"
    ERROR = "error"


class BotStatus(StrEnum):
    """How far a bot has come, in the order in which it comes there."""

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
    """Why a bot is `FATAL`. The evidence stands in its `failure_reason`."""

    QUEUE_TIMEOUT = "queue_timeout"
    IMAGE_PULL = "image_pull"
    ENGINE = "engine"
    START_TIMEOUT = "start_timeout"
    CRASHED = "crashed"
    HEARTBEAT_LOST = "heartbeat_lost"
    LEFT_BY_HOST = "left_by_host"
    NOT_ADMITTED = "not_admitted"
    BOT_FAILED = "bot_failed"


class Role(StrEnum):
    """What a key opens: everything, or the bots that it asked for."""

    ADMIN = "admin"
    CLIENT = "client"


SLOT_HOLDS_BOT = frozenset({SlotStatus.DEPLOYING, SlotStatus.BUSY})
"""A slot has a bot in these, and in no other."""

SLOT_NEEDS_WORK = frozenset({SlotStatus.DEPLOYING, SlotStatus.RELEASING, SlotStatus.ERROR})
"""The reconciler has something to do for a slot in these."""

BOT_HOLDS_SLOT = frozenset(
    {
        BotStatus.DEPLOYING,
        BotStatus.JOINING_CALL,
        BotStatus.IN_WAITING_ROOM,
        BotStatus.IN_CALL,
        BotStatus.LEAVING,
    }
)
"""A bot has a slot in these."""

BOT_ENDED = frozenset({BotStatus.DONE, BotStatus.FATAL, BotStatus.CANCELLED})
"""A bot in one of these never changes again."""

BOT_RELAUNCHABLE = frozenset(
    {BotStatus.DEPLOYING, BotStatus.JOINING_CALL, BotStatus.IN_WAITING_ROOM}
)
"""A bot has not been in its call in these, so it may go back once more, under a new lease.

One that was asked for so goes back from `IN_CALL`, too.
"""

BOT_MAY_SAY = (BOT_HOLDS_SLOT - {BotStatus.DEPLOYING}) | {BotStatus.DONE, BotStatus.FATAL}
"""What a bot can say of itself."""

BOT_MAY_BLAME = frozenset(
    {FailureCause.LEFT_BY_HOST, FailureCause.NOT_ADMITTED, FailureCause.BOT_FAILED}
)
"""Why it is `FATAL`, as far as a bot can say."""

SLOT_STEPS: Mapping[SlotStatus | None, frozenset[SlotStatus | None]] = {
    # One that is taken over from another pool has to be proved stopped first.
    None: frozenset({SlotStatus.DEPLOYING, SlotStatus.RELEASING}),
    SlotStatus.IDLE: frozenset({SlotStatus.DEPLOYING, None}),
    SlotStatus.DEPLOYING: frozenset({SlotStatus.BUSY, SlotStatus.RELEASING, SlotStatus.ERROR}),
    SlotStatus.BUSY: frozenset({SlotStatus.RELEASING, SlotStatus.ERROR}),
    SlotStatus.RELEASING: frozenset({SlotStatus.IDLE, SlotStatus.ERROR, None}),
    SlotStatus.ERROR: frozenset({SlotStatus.IDLE, None}),
}

_CALL = (BotStatus.JOINING_CALL, BotStatus.IN_WAITING_ROOM, BotStatus.IN_CALL, BotStatus.LEAVING)
_RELAUNCH = frozenset({BotStatus.QUEUED, BotStatus.DEPLOYING})


def _forward(status: BotStatus) -> frozenset[BotStatus | None]:
    """Whatever of a call still lies ahead of `status`, and the ends that it can come to."""
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
    # Back only for a bot that was asked for so.
    BotStatus.IN_CALL: _forward(BotStatus.IN_CALL) | _RELAUNCH,
    BotStatus.LEAVING: _forward(BotStatus.LEAVING),
    BotStatus.DONE: frozenset({None}),
    BotStatus.FATAL: frozenset({None}),
    BotStatus.CANCELLED: frozenset({None}),
}


def bot_sources(target: BotStatus) -> frozenset[BotStatus]:
    """The statuses from which a bot may go on to `target`."""
    return frozenset(
        status for status, targets in BOT_STEPS.items() if status and target in targets
    )
