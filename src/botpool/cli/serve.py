"""`botpool serve`."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import quote

import typer

if TYPE_CHECKING:
    from botpool.settings import Settings


class ServeRole(StrEnum):
    """What a process does: answer requests, work on slots and webhooks, or both."""

    ALL = "all"
    API = "api"
    WORKER = "worker"


async def serve(settings: Settings, role: ServeRole, *, stop_bots: bool) -> None:
    """Run botpool until it gets SIGINT or SIGTERM, or its terminal is closed.

    A second SIGINT or SIGTERM ends it at once.
    """
    # Imported here because it takes long, and no other command needs it.
    from botpool.serving import serving, stop_every_bot  # noqa: PLC0415

    stop = asyncio.Event()
    main = asyncio.current_task()

    def asked() -> None:
        if stop.is_set() and main is not None:
            main.cancel()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    # A terminal that closes may send SIGHUP twice. Under nohup it has to be ignored.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, stop.set)
    try:
        async with serving(
            settings, api=role is not ServeRole.WORKER, worker=role is not ServeRole.API
        ) as served:
            if served.url is None:
                _say("botpool is running as a worker")
            else:
                _say(f"botpool listens on {served.url}")
                _say(f"sign in:  {served.url}/sign-in?key={quote(served.admin_key)}")
                _say(f"the API:  {served.url}/docs")
            await stop.wait()
            if stop_bots:
                _say("stopping every bot …")
                _say(f"stopped {await stop_every_bot(served.store, served.pool, settings)}")
            _say("shutting down …")
    except asyncio.CancelledError:
        _say("ended at once", err=True)
        raise SystemExit(130) from None


def _say(line: str, *, err: bool = False) -> None:
    """Print a line. A failure to print it, as on a closed terminal, is ignored."""
    with suppress(OSError):
        typer.echo(line, err=err)
