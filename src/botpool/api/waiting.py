"""What bots and slots wait for, as far as it takes more than their own rows to tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models.waiting import Surroundings, bot_waits_for
from botpool.states import BotStatus, Platform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.models.bots import Bot
    from botpool.models.slots import Slot
    from botpool.models.waiting import WaitingFor
    from botpool.store import Store


async def surroundings(store: Store, *, queued: bool = False) -> Surroundings:
    """What has to be known of the rest, also for bots in the queue if there are any."""
    counts = await store.replicas.counts()
    full = {each for each in Platform if queued and await store.pools.is_full(each)}
    return Surroundings(
        workers=counts.worker,
        full=full,
        pulls={pull.key: pull for pull in await store.pulls.all()},
    )


async def what_bots_wait_for(
    store: Store, bots: Sequence[Bot]
) -> tuple[dict[int, Slot], dict[int, WaitingFor | None]]:
    """The slots that bots are on now, and what each bot waits for, by the bot's id."""
    live = [bot for bot in bots if bot.ended_at is None]
    if not live:
        return {}, {}
    slots = {
        slot.assigned_bot_id: slot
        for slot in await store.slots.of_bots([bot.id for bot in live])
        if slot.assigned_bot_id is not None
    }
    around = await surroundings(store, queued=any(bot.status is BotStatus.QUEUED for bot in live))
    return slots, {bot.id: bot_waits_for(bot, slots.get(bot.id), around) for bot in live}
