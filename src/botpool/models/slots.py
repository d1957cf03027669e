"""Slots: reusable containers, each of one platform, on one engine and one host."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from botpool.states import PLATFORM_ALIASES, Platform, SlotStatus

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

SLOT_NAME_PREFIX = "pool"
SLOT_NAME_DIGITS = 3
"""A slot's number has at least this many digits: `pool-zoom-007`, `pool-zoom-1000`."""

_NAMES = "|".join(sorted({*Platform, *PLATFORM_ALIASES}))
_SLOT_NAME = re.compile(
    rf"(?P<before>.*-)?{SLOT_NAME_PREFIX}-(?P<platform>{_NAMES})"
    rf"-(?P<number>\d{{{SLOT_NAME_DIGITS},9}})"
)


def slot_name(platform: str, number: int) -> str:
    """The name of a platform's slot with this number."""
    return f"{SLOT_NAME_PREFIX}-{platform}-{number:0{SLOT_NAME_DIGITS}}"


class SlotName(NamedTuple):
    """The parts of a slot's name."""

    platform: Platform
    number: int


def read_slot_name(text: str, *, lenient: bool = False) -> SlotName | None:
    """The parts of a slot's name; `None` if the text is not a slot's name.

    If `lenient`, it also accepts what other pools write: a prefix, or an alias of the platform.
    """
    found = _SLOT_NAME.fullmatch(text)
    if found is None:
        return None
    platform = PLATFORM_ALIASES.get(found["platform"]) or Platform(found["platform"])
    name = SlotName(platform, int(found["number"]))
    return name if lenient or text == slot_name(*name) else None


class WaitsFor(StrEnum):
    """What a deploying slot waits for before its container is started."""

    IMAGE = "image"
    """Its image, which a pull or another slot's start brings to its host."""
    TURN = "turn"
    """Its turn: only a few deployments run on a host at a time."""
    PAUSE = "pause"
    """The end of the pause after its bot's last launch failed on the same host."""

    @property
    def sentence(self) -> str:
        """The same in words. The slot is the subject."""
        return _SENTENCES[self]


_SENTENCES = {
    WaitsFor.IMAGE: "waits for the image",
    WaitsFor.TURN: "waits for room on the host",
    WaitsFor.PAUSE: "waits after a failed launch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A reusable container of one platform, on one engine and one host.

    `due_at` is when the reconciler looks at it next, `reserved_by` is the replica that works on it
    now, and `read_at` is the database's time when this was read. If it is `held`, its host is
    unhealthy, so it gets no bot. `node` is where its container was seen, if its host is a cluster,
    until it is proved stopped. `failed_launches` counts the launches in a row that failed on its
    container, and `remakes` the containers that it got for that. `spec_digest` is of what its
    container was made with, if that is known. `show_at` is when its status is to be shown in the
    engine's own interface; `None` if it is. `compare_asked_at` is since when somebody wants to know
    what the engine says of it; `compared_state` and `compared_said` are what it said last.
    """

    id: int
    platform: Platform
    number: int
    slot_name: str
    engine: str
    host: str | None
    node: str | None
    image: str | None
    container_ref: str | None
    status: SlotStatus
    assigned_bot_id: int | None
    lease: int
    last_used_at: datetime
    last_assigned_at: datetime
    last_released_at: datetime | None
    recovery_attempts: int
    error_message: str | None
    draining: bool
    held: bool
    waits_for: WaitsFor | None
    deployment_ref: str | None
    deployment_status: str | None
    deployment_started_at: datetime | None
    creations: int
    spec_digest: bytes | None
    last_bot_id: int | None
    due_at: datetime | None
    reserved_by: str | None
    reserved_until: datetime | None
    wakes: int
    failed_steps: int
    step_error: str | None
    launched_at: datetime | None
    failed_launches: int
    failing_since: datetime | None
    remakes: int
    show_at: datetime | None
    compare_asked_at: datetime | None
    compared_at: datetime | None
    compared_state: str | None
    compared_said: str | None
    created_at: datetime
    read_at: datetime

    @property
    def deployment(self) -> str | None:
        """The state of its deployment in words: what the engine says, or what it waits for."""
        waits = self.waits_for.sentence if self.waits_for else None
        return self.deployment_status or waits


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSlot:
    """A slot to be added, whose container another pool has created."""

    platform: Platform
    number: int
    engine: str
    host: str
    image: str | None
    container_ref: str

    @property
    def slot_name(self) -> str:
        """The name that it gets here."""
        return slot_name(self.platform, self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPage:
    """Which slots to list, by name: after a platform and a number, filtered by the other fields."""

    after: tuple[Platform, int] | None = None
    limit: int = 50
    platform: Platform | None = None
    statuses: Collection[SlotStatus] | None = None
    slot_name: str | None = None
    container_ref: str | None = None
    assigned_bot_id: int | None = None
