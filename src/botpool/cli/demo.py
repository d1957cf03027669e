"""`botpool demo`: a botpool with sample bots, in a folder of its own, to look at.

It uses none of the settings of its environment, so it touches no other botpool: the engine is
`process`, the database is embedded, and the bots join no meeting.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import webbrowser
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from botpool.errors import BotpoolError
from botpool.logs import configure_logs, log_failure
from botpool.models.bots import NewBot
from botpool.settings import load_settings
from botpool.states import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from botpool.serving import Served
    from botpool.settings import Settings

_MEETINGS = {
    Platform.GOOGLE_MEET: "https://meet.google.com/abc-defg-hij",
    Platform.MICROSOFT_TEAMS: "https://teams.microsoft.com/l/meetup-join/19%3ameeting_demo",
    Platform.ZOOM: "https://zoom.us/j/1234567890",
}
_PROJECTS = ("calendar", "support")
_SLOTS = 4
_BETWEEN_WAVES_SECONDS = 12.0
_PAUSE_EVERY = 5
"""Each so many waves, the launches of a platform are paused until the next wave."""

_LOOK_AT = """
what to look at:
  Pool       tiles turn busy as bots come in waves; when a platform's 4 slots are taken, bots wait
  a bot      its launch phase by phase, its timeline, its logs while it runs; stop it
  failures   some crash and are launched again, some hang until they are missed, some wait too long
  paused     every minute the launches of a platform are paused: its bots wait, then go in order
  Insights   launch times, load, failures, waits and what the slots cost, by project
"""


class Wave(NamedTuple):
    """Bots that come together, and the platform that is paused meanwhile, if one is."""

    bots: Sequence[NewBot]
    paused: Platform | None


def demo(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 for a free one.")
    ] = 0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep its folder at the end, with database and logs.")
    ] = False,
    browser: Annotated[
        bool, typer.Option(help="Open the dashboard in a browser, if there is a display.")
    ] = True,
) -> None:
    """Show botpool at work until Ctrl-C: sample bots in waves, on three platforms.

    Some crash, hang, or wait too long. It needs no engine and no settings, and leaves nothing.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(_folder(keep=keep))
        log = stack.enter_context((folder / "log").open("w", encoding="utf-8"))
        settings = demo_settings(folder, port)
        asyncio.run(_run(settings, log, browser=browser))


@contextmanager
def _folder(*, keep: bool) -> Iterator[Path]:
    """A new folder, gone at the end unless it is to be kept."""
    folder = Path(tempfile.mkdtemp(prefix="botpool-demo-"))
    try:
        yield folder
    finally:
        if keep:
            typer.echo(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def demo_settings(folder: Path, port: int) -> Settings:
    """Settings that show much in little time, whatever the environment says."""
    for name in [each for each in os.environ if each.startswith(("BOTPOOL_", "COOLIFY_"))]:
        del os.environ[name]
    return load_settings(
        data_dir=folder,
        port=port,
        max_pool_size=_SLOTS,
        slot_hour_price=0.04,
        heartbeat_interval_ms=1000,
        heartbeat_freshness_ms=8000,
        recovery_interval_ms=3000,
        relaunch_wait_ms=1000,
        leave_grace_ms=3000,
        stop_grace_ms=2000,
    )


def waves(chance: random.Random, projects: Sequence[int]) -> Iterator[Wave]:
    """Bots for as long as somebody looks: never the same wave twice, and trouble in each."""
    number = 0
    while True:
        number += 1
        paused = chance.choice([*Platform]) if number % _PAUSE_EVERY == 0 else None
        busiest = chance.choice([*Platform])
        bots = [
            _bot(platform, chance, chance.choice(projects))
            for platform in Platform
            for _ in range(chance.randint(4, 7) if platform is busiest else chance.randint(0, 2))
        ]
        yield Wave(bots, paused)


def _bot(platform: Platform, chance: random.Random, project_id: int) -> NewBot:
    orders: dict[str, object] = {
        "stayMs": chance.randint(8_000, 40_000),
        "joinMs": chance.randint(300, 3_000),
    }
    match chance.random():
        case draw if draw < 0.08:  # noqa: PLR2004 - a share of the bots
            orders |= {"behaviour": "crash", "atMs": chance.randint(2_000, 10_000)}
        case draw if draw < 0.14:  # noqa: PLR2004
            orders |= {"behaviour": "hang", "atMs": chance.randint(2_000, 8_000)}
        case draw if draw < 0.20:  # noqa: PLR2004
            orders |= {"behaviour": "crash_on_join"}
    return NewBot(
        platform=platform,
        meeting_url=_MEETINGS[platform],
        bot_display_name=chance.choice(("Notes", "Minutes", "Recorder")),
        queue_timeout_ms=chance.choice((12_000, 60_000, 120_000)),
        config={"sample": orders},
        project_id=project_id,
    )


async def _run(settings: Settings, log: TextIO, *, browser: bool) -> None:
    # Imported here because it takes long, and no other command needs it.
    from botpool.serving import serving, stop_every_bot  # noqa: PLC0415

    configure_logs(settings.log_level, "json", log)
    stop = _until_signal()
    typer.echo("starting …")
    async with serving(settings) as served:
        link = (await served.sessions.invite(served.admin)).link(served.url or "")
        typer.echo(f"the dashboard, signed in:  {link}")
        typer.echo(f"the API:                   {served.url}/docs")
        typer.echo(f"its files and its log:     {settings.data_dir}")
        typer.echo(_LOOK_AT)
        typer.echo("Ctrl-C ends it and removes everything.")
        if browser and _has_display():
            webbrowser.open(link)
        arriving = asyncio.create_task(_send(served))
        try:
            await stop.wait()
        finally:
            arriving.cancel()
            await asyncio.gather(arriving, return_exceptions=True)
        typer.echo("stopping every bot …")
        stopped = await stop_every_bot(served.store, served.pool, settings)
        typer.echo(f"stopped {stopped}; shutting down …")
    typer.echo("the demo has ended")


def _until_signal() -> asyncio.Event:
    """An event that Ctrl-C sets. The second one ends the process at once."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear() -> None:
        asked.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, hear)
    return asked


def _has_display() -> bool:
    """Whether a browser can show something here."""
    if sys.platform in {"darwin", "win32"}:
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


async def _send(served: Served) -> None:
    """Send one wave after the other. One that fails is logged, and the next one goes on."""
    from botpool.access.projects import Projects  # noqa: PLC0415 - as `serving`

    projects = [(await Projects(served.store).create(name))[0].id for name in _PROJECTS]
    for wave in waves(random.Random(), projects):  # noqa: S311 - what comes is to surprise
        try:
            await _send_wave(served, wave)
        except BotpoolError as error:
            log_failure("a wave failed", error)
        await asyncio.sleep(_BETWEEN_WAVES_SECONDS)
        with suppress(BotpoolError):
            if wave.paused is not None:
                await served.pool.queue.resume(wave.paused, by="demo")


async def _send_wave(served: Served, wave: Wave) -> None:
    if wave.paused is not None:
        await served.pool.queue.pause(wave.paused, by="demo", reason="to show what a pause does")
    await asyncio.gather(*(served.pool.creation.create_bot(bot) for bot in wave.bots))
