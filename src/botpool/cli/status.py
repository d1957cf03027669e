"""`botpool status`: what there is now."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from botpool.cli.start import start
from botpool.models.replicas import ReplicaCounts
from botpool.store import Store, check_schema, open_database

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.models.pools import PoolNumbers
    from botpool.models.replicas import Replica


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how many slots each platform has in each status, how many bots wait, and what runs.

    If no worker or no API runs on the database, it says so.
    """
    numbers, replicas = asyncio.run(_read())
    if as_json:
        found = {
            "platforms": [dataclasses.asdict(row) for row in numbers],
            "replicas": [dataclasses.asdict(replica) for replica in replicas],
        }
        typer.echo(json.dumps(found, indent=2, default=lambda time: time.isoformat()))
        return
    console = Console()
    console.print(_pools(numbers))
    for pause in filter(None, (row.pause for row in numbers)):
        typer.echo(pause)
    if replicas:
        console.print()
        console.print(_replicas(replicas))
    if lacking := ReplicaCounts.of(replicas).lacking:
        typer.echo(f"\n{lacking.found}.\n→ {lacking.mend}")


async def _read() -> tuple[list[PoolNumbers], list[Replica]]:
    async with open_database(start()) as database:
        await check_schema(database)
        store = Store(database)
        return await store.pools.numbers(), await store.replicas.live()


def _pools(numbers: Sequence[PoolNumbers]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    columns = ("total", "idle", "deploying", "busy", "releasing", "error", "queued", "max_size")
    table.add_column("platform", no_wrap=True)
    for column in columns:
        table.add_column(column.removesuffix("_size"), justify="right")
    for row in numbers:
        table.add_row(row.platform, *(str(getattr(row, column)) for column in columns))
    return table


def _replicas(replicas: Sequence[Replica]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("replica", overflow="fold")
    for column in ("role", "version", "started", "last seen"):
        table.add_column(column, no_wrap=True)
    for replica in replicas:
        table.add_row(
            replica.name,
            replica.role,
            replica.version,
            f"{replica.started_at:%Y-%m-%d %H:%M:%S}",
            f"{replica.last_seen_at:%H:%M:%S}",
        )
    return table
