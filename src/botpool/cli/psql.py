"""`botpool psql`: SQL on botpool's database."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import typer

from botpool.cli.api import has_database
from botpool.cli.exits import CommandFailed, Exit
from botpool.cli.start import start
from botpool.errors import EmbeddedPostgresFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.settings import Settings

_NOT_FOUND = "psql is not installed on this machine."


def psql(ctx: typer.Context) -> None:
    """Open psql on the database: the one that BOTPOOL_DATABASE_URL names, or the embedded one.

    What follows goes to psql: `botpool psql -c 'SELECT * FROM bots'`. The exit code is psql's. It
    needs no server; the embedded PostgreSQL is started if it doesn't run.
    """
    settings = start()
    if not has_database(settings):
        raise CommandFailed(
            f"There is no database in {settings.data_dir} yet: run `botpool serve`, or set"
            " BOTPOOL_DATA_DIR or BOTPOOL_DATABASE_URL.",
            Exit.SETUP,
        )
    raise typer.Exit(asyncio.run(_run(settings, ctx.args)))


async def _run(settings: Settings, arguments: Sequence[str]) -> int:
    # Imported here because it takes long, and few commands need it.
    from botpool.store.postgres.embedded import (  # noqa: PLC0415
        embedded_postgres,
        postgres_programs,
    )

    async with AsyncExitStack() as stack:
        if settings.database_url is not None:
            url, password = without_password(settings.database_url.get_secret_value())
            program = shutil.which("psql")
        else:
            url, password = (
                await stack.enter_async_context(embedded_postgres(settings.data_dir)),
                None,
            )
            program = None
        if program is None:
            try:
                program = str(postgres_programs() / "psql")
            except EmbeddedPostgresFailed as error:
                raise CommandFailed(_NOT_FOUND, Exit.SETUP) from error
        # psql itself hears Ctrl-C, and goes on.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
        given = {} if password is None else {"PGPASSWORD": password}
        process = await asyncio.create_subprocess_exec(
            *(program, "--dbname", url, *arguments), env={**os.environ, **given}
        )
        code = await process.wait()
        return code if code >= 0 else 128 - code


def without_password(url: str) -> tuple[str, str | None]:
    """A database's URL without its password, which other users could see, and the password."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    in_query = options.pop("password", None)
    account, at, servers = parts.netloc.rpartition("@")
    user, _, password = account.partition(":")
    stripped = parts._replace(netloc=f"{user}{at}{servers}", query=urlencode(options))
    # Without a host, urllib would leave out the slashes.
    text = stripped.geturl()
    if not stripped.netloc:
        text = text.replace(f"{stripped.scheme}:/", f"{stripped.scheme}:///", 1)
    return text, unquote(password) or in_query
