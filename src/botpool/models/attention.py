"""Attention: what needs a person, as a sentence with what mends it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from botpool.states import FailureCause, Platform


class NeedKind(StrEnum):
    """What needs a person."""

    NO_WORKER = "no_worker"
    SLOT_ERROR = "slot_error"
    HOST_UNHEALTHY = "host_unhealthy"
    HOST_CLOSED = "host_closed"
    HOST_DRAINED = "host_drained"
    PULL_FAILING = "pull_failing"
    WAIT_NEAR_DEADLINE = "wait_near_deadline"
    WAIT_OVER_ESTIMATE = "wait_over_estimate"
    POOL_FULL = "pool_full"
    POOL_PAUSED = "pool_paused"
    BOTS_FAILING = "bots_failing"
    WEBHOOK_PAUSED = "webhook_paused"
    WEBHOOK_FAILING = "webhook_failing"


class Severity(StrEnum):
    """How soon somebody should look. The order is that of a list: the first comes first."""

    URGENT = "urgent"
    """Bots fail, or will within minutes."""
    SOON = "soon"
    """Something is broken, and others do its work."""
    NOTE = "note"
    """Somebody has chosen this, and may have forgotten it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedAction:
    """What mends it: a call of the API, or a command or setting."""

    label: str
    method: str | None = None
    path: str | None = None
    body: Mapping[str, object] | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One thing that needs a person. What it is about is in the fields that are set."""

    kind: NeedKind
    severity: Severity
    sentence: str
    since: datetime | None = None
    action: NeedAction | None = None
    count: int | None = None
    error: str | None = None
    """The engine's own words, or those of a receiver."""
    cause: FailureCause | None = None
    platform: Platform | None = None
    slot_id: int | None = None
    slot_name: str | None = None
    bot_id: int | None = None
    engine: str | None = None
    host: str | None = None
    image: str | None = None
    webhook_id: int | None = None


def in_order(needs: list[Need]) -> list[Need]:
    """What is most urgent first; of the same urgency as they were found."""
    order = {severity: place for place, severity in enumerate(Severity)}
    return sorted(needs, key=lambda need: order[need.severity])
