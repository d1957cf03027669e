"""Make a slot free for the next bot: stop what runs in it, prove it, keep its logs, clean it.

A slot that is `releasing` becomes `idle` when that is done, or has the next bot at once. A slot in
`error` goes the same way, and is deleted when it can't be brought there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from botpool.engines.base import STOPPED, ContainerState
from botpool.errors import EngineError, EngineRefused, EngineUnavailable, ImageMissing
from botpool.models import Ending
from botpool.reconciler.context import NOW, container_of
from botpool.reconciler.create import create
from botpool.reconciler.points import Point
from botpool.states import BotStatus, FailureCause
from botpool.texts import storable

if TYPE_CHECKING:
    from botpool.engines.base import Container
    from botpool.models import Slot
    from botpool.reconciler.context import Context

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_KEPT_LINES = 1000
_KEPT_LINE_LENGTH = 4000
_MOST_FAILED_STEPS = 8
"""In about a minute."""


async def release(context: Context, slot: Slot) -> float | None:
    """Free a slot that is releasing, and say in how many seconds to look again."""
    context.reached(Point.RELEASE_TAKEN)
    try:
        clean = await _stop_and_clean(context, slot)
    except EngineError as error:
        if not await _counts(context, slot, error):
            raise
        await context.pool.mark_error(slot.id, slot.lease, FailureCause.ENGINE, str(error))
        return NOW
    if not clean:
        return _next_look(context, slot)
    if slot.draining:
        await context.pool.delete_slot(slot.id, slot.lease, "drained")
    else:
        await context.pool.free(slot.id, slot.lease)
    context.reached(Point.RELEASE_FREED)
    return NOW


async def end_late(context: Context, slot: Slot) -> float | None:
    """End a bot that was to leave its call, and has not within the time for it."""
    bot = await context.pool.get_bot(slot.assigned_bot_id or 0)
    if bot.status is not BotStatus.LEAVING:
        await context.store.rest_slot(slot.id, slot.lease, context.replica)
        return None
    await context.pool.release(
        Ending(
            slot_id=slot.id,
            lease=slot.lease,
            bot_status=BotStatus.DONE,
            reason=f"stopped: it did not leave within {context.settings.leave_grace_ms} ms",
        )
    )
    return NOW


async def recover(context: Context, slot: Slot) -> float | None:
    """Make a slot in `error` well again; after too many failures, delete it."""
    settings = context.settings
    try:
        clean = await _stop_and_clean(context, slot)
        problem = None if clean else "its container does not stop"
    except EngineError as error:
        if not await _counts(context, slot, error):
            raise
        problem = str(error)
    if problem is None:
        if slot.draining:
            await context.pool.delete_slot(slot.id, slot.lease, "drained")
        else:
            await context.pool.recover(slot.id, slot.lease)
        return NOW
    attempts = await context.store.put_off_recovery(slot.id, slot.lease, problem)
    if attempts < settings.max_recovery_attempts:
        return context.jittered(settings.recovery_interval_ms / 1000 * 2 ** (attempts - 1))
    # Its container, if there is one, has no slot then: the comparison with the engine removes it.
    reason = f"given up after {attempts} failed recoveries: {problem}"
    await context.pool.delete_slot(slot.id, slot.lease, reason)
    return NOW


async def _counts(context: Context, slot: Slot, error: EngineError) -> bool:
    """Whether an error says something of the slot's container.

    One that was refused does. So does one that fails again and again on a host that answers, and
    has it.
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
    """In how many seconds to see whether a container has stopped."""
    if not context.engine(slot).traits.lags:
        return context.jittered(context.settings.poll_interval_ms / 1000)
    since = slot.last_released_at or slot.read_at
    return context.next_look((slot.read_at - since).total_seconds())


