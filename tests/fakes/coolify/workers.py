"""The few workers that serve all of Coolify's jobs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.fakes.coolify.background import Background

    Work = Callable[[], Coroutine[Any, Any, None]]


class Workers:
    """Take jobs up in their order."""

    def __init__(self, background: Background, count: Callable[[], int]) -> None:
        self._background = background
        self._count = count
        self._waiting: dict[str, Work] = {}
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, key: str, work: Work) -> None:
        """Let a job be done as soon as a worker is free."""
        self._waiting[key] = work
        self._idle.clear()
        self.look()

    def withdraw(self, key: str) -> None:
        """Forget a job that no worker took up yet."""
        self._waiting.pop(key, None)
        self.look()

    def look(self) -> None:
        """Take up what can be."""
        while self._waiting and self._busy < self._count():
            key = next(iter(self._waiting))
            self._busy += 1
            self._background.run(self._do(self._waiting.pop(key)))
        if not self._waiting and not self._busy:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until no job is left."""
        await self._idle.wait()

    async def _do(self, work: Work) -> None:
        try:
            await work()
        finally:
            self._busy -= 1
            if not self._background.closed:
                self.look()
