"""`botpool keys`: the keys of the API."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from botpool.access.keys import Keys
from botpool.cli.start import start
from botpool.states import Role
from botpool.store import Store, check_schema, open_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from botpool.models.keys import ApiKey

app = typer.Typer(name="keys", help="Create, list and revoke API keys.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for, such as the caller's name.")],
    role: Annotated[
        Role, typer.Option(help="An admin may do everything, a client may use its own bots.")
    ] = Role.CLIENT,
) -> None:
    """Create a key and print it. It can't be shown again."""
    key, secret = asyncio.run(_create(name, role))
    typer.echo(secret)
    hint = f"This is key {key.id}, with the role {key.role}. Keep it: it can't be shown again."
    typer.echo(hint, err=True)


@app.command("list")
def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show every key, when it was last used, and whether it is revoked."""
    keys = asyncio.run(_list())
    if as_json:
        rows = [dataclasses.asdict(key) for key in keys]
        typer.echo(json.dumps(rows, indent=2, default=lambda time: time.isoformat()))
    else:
        Console().print(_table(keys))


@app.command()
def revoke(
    key_id: Annotated[
        int,
        typer.Argument(
            metavar="ID",
            min=1,
            max=2**63 - 1,
            help="The key's id, as `botpool keys list` shows it.",
        ),
    ],
) -> None:
    """Revoke a key. Every replica refuses it within seconds."""
    key = asyncio.run(_revoke(key_id))
    typer.echo(f"revoked key {key.id}: {key.name}")


async def _create(name: str, role: Role) -> tuple[ApiKey, str]:
    async with _opened() as (_, keys):
        return await keys.create(name, role)


async def _list() -> list[ApiKey]:
    async with _opened() as (store, _):
        return await store.keys.all()


async def _revoke(key_id: int) -> ApiKey:
    async with _opened() as (_, keys):
        return await keys.revoke(key_id)


@asynccontextmanager
async def _opened() -> AsyncIterator[tuple[Store, Keys]]:
    settings = start()
    async with open_database(settings) as database:
        await check_schema(database)
        store = Store(database)
        yield store, Keys(store, settings)


def _table(keys: Sequence[ApiKey]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("id", justify="right", no_wrap=True)
    table.add_column("name", overflow="fold")
    for column in ("role", "key", "created", "last used", "revoked"):
        table.add_column(column, no_wrap=True)
    for key in keys:
        table.add_row(
            str(key.id),
            Text(key.name),  # as plain text: it may look like Rich's markup
            key.role,
            f"{key.prefix}…" if key.prefix else "",
            f"{key.created_at:%Y-%m-%d}",
            f"{key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "",
            f"{key.revoked_at:%Y-%m-%d}" if key.revoked_at else "",
        )
    return table
