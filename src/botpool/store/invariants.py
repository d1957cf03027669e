"""A check of everything that must always hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.store.queries import Queries

if TYPE_CHECKING:
    from botpool.store.postgres.database import Database


async def broken_invariants(database: Database, *, history: bool = True) -> list[str]:
    """The invariants that don't hold, of what is now and, with `history`, of how it came to be.

    For tests and simulations: it reads every live bot and every slot, and for the history all
    transitions.
    """
    rows = await Queries(database, "invariants").rows("broken")
    if history:
        rows += await Queries(database, "invariants").rows("broken_history")
    return [f"{row['promise']}: {row['subject']}" for row in rows]
