"""Insights: what happened in a time, as JSON or as a table for spreadsheets."""

import csv
import io
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Literal, Self, TypeVar

from fastapi import APIRouter, Header, Query
from fastapi.responses import Response
from pydantic import Field

from botpool.api.auth import KeyRoute, TheCaller
from botpool.api.dependencies import TheSettings, TheStore
from botpool.api.errors import documented
from botpool.api.wire import NO_NUMBER, PlatformName, Wire
from botpool.errors import Forbidden, InvalidRequest, TooManyRequests, Unauthorized
from botpool.models.insights import Insights, InsightsRange, LaunchTimes, Spread, Waits
from botpool.states import FailureCause, Platform

router = APIRouter(
    prefix="/api/v1",
    tags=["insights"],
    route_class=KeyRoute,
    responses=documented(Unauthorized, Forbidden, TooManyRequests),
)

_DAY = timedelta(days=1)
_CSV = "text/csv"


class SpreadOut(Wire):
    """How something is spread, in milliseconds; null where there was none of it."""

    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, spread: Spread) -> Self:
        """A spread as it goes over the wire."""
        return cls(p50=spread.p50, p95=spread.p95, p99=spread.p99)


class LaunchTotalsOut(Wire):
    """How long launches took that came into their calls, by phase and, as `total`, in all."""

    count: int
    phases: dict[str, SpreadOut]

    @classmethod
    def fields_of(cls, times: LaunchTimes) -> dict[str, object]:
        """The values of these fields."""
        phases = {name: SpreadOut.of(spread) for name, spread in times.phases.items()}
        return {"count": times.count, "phases": phases}


class LaunchTimesOut(LaunchTotalsOut):
    """The same, of bots that were created within a step."""

    at: datetime


class LoadOut(Wire):
    """How many bots had a slot, and how many waited, at the most within a step."""

    at: datetime
    running: int
    waiting: int


class OutcomesOut(Wire):
    """How many bots were created, and how they ended."""

    created: int
    done: int
    failed: int
    cancelled: int
    live: int


class FailuresOut(Wire):
    """How many bots failed for a cause."""

    cause: FailureCause
    count: int


class WaitTotalsOut(Wire):
    """The waits that were told to callers (`estimatedWaitMs`), beside those that bots had."""

    count: int
    told: SpreadOut
    had: SpreadOut
    kept_share: float | None = Field(
        description="Which share of them, from 0 to 1, waited no longer than told."
    )

    @classmethod
    def fields_of(cls, waits: Waits) -> dict[str, object]:
        """The values of these fields."""
        return {
            "count": waits.count,
            "told": SpreadOut.of(waits.told),
            "had": SpreadOut.of(waits.had),
            "kept_share": waits.kept_share,
        }


class WaitsOut(WaitTotalsOut):
    """The same, of waits that were told within a step."""

    at: datetime


class UsageOut(Wire):
    """The slot-hours of a platform on a day (UTC), those with a bot, and what they cost."""

    day: date
    platform: Platform
    slot_hours: float | None = Field(description="Null if a project is asked for: slots have none.")
    used_hours: float
    cost: float | None = Field(
        description="Of all slot-hours or, if a project is asked for, of those that it used. Null"
        " without `BOTPOOL_SLOT_HOUR_PRICE`."
    )


class ProjectUsageOut(Wire):
    """The bots that a project created, and the slot-hours that its bots used."""

    project_id: int
    name: str | None
    bots: int
    in_call_hours: float
    used_hours: float
    cost: float | None


Out = TypeVar("Out", bound=Wire)


def _same(shape: type[Out], value: object) -> Out:
    """A value whose attributes have the names of the fields."""
    return shape(**{name: getattr(value, name) for name in shape.model_fields})


class InsightsOut(Wire):
    """What happened in a time. What is older than the retention is not in it."""

    from_: datetime = Field(alias="from")
    to: datetime
    step_seconds: int
    platform: Platform | None
    project_id: int | None
    slot_hour_price: float | None
    launches: list[LaunchTimesOut] = Field(description="Without steps in which there were none.")
    launch_totals: LaunchTotalsOut
    load: list[LoadOut] = Field(description="Every step.")
    outcomes: OutcomesOut
    failures: list[FailuresOut]
    waits: list[WaitsOut] = Field(description="Without steps in which none was told.")
    wait_totals: WaitTotalsOut
    usage: list[UsageOut]
    projects: list[ProjectUsageOut]

    @classmethod
    def of(cls, found: Insights) -> Self:
        """Insights as they go over the wire."""
        return cls(
            **{"from": found.range.since},
            to=found.range.until,
            step_seconds=found.range.step_seconds,
            platform=found.range.platform,
            project_id=found.range.project_id,
            slot_hour_price=found.slot_hour_price,
            launches=[
                LaunchTimesOut.model_validate({"at": times.at, **LaunchTotalsOut.fields_of(times)})
                for times in found.launches
            ],
            launch_totals=LaunchTotalsOut.model_validate(
                LaunchTotalsOut.fields_of(found.launch_totals)
            ),
            load=[
                LoadOut(at=load.at, running=load.running, waiting=load.waiting)
                for load in found.load
            ],
            outcomes=_same(OutcomesOut, found.outcomes),
            failures=[
                FailuresOut(cause=cause, count=count) for cause, count in found.failures.items()
            ],
            waits=[
                WaitsOut.model_validate({"at": waits.at, **WaitTotalsOut.fields_of(waits)})
                for waits in found.waits
            ],
            wait_totals=WaitTotalsOut.model_validate(WaitTotalsOut.fields_of(found.wait_totals)),
            usage=[_same(UsageOut, usage) for usage in found.usage],
            projects=[_same(ProjectUsageOut, project) for project in found.projects],
        )


