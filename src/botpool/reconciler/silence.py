"""Silent bots: how long a bot may be without a heartbeat, and what becomes of it then.

A bot may be silent for `BOTPOOL_HEARTBEAT_FRESHNESS_MS`. Only time in which it could have been
heard counts: see `pool/listening.py`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from botpool.errors import EngineError, StaleLease
from botpool.models.assignments import FailedLaunch, last_heard
from botpool.models.storable import storable
from botpool.reconciler.decisions import Decision, Outcome, judged, state_of
from botpool.states import FailureCause, SlotStatus

if TYPE_CHECKING:
    from datetime import datetime

    from botpool.models.bots import Bot
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context


async def silent(context: Context) -> list[Decision]:
    """Bots in their call, or on their way into it, that are not heard any more."""
    freshness_ms = context.settings.heartbeat_freshness_ms
    since = await context.store.installation.now() - timedelta(milliseconds=freshness_ms)
    slots = await context.store.slots.silent(since, freshness_ms)
    return await judged(context, slots, partial(_judge_silent, context, since))


async def _judge_silent(context: Context, since: datetime, slot: Slot, bot: Bot) -> Decision:
    try:
        said = await state_of(context, slot)
    except EngineError as error:
        said = f"the engine can't say: {error}"
    age = (slot.read_at - last_heard(bot, slot)).total_seconds()
    most = context.settings.heartbeat_freshness_ms / 1000
    reason = storable(
        f"no heartbeat for {age:.0f} s, more than {most:g} s; last status {bot.status}; {said}",
    )
    again = context.pool.relaunch.may_relaunch(bot)
    return Decision(
        step="silent",
        subject=slot.slot_name,
        outcome=Outcome.RECOVERED if again else Outcome.FAILED,
        reason=f"{reason}{': relaunched' if again else ''}",
        act=partial(_end_silent, context, _silence(context, slot, bot, since, reason), again=again),
    )


def _silence(context: Context, slot: Slot, bot: Bot, since: datetime, reason: str) -> FailedLaunch:
    """The failed launch of a silent bot, unless the bot is heard before this is recorded."""
    return FailedLaunch(
        slot_id=slot.id,
        lease=slot.lease,
        cause=FailureCause.HEARTBEAT_LOST,
        reason=reason,
        unless_heard_since=since,
        details={
            "lastHeartbeat": bot.last_heartbeat,
            "thresholdMs": context.settings.heartbeat_freshness_ms,
        },
    )


async def _end_silent(context: Context, silence: FailedLaunch, *, again: bool) -> None:
    """Relaunch a silent bot, or end it."""
    if again:
        written = await context.pool.relaunch.fail_launch(silence)
    else:
        ending = replace(silence.ending, slot_status=SlotStatus.RELEASING)
        written = await context.pool.assignments.end_assignment(ending)
    if not written:
        raise StaleLease("Its bot was heard in the meantime.")
