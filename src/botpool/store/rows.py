"""From rows to frozen values. Columns that a value doesn't have are left out."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from botpool.models.bots import Bot
from botpool.models.slots import Slot, WaitsFor
from botpool.models.transitions import Transition
from botpool.states import (
    BotStatus,
    FailureCause,
    Platform,
    SlotStatus,
)

if TYPE_CHECKING:
    import asyncpg

_NAMES: dict[type, tuple[str, ...]] = {
    model: tuple(field.name for field in fields(model)) for model in (Bot, Slot, Transition)
}


def _values(model: type, row: asyncpg.Record) -> dict[str, Any]:
    values = {name: row[name] for name in _NAMES[model]}
    platform = values["platform"]
    values["platform"] = platform and Platform(platform)
    return values


def transition(row: asyncpg.Record) -> Transition:
    """A row of transitions."""
    return Transition(**_values(Transition, row))


def bot(row: asyncpg.Record) -> Bot:
    """A row of bots."""
    values = _values(Bot, row)
    cause = values["failure_cause"]
    values["status"] = BotStatus(values["status"])
    values["failure_cause"] = cause and FailureCause(cause)
    return Bot(**values)


def slot(row: asyncpg.Record) -> Slot:
    """A row of bot_pool_slots."""
    values = _values(Slot, row)
    waits_for = values["waits_for"]
    values["status"] = SlotStatus(values["status"])
    values["waits_for"] = waits_for and WaitsFor(waits_for)
    return Slot(**values)
