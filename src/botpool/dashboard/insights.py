"""How the pool did over time: launches, load, failures, waits, slot-hours and their cost."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from botpool.api.auth import TheAdmin
from botpool.api.dependencies import TheSettings, TheStore
from botpool.dashboard.charts import chart
from botpool.dashboard.page import PageRoute, page
from botpool.models.insights import TOTAL, InsightsRange, Usage
from botpool.models.launches import Phase
from botpool.quantities import milliseconds
from botpool.states import Platform

router = APIRouter(include_in_schema=False, route_class=PageRoute)

RANGES = {
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(days=7),
    "month": timedelta(days=30),
}
_GAP_STEPS = 4


@router.get("/insights")
async def show(
    request: Request,
    caller: TheAdmin,
    store: TheStore,
    settings: TheSettings,
    range_: Annotated[Literal["hour", "day", "week", "month"], Query(alias="range")] = "day",
    platform: Literal["", "google-meet", "microsoft-teams", "zoom"] = "",
    project: Annotated[str, Query(pattern=r"^\d{0,18}$")] = "",
) -> HTMLResponse:
    """The page."""
    now = await store.installation.now()
    since = now - RANGES[range_]
    wanted = InsightsRange.of(
        since,
        now,
        platform=Platform(platform) if platform else None,
        project_id=int(project) if project else None,
    )
    found = await store.insights.read(wanted, settings.slot_hour_price)
    gap = wanted.step_seconds * _GAP_STEPS
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
