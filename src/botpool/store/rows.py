"""From rows to frozen values."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from botpool.models import Bot, Slot, Transition
from botpool.states import BotStatus, FailureCause, Platform, SlotStatus

if TYPE_CHECKING:
    import asyncpg

_SLOT = tuple(field.name for field in fields(Slot))


def transition(row: asyncpg.Record) -> Transition:
    """A row of transitions."""
    return Transition(**{**row, "platform": Platform(row["platform"])})


def bot(row: asyncpg.Record) -> Bot:
    """A row of bots."""
    cause = row["failure_cause"]
    return Bot(
        **{
            **row,
            "platform": Platform(row["platform"]),
            "status": BotStatus(row["status"]),
            "failure_cause": cause and FailureCause(cause),
        }
    )


def slot(row: asyncpg.Record) -> Slot:
    """A row of bot_pool_slots, without what must not leave the database."""
    values = {name: row[name] for name in _SLOT}
    return Slot(
        **{**values, "platform": Platform(row["platform"]), "status": SlotStatus(row["status"])}
    )
