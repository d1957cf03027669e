"""Projects: who owns bots, keys and webhook endpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime

DEFAULT_PROJECT = 1
"""The id of the project that is always there. Who says nothing else means this one."""

Limit = Literal["max_live_bots", "max_creations_per_minute", "max_duration_ms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectLimits:
    """How many bots may live at once, how many be created in a minute, and how long each may stay.

    `None` is no limit.
    """

    max_live_bots: int | None = None
    max_creations_per_minute: int | None = None
    max_duration_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectNumbers:
    """How many of its bots live, wait for a slot, and were created or failed since midnight, UTC.

    Those that live include those that wait.
    """

    live: int
    waiting: int
    created_today: int
    failed_today: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project, its limits and its numbers."""

    id: int
    name: str
    limits: ProjectLimits
    numbers: ProjectNumbers
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What a project's limits say of one of the bots to be created: by its place among them.

    Either a limit refuses it, or it may stay for `max_duration_ms`.
    """

    place: int
    refused_by: Limit | None
    most: int | None
    max_duration_ms: int | None
    retry_in_seconds: int | None
