"""The embedded PostgreSQL, started again whenever it has died."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import psutil
import structlog

from botpool.errors import EmbeddedPostgresFailed
from botpool.store.embedded import embedded_postgres

if TYPE_CHECKING:
    from pathlib import Path

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_LOOK_SECONDS = 0.5
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0


async def keep_embedded_postgres(data_dir: Path) -> None:
    """Start the server in data_dir again whenever it has died, until cancelled.

    For a process that uses it; any number may do so at once. A start that fails is tried again.
    Raise EmbeddedPostgresFailed if it comes back where nobody looks for it.
    """
    address = await _start(data_dir)
    while True:
        server = _server(data_dir)
        while server is not None and _lives(server):  # noqa: ASYNC110 - nothing tells of its end
            await asyncio.sleep(_LOOK_SECONDS)
        died_at = time.monotonic()
        _log.error("the embedded PostgreSQL has died", data_dir=str(data_dir))
        if await _start_until_it_does(data_dir) != address:
            raise EmbeddedPostgresFailed(
                f"The PostgreSQL in {data_dir} is back at another address, for another TMPDIR was"
                " set: start botpool again."
            )
        after_ms = round((time.monotonic() - died_at) * 1000)
        _log.warning("the embedded PostgreSQL is back", after_ms=after_ms)


async def _start_until_it_does(data_dir: Path) -> str:
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await _start(data_dir)
        except EmbeddedPostgresFailed as error:
            # At first, what the dead server left behind may keep a new one from its memory.
            retry_in_ms = round(pause * 1000)
            _log.error("it can't be started again", error=str(error), retry_in_ms=retry_in_ms)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def _start(data_dir: Path) -> str:
    # To come and go starts a dead server, and stops none that others use.
    async with embedded_postgres(data_dir) as address:
        return address


def _server(data_dir: Path) -> psutil.Process | None:
    """The server's main process, as its own file says; `None` if there is no such process."""
    try:
        first, *_ = (data_dir / "postgres" / "postmaster.pid").read_text().splitlines()
        return psutil.Process(int(first))
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None


def _lives(server: psutil.Process) -> bool:
    """Whether it is still that process, and not a dead one that its parent doesn't care for."""
    try:
        return server.is_running() and server.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