async def give_up_outdated(context: Context, slot: Slot) -> Slot:
    """Let a slot be as the settings want it now: its image, engine, host, and where it calls us.

    A stopped container that is otherwise is removed; one that is being started stays as it is.
    """
    settings = context.settings
    wanted = (settings.engine, settings.image(slot.platform))
    current = (
        (slot.engine, slot.image) == wanted
        and context.has_host(slot)
        and not _calls_elsewhere(context, slot)
    )
    if current or (slot.deployment_started_at is not None and slot.assigned_bot_id is not None):
        return slot
    await _remove_outdated(context, slot)
    move = not context.has_host(slot)
    return await context.store.give_up_container(slot, *wanted, move=move) or slot


def _calls_elsewhere(context: Context, slot: Slot) -> bool:
    """Whether the slot's container was told to call us where we are not any more."""
    if slot.container_ref is None or slot.runtime_url is None:
        return False
    traits = context.engine(slot).traits
    told_at_start = traits.reusable and traits.environment_at_start
    return not told_at_start and slot.runtime_url != context.settings.runtime_url


async def _remove_outdated(context: Context, slot: Slot) -> None:
    container = container_of(slot)
    if container is None:
        return
    try:
        await context.engine(slot).remove(container)
    except EngineError as error:
        if slot.engine == context.settings.engine and context.has_host(slot):
            raise
        # It is not used any more, and may never answer again.
        _left_behind(slot, container, error)


async def _stop_and_clean(context: Context, slot: Slot) -> bool:
    """Whether the slot's container is proved stopped, and as a new one is."""
    container = container_of(slot)
    if container is None:
        return True
    if not context.has_host(slot):
        # Nobody has: it was taken out of the settings, and what runs there is nobody's bot.
        await give_up_outdated(context, slot)
        return True
    engine = context.engine(slot)
    if not engine.traits.keeps_logs:
        await _keep_logs(context, slot, container)
    await context.confirm(slot)
    await engine.stop(container, context.settings.stop_grace_ms / 1000)
    context.reached(Point.RELEASE_STOPPED)
    state = (await engine.observe(container)).state
    if state not in STOPPED:
        return False
    context.reached(Point.RELEASE_PROVED)
    if engine.traits.keeps_logs:
        await _keep_logs(context, slot, container)
    context.reached(Point.RELEASE_LOGGED)
    if slot.draining:
        await engine.remove(container)
    elif state is not ContainerState.CREATED or slot.deployment_started_at is not None:
        # One that a start has failed on may look as new, and never start.
        await _clean(context, slot, state)
    context.reached(Point.RELEASE_CLEAN)
    return True


async def _clean(context: Context, slot: Slot, state: ContainerState) -> None:
    """Leave nothing of one bot to the next: another container, under another name.

    So whoever is late with a start or a stop for the old one finds nothing.
    """
    slot = await give_up_outdated(context, slot)
    if slot.container_ref is None or (
        context.engine(slot).traits.reusable and state is not ContainerState.MISSING
    ):
        return
    # First: what it has written may be what leaves no room for another.
    await _remove(context, slot)
    try:
        await create(context, slot, slot.creations + 1)
    except ImageMissing:
        # The next deployment brings the image, and makes the container.
        await context.store.give_up_container(slot, slot.engine, slot.image)


async def _remove(context: Context, slot: Slot) -> None:
    """Remove a container that is proved stopped.

    One that could not be removed before is left behind: the comparison with the engine goes on
    trying, and the slot does not wait for that.
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


async def _keep_logs(context: Context, slot: Slot, container: Container) -> None:
    """Keep what the container wrote. That it can't be had is no reason to hold up the slot."""
    bot_id = slot.last_bot_id
    if bot_id is None or await context.store.has_container_logs(bot_id, slot.id, slot.lease):
        return
    try:
        lines = await context.engine(slot).logs(container, _KEPT_LINES)
    except EngineError as error:
        _log.warning("logs lost", slot_name=slot.slot_name, lease=slot.lease, error=str(error))
        return
    kept = [storable(line, _KEPT_LINE_LENGTH) for line in lines]
    # Where they go with the container, that there were none is kept too: nobody asks again.
    if kept or not context.engine(slot).traits.keeps_logs:
        await context.store.keep_container_logs(bot_id, slot.id, slot.lease, kept)
