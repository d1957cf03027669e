"""Release a slot: stop its container, prove that it stopped, keep its logs, clean it.

Then a slot that is `releasing` becomes `idle`, or gets the next bot at once. A slot in `error` is
repaired in the same way, and deleted if that fails too often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from botpool.engines.base import ContainerState
from botpool.errors import (
    EngineError,
    EngineRefused,
    EngineUnavailable,
)
from botpool.models.assignments import Ending
from botpool.reconciler.checkpoints import Checkpoint
from botpool.reconciler.container_logs import keep_last
from botpool.reconciler.containers import bring_up_to_date, create_if_image
from botpool.reconciler.context import NOW, container_of
from botpool.reconciler.decisions import Outcome
from botpool.reconciler.proof import GivenUp, proved_stopped
from botpool.reconciler.telling import worded
from botpool.reconciler.warming import bring_image
from botpool.states import BotStatus, FailureCause, SlotStatus
from botpool.tasks.backoff import Backoff

if TYPE_CHECKING:
    from botpool.engines.base import Container
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context
    from botpool.reconciler.pulls import Pulls

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_SHOWN_WITHIN_SECONDS = 60.0
_MOST_FAILED_STEPS = 8
"""About a minute."""
_MOST_FAILED_LAUNCHES = 2
"""After so many in a row on one container, while others succeed, it is made anew."""
_MOST_REMAKES = 3
"""A slot whose container was made anew so often in vain is deleted."""


async def release(context: Context, pulls: Pulls, slot: Slot) -> float | None:
    """Make a releasing slot idle; return in how many seconds to look again."""
    context.reached(Checkpoint.RELEASE_TAKEN)
    retired = await _why_retired(context, slot)
    if retired is None and (look_in := await bring_image(context, pulls, slot)) is not None:
        return look_in
    try:
        clean = await _stop_and_clean(context, slot, retired=retired is not None)
    except GivenUp as given_up:
        await _delete(context, slot, str(given_up))
        return NOW
    except EngineError as error:
        if not await _counts(context, slot, error):
            raise
        await context.pool.slots.fail(slot.id, slot.lease, str(error))
        return NOW
    if not clean:
        return _next_look(context, slot)
    if retired is None:
        await context.pool.slots.make_idle(slot.id, slot.lease)
    else:
        await _delete(context, slot, retired)
    context.reached(Checkpoint.RELEASE_IDLE)
    return NOW


async def end_late(context: Context, slot: Slot) -> float | None:
    """Tell a bot whose longest stay is over to leave, and end one that didn't leave in time."""
    bot = await context.store.bots.get(slot.assigned_bot_id or 0)
    if bot.status is not BotStatus.LEAVING:
        if bot.stays_too_long(slot.read_at):
            reason = f"its longest stay of {bot.max_duration_ms} ms is over"
            await context.pool.assignments.stop_bot(bot.id, reason, FailureCause.MAX_DURATION)
        else:
            await context.store.reservations.rest(slot.id, slot.lease, context.replica)
        return None
    await context.pool.assignments.end_assignment(
        Ending(
            slot_id=slot.id,
            lease=slot.lease,
            bot_status=BotStatus.DONE,
            reason=f"stopped: it did not leave within {context.settings.leave_grace_ms} ms",
        )
    )
    return NOW


async def repair(context: Context, slot: Slot) -> float | None:
    """Repair a slot in `error`, so that it is idle again; after too many failures, delete it."""
    settings = context.settings
    retired = await _why_retired(context, slot)
    try:
        clean = await _stop_and_clean(context, slot, retired=retired is not None)
        if not clean and _may_still_stop(context, slot):
            return _next_look(context, slot)
        problem = None if clean else "its container doesn't stop"
    except GivenUp as given_up:
        await _delete(context, slot, str(given_up))
        context.metrics.recovered(Outcome.DELETED)
        return NOW
    except EngineError as error:
        if not await _counts(context, slot, error):
            raise
        problem = worded(error)
    if problem is None:
        if retired is None:
            await context.pool.slots.make_idle(slot.id, slot.lease, SlotStatus.ERROR)
            context.metrics.recovered(Outcome.RECOVERED)
        else:
            await _delete(context, slot, retired)
            context.metrics.recovered(Outcome.DELETED)
        return NOW
    most = settings.max_recovery_attempts
    attempts = await context.pool.slots.count_failed_repair(slot, problem, most)
    if attempts < most:
        if attempts:  # else it is not in error any more
            context.metrics.recovered(Outcome.FAILED)
        return Backoff(settings.recovery_interval_ms / 1000).seconds(attempts, context.random)
    # If it has a container, the comparison with the engine finds it without a slot and removes it.
    reason = f"given up after {attempts} failed recoveries: {problem}"
    await context.pool.slots.delete(slot.id, slot.lease, reason)
    context.metrics.recovered(Outcome.DELETED)
    return NOW


async def _why_retired(context: Context, slot: Slot) -> str | None:
    """Why a slot gets no further bot and is deleted; `None` if it goes on."""
    if (misplaced := context.misplaced(slot)) is not None:
        return misplaced
    if slot.draining:
        return "drained"
    if slot.remakes >= _MOST_REMAKES and await _fails_again_and_again(context, slot):
        return f"launches failed on each of its last {slot.remakes + 1} containers"
    return None


