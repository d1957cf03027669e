"""Insights: what happened in a time, told in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from botpool.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date, datetime

    from botpool.states import FailureCause, Platform

_STEPS = (60, 300, 900, 3600, 6 * 3600, 86_400)
_USUAL_STEPS = 150
_MOST_STEPS = 2000
_LONGEST = timedelta(days=366)

TOTAL = "total"
"""The name, beside those of the phases, of a whole launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsightsRange:
    """From when on, until when, in which steps; of one platform or project, or of all."""

    since: datetime
    until: datetime
    step_seconds: int
    platform: Platform | None = None
    project_id: int | None = None

    @classmethod
    def of(
        cls,
        since: datetime,
        until: datetime,
        *,
        step_seconds: int | None = None,
        platform: Platform | None = None,
        project_id: int | None = None,
    ) -> InsightsRange:
        """A range whose steps are, unless given, as short as makes a chart. Raises InvalidRequest.

        It is not longer than a year, and has not more than 2,000 steps. It begins with a full step:
        of an hour, with the hour in which `since` is.
        """
        length = until - since
        if not timedelta(0) < length <= _LONGEST:
            raise InvalidRequest("`from` must be before `to`, and not more than 366 days before.")
        seconds = length.total_seconds()
        step = step_seconds or next(
            (step for step in _STEPS if seconds / step <= _USUAL_STEPS), _STEPS[-1]
        )
        if seconds / step > _MOST_STEPS:
            raise InvalidRequest(f"`step` makes more than {_MOST_STEPS} steps: make it longer.")
        since -= timedelta(seconds=since.timestamp() % step)
        return cls(
            since=since, until=until, step_seconds=step, platform=platform, project_id=project_id
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """How something is spread, in milliseconds; `None` where there was none of it."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTimes:
    """How long launches took, by phase and in all, that began within the step at `at`."""

    at: datetime | None
    count: int
    phases: Mapping[str, Spread]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many bots ran, and how many waited, at the most within a step."""

    at: datetime
    running: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """The waits that were told to callers, beside those that their bots had.

    `kept_share` of them, from 0 to 1, waited no longer than told.
    """

    at: datetime | None
    count: int
    told: Spread
    had: Spread
    kept_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """How many bots were created, and how they ended."""

    created: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    live: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The slot-hours of a platform on a day (UTC): how many there were, and with a bot.

    Those of one project are only the hours that its bots had slots. `cost` is of all hours that
    there were or, of one project, of those that it used; `None` without a price.
    """

    day: date
    platform: Platform
    slot_hours: float | None
    used_hours: float
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectUsage:
    """The bots of a project, and the slot-hours that they used."""

    project_id: int
    name: str | None
    bots: int
    in_call_hours: float
    used_hours: float
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Insights:
    """What happened in a time. What retention has deleted is not in it."""

    range: InsightsRange
    slot_hour_price: float | None
    launches: Sequence[LaunchTimes]
    launch_totals: LaunchTimes
    load: Sequence[Load]
    outcomes: Outcomes
    failures: Mapping[FailureCause, int]
    waits: Sequence[Waits]
    wait_totals: Waits
    usage: Sequence[Usage]
    projects: Sequence[ProjectUsage]
