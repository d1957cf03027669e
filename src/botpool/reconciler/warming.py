"""Start a slot without a bot, so that its start brings the image to its host.

For engines whose starts bring the image. Such a slot is `releasing` under a lease of its own, and
the pull that its start is to bring names that lease. Its container's claim finds no bot, and is
answered with 410. When the container runs, the image is there, and the slot is released as any
other: stopped, proved stopped, idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from botpool.engines.base import STOPPED, ContainerState, Observation
from botpool.errors import EngineRefused
from botpool.models.storable import storable
from botpool.reconciler.containers import bring_up_to_date, create
from botpool.reconciler.context import container_of
from botpool.reconciler.environment import environment_without_bot

if TYPE_CHECKING:
    from botpool.models.pulls import ImagePull
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context
    from botpool.reconciler.pulls import Pulls

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")


async def bring_image(context: Context, pulls: Pulls, slot: Slot) -> float | None:
    """Go on with the start of a slot that has no bot.

    Returns in how many seconds to look again; `None` if no image is to be brought (any more), so
    that the slot can be stopped.
    """
    if slot.last_bot_id is not None or not context.engine(slot).traits.pulls_at_start:
        return None
    pull = await context.store.pulls.of_start(slot)
    if pull is None:
        return None
    try:
        observation = await _start_and_look(context, slot)
        error = observation.detail or f"its container is {observation.state}"
    except EngineRefused as refusal:
        observation, error = Observation(state=ContainerState.FAILED), str(refusal)
    match observation.state:
        case ContainerState.FAILED | ContainerState.MISSING:
            await _note_outcome(context, pulls, slot, pull, storable(error))
            return None
        case ContainerState.EXITED if context.in_grace(slot):
            pass
        case ContainerState.RUNNING | ContainerState.EXITED:
            await _note_outcome(context, pulls, slot, pull, None)
            return None
    return context.next_look_at_start(slot)


async def _note_outcome(
    context: Context, pulls: Pulls, slot: Slot, pull: ImagePull, error: str | None
) -> None:
    """End a pull that a start without a bot was to bring, and tell in the slot's timeline."""
    log = _log.bind(slot_name=slot.slot_name, **pull.key._asdict())
    if error is None:
        log.info("pull done")
        reason = f"its start brought {pull.image}"
    else:
        log.warning("pull failed", error=error, attempts=pull.attempts)
        reason = f"its start did not bring {pull.image}: {error}"
    await context.pool.slots.note(slot, reason, attempt=pull.attempts)
    await pulls.end(pull.key, pull.reserved_by or "", error, pull.attempts)


async def _start_and_look(context: Context, slot: Slot) -> Observation:
    """Start the slot's container, unless a replica has already, and see how it does."""
    engine = context.engine(slot)
    if slot.deployment_ref is None:
        slot = await bring_up_to_date(context, slot)
    container = container_of(slot)
    if container is None:
        container = await create(context, slot, slot.creations + 1)
    observation = await engine.observe(container, slot.deployment_ref)
    if slot.deployment_ref is None and observation.state in STOPPED - {ContainerState.MISSING}:
        environment = await environment_without_bot(context, slot)
        await context.confirm(slot)
        deployment = await engine.start(container, environment, stopped=True)
        await context.store.slots.record_start(slot, deployment)
        observation = await engine.observe(container, deployment)
    return observation
