"""`botpool slots`: take over an existing pool."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from botpool.cli.start import start
from botpool.engines import make_engines
from botpool.engines.base import EngineName
from botpool.errors import SettingsInvalid
from botpool.importing import (
    ImportedApplication,
    Orders,
    Outcome,
    import_slots,
)
from botpool.pool import Pool
from botpool.store import Store, check_schema, open_database

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.engines.coolify.engine import CoolifyEngine

app = typer.Typer(name="slots", help="Take over an existing pool.", no_args_is_help=True)

_COLOURS = {Outcome.IMPORTED: "green", Outcome.REMOVED: "red", Outcome.LEFT: "yellow"}


@app.callback()
def _group() -> None:
    pass


@app.command("import")
def import_command(
    stop: Annotated[
        bool, typer.Option("--stop", help="Import running applications too; this stops them.")
    ] = False,
    remove_duplicates: Annotated[
        bool,
        typer.Option(
            "--remove-duplicates", help="Delete stopped applications that share another's name."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be done.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Turn applications on Coolify that are named like slots, such as pool-zoom-007, into slots.

    The name may have a prefix before `pool-`. Stop the system that used the applications first.
    Each slot is idle once a running botpool has proved it stopped. You can run this again.
    """
    orders = Orders(stop=stop, remove_duplicates=remove_duplicates, dry_run=dry_run)
    told = asyncio.run(_import(orders))
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(row) for row in told], indent=2))
        return
    if not told:
        typer.echo("no application is named like a slot")
        return
    Console().print(_table(told))
    outcomes = Counter(row.outcome for row in told)
    counts = ", ".join(f"{outcomes[each]} {each}" for each in Outcome if outcomes[each])
    typer.echo(f"{'would be: ' if dry_run else ''}{counts}")


async def _import(orders: Orders) -> list[ImportedApplication]:
    settings = start()
    async with open_database(settings) as database:
        await check_schema(database)
        store = Store(database)
        engines = make_engines(settings, await store.installation.name())
        if EngineName.COOLIFY not in engines:
            raise SettingsInvalid(
                "BOTPOOL_COOLIFY_API_URL must be set: slots are imported from Coolify."
            )
        pool = Pool(store, settings)
        await pool.queue.configure()
        try:
            return await import_slots(
                store, pool, cast("CoolifyEngine", engines[EngineName.COOLIFY]), orders
            )
        finally:
            for engine in engines.values():
                await engine.close()


def _table(told: Sequence[ImportedApplication]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("slot", "application", "outcome", "why"):
        table.add_column(column, overflow="fold")
    for row in told:
        outcome = Text(row.outcome, style=_COLOURS.get(row.outcome, ""))
        name = f"{row.name} ({row.container_ref})"
        table.add_row(row.slot_name, name, outcome, row.why)
    return table
