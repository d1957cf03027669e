"""The slots that this replica has taken, so that nobody else works on them.

A claim expires unless it is renewed. Work on a slot whose claim is lost, or could not be renewed in
time, is cancelled: somebody else may be at it.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from botpool.errors import BotpoolError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.models import Slot
    from botpool.reconciler.context import Context

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")


class Claims:
    """Takes slots, renews them, and gives them back."""

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._hosts = context.hosts()
        self._replica = context.replica
        self._ttl_ms = context.settings.claim_ttl_ms
        self._workers: dict[int, asyncio.Task[object]] = {}
        self._renewed = 0.0

    async def take_due(self, most: int) -> list[Slot]:
        """Take slots that are due. Whoever works on one says so with `working_on`."""
        return await self._store.claim_slots(self._replica, self._ttl_ms, most, self._hosts)

    @asynccontextmanager
    async def take(self, slot_id: int) -> AsyncIterator[Slot | None]:
        """Have a slot, due or not, to oneself; `None` if somebody else has it."""
        slot = await self._store.claim_slot(slot_id, self._replica, self._ttl_ms)
        if slot is None:
            yield None
            return
        async with self.working_on(slot):
            try:
                yield slot
            finally:
                due = None if slot.due_at is None else 0.0
                await self.give_back(slot, due, failed=False)

    @asynccontextmanager
    async def working_on(self, slot: Slot) -> AsyncIterator[None]:
        """Renew the claim of a slot while the current task works on it."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a claim is worked on by a task")
        self._workers[slot.id] = task
        try:
            yield
        finally:
            del self._workers[slot.id]

    async def give_back(self, slot: Slot, due_in: float | None, *, failed: bool) -> bool:
        """Let go of a slot, and return whether it is due at once."""
        return await asyncio.shield(
            self._store.return_slot(
                slot, self._replica, None if due_in is None else due_in * 1000, failed=failed
            )
        )

    async def renew(self) -> None:
        """Renew what is being worked on, and cancel the work on what is ours no more."""
        now = asyncio.get_running_loop().time()
        slot_ids = list(self._workers)
        if not slot_ids:
            self._renewed = now
            return
        try:
            ours = await self._store.renew_claims(self._replica, slot_ids, self._ttl_ms)
        except BotpoolError as error:
            _log.warning("claims not renewed", error=str(error))
            if now - self._renewed < self._ttl_ms / 1000:
                return
            ours = set()
        else:
            self._renewed = now
        for slot_id in set(slot_ids) - ours:
            worker = self._workers.get(slot_id)
            if worker is not None:
                _log.warning("claim lost", slot_id=slot_id)
                worker.cancel()
