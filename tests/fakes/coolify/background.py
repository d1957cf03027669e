"""Tasks in the background; what fails in them is kept until the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Background:
    """Runs tasks until it is closed. None begins before the first one is added."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: list[Exception] = []
        self.closed = False

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin something. Raises `RuntimeError` once closed."""
        if self.closed:
            work.close()
            raise RuntimeError("This Coolify is closed.")
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """End every task. Raises an `ExceptionGroup` of what failed since the beginning."""
        self.closed = True
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            # What they have cancelled in their turn ends with the next step.
            await asyncio.sleep(0)
        if self._errors:
            errors, self._errors = self._errors, []
            raise ExceptionGroup("The imitation of Coolify failed.", errors)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            error = task.exception()
            if isinstance(error, Exception):
                self._errors.append(error)
