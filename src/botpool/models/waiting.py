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
    worked_at: datetime | None = None
    """When a worker last worked, if one ever did."""
    pools: Mapping[Platform, PoolStanding] = field(default_factory=dict)
    """The pools of the platforms that bots wait for."""
    pulls: Mapping[PullKey, ImagePull] = field(default_factory=dict)
    bots: Mapping[int, Bot] = field(default_factory=dict)
    """The bots on slots that were not heard yet."""


def bot_waits_for(bot: Bot, slot: Slot | None, around: Surroundings) -> WaitingFor | None:
    """What a bot waits for; `None` once it is heard, and after its end."""
    if bot.ended_at is not None or bot.last_heartbeat is not None:
        return None
    if bot.status is BotStatus.QUEUED:
        return _for_slot(bot, around)
    return None if slot is None else _on_slot(slot, bot, around)


def slot_waits_for(slot: Slot, around: Surroundings) -> WaitingFor | None:
    """What a slot waits for whose bot was not heard yet, or that needs a worker; else `None`."""
    return _on_slot(slot, around.bots.get(slot.assigned_bot_id or 0), around)


def _on_slot(slot: Slot, bot: Bot | None, around: Surroundings) -> WaitingFor | None:
    """What a slot waits for. `bot` is the one on it, as long as it was not heard."""
    if slot.status in SLOT_NEEDS_WORK and not around.workers:
        deploys = slot.status is SlotStatus.DEPLOYING
        since = slot.last_assigned_at if deploys else slot.last_released_at
        return _for_worker(since or slot.last_assigned_at, around)
    if slot.status is SlotStatus.BUSY and bot is not None:
        since = bot.started_at or slot.last_assigned_at
        return WaitingFor(what=Wait.CLAIM, since=since, detail=Wait.CLAIM.sentence)
    return _to_start(slot, bot, around) if slot.status is SlotStatus.DEPLOYING else None


def _to_start(slot: Slot, bot: Bot | None, around: Surroundings) -> WaitingFor:
    """What a slot that deploys waits for."""
    pull = around.pulls.get(PullKey(slot.engine, slot.host or "", slot.image or ""))
    if slot.waits_for is WaitsFor.IMAGE:
        return _for_image(slot, pull)
    if slot.step_error is not None:
        return WaitingFor(
            what=Wait.ENGINE,
            since=_phase_since(slot, bot),
            detail=f"{slot.engine} did not do what was asked, and is asked again",
            error=slot.step_error,
            attempt=slot.failed_steps,
        )
    if pull is not None and (pull.slot_id, pull.lease) == (slot.id, slot.lease):
        return WaitingFor(
            what=Wait.IMAGE,
            since=_phase_since(slot, bot),
            detail=f"its own start brings {slot.image} to {slot.host}",
            error=pull.error,
            attempt=pull.attempts,
        )
    said = slot.deployment or Wait.START.sentence
    return WaitingFor(what=Wait.START, since=_phase_since(slot, bot), detail=said)


def _phase_since(slot: Slot, bot: Bot | None) -> datetime:
    """When a launch came to where it is: to its start, to its turn, or to its slot."""
    turn_since = None if bot is None else bot.image_at
    return slot.deployment_started_at or turn_since or slot.last_assigned_at


def _for_slot(bot: Bot, around: Surroundings) -> WaitingFor:
    since = bot.relaunched_at or bot.created_at
    pool = around.pools.get(bot.platform)
    if pool is not None and pool.paused_at is not None:
        why = f": {pool.pause_reason}" if pool.pause_reason else ""
        return WaitingFor(
            what=Wait.PAUSED,
            since=max(since, pool.paused_at),
            detail=f"launches of {bot.platform} are paused{why}",
        )
    if not around.workers:
        return _for_worker(since, around)
    if pool is not None and pool.full:
        return WaitingFor(what=Wait.SLOT, since=since, detail=Wait.SLOT.sentence)
    trouble = None if pool is None else pool.trouble
    return WaitingFor(
        what=Wait.ROOM,
        since=since,
        detail="no host gets new work" if trouble else Wait.ROOM.sentence,
        error=trouble,
    )


def _for_worker(since: datetime, around: Surroundings) -> WaitingFor:
    if around.worked_at is not None:
        since = max(since, around.worked_at)
    return WaitingFor(what=Wait.WORKER, since=since, detail=Wait.WORKER.sentence)


def _for_image(slot: Slot, pull: ImagePull | None) -> WaitingFor:
    # Where nodes pull by themselves, only the engine's word is known.
    error = slot.deployment_status if pull is None else pull.error
    return WaitingFor(
        what=Wait.IMAGE,
        since=slot.last_assigned_at,
        detail=f"{slot.image} is on its way to {slot.host}"
        if error is None
        else f"{slot.image} could not be pulled to {slot.host}",
        error=error,
        attempt=None if pull is None else pull.attempts,
        current=None if pull is None else pull.current_bytes,
        total=None if pull is None else pull.total_bytes,
    )
