"""Relaunch: another launch of the same bot, under a new lease, when one has failed.

Which bots go back to the queue stands twice, alike: here for those who must know before, and in the
database's `relaunch_bot` (store/schema/functions/relaunch.sql), which decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.states import BOT_RELAUNCHABLE, BotStatus

if TYPE_CHECKING:
    from botpool.models.assignments import FailedLaunch
    from botpool.models.bots import Bot
    from botpool.models.transitions import Transition
    from botpool.pool.assignments import Assignments
    from botpool.pool.publisher import Publisher
    from botpool.settings import Settings
    from botpool.store import Store


class Relaunch:
    """Launches bots again, or ends those that have no launch left."""

    def __init__(
        self, store: Store, settings: Settings, publisher: Publisher, assignments: Assignments
    ) -> None:
        self._store = store
        self._settings = settings
        self._publisher = publisher
        self._assignments = assignments

    def may_relaunch(self, bot: Bot) -> bool:
        """Whether a bot has launches left, and was not in its call yet or may go back there."""
        most = bot.max_launch_attempts or self._settings.max_launch_attempts
        back = bot.relaunch_in_call and bot.status is BotStatus.IN_CALL
        return (back or bot.status in BOT_RELAUNCHABLE) and bot.launch_attempts < most

    async def fail_launch(self, failed: FailedLaunch) -> list[Transition]:
        """Let a launch have failed: its slot is in `error`, and its bot is launched again or ends.

        A bot that may be launched again goes back to its place in the queue and on to the next
        free slot; any other is `FATAL`.
        """
        written = await self._publisher.publish(
            self._store.slots.relaunch(failed, BOT_RELAUNCHABLE, self._settings.max_launch_attempts)
        )
        return written or await self._assignments.end_assignment(failed.ending)
