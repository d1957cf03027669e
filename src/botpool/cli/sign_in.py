"""`botpool sign-in`."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from botpool.cli.api import has_database, opened_api
from botpool.cli.exits import CommandFailed, Exit
from botpool.cli.output import AsJson, hint, print_json, say
from botpool.cli.start import start
from botpool.serving_note import serving_notes
from botpool.settings import API_KEY, API_URL

if TYPE_CHECKING:
    from botpool.settings import Settings

_LIFETIME = timedelta(minutes=10)


def sign_in(
    url: Annotated[
        str | None,
        typer.Option(envvar=API_URL, help="Where botpool listens, such as https://botpool."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a link that signs one browser in, once.

    Where botpool runs, it uses the database, and signs in as the admin. With the variable
    BOTPOOL_API_KEY it asks the API at BOTPOOL_URL for a link, and signs in with that key.
    """
    settings = start()
    if os.environ.get(API_KEY):
        if url:
            os.environ[API_URL] = url
        link = asyncio.run(_asked(settings))
    elif has_database(settings):
        link = asyncio.run(_ours(settings, url))
    else:
        raise CommandFailed(
            f"There is no botpool in {settings.data_dir}: run this where botpool runs, or set"
            f" {API_URL} and {API_KEY}.",
            Exit.NO_ANSWER,
        )
    if as_json:
        print_json(link)
        return
    say(link["url"])
    hint(f"It works once, within {_LIFETIME // timedelta(minutes=1)} minutes.")


async def _ours(settings: Settings, url: str | None) -> dict[str, Any]:
    # Imported here because it takes long, and few commands need it.
    from botpool.access.keys import Keys  # noqa: PLC0415
    from botpool.access.sessions import Sessions  # noqa: PLC0415
    from botpool.store import Store, check_schema, open_database  # noqa: PLC0415

    running, _ = serving_notes(settings.data_dir)
    at = url or (running[0].url if running else settings.local_url)
    async with open_database(settings) as database:
        await check_schema(database)
        store = Store(database)
        if not (await store.replicas.counts()).api:
            hint("No API runs on this database: run `botpool serve`.")
        invitation = await Sessions(store).invite(await Keys(store, settings).admin())
        expires_at = invitation.expires_at.isoformat().replace("+00:00", "Z")
        return {"url": invitation.link(at.rstrip("/")), "expiresAt": expires_at}


async def _asked(settings: Settings) -> dict[str, Any]:
    async with opened_api(settings) as api:
        return await api.post("/sessions")
