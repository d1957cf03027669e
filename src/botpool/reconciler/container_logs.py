"""Read what containers wrote: while they run, if somebody wants it, and when they have ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from botpool.errors import EngineError
from botpool.models.storable import storable
from botpool.reconciler.context import container_of

if TYPE_CHECKING:
    from botpool.engines.base import Container
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_KEPT_LINES = 1000


async def read_wanted(context: Context) -> int:
    """Read the output of running containers that somebody wants; return how many there were."""
    wanted = await context.store.bots.wanted_container_logs(context.hosts())
    await asyncio.gather(*(_read_so_far(context, slot) for slot in wanted))
    return len(wanted)


async def _read_so_far(context: Context, slot: Slot) -> None:
    container, engine = container_of(slot), context.engine(slot)
    lines: list[str] | None = None
    try:
        async with asyncio.timeout(engine.traits.patience_seconds):
            if container is not None:
                written = await engine.logs(container, _KEPT_LINES)
                lines = [storable(line) for line in written]
    except (EngineError, TimeoutError) as error:
        _log.warning("logs not read", slot_name=slot.slot_name, lease=slot.lease, error=str(error))
    bot_id = slot.assigned_bot_id or slot.last_bot_id or 0
    await context.store.bots.keep_container_logs(bot_id, slot.id, slot.lease, lines, final=False)


async def keep_last(context: Context, slot: Slot, container: Container) -> None:
    """Keep what the container wrote. If its logs can't be read, the slot doesn't wait for them."""
    bot_id = slot.last_bot_id
    if bot_id is None or await context.store.bots.has_container_logs(bot_id, slot.id, slot.lease):
        return
    try:
        lines = await context.engine(slot).logs(container, _KEPT_LINES)
    except EngineError as error:
        _log.warning("logs lost", slot_name=slot.slot_name, lease=slot.lease, error=str(error))
        return
    kept = [storable(line) for line in lines]
    # If the engine doesn't keep logs, an empty list is kept, too, so that we don't ask again.
    if kept or not context.engine(slot).traits.keeps_logs:
        await context.store.bots.keep_container_logs(bot_id, slot.id, slot.lease, kept)
