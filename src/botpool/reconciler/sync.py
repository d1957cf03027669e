"""Compare what an engine has with what the slots say.

Slots are read before the engine's list: what such a slot has, the list must show. A list that
fails tells nothing, and changes nothing.

| found | done |
|---|---|
| a busy slot whose container ended or is gone | the bot is tried again, or fails: `crashed` |
| an idle slot whose container is gone, or was started | it gets another one, or that is stopped |
| a container of ours that no slot has | stopped, and removed |
| one that looks like ours, and that we never had | told once, and left alone |

Where an engine lags, a bot that was heard lately runs, whatever the engine says.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import structlog

from botpool.engines.base import STOPPED, ContainerState, Observation
from botpool.errors import BotpoolError, ImageMissing, NotFound, StaleLease
from botpool.models import Ending
from botpool.reconciler.context import container_of
from botpool.reconciler.create import create
from botpool.reconciler.descriptions import description
from botpool.reconciler.evidence import evidence
from botpool.states import BotStatus, FailureCause, SlotStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from botpool.engines.base import Container, Engine, ListedContainer
    from botpool.models import Slot
    from botpool.reconciler.claims import Claims
    from botpool.reconciler.context import Context
    from botpool.reconciler.descriptions import Descriptions

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")


# By itself, whatever is left of it.
_ENDED = frozenset({ContainerState.EXITED, ContainerState.MISSING, ContainerState.FAILED})


@dataclass
class SyncCounts:
    """What one comparison did."""

    crashed: int = 0
    created_again: int = 0
    removed: int = 0

    def __iadd__(self, other: SyncCounts) -> Self:
        """Count another one as well."""
        self.crashed += other.crashed
        self.created_again += other.created_again
        self.removed += other.removed
        return self


async def sync(
    context: Context, claims: Claims, descriptions: Descriptions, engine: Engine, host: str
) -> SyncCounts:
    """Compare the containers of one host with its slots. Raises `EngineError` if it can't tell."""
    counts = SyncCounts()
    slots = await context.store.list_slots_of_host(engine.name, host)
    if not slots and engine.name != context.settings.engine:
        return counts  # nobody uses it: it may not even be there
    listed = await engine.list(host)
    by_ref = {found.container.ref: found for found in listed}
    for slot in slots:
        with _apart(slot_name=slot.slot_name):
            await _compare(context, claims, slot, by_ref, counts)
        found = by_ref.get(slot.container_ref or "")
        if found is not None and not _described(slot, found):
            descriptions.show(slot, again=True)
    # A container that was made in the meantime is a new slot's: read the slots again.
    known = {
        slot.container_ref for slot in await context.store.list_slots_of_host(engine.name, host)
    }
    for found in listed:
        if found.container.ref not in known:
            with _apart(container_ref=found.container.ref):
                counts.removed += await _remove(context, claims, engine, found)
    return counts


@contextmanager
def _apart(**what: str) -> Iterator[None]:
    """Let what goes wrong with one not keep the others from being compared."""
    try:
        yield
    except BotpoolError as error:
        _log.warning("not compared", error=str(error), **what)


async def _compare(
    context: Context,
    claims: Claims,
    slot: Slot,
    by_ref: Mapping[str, ListedContainer],
    counts: SyncCounts,
) -> None:
    found = by_ref.get(slot.container_ref or "")
    observation = found.observation if found else Observation(state=ContainerState.MISSING)
    if slot.status is SlotStatus.BUSY and observation.state in _ENDED:
        counts.crashed += await _crashed(context, slot)
    elif slot.status is SlotStatus.IDLE and observation.state not in _waiting(context, slot):
        counts.created_again += await _create_again(context, claims, slot)


