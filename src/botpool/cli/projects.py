"""`botpool projects`: who owns bots, keys and webhook endpoints."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from botpool.access.projects import Projects
from botpool.cli.start import start
from botpool.feed.endpoints import OVERLAP, Endpoints
from botpool.models.projects import ProjectLimits
from botpool.store import Store, check_schema, open_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from botpool.models.projects import Project
    from botpool.settings import Settings

app = typer.Typer(
    name="projects",
    help="Create, show, change and delete projects, which own bots, keys and webhooks.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="The project's name.")]
MaxLiveBots = Annotated[
    str | None, typer.Option(help="How many bots it may have at once; `none` for no limit.")
]
MaxCreations = Annotated[
    str | None,
    typer.Option(help="How many bots it may create in a minute; `none` for no limit."),
]
MaxDuration = Annotated[
    str | None, typer.Option(help="How long its bots may stay, in ms; `none` for no limit.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """Show every project, its limits and its numbers."""
    _show(asyncio.run(_list()), as_json=as_json)


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show one project."""
    _show([asyncio.run(_get(name))], as_json=as_json)


@app.command()
def create(
    name: Name,
    max_live_bots: MaxLiveBots = None,
    max_creations_per_minute: MaxCreations = None,
    max_duration_ms: MaxDuration = None,
) -> None:
    """Create a project. Then create keys for it: `botpool keys create NAME --project PROJECT`."""
    given = _limits(
        max_live_bots=max_live_bots,
        max_creations_per_minute=max_creations_per_minute,
        max_duration_ms=max_duration_ms,
    )
    project, secret = asyncio.run(_create(name, ProjectLimits(**given)))
    typer.echo(f"created project {project.id}: {project.name}")
    typer.echo(f"Its callback URLs get what this secret signs; it can't be shown again: {secret}")


@app.command("rotate-secret")
def rotate_secret(
    name: Name,
    overlap_hours: Annotated[
        float, typer.Option(min=0, max=720, help="How long the old secret signs beside the new.")
    ] = OVERLAP / timedelta(hours=1),
) -> None:
    """Replace the secret that signs what callback URLs get, and print the new one."""
    typer.echo(asyncio.run(_rotate_secret(name, timedelta(hours=overlap_hours))))
    typer.echo(
        f"The old secret signs, too, for another {overlap_hours:g} hours. Keep the new one: it"
        " can't be shown again.",
        err=True,
    )


@app.command()
def update(
    name: Name,
    rename: Annotated[str | None, typer.Option(help="Another name.")] = None,
    max_live_bots: MaxLiveBots = None,
    max_creations_per_minute: MaxCreations = None,
    max_duration_ms: MaxDuration = None,
) -> None:
    """Change a project's name or limits. A lower limit ends no bot that lives."""
    changes: dict[str, str | int | None] = {
        **_limits(
            max_live_bots=max_live_bots,
            max_creations_per_minute=max_creations_per_minute,
            max_duration_ms=max_duration_ms,
        )
    }
    if rename is not None:
        changes["name"] = rename
    _show([asyncio.run(_change(name, changes))], as_json=False)


@app.command()
def delete(name: Name) -> None:
    """Delete a project without live bots: its ended bots, its keys and its webhooks, too."""
    asyncio.run(_delete(name))
    typer.echo(f"deleted project {name}")


def _limits(**given: str | None) -> dict[str, int | None]:
    """The limits that were given, as numbers; `none` is no limit."""
    limits: dict[str, int | None] = {}
    for name, text in given.items():
        if text is not None:
            if not re.fullmatch(r"none|[0-9]{1,9}", text):
                option = name.replace("_", "-")
                raise typer.BadParameter(f"--{option} must be a number or `none`.")
            limits[name] = None if text == "none" else int(text)
    return limits


async def _list() -> list[Project]:
    async with _opened() as (store, _):
        return await store.projects.all()


async def _get(name: str) -> Project:
    async with _opened() as (store, _):
        return await store.projects.get(await store.projects.id_of(name))


async def _rotate_secret(name: str, overlap: timedelta) -> str:
    async with _opened() as (store, settings):
        project_id = await store.projects.id_of(name)
        return await Endpoints(store, settings).rotate_project_secret(project_id, overlap)


async def _create(name: str, limits: ProjectLimits) -> tuple[Project, str]:
    async with _opened() as (store, _):
        return await Projects(store).create(name, limits)


async def _change(name: str, changes: dict[str, str | int | None]) -> Project:
    async with _opened() as (store, _):
        return await Projects(store).change(await store.projects.id_of(name), changes)


async def _delete(name: str) -> None:
    async with _opened() as (store, _):
        await Projects(store).delete(await store.projects.id_of(name))


@asynccontextmanager
async def _opened() -> AsyncIterator[tuple[Store, Settings]]:
    settings = start()
    async with open_database(settings) as database:
        await check_schema(database)
        yield Store(database), settings


def _show(projects: Sequence[Project], *, as_json: bool) -> None:
    if as_json:
        rows = [dataclasses.asdict(project) for project in projects]
        typer.echo(json.dumps(rows, indent=2, default=lambda time: time.isoformat()))
    else:
        Console().print(_table(projects))


def _table(projects: Sequence[Project]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("id", justify="right", no_wrap=True)
    table.add_column("name", overflow="fold")
    for column in ("live", "waiting", "created today", "failed today"):
        table.add_column(column, justify="right")
    for column in ("max live", "max a minute", "max ms"):
        table.add_column(column, justify="right")
    for project in projects:
        limits = dataclasses.astuple(project.limits)
        table.add_row(
            str(project.id),
            Text(project.name),  # as plain text: it may look like Rich's markup
            *(str(number) for number in dataclasses.astuple(project.numbers)),
            *("" if limit is None else str(limit) for limit in limits),
        )
    return table
