"""`botpool serve`."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from botpool.access.admin_key import ADMIN_KEY

if TYPE_CHECKING:
    from botpool.serving import Served
    from botpool.settings import Settings


class ServeRole(StrEnum):
    """What a process does: answer requests, work on slots and webhooks, or both."""

    ALL = "all"
    API = "api"
    WORKER = "worker"


async def serve(settings: Settings, role: ServeRole, *, stop_bots: bool) -> None:
    """Run botpool until it gets SIGINT or SIGTERM, or its terminal is closed.

    While it starts, and the second time, SIGINT and SIGTERM end it at once, with their exit code.
    """
    stop = _Stop()
    allow_many_files()
    # Imported here because it takes long, and no other command needs it.
    from botpool.serving import serving, stop_every_bot  # noqa: PLC0415

    try:
        async with serving(
            settings, api=role is not ServeRole.WORKER, worker=role is not ServeRole.API
        ) as served:
            stop.runs = True
            if role is ServeRole.WORKER:
                _say("botpool is running as a worker")
                if served.url is not None:
                    _say(f"its health:  {served.url}/readyz")
            else:
                _say(f"botpool listens on {served.listens_on}")
                _say(await _how_to_sign_in(served, settings))
                _say(f"the API:  {served.url}/docs")
            await stop.asked.wait()
            if stop_bots:
                _say("stopping every bot …")
                _say(f"stopped {await stop_every_bot(served.store, served.pool, settings)}")
            _say("shutting down …")
    except asyncio.CancelledError:
        if stop.runs:
            _say("ended at once", err=True)
        raise SystemExit(128 + stop.number) from None


def allow_many_files() -> None:
    """Let this process have as many files open as it may: each bot has a connection.

    What a process gets by itself is often 1,024, for the sake of programs that use `select`.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # some systems refuse what they told
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _how_to_sign_in(served: Served, settings: Settings) -> str:
    """A link on a terminal. Elsewhere what is printed may be kept: only where the key is."""
    if served.url is not None and sys.stdout.isatty():
        return f"sign in:  {(await served.sessions.invite(served.admin)).link(served.url)}"
    if settings.admin_key is not None:
        return "the admin's key is the one in BOTPOOL_ADMIN_KEY; `botpool sign-in` prints a link"
    return f"the admin's key is in {settings.data_dir / ADMIN_KEY}; `botpool sign-in` prints a link"


class _Stop:
    """Hears the signals that end the current task: at once while it starts, in order once it runs.

    A second SIGINT or SIGTERM cancels it. A terminal that closes may send SIGHUP twice.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.runs = False
        self.number = signal.SIGINT
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under nohup, SIGHUP has to be ignored.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._hear, number)

    def _hear(self, number: signal.Signals) -> None:
        again = self.asked.is_set() and number is not signal.SIGHUP
        if self._task is not None and (again or not self.runs):
            self.number = number
            self._task.cancel()
        self.asked.set()


def _say(line: str, *, err: bool = False) -> None:
    """Print a line. A failure to print it, as on a closed terminal, is ignored."""
    with suppress(OSError):
        typer.echo(line, err=err)
