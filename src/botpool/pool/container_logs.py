"""What running containers have written so far: asked for here, read by a worker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from botpool.store.installation import LOGS

if TYPE_CHECKING:
    from botpool.pool.publisher import Publisher
    from botpool.store import Store

_FRESH_MS = 2000
_LONGEST_WAIT_SECONDS = 3.0
_LOOK_SECONDS = 0.05


class ContainerLogs:
    """Has a worker read what a container has written."""

    def __init__(self, store: Store, publisher: Publisher) -> None:
        self._store = store
        self._publisher = publisher

    async def refresh(self, bot_id: int) -> None:
        """Have the output of a bot's running container read, and wait a few seconds for that.

        If no worker answers, what was read before has to do.
        """
        if not (await self._store.replicas.counts()).worker:
            return
        if not await self._store.bots.want_container_logs(bot_id, _FRESH_MS):
            return
        self._publisher.wake(LOGS)
        try:
            async with asyncio.timeout(_LONGEST_WAIT_SECONDS):
                while await self._store.bots.wants_container_logs(bot_id):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            return
