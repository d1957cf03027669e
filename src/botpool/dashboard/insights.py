"""How the pool did over time: launches, load, failures, waits, slot-hours and their cost."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from botpool.api.auth import TheAdmin
from botpool.api.dependencies import TheStore
from botpool.dashboard.charts import chart
from botpool.dashboard.page import PageRoute, page
from botpool.models.insights import TOTAL, Insights, InsightsRange, Usage
from botpool.models.launches import Phase
from botpool.quantities import milliseconds
from botpool.settings import Settings
from botpool.states import Platform
from botpool.store import Store
from botpool.tasks.sharing import KeptCall

router = APIRouter(include_in_schema=False, route_class=PageRoute)

RANGES = {
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(days=7),
    "month": timedelta(days=30),
}
_GAP_STEPS = 4
_KEPT_SECONDS = 5.0
_KEPT_SECONDS_OF_MANY = 60.0
"""How long what was read is shown to all who look: an hour's figures, and those of longer."""
_MOST_KEPT = 50


class Of(NamedTuple):
    """What somebody looks at."""

    range: str
    platform: Platform | None
    project_id: int | None


class Read(NamedTuple):
    """What happened from a time on until another."""

    since: datetime
    until: datetime
    found: Insights


class KeptInsights:
    """Reads insights once for all who look at the same, and not with every event."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._kept: dict[Of, KeptCall[Read]] = {}

    async def read(self, of: Of) -> Read:
        """What happened, as of some seconds ago at the most."""
        call = self._kept.pop(of, None) or KeptCall(
            partial(self._read, of),
            _KEPT_SECONDS if of.range == "hour" else _KEPT_SECONDS_OF_MANY,
        )
        self._kept[of] = call  # the last one, so that the first is what nobody looks at
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return await call()

    async def _read(self, of: Of) -> Read:
        now = await self._store.installation.now()
        since = now - RANGES[of.range]
        wanted = InsightsRange.of(since, now, platform=of.platform, project_id=of.project_id)
        price = self._settings.slot_hour_price
        return Read(since, now, await self._store.insights.read(wanted, price))


@router.get("/insights")
async def show(
    request: Request,
    caller: TheAdmin,
    store: TheStore,
    range_: Annotated[Literal["hour", "day", "week", "month"], Query(alias="range")] = "day",
    platform: Literal["", "google-meet", "microsoft-teams", "zoom"] = "",
    project: Annotated[str, Query(pattern=r"^\d{0,18}$")] = "",
) -> HTMLResponse:
    """The page."""
    of = Of(
        range_,
        Platform(platform) if platform else None,
        int(project) if project else None,
    )
    kept_insights: KeptInsights = request.app.state.insights
    since, now, found = await kept_insights.read(of)
    gap = found.range.step_seconds * _GAP_STEPS
    names = [*Phase, TOTAL]
    filters = {"platform": platform, "project": project}
    query = {"from": since.isoformat(), "to": now.isoformat(), "format": "csv"}
    if platform:
        query["platform"] = platform
    if project:
        query["projectId"] = project
    return page(
        request,
        "insights.html",
        caller,
        now,
        found=found,
        chosen=range_,
        ranges=RANGES,
        filters=filters,
        kept={name: value for name, value in filters.items() if value},
        projects={each.id: each.name for each in await store.projects.all()},
        csv=f"/api/v1/insights?{urlencode(query)}",
        load=chart(
            since,
            now,
            {
                "busy": [(each.at, each.running) for each in found.load],
                "waiting": [(each.at, each.waiting) for each in found.load],
            },
            lambda value: f"{value:,.0f}",
        ),
        launches=chart(
            since,
            now,
            {
                name: [
                    (each.at, getattr(each.phases[TOTAL], name))
                    for each in found.launches
                    if each.at
                ]
                for name in ("p50", "p95", "p99")
            },
            milliseconds,
            gap,
        ),
        waits=chart(
            since,
            now,
            {
                "told": [(each.at, each.told.p50) for each in found.waits if each.at],
                "had": [(each.at, each.had.p50) for each in found.waits if each.at],
            },
            milliseconds,
            gap,
        ),
        phases=[(name.replace("_", " "), found.launch_totals.phases[name]) for name in names],
        most_running=max((each.running for each in found.load), default=0),
        most_waiting=max((each.waiting for each in found.load), default=0),
        days=_days(found.usage),
    )


def _days(usage: Sequence[Usage]) -> list[tuple[object, list[Usage]]]:
    """The usage of each day, the newest first."""
    days: dict[object, list[Usage]] = defaultdict(list)
    for each in usage:
        days[each.day].append(each)
    return sorted(days.items(), key=lambda day: str(day[0]), reverse=True)
