"""A check of everything that must always hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.store.queries import Queries

if TYPE_CHECKING:
    from botpool.store.postgres.database import Database


async def broken_invariants(database: Database) -> list[str]:
    """The invariants that don't hold. Reads everything, so it is for tests and simulations."""
    rows = await Queries(database, "invariants").rows("broken")
    return [f"{row['promise']}: {row['subject']}" for row in rows]
