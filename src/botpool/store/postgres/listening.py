"""Listen to announcements on a channel of the database."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from botpool.store.postgres.database import Database

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

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
            _log.warning("listening again", channel=channel)
        except Exception as error:  # noqa: BLE001 - whatever it is, listen again
            _log.warning("can't listen", channel=channel, error=str(error))
            await asyncio.sleep(_RETRY_SECONDS)
