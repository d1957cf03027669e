"""The commands."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from botpool import __version__
from botpool.cli.bots import app as bots_app
from botpool.cli.demo import demo
from botpool.cli.doctor import doctor
from botpool.cli.exits import CommandFailed, Exit
from botpool.cli.first_process import leave_first_process
from botpool.cli.hosts import app as hosts_app
from botpool.cli.keys import app as keys_app
from botpool.cli.output import AsJson, flush, print_json, say
from botpool.cli.pool import pause, pool, queue, replicas, resume, status
from botpool.cli.projects import app as projects_app
from botpool.cli.psql import psql
from botpool.cli.recover import recover
from botpool.cli.serve import ServeRole, serve
from botpool.cli.sign_in import sign_in
from botpool.cli.slots import app as slots_app
from botpool.cli.start import start
from botpool.cli.webhooks import app as webhooks_app
from botpool.errors import BotpoolError, DatabaseUnreachable, SetupError

if TYPE_CHECKING:
    from botpool.settings import Settings

_ORDER = (
    *("bots", "pool", "status", "queue", "slots", "hosts", "pause", "resume", "replicas"),
    *("projects", "keys", "webhooks", "sign-in"),
    *("serve", "demo", "doctor", "recover", "migrate", "psql"),
)
"""The order in which help shows the commands: what is needed most first."""


class _InOrder(TyperGroup):
    def list_commands(self, ctx: object) -> list[str]:
        return [*_ORDER]


app = typer.Typer(
    name="botpool",
    cls=_InOrder,
    help="Put meeting bots into calls fast. Settings are environment variables: BOTPOOL_…"
    "\n\nCommands that ask the API find it by BOTPOOL_URL and BOTPOOL_API_KEY; on the machine where"
    " botpool runs, they find it by themselves, and ask as the admin. The others use the database"
    " that the settings name, and need no server: each says so.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Rich's help would show a value for flags, which take none
)


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


app.add_typer(bots_app, short_help="Create, list, show, stop, watch bots; read their logs.")
app.command("pool", short_help="Show slots, hosts, what runs, and what needs a person.")(pool)
app.command("status", short_help="As pool.")(status)
app.command("queue", short_help="List the bots that wait.")(queue)
app.add_typer(slots_app, short_help="List, show, recover, drain and import slots.")
app.add_typer(hosts_app, short_help="List, drain and undrain hosts.")
app.command("pause", short_help="Launch no bot of a platform for a while.")(pause)
app.command("resume", short_help="Launch bots of a platform again.")(resume)
app.command("replicas", short_help="List the running botpools.")(replicas)
app.add_typer(projects_app, short_help="Who owns bots, keys and webhooks.")
app.add_typer(keys_app, short_help="Create, list, rotate and revoke API keys.")
app.add_typer(webhooks_app, short_help="Webhook endpoints, and what was delivered.")
app.command("sign-in", short_help="Print a link that signs a browser in.")(sign_in)


@app.command("serve", short_help="Run botpool: the API, the worker, or both.")
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


app.command("demo", short_help="Show botpool at work, with sample bots.")(demo)
app.command("doctor", short_help="Check the installation, and say how to fix it.")(doctor)
app.command("recover", short_help="Find bots and slots that are stuck, and recover them.")(recover)


@app.command("migrate", short_help="Migrate the database to this botpool's schema.")
def migrate_command(as_json: AsJson = False) -> None:
    """Migrate the database to this botpool's schema, and show what was done.

    It also updates the pools to match the settings. You can run it at any time, even several at
    once. It needs no server.
    """
    settings = start()
    applied = asyncio.run(_migrate(settings))
    if as_json:
        print_json({"applied": applied})
        return
    for name in applied:
        say(f"applied {name}")
    if not applied:
        say("nothing to do: the database is up to date")


async def _migrate(settings: Settings) -> list[str]:
    # Imported here because it takes long, and few commands need it.
    from botpool.engines import check_engine  # noqa: PLC0415
    from botpool.pool import Pool  # noqa: PLC0415
    from botpool.store import Store, migrate, open_database  # noqa: PLC0415

    check_engine(settings)
    async with open_database(settings) as database:
        applied = await migrate(database)
        await Pool(Store(database), settings).queue.configure()
    return applied


app.command(
    "psql",
    short_help="Open psql on the database.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(psql)


def run() -> None:
    """Run the command. If it fails, print one sentence, and exit with a code.

    docs/reference/cli.md lists the codes.
    """
    try:
        app()
    except BotpoolError as error:
        flush()
        typer.echo(f"botpool: {error}", err=True)
        raise SystemExit(exit_code(error)) from None
    except KeyboardInterrupt:
        raise SystemExit(Exit.INTERRUPTED) from None
    finally:
        flush()


def exit_code(error: BotpoolError) -> Exit:
    """The exit code for an error."""
    match error:
        case CommandFailed():
            return error.code
        case DatabaseUnreachable():
            return Exit.DATABASE_AWAY  # it may pass by itself
        case SetupError():
            return Exit.SETUP  # the operator must fix something
        case _:
            return Exit.FAILED
