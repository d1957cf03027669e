"""Hosts: the machines of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine of an engine.

    It may have `capacity` slots, or any number. It gets no new work while it does not answer
    (`open` is false), while it is drained, and, except for a probe, while it is unhealthy.
    """

    engine: str
    host: str
    open: bool
    capacity: int | None
    slots: int
    running: int
    failures: int
    reason: str | None
    unhealthy_since: datetime | None
    probe_at: datetime | None
    drained_at: datetime | None

    @property
    def healthy(self) -> bool:
        """Whether it gets new work, judged by its launches alone."""
        return self.unhealthy_since is None

    @property
    def room(self) -> int | None:
        """How many more slots it can have now; `None` for any number."""
        if not self.open or self.drained_at is not None or not self.healthy:
            return 0
        return None if self.capacity is None else max(0, self.capacity - self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What a replica reports about a host: how many slots it may have, and whether it answers.

    Without a word on that, a host that is known stays as it is, and a new one counts as open.
    """

    host: str
    capacity: int | None
    open: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFailure:
    """Something that failed on a host. Failures with the same `what` count once."""

    engine: str
    host: str
    what: str
    reason: str
    image: str = ""
    """The image, if it may be at fault rather than the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLaunches:
    """How many launches went well on a host in a while, and how many failed."""

    engine: str
    host: str
    launched: int
    failed: int
