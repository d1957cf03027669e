"""Transitions: every recorded change of a slot, a bot, a pool or a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime

    from botpool.models.json import Json
    from botpool.states import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One recorded change. If both statuses are the same, it is only a note.

    What happens on a host is of no platform.
    """

    id: int
    at: datetime
    machine: Literal["slot", "bot", "pool", "host"]
    platform: Platform | None
    from_status: str | None
    to_status: str | None
    slot_id: int | None
    slot_name: str | None
    container_ref: str | None
    lease: int | None
    bot_id: int | None
    correlation_id: str | None
    reason: str
    details: Json
