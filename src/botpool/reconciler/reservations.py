"""The slots that this replica has reserved, so that no other works on them.

A reservation expires unless it is renewed. If it is lost, or could not be renewed in time, the work
on the slot is cancelled: another replica may have it.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import structlog

from botpool.errors import BotpoolError, ReservationLost
from botpool.logs import log_failure
from botpool.tasks.finish import finish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_FINISH_SECONDS = 5.0


class Work:
    """A task that works on a slot."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task
        self.cancelling = task.cancelling()
        self.lost = False

    def cancel(self) -> None:
        """Cancel it: its slot is lost."""
        if not self.lost:
            self.lost = True
            self._task.cancel()


class Reservations:
    """Reserves slots, renews their reservations, and gives them back."""

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._hosts = context.hosts
        self._replica = context.replica
        self._ttl_ms = context.settings.reservation_ttl_ms
        self._deployment_limit_ms = context.settings.deployment_limit_ms
        self._engine = context.settings.engine
        self._workers: dict[int, Work] = {}
        self._renewed = 0.0

    async def take_due(self, most: int) -> list[Slot]:
        """Reserve slots that are due. A task that works on one uses `working_on`.

        A slot that we already work on, because its reservation had expired, is reserved again but
        not returned.
        """
        taken = await self._store.reservations.reserve_due(
            self._replica,
            ttl_ms=self._ttl_ms,
            most=most,
            hosts=self._hosts(),
            deployment_limit_ms=self._deployment_limit_ms,
            engine=self._engine,
        )
        return [slot for slot in taken if slot.id not in self._workers]

    @asynccontextmanager
    async def take(self, slot_id: int) -> AsyncIterator[Slot | None]:
        """Reserve a slot, due or not; `None` if it is reserved. Raises `ReservationLost`."""
        slot = None
        if slot_id not in self._workers:
            slot = await self._store.reservations.reserve(slot_id, self._replica, self._ttl_ms)
        # While we asked, it may have become due, and another task of ours may have taken it.
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
        """Renew the reservation of a slot while the current task works on it.

        If the reservation is lost, the work is cancelled and `ReservationLost` is raised. If
        another task of this replica works on the slot, it is raised at once.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only an asyncio task can work on a slot")
        if slot.id in self._workers:
            raise ReservationLost(f"Another task already works on {slot.slot_name}.")
        work = Work(task)
        self._workers[slot.id] = work
        try:
            yield
        except asyncio.CancelledError:
            # As in asyncio.timeout: our own cancellation becomes an error, any other goes on.
            if work.lost and task.uncancel() <= work.cancelling:
                raise ReservationLost(f"Another replica has {slot.slot_name} now.") from None
            raise
        finally:
            del self._workers[slot.id]

    async def give_back(self, slot: Slot, due_in: float | None, error: str | None = None) -> None:
        """Give a slot back, unless another task of ours works on it.

        If `due_in` is `None`, it stays open when the slot is due.
        """
        if slot.id in self._workers:
            return
        if due_in is None:
            write: Coroutine[Any, Any, object] = self._store.reservations.drop(
                slot.id, self._replica
            )
        else:
            write = self._store.reservations.give_back(slot, self._replica, due_in * 1000, error)
        await finish(write, seconds=_FINISH_SECONDS)

    async def renew(self) -> None:
        """Renew the reservations of slots that we work on, and cancel work on lost slots."""
        now = asyncio.get_running_loop().time()
        workers = dict(self._workers)
        if not workers:
            self._renewed = now
            return
        try:
            async with asyncio.timeout(self._ttl_ms / 1000 / 3):
                ours = await self._store.reservations.renew(self._replica, [*workers], self._ttl_ms)
        except (BotpoolError, TimeoutError) as error:
            log_failure("reservations not renewed", error)
            if now - self._renewed < self._ttl_ms / 1000:
                return
            ours = set()
        else:
            self._renewed = now
        for slot_id in workers.keys() - ours:
            # Only work that was under way when we asked: the slot may have been given back since.
            if self._workers.get(slot_id) is workers[slot_id]:
                _log.warning("reservation lost", slot_id=slot_id)
                workers[slot_id].cancel()