async def _crashed(context: Context, slot: Slot) -> bool:
    """The container of a busy slot ended by itself. Whether its bot is off it now."""
    container = container_of(slot)
    if container is None or not await _may_have_ended(context, slot):
        return False
    # The list may be of before a restart, or without the exit code: look at the one.
    observation = await context.engine(slot).observe(container)
    if observation.state not in _ENDED:
        return False
    reason = await evidence(context, slot, container, observation)
    try:
        bot = await context.pool.get_bot(slot.assigned_bot_id or 0)
        if bot.status is BotStatus.LEAVING and observation.exit_code == 0:
            written = await context.pool.release(
                Ending(
                    slot_id=slot.id,
                    lease=slot.lease,
                    bot_status=BotStatus.DONE,
                    reason="left, and its container ended",
                )
            )
        else:
            cause, was = FailureCause.CRASHED, SlotStatus.BUSY
            written = await context.pool.mark_error(slot.id, slot.lease, cause, reason, was=was)
    except (StaleLease, NotFound):
        return False
    return bool(written)


async def _may_have_ended(context: Context, slot: Slot) -> bool:
    """Whether the engine's word counts: where it lags, only when the bot has been silent."""
    if not context.engine(slot).traits.lags:
        return True
    bot = await context.pool.get_bot(slot.assigned_bot_id or 0)
    heard = max(filter(None, (bot.last_heartbeat, slot.deployment_started_at, bot.created_at)))
    return (slot.read_at - heard).total_seconds() * 1000 >= context.settings.deploy_grace_ms


def _described(slot: Slot, found: ListedContainer) -> bool:
    """Whether the engine's own interface says what the slot does, since whenever."""
    if found.description is None:
        return True
    return found.description.rpartition(" - ")[0] == description(slot).rpartition(" - ")[0]


def _waiting(context: Context, slot: Slot) -> frozenset[ContainerState]:
    """What the container of an idle slot may be."""
    unused = frozenset({ContainerState.CREATED})
    reusable = context.engine(slot).traits.reusable
    return unused | {ContainerState.EXITED} if reusable else unused


async def _create_again(context: Context, claims: Claims, slot: Slot) -> bool:
    """Give an idle slot another container: its own is gone, or somebody has started it.

    One that can be used again is only stopped.
    """
    async with claims.take(slot.id) as taken:
        if taken is None or taken.status is not SlotStatus.IDLE or taken.lease != slot.lease:
            return False
        engine, old = context.engine(taken), container_of(taken)
        if old is not None:
            observation = await engine.observe(old)
            if observation.state in _waiting(context, taken):
                return False
            await engine.stop(old, context.settings.stop_grace_ms / 1000)
            if observation.state is not ContainerState.MISSING and engine.traits.reusable:
                return False
            if (await engine.observe(old)).state not in STOPPED:
                return False
        try:
            await create(context, taken, taken.creations + 1)
        except ImageMissing:
            return False  # the next deployment sees to it
        if old is not None:
            await engine.remove(old)
    return True


async def _remove(context: Context, claims: Claims, engine: Engine, found: ListedContainer) -> bool:
    """Remove a container that no slot has, unless somebody works on the slot that it names."""
    container = found.container
    if found.slot_id is None:
        if not await context.store.had_container(container.ref):
            context.tell_once(container.ref, slot_name=found.slot_name, engine=engine.name)
            return False
        if not await _stop_and_remove(context, engine, container):
            return False
    else:
        async with claims.take(found.slot_id) as taken:
            if taken is None and await context.store.get_slot(found.slot_id) is not None:
                return False
            if taken is not None and taken.container_ref == container.ref:
                return False
            if not await _stop_and_remove(context, engine, container):
                return False
    _log.info(
        "container removed",
        engine=engine.name,
        host=container.host,
        container_ref=container.ref,
        slot_name=found.slot_name,
        reason="no slot has it",
    )
    return True


async def _stop_and_remove(context: Context, engine: Engine, container: Container) -> bool:
    await engine.stop(container, context.settings.stop_grace_ms / 1000)
    if (await engine.observe(container)).state not in STOPPED:
        return False  # the next comparison goes on
    await engine.remove(container)
    return True
