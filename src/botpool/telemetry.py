"""What came of bots, for metrics and traces: once for each, by the replica that wrote it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from botpool.models.pulls import PullOutcome
from botpool.states import BOT_ENDED, BotStatus
from botpool.tasks.background import BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.metrics import Metrics
    from botpool.models.pulls import PullKey
    from botpool.models.transitions import Transition
    from botpool.store import Store
    from botpool.tracing import Traces


class Telemetry:
    """Hears the transitions that this replica writes, and measures what they tell of bots.

    A transition doesn't say how long the phases of a launch took, nor why a bot failed: that is
    read from the bots a moment later, for all together; if the database is away then, with the
    next ones. What a replica had not read when it was killed is not measured.
    """

    def __init__(self, store: Store, metrics: Metrics, traces: Traces | None = None) -> None:
        self._store = store
        self._metrics = metrics
        self._traces = traces
        self._news: list[Transition] = []
        self._pulls: list[PullKey] = []
        self._one_at_a_time = asyncio.Lock()
        self._reading = BackgroundCall(self.measure)

    def hear(self, written: Sequence[Transition]) -> None:
        """Note what is to be measured of these."""
        news = [step for step in written if _is_of_interest(step)]
        if news:
            self._news += news
            self._reading.request()

    def hear_of_pulls(self, ended: Sequence[PullKey]) -> None:
        """Note that these are to be measured."""
        self._pulls += ended
        self._reading.request()

    async def measure(self) -> None:
        """Measure all that was noted before. Raises `DatabaseUnreachable`."""
        async with self._one_at_a_time:
            if self._pulls:
                await self._measure_pulls()
            if self._news:
                await self._measure_bots()

    async def _measure_pulls(self) -> None:
        pulls = [*self._pulls]
        found = {each.key: each for each in await self._store.pulls.all()}
        del self._pulls[: len(pulls)]
        for key in pulls:
            pull = found.get(key)
            if pull is not None and pull.finished_at is not None:
                outcome = PullOutcome.of(fetched=True, failed=pull.status == "failed")
                took = (pull.finished_at - pull.started_at).total_seconds()
                self._metrics.pulled(key.engine, key.host, outcome, max(took, 0.0))

    async def _measure_bots(self) -> None:
        news = [*self._news]
        bots = {step.bot_id for step in news if step.bot_id is not None}
        found = {each.bot_id: each for each in await self._store.launches.outcomes([*bots])}
        # Only now: what could not be read is read with the next.
        del self._news[: len(news)]
        for step in news:
            bot = found.get(step.bot_id or 0)
            ended = step.to_status in BOT_ENDED
            if ended:
                # A bot that was deleted at once has ended, too.
                cause = bot.failure_cause if bot else None
                self._metrics.ended(str(step.platform), str(step.to_status), cause)
            # One that was in its call was measured then.
            if bot is not None and (bot.joined_at is None) is ended:
                self._metrics.launched(bot)
                if self._traces is not None:
                    self._traces.launched(bot)


def _is_of_interest(step: Transition) -> bool:
    return (
        step.machine == "bot"
        and step.from_status != step.to_status
        and (step.to_status == BotStatus.IN_CALL or step.to_status in BOT_ENDED)
    )
