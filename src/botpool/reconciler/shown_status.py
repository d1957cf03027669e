"""ShownStatus: what each slot is doing, shown in the engine's own interface."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from botpool.errors import EngineError
from botpool.reconciler.context import container_of
from botpool.states import SlotStatus

if TYPE_CHECKING:
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_LONGEST = 255
_MOST_REMEMBERED = 10_000


def description(slot: Slot) -> str:
    """One line about what a slot is doing, such as `[BUSY] Bot #123 - <time>`."""
    time = slot.read_at.strftime("%Y-%m-%dT%H:%M:%SZ")
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
    """Sends descriptions in the background, for each slot only the newest.

    A description is not sent twice, unless the engine's own list shows another one. If it can't be
    sent, that is logged, and nothing fails.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: dict[int, Slot] = {}
        self._said: dict[int, tuple[object, ...]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def show(self, slot: Slot, *, again: bool = False) -> None:
        """Show what a slot is doing now. If that was shown already, only with `again`."""
        if container_of(slot) is None or slot.engine not in self._context.engines:
            return
        says = (slot.container_ref, slot.lease, slot.status, slot.error_message)
        if self._said.get(slot.id) == says and not again:
            return
        if len(self._said) > _MOST_REMEMBERED:
            self._said.clear()
        self._said[slot.id] = says
        self._waiting[slot.id] = slot
        if slot.id not in self._tasks:
            self._tasks[slot.id] = asyncio.create_task(self._send(slot.id))

    async def settle(self) -> None:
        """Wait until everything is shown."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def close(self) -> None:
        """Drop the descriptions that are not sent yet."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, slot_id: int) -> None:
        try:
            while slot := self._waiting.pop(slot_id, None):
                container = container_of(slot)
                if container is None:
                    continue
                engine = self._context.engine(slot)
                try:
                    async with asyncio.timeout(engine.traits.patience_seconds):
                        await engine.describe(container, description(slot))
                except (EngineError, TimeoutError) as error:
                    _log.warning(
                        "can't show a description", slot_name=slot.slot_name, error=str(error)
                    )
        finally:
            del self._tasks[slot_id]
