"""`botpool sign-in`."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated

import httpx
import typer

from botpool.access.keys import Keys
from botpool.access.sessions import CODE_LIFETIME, Sessions
from botpool.cli.start import start
from botpool.errors import SetupError
from botpool.settings import API_KEY, is_key
from botpool.store import Store, check_schema, open_database

if TYPE_CHECKING:
    from botpool.settings import Settings

_ANSWER_SECONDS = 30.0


def sign_in(
    url: Annotated[
        str | None,
        typer.Option(envvar="BOTPOOL_URL", help="Where botpool listens, such as https://botpool."),
    ] = None,
) -> None:
    """Print a link that signs one browser in, once.

    Where botpool runs, it signs in as the admin. With the variable BOTPOOL_API_KEY it asks the
    botpool at BOTPOOL_URL for a link, and signs in with that key.
    """
    settings = start()
    at = (url or settings.local_url).rstrip("/")
    key = os.environ.get(API_KEY)
    link = asyncio.run(_asked(at, key) if key else _ours(settings, at))
    typer.echo(link)
    minutes = CODE_LIFETIME.total_seconds() / 60
    typer.echo(f"It works once, within {minutes:.0f} minutes.", err=True)


async def _ours(settings: Settings, url: str) -> str:
    async with open_database(settings) as database:
        await check_schema(database)
        store = Store(database)
        if not (await store.replicas.counts()).api:
            typer.echo("No API runs on this database: run `botpool serve`.", err=True)
        admin = await Keys(store, settings).admin()
        return (await Sessions(store).invite(admin)).link(url)


async def _asked(url: str, key: str) -> str:
    if not is_key(key):
        raise SetupError(f"{API_KEY} is not a key.")
    try:
        async with httpx.AsyncClient(timeout=_ANSWER_SECONDS) as client:
            answer = await client.post(
                f"{url}/api/v1/sessions", headers={"Authorization": f"Bearer {key}"}
            )
            said = answer.json()
            told = said["url" if answer.is_success else "detail"]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        raise SetupError(f"botpool doesn't answer at {url}: check BOTPOOL_URL.") from error
    if answer.is_success:
        return str(told)
    raise SetupError(f"botpool at {url} answered {answer.status_code}: {told}")
