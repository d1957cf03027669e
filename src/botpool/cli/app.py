"""The commands."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from botpool import __version__
from botpool.cli.demo import demo
from botpool.cli.doctor import doctor
from botpool.cli.first_process import leave_first_process
from botpool.cli.keys import app as keys_app
from botpool.cli.projects import app as projects_app
from botpool.cli.recover import recover
from botpool.cli.serve import ServeRole, serve
from botpool.cli.sign_in import sign_in
from botpool.cli.slots import app as slots_app
from botpool.cli.start import start
from botpool.cli.status import status
from botpool.cli.webhooks import app as webhooks_app
from botpool.engines import check_engine
from botpool.errors import BotpoolError, DatabaseUnreachable, SetupError
from botpool.pool import Pool
from botpool.store import (
    Store,
    migrate,
    open_database,
)

if TYPE_CHECKING:
    from botpool.settings import Settings

app = typer.Typer(
    name="botpool",
    help="Put meeting bots into calls fast. Settings are environment variables: BOTPOOL_…",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Rich's help would show a value for flags, which take none
)


app.add_typer(keys_app)
app.add_typer(projects_app)
app.add_typer(webhooks_app)
app.add_typer(slots_app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command("serve")
def serve_command(
    role: Annotated[
        ServeRole,
        typer.Option(
            help="Answer requests (api), work on slots and webhooks (worker), or both (all)."
        ),
    ] = ServeRole.ALL,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port to listen on; 0 for a free one.")
    ] = None,
    stop_bots: Annotated[
        bool, typer.Option("--stop-bots", help="Stop every bot on exit. By default bots run on.")
    ] = False,
) -> None:
    """Run botpool until Ctrl-C: the API, and the worker that starts and stops bots.

    It migrates the database first. Any number of botpools may run on one database.
    """
    options = {"host": host, "port": port}
    settings = start(**{name: value for name, value in options.items() if value is not None})
    leave_first_process()
    asyncio.run(serve(settings, role, stop_bots=stop_bots))


@app.command("migrate", short_help="Migrate the database to this botpool's schema.")
def migrate_command() -> None:
    """Migrate the database to this botpool's schema, and show what was done.

    It also updates the pools to match the settings. You can run it at any time, even several at
    once.
    """
    settings = start()
    applied = asyncio.run(_migrate(settings))
    for name in applied:
        typer.echo(f"applied {name}")
    if not applied:
        typer.echo("nothing to do: the database is up to date")


async def _migrate(settings: Settings) -> list[str]:
    check_engine(settings)
    async with open_database(settings) as database:
        applied = await migrate(database)
        await Pool(Store(database), settings).queue.configure()
    return applied


app.command("sign-in", short_help="Print a link that signs a browser in.")(sign_in)
app.command("status", short_help="Show slots, waiting bots and what runs.")(status)
app.command("recover", short_help="Find bots and slots that are stuck, and recover them.")(recover)
app.command("demo", short_help="Show botpool at work, with sample bots.")(demo)
app.command("doctor", short_help="Check the installation, and say how to fix it.")(doctor)


def run() -> None:
    """Run the command. If it fails, print one sentence, and exit with a code.

    docs/how-to/postgresql.md lists the codes.
    """
    try:
        app()
    except BotpoolError as error:
        typer.echo(f"botpool: {error}", err=True)
        raise SystemExit(_exit_code(error)) from None
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


def _exit_code(error: BotpoolError) -> int:
    match error:
        case DatabaseUnreachable():
            return 3  # it may pass by itself
        case SetupError():
            return 2  # the operator must fix something
        case _:
            return 1