async def _delete(context: Context, slot: Slot, reason: str) -> None:
    if not slot.draining:
        await context.pool.slots.drain(slot.id, reason, tell=False)
    await context.pool.slots.delete(slot.id, slot.lease, reason)


async def _fails_again_and_again(context: Context, slot: Slot) -> bool:
    """Whether launches fail on this container, and not because of its host.

    One is enough if its bot waits for the next slot: it must not lose another launch to this one.
    """
    if not slot.failed_launches:
        return False
    bot = await context.store.bots.find(slot.last_bot_id or 0)
    waits = bot is not None and bot.status is BotStatus.QUEUED
    return (
        waits or slot.failed_launches >= _MOST_FAILED_LAUNCHES
    ) and await context.store.slots.launches_elsewhere(slot)


async def _counts(context: Context, slot: Slot, error: EngineError) -> bool:
    """Whether an error is the fault of the slot's container.

    A refusal is. So is an error that comes again and again while the host answers and lists the
    container.
    """
    await context.confirm(slot)
    if isinstance(error, EngineRefused):
        return True
    container = container_of(slot)
    if container is None or slot.failed_steps < _MOST_FAILED_STEPS:
        return False
    listed = await context.engine(slot).list(container.host)
    return any(one.container == container for one in listed)


def _next_look(context: Context, slot: Slot) -> float:
    """In how many seconds to check again whether a container has stopped."""
    traits = context.engine(slot).traits
    if not traits.lags and not traits.has_nodes:
        return context.spread(context.settings.poll_interval_ms / 1000)
    since = slot.last_released_at or slot.read_at
    return context.next_look((slot.read_at - since).total_seconds())


def _may_still_stop(context: Context, slot: Slot) -> bool:
    """Whether its first stop is so young that an engine that lags can't have shown its end yet."""
    traits = context.engine(slot).traits
    if traits.has_nodes:
        return True  # until it is given up
    if not traits.lags or slot.recovery_attempts:
        return False
    since = slot.last_released_at or slot.read_at
    return (slot.read_at - since).total_seconds() < _SHOWN_WITHIN_SECONDS


async def _stop_and_clean(context: Context, slot: Slot, *, retired: bool) -> bool:
    """Stop the slot's container, and clean it or, if the slot is `retired`, remove it.

    A slot that never had a bot gets its container. Returns whether it is proved stopped and clean.
    Raises `GivenUp`.
    """
    container = container_of(slot)
    if container is None:
        if slot.lease == 0 and not retired:
            await create_if_image(context, slot)
        return True
    if not context.has_host(slot) or slot.engine not in context.engines:
        # It was removed from the settings, so it can't be asked any more. The slot is deleted.
        return True
    engine = context.engine(slot)
    if not engine.traits.keeps_logs:
        await keep_last(context, slot, container)
    await context.confirm(slot)
    await engine.stop(container, context.settings.stop_grace_ms / 1000)
    context.reached(Checkpoint.RELEASE_STOPPED)
    seen = await engine.observe(container)
    if not proved_stopped(context, slot, seen):
        return False
    context.reached(Checkpoint.RELEASE_PROVED)
    if engine.traits.keeps_logs:
        await keep_last(context, slot, container, seen)
    context.reached(Checkpoint.RELEASE_LOGGED)
    if engine.traits.has_nodes:
        await context.store.slots.record_stopped(slot)
    if retired:
        await _remove(context, slot)
    elif seen.state is not ContainerState.CREATED or slot.deployment_started_at is not None:
        # After a failed start, a container may look new and yet never start.
        await _clean(context, slot, seen.state)
    context.reached(Checkpoint.RELEASE_CLEAN)
    return True


async def _clean(context: Context, slot: Slot, state: ContainerState) -> None:
    """Leave nothing of one bot to the next: create another container with another name.

    So a late start or stop of the old container, by a replica that was paused, finds nothing.
    """
    slot = await bring_up_to_date(context, slot)
    remake = await _fails_again_and_again(context, slot)
    reusable = context.engine(slot).traits.reusable and state is not ContainerState.MISSING
    if slot.container_ref is None or (reusable and not remake):
        return
    # First, because its files may be what fills the disk.
    await _remove(context, slot)
    if not await create_if_image(context, slot, remade=remake):
        why = "container removed: its image is not on the host any more"
        await context.pool.slots.give_up_container(slot, slot.image, why)


async def _remove(context: Context, slot: Slot) -> None:
    """Remove a container that is proved stopped.

    If that fails again, the container is left behind: the comparison with the engine keeps trying,
    and the slot doesn't wait for it.
    """
    container = container_of(slot)
    if container is None:
        return
    try:
        await context.engine(slot).remove(container)
    except EngineUnavailable as error:
        if not slot.failed_steps:
            raise
        _left_behind(slot, container, error)


def _left_behind(slot: Slot, container: Container, error: EngineError) -> None:
    _log.warning(
        "container left behind",
        engine=slot.engine,
        container_ref=container.ref,
        error=str(error),
    )
