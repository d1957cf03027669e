"""`botpool recover`: recover what is stuck, by hand."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from botpool.cli.start import start
from botpool.engines import make_engines
from botpool.pool import Pool
from botpool.reconciler import Outcome, Reconciler, counted
from botpool.store import Store, check_schema, open_database

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.models.replicas import Lacking
    from botpool.reconciler import Decision

_COLOURS = {Outcome.RECOVERED: "green", Outcome.FAILED: "red", Outcome.DELETED: "red"}


def recover(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be done.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find bots and slots that are stuck, recover them, and show why.

    A running botpool does this by itself every minute. This command also tries slots in error at
    once, as if none of their recoveries had failed. You can run it at any time, even several at
    once.
    """
    decisions, lacking = asyncio.run(_recover(dry_run=dry_run))
    counts = {outcome.value: count for outcome, count in counted(decisions).items()}
    if as_json:
        rows = [
            {"step": d.step, "subject": d.subject, "outcome": d.outcome, "reason": d.reason}
            for d in decisions
        ]
        typer.echo(json.dumps({**counts, "decisions": rows}, indent=2))
    else:
        if decisions:
            Console().print(_table(decisions))
        would = "would be: " if dry_run else ""
        typer.echo(would + ", ".join(f"{count} {name}" for name, count in counts.items()))
    if lacking is not None:
        typer.echo(f"{lacking.found}. {lacking.mend}", err=True)


async def _recover(*, dry_run: bool) -> tuple[list[Decision], Lacking | None]:
    settings = start()
    async with open_database(settings) as database:
        await check_schema(database)
        store = Store(database)
        installation = await store.installation.name()
        engines = make_engines(settings, installation)
        pool = Pool(store, settings)
        reconciler = Reconciler(store, pool, engines, settings, installation=installation)
        try:
            decisions = await reconciler.recover_once(dry_run=dry_run, by_hand=True)
            if not dry_run:
                await reconciler.compare_once()
            counts = await store.replicas.counts()
        finally:
            for engine in engines.values():
                await engine.close()
    return decisions, counts.lacking


def _table(decisions: Sequence[Decision]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("what", "found as", "outcome", "why"):
        table.add_column(column, overflow="fold")
    for decision in decisions:
        outcome = Text(decision.outcome, style=_COLOURS.get(decision.outcome, ""))
        table.add_row(decision.subject, decision.step, outcome, Text(decision.reason))
    return table
