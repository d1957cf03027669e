"""Listen to announcements on a channel of the database."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from botpool.logs import log_failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from botpool.store.postgres.database import Database

_RETRY_SECONDS = 1.0


@asynccontextmanager
async def listening(
    database: Database, channel: str, heard: Callable[[], None]
) -> AsyncIterator[None]:
    """Call `heard` whenever something is announced on a channel, and once at the beginning.

    If the connection is lost, connect again, and call `heard` then, too: it may have missed
    something.
    """
    task = asyncio.create_task(_listen(database, channel, heard))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _listen(database: Database, channel: str, heard: Callable[[], None]) -> None:
    while True:
        try:
            await database.listen(channel, heard)
        except Exception as error:  # noqa: BLE001 - whatever it is, listen again
            log_failure("can't listen", error, channel=channel)
            await asyncio.sleep(_RETRY_SECONDS)
