"""`botpool serve`."""

from __future__ import annotations

import asyncio
import signal
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
    """Run botpool until SIGINT or SIGTERM. The same again ends it at once."""
    # Here, because it takes long to import, and no other command needs it.
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
    try:
        async with serving(
            settings, api=role is not ServeRole.WORKER, worker=role is not ServeRole.API
        ) as served:
            if served.url is None:
                typer.echo("botpool works")
            else:
                typer.echo(f"botpool listens on {served.url}")
                typer.echo(f"sign in:  {served.url}/sign-in?key={quote(served.admin_key)}")
                typer.echo(f"the API:  {served.url}/docs")
            await stop.wait()
            if stop_bots:
                typer.echo("stopping every bot …")
                typer.echo(f"stopped {await stop_every_bot(served.pool, settings)}")
            typer.echo("shutting down …")
    except asyncio.CancelledError:
        typer.echo("ended at once", err=True)
        raise SystemExit(130) from None
