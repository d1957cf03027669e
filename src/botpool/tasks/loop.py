"""A loop that looks for work when it is woken, and every few seconds in any case."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from botpool.logs import log_failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Loop:
    """Calls `look` until stopped. `look` returns after how many seconds to call it again.

    If it fails, the loop logs `failed` and calls it again after `poll_seconds`.
    """

    def __init__(
        self, look: Callable[[], Awaitable[float]], *, poll_seconds: float, failed: str
    ) -> None:
        self.poll_seconds = poll_seconds
        self._look = look
        self._failed = failed
        self._awake = asyncio.Event()
        self._stopping = False

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stopping

    def wake(self) -> None:
        """Look again at once."""
        self._awake.set()

    def stop(self) -> None:
        """Make `run` return."""
        self._stopping = True
        self._awake.set()

    async def run(self) -> None:
        """Look again and again, until `stop` is called."""
        while not self._stopping:
            self._awake.clear()
            try:
                seconds = await self._look()
            except Exception as error:  # noqa: BLE001 - whatever it is, the loop goes on
                log_failure(self._failed, error)
                seconds = self.poll_seconds
            await self._until_awake(seconds)

    async def _until_awake(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)  # others have a turn, whatever the look does
            return
        try:
            async with asyncio.timeout(seconds):
                await self._awake.wait()
        except TimeoutError:
            return
