"""A call in the background that its caller doesn't wait for."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING

from botpool.errors import BotpoolError
from botpool.logs import log_failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_PAUSE_SECONDS = 0.01


class BackgroundCall:
    """Calls `notify` in the background, at once but not too often.

    Requests that arrive during a call, or shortly after one, share the next call. A call that fails
    is only logged: workers also look for work by themselves, just later.
    """

    def __init__(self, notify: Callable[[], Awaitable[None]]) -> None:
        self._notify = notify
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Make sure that `notify` is called after now."""
        self._wanted = True
        if self._task is None:
            self._task = asyncio.create_task(self._run(), context=Context())

    async def _run(self) -> None:
        try:
            while self._wanted:
                self._wanted = False
                try:
                    await self._notify()
                except BotpoolError as error:
                    log_failure("background call failed", error)
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            self._task = None
