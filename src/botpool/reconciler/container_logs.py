"""Read what containers wrote: while they run, if somebody wants it, and when they have ended."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import structlog

from botpool.errors import EngineError
from botpool.logs import log_failure
from botpool.models.bots import ContainerFacts
from botpool.models.storable import storable
from botpool.reconciler.context import container_of
from botpool.reconciler.telling import bot_in_log
from botpool.states import BotStatus

if TYPE_CHECKING:
    from botpool.engines.base import Container, Observation
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_KEPT_LINES = 1000
_ENDED_WELL = frozenset({BotStatus.DONE, BotStatus.CANCELLED})


class LiveLogs:
    """Reads the output of running containers that somebody wants, each in a task of its own."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reading: dict[int, asyncio.Task[None]] = {}

    async def look(self) -> None:
        """Begin to read what is wanted and not being read, so that no host waits for another."""
        for slot in await self._context.store.bots.wanted_container_logs(self._context.hosts()):
            if slot.id not in self._reading:
                task = self._reading[slot.id] = asyncio.create_task(self._read(slot))
                task.add_done_callback(partial(self._ended, slot.id))

    async def finished(self) -> None:
        """Wait until nothing is being read."""
        while self._reading:
            await asyncio.wait(self._reading.values())

    async def close(self) -> None:
        """Stop reading."""
        for task in self._reading.values():
            task.cancel()
        await asyncio.gather(*self._reading.values(), return_exceptions=True)

    def _ended(self, slot_id: int, task: asyncio.Task[None]) -> None:
        del self._reading[slot_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log_failure("logs not read", error)

    async def _read(self, slot: Slot) -> None:
        container, engine = container_of(slot), self._context.engine(slot)
        lines: list[str] | None = None
        facts = ContainerFacts()
        try:
            async with asyncio.timeout(engine.traits.patience_seconds):
                if container is not None:
                    written = await engine.logs(container, _KEPT_LINES)
                    lines = [storable(line) for line in written]
                    if not engine.traits.metered:
                        facts = facts_of(await engine.observe(container))
        except (EngineError, TimeoutError) as error:
            whose = await bot_in_log(self._context, slot)
            log_failure("logs not read", error, slot_name=slot.slot_name, lease=slot.lease, **whose)
        await self._context.store.bots.keep_container_logs(
            slot.assigned_bot_id or 0, slot.id, slot.lease, lines, facts, final=False
        )


def facts_of(observation: Observation) -> ContainerFacts:
    """How a container did, as the engine sees it."""
    return ContainerFacts(exit_code=observation.exit_code, restarts=observation.restarts)


async def keep_last(
    context: Context, slot: Slot, container: Container, ended: Observation | None = None
) -> None:
    """Keep what the container wrote, and how it `ended`, if that is known.

    If its logs can't be read, the slot doesn't wait for them.

    On an engine that counts requests, only if its bot did not end well: the others have sent their
    log lines themselves.
    """
    bot_id = slot.last_bot_id
    if bot_id is None or await context.store.bots.has_container_logs(bot_id, slot.id, slot.lease):
        return
    if context.engine(slot).traits.metered:
        bot = await context.store.bots.find(bot_id)
        if bot is not None and bot.status in _ENDED_WELL:
            return
    try:
        lines = await context.engine(slot).logs(container, _KEPT_LINES)
    except EngineError as error:
        whose = await bot_in_log(context, slot)
        _log.warning(
            "logs lost", slot_name=slot.slot_name, lease=slot.lease, **whose, error=str(error)
        )
        return
    kept = [storable(line) for line in lines]
    facts = ContainerFacts() if ended is None else facts_of(ended)
    # If the engine doesn't keep logs, an empty list is kept, too, so that we don't ask again.
    if kept or facts != ContainerFacts() or not context.engine(slot).traits.keeps_logs:
        await context.store.bots.keep_container_logs(bot_id, slot.id, slot.lease, kept, facts)
