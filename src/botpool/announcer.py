"""Wake those who work, without making those who ask wait for it."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING

import structlog

from botpool.errors import BotpoolError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_PAUSE_SECONDS = 0.01


class Announcer:
    """Calls `notify` in the background: at once, and then as seldom as serves everybody.

    What is announced while a call is under way, or shortly after one, shares the next. A call that
    fails is logged: those who work look for work by themselves, if later.
    """

    def __init__(self, notify: Callable[[], Awaitable[None]]) -> None:
        self._notify = notify
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def announce(self) -> None:
        """See to it that `notify` is called after now."""
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
                    _log.warning("announcement failed", error=str(error))
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            self._task = None
