"""Work that must be finished, even if it is cancelled."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

_Result = TypeVar("_Result")


async def finish(work: Coroutine[Any, Any, _Result], *, seconds: float = inf) -> _Result:
    """Wait until the work is done, even if cancelled meanwhile; then raise the cancellation.

    After a cancellation it waits for at most `seconds`. Then the work goes on by itself, and its
    error, if it has one, is lost.
    """
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    cancelled: asyncio.CancelledError | None = None
    until = inf
    while not task.done() and loop.time() < until:
        try:
            await asyncio.wait({task}, timeout=None if until == inf else until - loop.time())
        except asyncio.CancelledError as error:
            if cancelled is None:
                cancelled, until = error, loop.time() + seconds
    if cancelled is None:
        return task.result()
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    raise cancelled
