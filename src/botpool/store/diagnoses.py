"""The diagnosis in the database: what doctor found last."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from botpool.models.diagnoses import Diagnosis, Finding, Result
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.models.transitions import Transition
    from botpool.store.postgres.database import Database


class Diagnoses:
    """The queries of diagnoses.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "diagnoses")

    async def newest(self) -> Diagnosis:
        """What doctor found last, and whether it is asked again."""
        (row,) = await self._queries.rows("newest")
        values = dict(row)
        found = [Finding(**{**each, "result": Result(each["result"])}) for each in row["findings"]]
        return Diagnosis(**{**values, "findings": found})

    async def ask(self, by: str) -> None:
        """Want another one. One that is under way began before, so it is no answer."""
        await self._queries.run("ask", by)

    async def take(
        self, replica: str, ttl_ms: int, every_ms: int, *, only_asked: bool = False
    ) -> bool:
        """Take on making one for `ttl_ms`. Returns whether it is wanted and no other replica does.

        It is if somebody asked or, unless `only_asked`, if the last one is older than `every_ms`,
        or was made by a replica that is gone: its settings may not be in force any more.
        """
        return await self._queries.found("take", replica, ttl_ms, every_ms, only_asked)

    async def record(self, replica: str, findings: Sequence[Finding]) -> list[Transition]:
        """Keep what this replica found, and tell so. Nothing if another one has taken it over."""
        counts = {
            "problems": sum(finding.result is Result.PROBLEM for finding in findings),
            "warnings": sum(finding.result is Result.WARNING for finding in findings),
        }
        kept = [asdict(finding) for finding in findings]
        return await self._queries.transitions("record", replica, kept, counts)
