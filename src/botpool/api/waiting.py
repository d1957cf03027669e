"""What bots and slots wait for, as far as it takes more than their own rows to tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.models.waiting import Surroundings, bot_waits_for
from botpool.states import BotStatus, SlotStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from botpool.models.bots import Bot
    from botpool.models.slots import Slot
    from botpool.models.waiting import WaitingFor
    from botpool.states import Platform
    from botpool.store import Store


async def surroundings(
    store: Store,
    slots: Sequence[Slot],
    queued: Iterable[Platform] = (),
    bots: Mapping[int, Bot] | None = None,
) -> Surroundings:
    """What has to be known of the rest: for slots, and for bots in the queues of platforms.

    `bots` are those on the slots, if they are known.
    """
    deploy = any(slot.status is SlotStatus.DEPLOYING and slot.image for slot in slots)
    workers, worked_at = await store.replicas.workers()
    if bots is None:
        on_slots = [slot.assigned_bot_id for slot in slots if slot.assigned_bot_id is not None]
        bots = await store.bots.unheard(on_slots) if on_slots else {}
    return Surroundings(
        workers=workers,
        worked_at=worked_at,
        pools=await store.pools.standing(wanted) if (wanted := {*queued}) else {},
        pulls={pull.key: pull for pull in await store.pulls.all()} if deploy else {},
        bots=bots,
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
    if all(bot.last_heartbeat is not None for bot in live):
        return slots, {}
    queued = [bot.platform for bot in live if bot.status is BotStatus.QUEUED]
    around = await surroundings(store, [*slots.values()], queued, {})
    return slots, {bot.id: bot_waits_for(bot, slots.get(bot.id), around) for bot in live}
