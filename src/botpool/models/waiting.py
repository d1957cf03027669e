"""What a bot waits for on its way into its call, told to everyone who looks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from botpool.models.pulls import PullKey
from botpool.models.slots import WaitsFor
from botpool.states import SLOT_NEEDS_WORK, BotStatus, SlotStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from botpool.models.bots import Bot
    from botpool.models.pools import PoolStanding
    from botpool.models.pulls import ImagePull
    from botpool.models.slots import Slot
    from botpool.states import Platform


class Wait(StrEnum):
    """What is waited for."""

    SLOT = "slot"
    """A slot that becomes idle: the pool has as many as it may have."""
    ROOM = "room"
    """Room for another slot: no host has any."""
    WORKER = "worker"
    """A worker: no replica works on slots."""
    IMAGE = "image"
    """The image, which a pull or another slot's start brings to the host."""
    ENGINE = "engine"
    """The engine, whose last call has failed and is tried again."""
    START = "start"
    """The start of the container, or its turn on the host."""
    CLAIM = "claim"
    """The bot's own word: its container runs, and has not claimed yet."""
    PAUSED = "paused"
    """The end of a pause: an operator paused the launches of its platform."""

    @property
    def sentence(self) -> str:
        """The same in words that name no image, host or engine."""
        return _SENTENCES[self]


_SENTENCES = {
    Wait.SLOT: "every slot of its platform is taken",
    Wait.ROOM: "no host has room",
    Wait.WORKER: "no replica works on slots",
    Wait.IMAGE: "its image is on its way",
    Wait.ENGINE: "a step of its start failed, and is tried again",
    Wait.START: "its container is being started",
    Wait.CLAIM: "its container runs, and has not claimed its bot yet",
    Wait.PAUSED: "launches of its platform are paused",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingFor:
    """What a bot or a slot waits for, since when, how far it is, and the last error."""

    what: Wait
    since: datetime
    detail: str
    error: str | None = None
    attempt: int | None = None
    current: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What has to be known of the rest to tell what a bot waits for."""

    workers: int
    pools: Mapping[Platform, PoolStanding] = field(default_factory=dict)
    """The pools of the platforms that bots wait for."""
    pulls: Mapping[PullKey, ImagePull] = field(default_factory=dict)


def bot_waits_for(bot: Bot, slot: Slot | None, around: Surroundings) -> WaitingFor | None:
    """What a bot waits for; `None` once it is heard, and after its end."""
    if bot.ended_at is not None or bot.last_heartbeat is not None:
        return None
    if bot.status is BotStatus.QUEUED:
        return _for_slot(bot, around)
    if slot is None or bot.status is BotStatus.DEPLOYING:
        return None if slot is None else slot_waits_for(slot, around)
    return WaitingFor(
        what=Wait.CLAIM,
        since=bot.started_at or slot.last_assigned_at,
        detail=Wait.CLAIM.sentence,
    )


def slot_waits_for(slot: Slot, around: Surroundings) -> WaitingFor | None:
    """What a slot that deploys waits for, or any that needs a worker and has none; else `None`."""
    since = slot.last_assigned_at
    if slot.status in SLOT_NEEDS_WORK and not around.workers:
        deploys = slot.status is SlotStatus.DEPLOYING
        return _for_worker(since if deploys else slot.last_released_at or since)
    if slot.status is not SlotStatus.DEPLOYING:
        return None
    if slot.waits_for is WaitsFor.IMAGE:
        return _for_image(slot, around)
    if slot.step_error is not None:
        return WaitingFor(
            what=Wait.ENGINE,
            since=since,
            detail=f"{slot.engine} did not do what was asked, and is asked again",
            error=slot.step_error,
            attempt=slot.failed_steps,
        )
    said = slot.deployment or Wait.START.sentence
    return WaitingFor(what=Wait.START, since=since, detail=said)


def _for_slot(bot: Bot, around: Surroundings) -> WaitingFor:
    pool = around.pools.get(bot.platform)
    if pool is not None and pool.paused_at is not None:
        why = f": {pool.pause_reason}" if pool.pause_reason else ""
        return WaitingFor(
            what=Wait.PAUSED,
            since=max(bot.created_at, pool.paused_at),
            detail=f"launches of {bot.platform} are paused{why}",
        )
    if not around.workers:
        return _for_worker(bot.created_at)
    if pool is not None and pool.full:
        return WaitingFor(what=Wait.SLOT, since=bot.created_at, detail=Wait.SLOT.sentence)
    return WaitingFor(what=Wait.ROOM, since=bot.created_at, detail=Wait.ROOM.sentence)


def _for_worker(since: datetime) -> WaitingFor:
    return WaitingFor(what=Wait.WORKER, since=since, detail=Wait.WORKER.sentence)


def _for_image(slot: Slot, around: Surroundings) -> WaitingFor:
    key = PullKey(slot.engine, slot.host or "", slot.image or "")
    pull = around.pulls.get(key)
    said = f"{slot.image} is on its way to {slot.host}"
    if pull is None:
        return WaitingFor(what=Wait.IMAGE, since=slot.last_assigned_at, detail=said)
    return WaitingFor(
        what=Wait.IMAGE,
        since=slot.last_assigned_at,
        detail=said if pull.error is None else f"{slot.image} could not be pulled to {slot.host}",
        error=pull.error,
        attempt=pull.attempts,
        current=pull.current_bytes,
        total=pull.total_bytes,
    )
