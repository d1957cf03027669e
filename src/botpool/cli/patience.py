"""Patience with a botpool that goes away for a while: it is restarted, or the connection is cut."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from botpool.cli.exits import CommandFailed
from botpool.cli.output import hint
from botpool.tasks.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeVar

    from botpool.cli.api import Api

    Result = TypeVar("Result")

_TRIES = Backoff(0.3, 5.0)


class Patience:
    """Tries again what fails and may pass, and tells that once, and once when it has passed.

    The first call fails at once: then the address may be wrong.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._failures = 0
        self._began = False

    async def call(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """What the work returns, when it does. Raises `CommandFailed` if that can't pass."""
        while True:
            try:
                found = await work()
            except CommandFailed as error:
                await self.bear(error)
            else:
                self.passed()
                return found

    async def bear(self, error: CommandFailed) -> None:
        """Wait until it may be tried again. Raises the error if that won't help."""
        if not (error.may_pass and self._began):
            raise error
        if not self._failures:
            hint(f"botpool: {error} Trying again …")
        self._failures += 1
        await asyncio.sleep(_TRIES.seconds(self._failures, random.Random()))  # noqa: S311
        try:
            await self._api.find_again()
        except CommandFailed as away:
            if not away.may_pass:
                raise

    def passed(self) -> None:
        """Note that it works."""
        self._began = True
        if self._failures:
            hint("botpool: It answers again.")
        self._failures = 0
