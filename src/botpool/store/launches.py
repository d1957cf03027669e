"""Launches in the database: how far a bot's last one has come, and what is usual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models.launches import BotOutcome, Launch, LaunchPhase, Percentiles, phases_of
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.store.postgres.database import Database

_USUAL_OF = 100
"""From how many launches it is told what is usual."""


class Launches:
    """The queries of launches.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "launches")

    async def of_bot(self, bot_id: int) -> Launch | None:
        """A bot's last launch, beside what is usual; `None` if there is no such bot."""
        row = await self._queries.row("of_bot", bot_id, _USUAL_OF)
        if row is None:
            return None
        return Launch(
            bot_id=row["id"],
            attempt=max(row["launch_attempts"], 1),
            began_at=row["began_at"],
            phases=[
                LaunchPhase(
                    name=phase, began_at=began_at, ended_at=ended_at, usual=_usual(row[phase])
                )
                for phase, began_at, ended_at in phases_of(row["ends"], row["began_at"])
            ],
            usual_total=_usual(row["total"]),
            usual_of=row["usual_of"],
        )

    async def outcomes(self, bot_ids: Sequence[int]) -> list[BotOutcome]:
        """What came of these bots; those that were deleted are left out."""
        rows = await self._queries.rows("outcomes", bot_ids)
        return [BotOutcome(**row) for row in rows]


def _usual(found: list[float] | None) -> Percentiles:
    return Percentiles(*found) if found else Percentiles(None, None, None)
