"""Errors that delay a bot, told in its timeline: an entry when the error changes, not one a try."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from botpool.models.storable import storable

if TYPE_CHECKING:
    from botpool.models.pulls import PullKey
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


async def tell_step_error(context: Context, slot: Slot, error: str) -> None:
    """Tell that a step of a slot failed, unless the last one failed alike."""
    if _is_news(slot.step_error, error):
        attempt = slot.failed_steps + 1
        await context.pool.slots.tell_error(slot, f"attempt {attempt} failed: {error}", attempt)


async def tell_pull_error(
    context: Context, key: PullKey, before: str | None, error: str, attempt: int
) -> None:
    """Tell the slots that wait for an image that its pull failed, unless the last failed alike."""
    if _is_news(before, error):
        reason = f"pull {attempt} of {key.image} failed: {error}"
        await context.pool.slots.tell_pull_error(key, reason, attempt)


def _is_news(before: str | None, now: str) -> bool:
    """Whether an error says more than the one before it. Numbers, such as durations, don't."""
    return before is None or re.sub(r"\d+", "#", before) != re.sub(r"\d+", "#", now)
