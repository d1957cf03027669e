"""One call for many callers."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_Value = TypeVar("_Value")


class SharedCall(Generic[_Value]):
    """Makes one call for all callers that ask while it is under way.

    If a caller is cancelled, the call goes on for the others. An error is raised in all of them.
    """

    def __init__(self, call: Callable[[], Coroutine[Any, Any, _Value]]) -> None:
        self._call = call
        self._under_way: asyncio.Task[_Value] | None = None

    async def __call__(self) -> _Value:
        """The result of the call that is under way, or of a new one."""
        return await asyncio.shield(self.begin())

    def begin(self) -> asyncio.Task[_Value]:
        """The call that is under way, or a new one."""
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._call())
            # If all callers were cancelled, no caller retrieves its error; this does.
            self._under_way.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._under_way

    def give_up(self, call: asyncio.Task[_Value]) -> None:
        """End a call that takes too long. The next caller starts a new one."""
        call.cancel()
        if self._under_way is call:
            self._under_way = None

    async def within(self, seconds: float) -> _Value:
        """The same, if it comes within so many seconds. Raises `TimeoutError`.

        We don't wait for the end of a call that takes too long: that may take long, too.
        """
        asked = self.begin()
        await asyncio.wait({asked}, timeout=seconds)
        if not asked.done():
            self.give_up(asked)
            raise TimeoutError
        if asked.cancelled():  # another caller gave it up
            raise TimeoutError
        return asked.result()

    async def close(self) -> None:
        """End the call that is under way, and wait until it has ended."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)


class KeptCall(SharedCall[_Value]):
    """Makes one call for all callers, and keeps its result for some seconds after it began.

    An error is not kept.
    """

    def __init__(
        self,
        call: Callable[[], Coroutine[Any, Any, _Value]],
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(call)
        self._seconds = seconds
        self._clock = clock
        self._began = -math.inf

    def begin(self) -> asyncio.Task[_Value]:
        """The call that is under way, the one whose result is kept, or a new one."""
        last = self._under_way
        fresh = self._clock() - self._began < self._seconds
        if (
            last is not None
            and last.done()
            and fresh
            and not last.cancelled()
            and not last.exception()
        ):
            return last
        task = super().begin()
        if task is not last:
            self._began = self._clock()
        return task
