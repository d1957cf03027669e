"""Whether botpool runs on this database: a replica that answers, and one that works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models.replicas import ReplicaCounts

if TYPE_CHECKING:
    from botpool.doctor.findings import Report
    from botpool.store import Store


async def examine_replicas(report: Report, store: Store) -> None:
    """Warn if there is no worker, or no API."""
    async with report.check("replicas") as check:
        replicas = await store.replicas.live()
        lacking = ReplicaCounts.of(replicas).lacking
        if lacking is not None:
            check.warning(lacking.found, lacking.mend)
        else:
            named = (f"{one.name} ({one.role}, {one.version})" for one in replicas)
            check.ok(f"{len(replicas)} run: {', '.join(named)}")
