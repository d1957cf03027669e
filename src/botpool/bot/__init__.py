"""What a bot imports inside its container. It needs nothing beyond Python's standard library.

    from botpool.bot import Status, claim

    async with claim() as bot:
        await join(bot.meeting_url, bot.bot_display_name)
        await bot.status(Status.IN_CALL)
        await bot.leave_requested()

`claim` says what becomes of the bot at the end of the block, and what it raises. Where containers
that end are started again, as on Coolify, `wait_to_be_stopped` comes after it.
"""

from botpool.bot.assignment import Assignment, Cause, Status, claim, wait_to_be_stopped
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
