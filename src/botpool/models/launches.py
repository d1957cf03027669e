"""Launches: the phases of a bot's way into its call, and how long each usually takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime


class Phase(StrEnum):
    """A phase of a launch, named after what it ends with. The order is the order in time."""

    QUEUED = "queued"
    """It waits for a slot."""
    PULLED = "pulled"
    """Its image is brought to the host. On engines whose starts bring it, another start does."""
    CREATED = "created"
    """A container is made for it, once it is its turn on the host; not if the slot has one."""
    STARTED = "started"
    """Its container is started, until it runs."""
    CLAIMED = "claimed"
    """It comes up, until it is heard for the first time."""
    JOINED = "joined"
    """It opens the meeting, until it is in the waiting room or, without one, in its call."""
    IN_CALL = "in_call"
    """It waits to be let in."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """How long something usually takes, in milliseconds; `None` while that is not known."""

    p5: float | None
    p50: float | None
    p95: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPhase:
    """One phase of a launch.

    It was not begun, or was skipped, without `began_at`. Without `ended_at` it is under way or, if
    the bot has ended, as far as it came.
    """

    name: Phase
    began_at: datetime | None
    ended_at: datetime | None
    usual: Percentiles

    @property
    def duration_ms(self) -> float | None:
        """How long it took, once it is over."""
        if self.began_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.began_at).total_seconds() * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A bot's last launch, beside what is usual for its platform.

    `usual_of` is how many launches that is from: the last ones that came into their calls.
    """

    bot_id: int
    attempt: int
    began_at: datetime
    phases: Sequence[LaunchPhase]
    usual_total: Percentiles
    usual_of: int

    @property
    def total_ms(self) -> float | None:
        """How long it took from its beginning into the call, once it is there."""
        last = self.phases[-1].ended_at
        return None if last is None else (last - self.began_at).total_seconds() * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BotOutcome:
    """What came of a bot, and how far its last launch has come, for those who measure.

    `engine` and `host` are of the slot that it is on or was on last; if that slot is gone, the
    engine is that of new slots. It was wanted in its call since `wanted_at`; its last launch began
    at `began_at`, and `ends` is when each phase of that has ended.
    """

    bot_id: int
    correlation_id: str
    platform: str
    engine: str
    host: str | None
    slot_name: str | None
    status: str
    failure_cause: str | None
    failure_reason: str | None
    attempt: int
    wanted_at: datetime
    began_at: datetime
    ended_at: datetime | None
    ends: Sequence[datetime | None]

    @property
    def joined_at(self) -> datetime | None:
        """When it was in its call, if it ever was."""
        return self.ends[-1]

    def phases(self) -> Iterator[tuple[Phase, datetime, datetime]]:
        """The phases that have ended, each with its beginning and its end."""
        for phase, began_at, ended_at in phases_of(self.ends, self.began_at):
            if began_at is not None and ended_at is not None:
                # The clock of the database may have been set back.
                yield phase, min(began_at, ended_at), ended_at

    def phase_seconds(self) -> Iterator[tuple[Phase, float]]:
        """The phases that have ended, and how long each took."""
        for phase, began_at, ended_at in self.phases():
            yield phase, (ended_at - began_at).total_seconds()

    @property
    def total_seconds(self) -> float | None:
        """How long it took until it was in its call, earlier launches included."""
        if self.joined_at is None:
            return None
        return max((self.joined_at - self.wanted_at).total_seconds(), 0.0)


def phases_of(
    ends: Sequence[datetime | None], began_at: datetime
) -> list[tuple[Phase, datetime | None, datetime | None]]:
    """Each phase with its beginning and its end, from when the phases have ended.

    A phase without an end before one that has ended was skipped. The first one after the last that
    has ended is under way.
    """
    last = max((n for n, end in enumerate(ends) if end is not None), default=-1)
    found: list[tuple[Phase, datetime | None, datetime | None]] = []
    before = began_at
    for n, (phase, end) in enumerate(zip(Phase, ends, strict=True)):
        begun = end is not None or n == last + 1
        found.append((phase, before if begun else None, end))
        before = end or before
    return found
