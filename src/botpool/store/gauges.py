"""Gauges in the database: how things stand at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models.gauges import HostGauge, PoolGauge, PoolGauges, SlotCount
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from botpool.store.postgres.database import Database
    from botpool.store.replicas import Replicas


class Gauges:
    """The query of gauges.sql."""

    def __init__(self, database: Database, replicas: Replicas) -> None:
        self._queries = Queries(database, "gauges")
        self._replicas = replicas

    async def read(self) -> PoolGauges:
        """How things stand now."""
        (row,) = await self._queries.rows("read")
        return PoolGauges(
            slots=[SlotCount(**each) for each in row["slots"]],
            pools=[PoolGauge(**each) for each in row["pools"]],
            hosts=[HostGauge(**each) for each in row["hosts"]],
            webhook_backlog=row["webhook_backlog"],
            replicas=await self._replicas.counts(),
        )
