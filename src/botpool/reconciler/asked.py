"""Do what operators asked for at an engine, and tell the outcome.

A request only records what is wanted, in the row of a slot or of a pull. Any replica that has the
host does it. If it dies, another one finds the row as it was.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from botpool.errors import EngineError, NotFound, StaleLease
from botpool.logs import log_failure
from botpool.reconciler.compare import compare_slot
from botpool.reconciler.telling import worded

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from botpool.models.pulls import ImagePull
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context
    from botpool.reconciler.pulls import Pulls
    from botpool.reconciler.reservations import Reservations


class Asked:
    """Compares slots and brings images on request, each in a task of its own."""

    def __init__(self, context: Context, reservations: Reservations, pulls: Pulls) -> None:
        self._context = context
        self._reservations = reservations
        self._pulls = pulls
        self._doing: dict[str, asyncio.Task[None]] = {}

    async def look(self) -> bool:
        """Begin what is asked for and not being done, so that no host waits for another.

        Returns whether anything is asked for.
        """
        store, hosts = self._context.store, self._context.hosts()
        comparisons = await store.slots.asked_comparisons(hosts)
        for slot in comparisons:
            self._begin(f"compare {slot.slot_name}", partial(self._compare, slot))
        pulls = await store.pulls.asked(hosts)
        for pull in pulls:
            self._begin(f"pull {pull.key}", partial(self._pull, pull))
        return bool(comparisons or pulls)

    async def finished(self) -> None:
        """Wait until nothing is being done."""
        while self._doing:
            await asyncio.wait(self._doing.values())

    async def close(self) -> None:
        """Stop. Another replica goes on."""
        for task in self._doing.values():
            task.cancel()
        await asyncio.gather(*self._doing.values(), return_exceptions=True)

    def _begin(self, what: str, do: Callable[[], Coroutine[None, None, None]]) -> None:
        if what not in self._doing:
            task = self._doing[what] = asyncio.create_task(do())
            task.add_done_callback(partial(self._ended, what))

    def _ended(self, what: str, task: asyncio.Task[None]) -> None:
        del self._doing[what]
        if not task.cancelled() and (error := task.exception()) is not None:
            log_failure("not done as asked", error, what=what)

    async def _compare(self, slot: Slot) -> None:
        engine = self._context.engine(slot)
        try:
            async with asyncio.timeout(engine.traits.patience_seconds):
                state, said = await compare_slot(self._context, self._reservations, slot)
        except (EngineError, TimeoutError) as error:
            # Not knowing is an answer, too, and changes nothing.
            state, said = "unknown", f"the engine could not be asked: {worded(error)}"
        except (StaleLease, NotFound):
            return  # it changed meanwhile: the next look compares it as it is now
        await self._context.pool.slots.record_comparison(slot.id, state, said)

    async def _pull(self, pull: ImagePull) -> None:
        engine = self._context.engines[pull.engine]
        async with asyncio.timeout(engine.traits.patience_seconds):
            await self._pulls.bring_asked(pull)
