"""ShownStatus: what each slot is doing, shown in the engine's own interface."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from botpool.errors import BotpoolError
from botpool.logs import log_failure
from botpool.reconciler.context import NOW, container_of
from botpool.states import SlotStatus

if TYPE_CHECKING:
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context

LOOK_SECONDS = 5.0
"""How often to look for what nobody announced: what lasts longer than it usually does."""

_LONGEST = 255
_AGAIN_MS = 120_000
_MOST_AT_A_TIME = 100


def description(slot: Slot) -> str:
    """One line about what a slot is doing, such as `[BUSY] Bot #123 - <time>`."""
    began = slot.launched_at if slot.status is SlotStatus.BUSY else None
    time = (began or slot.read_at).strftime("%Y-%m-%dT%H:%M:%SZ")
    match slot.status:
        case SlotStatus.IDLE:
            used = slot.last_released_at or slot.last_used_at
            text = f"Available - Last used: {used.strftime('%Y-%m-%dT%H:%M:%SZ')}"
        case SlotStatus.ERROR:
            reason = " ".join((slot.error_message or "").split())
            room = _LONGEST - len(f"[ERROR]  - {time}")
            text = f"{reason[:room]} - {time}"
        case _:
            bot_id = slot.assigned_bot_id or slot.last_bot_id
            text = f"{'No bot' if bot_id is None else f'Bot #{bot_id}'} - {time}"
    return f"[{slot.status.upper()}] {text}"


class ShownStatus:
    """Sends descriptions in the background. An engine that is slow sends only the newest.

    The database says what is to be shown, whoever changed it. It also keeps what could not be sent:
    that is taken again, by any replica. What an engine's own list shows otherwise is sent again,
    too.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def needed(self) -> bool:
        """Whether an engine has a place for descriptions."""
        return any(engine.traits.describes for engine in self._context.engines.values())

    async def look(self) -> float:
        """Begin to send what is to be shown; return in how many seconds to look again."""
        hosts = [
            (engine, host)
            for engine, host in self._context.hosts()
            if self._context.engines[engine].traits.describes
        ]
        if not hosts:
            return LOOK_SECONDS
        taken = await self._context.store.slots.take_shown(
            hosts, within_ms=_AGAIN_MS, most=_MOST_AT_A_TIME
        )
        for slot in taken:
            task = asyncio.create_task(self._send(slot))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return NOW if len(taken) == _MOST_AT_A_TIME else LOOK_SECONDS

    async def settle(self) -> None:
        """Wait until everything that was taken is shown."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Drop the descriptions that are not sent yet: another replica takes them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, slot: Slot) -> None:
        container = container_of(slot)
        if container is None:
            return
        engine = self._context.engine(slot)
        try:
            async with asyncio.timeout(engine.traits.patience_seconds):
                await engine.describe(container, description(slot))
            await self._context.store.slots.shown(slot)
        except (BotpoolError, TimeoutError) as error:
            log_failure("can't show a description", error, slot_name=slot.slot_name)
