"""Insights in the database: what happened in a time, from the bots and transitions of it."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING

from botpool.models.insights import (
    TOTAL,
    Insights,
    LaunchTimes,
    Load,
    Outcomes,
    ProjectUsage,
    Spread,
    Usage,
    Waits,
)
from botpool.models.launches import Phase
from botpool.states import BotStatus, FailureCause, Platform
from botpool.store.queries import Queries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date, datetime

    import asyncpg

    from botpool.models.insights import InsightsRange
    from botpool.store.postgres.database import Database

_HOUR_SECONDS = 3600
_MOST_SORTED = 50_000
"""Of more bots than these, one of two, of three, … tells how long launches and waits took."""


class InsightsQueries:
    """The queries of insights.sql."""

    def __init__(self, database: Database) -> None:
        self._queries = Queries(database, "insights")

    async def read(self, wanted: InsightsRange, slot_hour_price: float | None = None) -> Insights:
        """What happened in a time, with costs if a slot-hour has a price."""
        outcomes = await self.outcomes(wanted)
        every = 1 + sum(row["bots"] for row in outcomes) // _MOST_SORTED
        # Two at a time: each takes a core of the database for as long as it lasts.
        load, (spreads, (*waits, wait_totals), used, slots) = await asyncio.gather(
            self.load(wanted), self._others(wanted, every)
        )
        *launches, launch_totals = _launches(outcomes, spreads)
        names = await self.projects({row["project_id"] for row in (*outcomes, *used)})
        return Insights(
            range=wanted,
            slot_hour_price=slot_hour_price,
            launches=launches,
            launch_totals=launch_totals,
            load=load,
            outcomes=_outcomes(outcomes),
            failures=_failures(outcomes),
            waits=waits,
            wait_totals=wait_totals,
            usage=_usage(used, slots, wanted, slot_hour_price),
            projects=_projects(outcomes, used, names, slot_hour_price),
        )

    async def _others(
        self, wanted: InsightsRange, every: int
    ) -> tuple[list[asyncpg.Record], list[Waits], list[asyncpg.Record], list[asyncpg.Record]]:
        return (
            await self.launches(wanted, every),
            await self.waits(wanted, every),
            await self.used(wanted),
            await self.slots(wanted),
        )

    async def launches(self, wanted: InsightsRange, every: int = 1) -> list[asyncpg.Record]:
        """How long the phases of launches took, by step, and in all; told by one of `every`."""
        return await self._queries.rows("launches", *_of(wanted), wanted.step_seconds, every)

    async def load(self, wanted: InsightsRange) -> list[Load]:
        """How many bots ran and waited, in every step."""
        rows = await self._queries.rows("load", *_of(wanted), wanted.step_seconds)
        return _load(rows, wanted)

    async def waits(self, wanted: InsightsRange, every: int = 1) -> list[Waits]:
        """The waits that were told beside those that were had, by step, and at the end in all.

        One of about `every` tells for all, so how many they were is about right, too.
        """
        rows = await self._queries.rows("waits", *_of(wanted), wanted.step_seconds, every)
        return [_waits(row) for row in rows]

    async def outcomes(self, wanted: InsightsRange) -> list[asyncpg.Record]:
        """How many bots were created, by step, project, status and cause of their failure."""
        return await self._queries.rows("outcomes", *_of(wanted), wanted.step_seconds)

    async def used(self, wanted: InsightsRange) -> list[asyncpg.Record]:
        """For how many seconds bots had slots, by day, platform and project."""
        return await self._queries.rows("used", *_of(wanted))

    async def slots(self, wanted: InsightsRange) -> list[asyncpg.Record]:
        """For how many seconds there were slots, by day and platform."""
        return await self._queries.rows("slots", *_of(wanted))

    async def projects(self, ids: Iterable[int]) -> dict[int, str]:
        """The names of these projects."""
        rows = await self._queries.rows("projects", sorted(ids))
        return {row["id"]: row["name"] for row in rows}


def _of(wanted: InsightsRange) -> tuple[object, ...]:
    return wanted.since, wanted.until, wanted.platform, wanted.project_id


def _spread(found: list[float] | None) -> Spread:
    return Spread(*found) if found else Spread()


def _launches(
    outcomes: Sequence[asyncpg.Record], spreads: Sequence[asyncpg.Record]
) -> list[LaunchTimes]:
    """The launches of each step that had one, and at the end of all."""
    counts: Counter[datetime] = Counter()
    for row in outcomes:
        counts[row["at"]] += row["joined"]
    phases = {row["at"]: {name: _spread(row[name]) for name in (*Phase, TOTAL)} for row in spreads}
    untold = {name: Spread() for name in (*Phase, TOTAL)}
    return [
        *(
            LaunchTimes(at=at, count=count, phases=phases.get(at, untold))
            for at, count in sorted(counts.items())
            if count
        ),
        LaunchTimes(at=None, count=counts.total(), phases=phases[None]),
    ]


def _waits(row: asyncpg.Record) -> Waits:
    return Waits(
        at=row["at"],
        count=row["count"],
        told=_spread(row["told"]),
        had=_spread(row["had"]),
        kept_share=row["kept"],
    )


def _load(rows: Sequence[asyncpg.Record], wanted: InsightsRange) -> list[Load]:
    """Every step: one in which nothing changed has what was there before it."""
    changed = {row["at"]: row for row in rows}
    running = waiting = 0
    found: list[Load] = []
    at, step = wanted.since, timedelta(seconds=wanted.step_seconds)
    while at < wanted.until:
        row = changed.get(at)
        most = (running, waiting) if row is None else (row["running"], row["waiting"])
        found.append(Load(at=at, running=max(running, most[0]), waiting=max(waiting, most[1])))
        if row is not None:
            running += row["running_change"]
            waiting += row["waiting_change"]
        at += step
    return found


def _outcomes(rows: Sequence[asyncpg.Record]) -> Outcomes:
    by_status: Counter[str] = Counter()
    for row in rows:
        by_status[row["status"]] += row["bots"]
    created = by_status.total()
    done, failed, cancelled = (
        by_status[status] for status in (BotStatus.DONE, BotStatus.FATAL, BotStatus.CANCELLED)
    )
    return Outcomes(
        created=created,
        done=done,
        failed=failed,
        cancelled=cancelled,
        live=created - done - failed - cancelled,
    )


def _failures(rows: Sequence[asyncpg.Record]) -> dict[FailureCause, int]:
    by_cause: Counter[FailureCause] = Counter()
    for row in rows:
        if row["status"] == BotStatus.FATAL:
            by_cause[FailureCause(row["failure_cause"])] += row["bots"]
    return dict(by_cause.most_common())


def _usage(
    used: Sequence[asyncpg.Record],
    slots: Sequence[asyncpg.Record],
    wanted: InsightsRange,
    price: float | None,
) -> list[Usage]:
    with_bot: defaultdict[tuple[date, str], float] = defaultdict(float)
    for row in used:
        with_bot[row["day"], row["platform"]] += row["used"] / _HOUR_SECONDS
    there = {(row["day"], row["platform"]): row["there"] / _HOUR_SECONDS for row in slots}
    all_projects = wanted.project_id is None
    return [
        Usage(
            day=day,
            platform=Platform(platform),
            slot_hours=there.get((day, platform), 0.0) if all_projects else None,
            used_hours=with_bot[day, platform],
            cost=_cost(
                there.get((day, platform), 0.0) if all_projects else with_bot[day, platform], price
            ),
        )
        for day, platform in sorted({*with_bot, *there})
    ]


def _projects(
    outcomes: Sequence[asyncpg.Record],
    used: Sequence[asyncpg.Record],
    names: dict[int, str],
    price: float | None,
) -> list[ProjectUsage]:
    bots: Counter[int] = Counter()
    hours: defaultdict[int, float] = defaultdict(float)
    in_call: defaultdict[int, float] = defaultdict(float)
    for row in outcomes:
        bots[row["project_id"]] += row["bots"]
    for row in used:
        hours[row["project_id"]] += row["used"] / _HOUR_SECONDS
        in_call[row["project_id"]] += row["in_call"] / _HOUR_SECONDS
    return [
        ProjectUsage(
            project_id=project,
            name=names.get(project),
            bots=bots[project],
            in_call_hours=in_call[project],
            used_hours=hours[project],
            cost=_cost(hours[project], price),
        )
        for project in sorted({*bots, *hours})
    ]


def _cost(hours: float, price: float | None) -> float | None:
    return None if price is None else hours * price
