"""`botpool recover`: recover what is stuck, by hand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from botpool.cli.output import AsJson, Column, Styled, hint, print_json, print_table, say
from botpool.cli.start import start

if TYPE_CHECKING:
    from botpool.cli.output import Row
    from botpool.models.replicas import Lacking
    from botpool.reconciler import Decision

_STYLES = {"recovered": "green", "failed": "red", "deleted": "red"}
_COLUMNS = (
    Column("what"),
    Column("found as"),
    Column("outcome"),
    Column("why", folds=True),
)


def recover(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be done.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find bots and slots that are stuck, recover them, and show why.

    A running botpool does this by itself every minute. This command also tries slots in error at
    once, as if none of their recoveries had failed. You can run it at any time, even several at
    once. It uses the database and the engines, and needs no server.
    """
    # Imported here because it takes long, and no other command needs it.
    from botpool.reconciler import counted  # noqa: PLC0415

    decisions, lacking = asyncio.run(_recover(dry_run=dry_run))
    counts = {outcome.value: count for outcome, count in counted(decisions).items()}
    if as_json:
        rows = [
            {"step": d.step, "subject": d.subject, "outcome": d.outcome, "reason": d.reason}
            for d in decisions
        ]
        print_json({**counts, "decisions": rows})
    else:
        if decisions:
            print_table(_COLUMNS, map(_row, decisions), "")
        would = "would be: " if dry_run else ""
        say(would + ", ".join(f"{count} {name}" for name, count in counts.items()))
    if lacking is not None:
        hint(f"{lacking.found}. {lacking.mend}")


async def _recover(*, dry_run: bool) -> tuple[list[Decision], Lacking | None]:
    from botpool.engines import make_engines  # noqa: PLC0415 - as above
    from botpool.pool import Pool  # noqa: PLC0415
    from botpool.reconciler import Reconciler  # noqa: PLC0415
    from botpool.store import Store, check_schema, open_database  # noqa: PLC0415

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


def _row(decision: Decision) -> Row:
    outcome = Styled(decision.outcome, _STYLES.get(decision.outcome, ""))
    return decision.subject, decision.step, outcome, decision.reason
