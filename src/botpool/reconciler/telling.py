"""Errors and log lines that tell of a bot, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botpool.models.storable import storable

if TYPE_CHECKING:
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context

_LONGEST_ERROR = 1000


def worded(error: Exception) -> str:
    """An error in words that the database can store."""
    return storable(str(error) or type(error).__name__, _LONGEST_ERROR)


async def bot_in_log(context: Context, slot: Slot) -> dict[str, Any]:
    """The bot of a slot as log lines have it, so that one search finds all about the bot."""
    bot_id = slot.assigned_bot_id or slot.last_bot_id
    bot = None if bot_id is None else await context.store.bots.find(bot_id)
    return {"bot_id": bot_id, "correlation_id": bot.correlation_id if bot else None}
