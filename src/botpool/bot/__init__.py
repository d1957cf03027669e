"""The SDK that a bot imports in its container. It needs only Python's standard library.

    from botpool.bot import Status, claim

    async with claim() as bot:
        await join(bot.meeting_url, bot.bot_display_name)
        await bot.status(Status.IN_CALL)
        await bot.leave_requested()

See `claim` for how the end of the block ends the bot, and for what it raises. If the engine
restarts containers that end, as Coolify does, call `wait_to_be_stopped` after the block.
"""

from botpool.bot.assignment import (
    Assignment,
    Cause,
    Status,
    claim,
    wait_to_be_stopped,
)
from botpool.bot.client import AssignmentEnded, Refused

__all__ = [
    "Assignment",
    "AssignmentEnded",
    "Cause",
    "Refused",
    "Status",
    "claim",
    "wait_to_be_stopped",
]
