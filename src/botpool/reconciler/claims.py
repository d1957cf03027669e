"""The slots that this replica has taken, so that nobody else works on them.

A claim expires unless it is renewed. Work on a slot whose claim is lost, or could not be renewed in
time, is cancelled: somebody else may be at it.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from botpool.errors import BotpoolError, ClaimLost
from botpool.reconciler.context import to_the_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.models import Slot
    from botpool.reconciler.context import Context

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_NOBODYS_AFTER_MS = 600_000
"""A host that no botpool has compared with the slots for so long is in nobody's settings."""


class Work:
    """A task that works on a slot."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task
        self.cancelling = task.cancelling()
        self.lost = False

    def cancel(self) -> None:
        """Let it end: the slot is not its any more."""
        if not self.lost:
            self.lost = True
            self._task.cancel()


class Claims:
    """Takes slots, renews them, and gives them back."""

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._hosts = context.hosts()
        self._replica = context.replica
        self._ttl_ms = context.settings.claim_ttl_ms
        self._deploy_timeout_ms = context.settings.deploy_timeout_ms
        self._engine = context.settings.engine
        self._workers: dict[int, Work] = {}
        self._renewed = 0.0

    async def take_due(self, most: int) -> list[Slot]:
        """Take slots that are due. Whoever works on one says so with `working_on`.

        One that we work on already is ours again, if its claim had expired, and not taken twice.
        """
        taken = await self._store.claim_slots(
            *(self._replica, self._ttl_ms, most, self._hosts, self._deploy_timeout_ms),
            *(self._engine, _NOBODYS_AFTER_MS),
        )
        return [slot for slot in taken if slot.id not in self._workers]

    @asynccontextmanager
    async def take(self, slot_id: int) -> AsyncIterator[Slot | None]:
        """Have a slot, due or not, to oneself; `None` if somebody has it. Raises `ClaimLost`."""
        slot = None
        if slot_id not in self._workers:
            slot = await self._store.claim_slot(slot_id, self._replica, self._ttl_ms)
        # While we asked, it may have become due, and another task of ours have taken it.
        if slot is None or slot_id in self._workers:
            yield None
            return
        try:
            async with self.working_on(slot):
                yield slot
        finally:
            await self.give_back(slot, None)

    @asynccontextmanager
    async def working_on(self, slot: Slot) -> AsyncIterator[None]:
        """Renew the claim of a slot while the current task works on it.

        If it is lost, the work is cancelled and `ClaimLost` raised; so is it at once if another
        task of ours is at it.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a claim is worked on by a task")
        if slot.id in self._workers:
            raise ClaimLost(f"{slot.slot_name} is worked on already.")
        work = Work(task)
        self._workers[slot.id] = work
        try:
            yield
        except asyncio.CancelledError:
            # As asyncio.timeout does: our own cancellation is an error, anybody else's goes on.
            if work.lost and task.uncancel() <= work.cancelling:
                raise ClaimLost(f"{slot.slot_name} is somebody else's by now.") from None
            raise
        finally:
            del self._workers[slot.id]

    async def give_back(self, slot: Slot, due_in: float | None, error: str | None = None) -> None:
        """Let go of a slot that no other task of ours is at. `None` leaves open when it is due."""
        if slot.id in self._workers:
            return
        if due_in is None:
            await to_the_end(self._store.drop_claim(slot.id, self._replica))
        else:
            await to_the_end(self._store.return_slot(slot, self._replica, due_in * 1000, error))

    async def renew(self) -> None:
        """Renew what is being worked on, and cancel the work on what is ours no more."""
        now = asyncio.get_running_loop().time()
        workers = dict(self._workers)
        if not workers:
            self._renewed = now
            return
        try:
            async with asyncio.timeout(self._ttl_ms / 1000 / 3):
                ours = await self._store.renew_claims(self._replica, [*workers], self._ttl_ms)
        except (BotpoolError, TimeoutError) as error:
            _log.warning("claims not renewed", error=str(error) or type(error).__name__)
            if now - self._renewed < self._ttl_ms / 1000:
                return
            ours = set()
        else:
            self._renewed = now
        for slot_id in workers.keys() - ours:
            # Only work that was under way when we asked: it may have been given back since.
            if self._workers.get(slot_id) is workers[slot_id]:
                _log.warning("claim lost", slot_id=slot_id)
                workers[slot_id].cancel()