@router.get(
    "/insights",
    response_model=InsightsOut,
    responses={
        200: {"content": {_CSV: {"schema": {"type": "string"}}}},
        **documented(InvalidRequest),
    },
)
async def get_insights(
    caller: TheCaller,
    store: TheStore,
    settings: TheSettings,
    since: Annotated[
        datetime | None,
        NO_NUMBER,
        Query(alias="from", description="By default a day before `to`; goes back to a full step."),
    ] = None,
    until: Annotated[
        datetime | None, NO_NUMBER, Query(alias="to", description="By default now.")
    ] = None,
    step: Annotated[
        int | None, Query(ge=1, le=31 * 86_400, description="Seconds; by default as makes a chart.")
    ] = None,
    platform: PlatformName | None = None,
    project_id: Annotated[int | None, Query(alias="projectId", ge=1, le=2**63 - 1)] = None,
    format_: Annotated[Literal["json", "csv"] | None, Query(alias="format")] = None,
    accept: Annotated[str | None, Header()] = None,
) -> Response:
    """What happened in a time: launches by phase, load, failures, waits, slot-hours and costs.

    As CSV with `format=csv`, or if only that is accepted: a line for each number. A client's key
    gets those of its project.
    """
    if caller.project_id is not None:
        if project_id not in {None, caller.project_id}:
            raise Forbidden("A client's key sees only its own project.")
        project_id = caller.project_id
    until = _in_utc(until or await store.installation.now())
    wanted = InsightsRange.of(
        _in_utc(since or until - _DAY),
        until,
        step_seconds=step,
        platform=platform,
        project_id=project_id,
    )
    found = InsightsOut.of(await store.insights.read(wanted, settings.slot_hour_price))
    wants_csv = _CSV in (accept or "") and "json" not in (accept or "")
    if format_ == "csv" or (format_ is None and wants_csv):
        return Response(
            _as_csv(found),
            media_type=_CSV,
            headers={
                "Content-Disposition": 'attachment; filename="botpool-insights.csv"',
                "Vary": "Accept",
            },
        )
    return Response(
        found.model_dump_json(by_alias=True),
        media_type="application/json",
        headers={"Vary": "Accept"},
    )


def _in_utc(at: datetime) -> datetime:
    """A time without a zone is UTC."""
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def _as_csv(found: InsightsOut) -> str:
    """One line for each number: what it is of, when, of which platform or project, its name."""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["section", "at", "platform", "projectId", "name", "value"])
    platform, project = found.platform or "", found.project_id or ""
    for section, at, name, value in _numbers(found):
        table.writerow([section, at, platform, project, name, value])
    for usage in found.usage:
        for name, value in _each(usage, "slot_hours", "used_hours", "cost"):
            table.writerow(["usage", usage.day, usage.platform, project, name, value])
    for each in found.projects:
        for name, value in _each(each, "bots", "in_call_hours", "used_hours", "cost"):
            table.writerow(["projects", "", platform, each.project_id, name, value])
    return text.getvalue()


def _numbers(found: InsightsOut) -> Iterator[tuple[str, str, str, float | None]]:
    """The numbers that are of all platforms and projects asked for: section, time, name, value."""
    for times in found.launches:
        yield from _launch_numbers("launches", times.at.isoformat(), times)
    yield from _launch_numbers("launchTotals", "", found.launch_totals)
    for load in found.load:
        yield "load", load.at.isoformat(), "running", load.running
        yield "load", load.at.isoformat(), "waiting", load.waiting
    for name, value in _each(found.outcomes, *OutcomesOut.model_fields):
        yield "outcomes", "", name, value
    for failure in found.failures:
        yield "failures", "", failure.cause, failure.count
    for waits in found.waits:
        yield from _wait_numbers("waits", waits.at.isoformat(), waits)
    yield from _wait_numbers("waitTotals", "", found.wait_totals)


def _launch_numbers(
    section: str, at: str, times: LaunchTotalsOut
) -> Iterator[tuple[str, str, str, float | None]]:
    yield section, at, "count", times.count
    for phase, spread in times.phases.items():
        for name, value in _each(spread, "p50", "p95", "p99"):
            yield section, at, f"{phase}.{name}", value


def _wait_numbers(
    section: str, at: str, waits: WaitTotalsOut
) -> Iterator[tuple[str, str, str, float | None]]:
    yield section, at, "count", waits.count
    for kind, spread in (("told", waits.told), ("had", waits.had)):
        for name, value in _each(spread, "p50", "p95", "p99"):
            yield section, at, f"{kind}.{name}", value
    yield section, at, "keptShare", waits.kept_share


def _each(part: Wire, *names: str) -> Iterator[tuple[str, float | None]]:
    """The fields of a part by the names that they have in JSON."""
    for name in names:
        yield type(part).model_fields[name].alias or name, getattr(part, name)
