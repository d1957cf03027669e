"""Gauges: how things stand at one moment, for those who watch from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.models.replicas import ReplicaCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCount:
    """How many slots of a platform have a status in one place. On no host yet: an empty host."""

    platform: str
    engine: str
    host: str
    status: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGauge:
    """How far a pool may grow, how many bots wait for it, and for how long one has at most."""

    platform: str
    max_size: int
    queued: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGauge:
    """Whether a host is healthy and answers."""

    engine: str
    host: str
    healthy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGauges:
    """All that the database says, read at once."""

    slots: Sequence[SlotCount]
    pools: Sequence[PoolGauge]
    hosts: Sequence[HostGauge]
    webhook_backlog: int
    replicas: ReplicaCounts
