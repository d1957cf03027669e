"""`botpool keys`: the keys of the API."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from botpool.access.keys import OVERLAP, Keys
from botpool.cli.start import start
from botpool.states import Role
from botpool.store import Store, check_schema, open_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from botpool.models.keys import ApiKey

app = typer.Typer(
    name="keys", help="Create, list, rotate and revoke API keys.", no_args_is_help=True
)

KeyId = Annotated[
    int,
    typer.Argument(
        metavar="ID", min=1, max=2**63 - 1, help="The key's id, as `botpool keys list` shows it."
    ),
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for, such as the caller's name.")],
    role: Annotated[
        Role,
        typer.Option(
            help="An admin may do everything, a viewer see everything, and a client use its"
            " project's bots."
        ),
    ] = Role.CLIENT,
    project: Annotated[
        str | None, typer.Option(help="The name of a client's project, if it isn't the default.")
    ] = None,
) -> None:
    """Create a key and print it. It can't be shown again."""
    key, secret = asyncio.run(_create(name, role, project))
    typer.echo(secret)
    hint = f"This is key {key.id}, with the role {key.role}. Keep it: it can't be shown again."
    typer.echo(hint, err=True)


@app.command()
def rotate(
    key_id: KeyId,
    overlap_hours: Annotated[
        float, typer.Option(min=0, max=720, help="How long the old key works beside the new one.")
    ] = OVERLAP / timedelta(hours=1),
) -> None:
    """Replace a key by a new one like it, and print that. The old key works for a while."""
    key, secret = asyncio.run(_rotate(key_id, timedelta(hours=overlap_hours)))
    typer.echo(secret)
    hint = (
        f"This is key {key.id}, in place of key {key_id}, which works for another"
        f" {overlap_hours:g} hours. Keep it: it can't be shown again."
    )
    typer.echo(hint, err=True)


@app.command("list")
def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show every key, when it was last used, and when it stops or stopped working."""
    keys, projects = asyncio.run(_list())
    if as_json:
        rows = [dataclasses.asdict(key) for key in keys]
        typer.echo(json.dumps(rows, indent=2, default=lambda time: time.isoformat()))
    else:
        Console().print(_table(keys, projects))


@app.command()
def revoke(key_id: KeyId) -> None:
    """Revoke a key. Every replica refuses it within seconds. Its project keeps its bots."""
    key = asyncio.run(_revoke(key_id))
    typer.echo(f"revoked key {key.id}: {key.name}")


async def _create(name: str, role: Role, project: str | None) -> tuple[ApiKey, str]:
    async with _opened() as (store, keys):
        project_id = None if project is None else await store.projects.id_of(project)
        return await keys.create(name, role, project_id)


async def _rotate(key_id: int, overlap: timedelta) -> tuple[ApiKey, str]:
    async with _opened() as (_, keys):
        return await keys.rotate(key_id, overlap)


async def _list() -> tuple[list[ApiKey], dict[int, str]]:
    async with _opened() as (store, _):
        projects = {project.id: project.name for project in await store.projects.all()}
        return await store.keys.all(), projects


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


def _table(keys: Sequence[ApiKey], projects: Mapping[int, str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("id", justify="right", no_wrap=True)
    table.add_column("name", overflow="fold")
    table.add_column("role", no_wrap=True)
    table.add_column("project", overflow="fold")
    for column in ("key", "last used", "expires"):
        table.add_column(column, no_wrap=True)
    for key in keys:
        table.add_row(
            str(key.id),
            Text(key.name),  # as plain text: it may look like Rich's markup
            key.role,
            Text(projects.get(key.project_id or 0, "all")),
            f"{key.prefix}…" if key.prefix else "",
            f"{key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "",
            f"{key.expires_at:%Y-%m-%d}" if key.expires_at else "",
        )
    return table
