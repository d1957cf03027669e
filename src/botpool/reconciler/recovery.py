"""Find what is stuck, decide what to do about it, and say why.

Each step looks once, and makes a decision about each thing that it finds. A decision is carried out
under the lease, so it changes nothing if another replica was faster. Any number of replicas may do
this at the same time.

| found | done |
|---|---|
| deploying for long, no heartbeat or an old one | the bot is `FATAL`, the slot released |
| the same, with a recent heartbeat | skipped, given more time, and counted |
| the same, skipped often enough | the slot is busy |
| the same, but it still waits, or the engine says that it is starting or can't say | skipped |
| busy, heartbeat too old | the bot is relaunched or `FATAL`; the slot is stopped |
| a slot whose bot has ended | released |
| a slot in error | repaired when it is due, by itself; here only by hand |
| a bot that waits past its deadline | `FATAL` |
| reservations and pulls of a replica that is gone | removed |
| an unhealthy host that is due for a probe | probed |
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from botpool.engines.base import ContainerState
from botpool.errors import (
    BotpoolError,
    EngineError,
    NotFound,
    StaleLease,
)
from botpool.models.assignments import Ending
from botpool.models.slots import WaitsFor
from botpool.models.storable import storable
from botpool.reconciler.decisions import Decision, Outcome, judged, state_of
from botpool.reconciler.silence import silent
from botpool.states import BotStatus, FailureCause, SlotStatus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from botpool.models.bots import Bot
    from botpool.models.pulls import PullKey
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context

    Repair = Callable[[Slot], Awaitable[Outcome]]


IN_ERROR = "error"
"""The step that finds slots in error."""


async def decide(context: Context, repair: Repair | None = None) -> list[Decision]:
    """Everything that is stuck, and what to do about it. Changes nothing yet.

    By hand, slots in error are repaired at once, by `repair`.
    """
    return [
        *await deploying(context),
        *await silent(context),
        *await ended(context),
        *(await in_error(context, repair) if repair else []),
        *await overdue(context),
        *await abandoned(context),
    ]


async def carry_out(decision: Decision) -> Decision:
    """Carry out a decision, and return it with what came of it.

    It is skipped if another replica was faster, and if it fails: whatever it fails with, it holds
    up no other.
    """
    if decision.act is None:
        return decision
    try:
        outcome = await decision.act()
    except (StaleLease, NotFound):
        return _skipped(decision, "another replica was faster")
    except BotpoolError as error:
        return _skipped(decision, str(error))
    except Exception as error:  # noqa: BLE001 - as the docstring says
        return _skipped(decision, f"it failed: {error!r}")
    return replace(decision, outcome=outcome) if isinstance(outcome, Outcome) else decision


def _skipped(decision: Decision, reason: str) -> Decision:
    return replace(decision, outcome=Outcome.SKIPPED, reason=reason, act=None)


async def deploying(context: Context) -> list[Decision]:
    """Deployments that take longer than they should."""
    slots = await context.store.slots.stuck(context.settings.stuck_after_ms)
    return await judged(context, slots, partial(_judge_deploying, context))


async def _judge_deploying(context: Context, slot: Slot, bot: Bot) -> Decision:
    def decided(
        outcome: Outcome, reason: str, act: Callable[[], Awaitable[object]] | None = None
    ) -> Decision:
        return Decision(
            step="deploying", subject=slot.slot_name, outcome=outcome, reason=reason, act=act
        )

    settings, pool = context.settings, context.pool
    freshness = timedelta(milliseconds=settings.heartbeat_freshness_ms)
    if bot.last_heartbeat is not None and slot.read_at - bot.last_heartbeat <= freshness:
        reason = f"its bot {bot.id} sends heartbeats"
        if slot.recovery_attempts >= settings.max_skipped_recoveries:
            busy = (slot.id, slot.lease, BotStatus.JOINING_CALL, f"{reason} for long")
            return decided(
                Outcome.RECOVERED,
                f"{reason}, and has for long: the slot is busy",
                partial(pool.assignments.advance, *busy, heard=False),
            )
        act = partial(pool.assignments.extend_deployment, slot.id, slot.lease, f"skipped: {reason}")
        return decided(Outcome.SKIPPED, reason, act)
    if slot.deployment_started_at is None:
        return decided(Outcome.SKIPPED, f"it {(slot.waits_for or WaitsFor.IMAGE).sentence}")
    try:
        said = await state_of(context, slot, ContainerState.STARTING)
    except EngineError as error:
        return decided(Outcome.SKIPPED, f"the engine can't say: {error}")
    if said is None:
        return decided(Outcome.SKIPPED, "the engine says that its container is starting")
    heard = (
        f"was last heard at {bot.last_heartbeat:%H:%M:%S}"
        if bot.last_heartbeat
        else "was never heard"
    )
    took = (slot.read_at - slot.last_assigned_at).total_seconds()
    reason = storable(f"deploying for {took:.0f} s, its bot {heard}; {said}")
    ending = Ending(
        slot_id=slot.id,
        lease=slot.lease,
        bot_status=BotStatus.FATAL,
        failure_cause=FailureCause.START_TIMEOUT,
        reason=reason,
        unless_heard_since=slot.read_at - freshness if bot.last_heartbeat else None,
        was=SlotStatus.DEPLOYING,
    )
    return decided(Outcome.FAILED, reason, partial(_end, context, ending))


async def ended(context: Context) -> list[Decision]:
    """Slots that still have an ended bot."""
    slots = await context.store.slots.with_ended_bot()
    bots = await _bots_of(context, slots)
    decisions = []
    for slot in slots:
        reason = f"its bot {slot.assigned_bot_id} has ended"
        ending = Ending(slot_id=slot.id, lease=slot.lease, bot_status=BotStatus.DONE, reason=reason)
        decisions.append(
            Decision(
                step="ended",
                subject=slot.slot_name,
                outcome=Outcome.RECOVERED,
                reason=reason,
                bot=bots.get(slot.id),
                act=partial(_end, context, ending),
            )
        )
    return decisions


async def _bots_of(context: Context, slots: Sequence[Slot]) -> dict[int, Bot]:
    """The bot that each slot has, or had last, by the slot's id."""
    whose = {slot.id: slot.assigned_bot_id or slot.last_bot_id for slot in slots}
    ids = [bot_id for bot_id in whose.values() if bot_id is not None]
    bots = await context.store.bots.some(ids) if ids else {}
    return {slot_id: bots[bot_id] for slot_id, bot_id in whose.items() if bot_id in bots}


async def in_error(context: Context, repair: Repair) -> list[Decision]:
    """Slots in error, to be repaired by hand. Otherwise their next repair comes by itself."""
    slots = [slot for slot in await context.store.slots.all() if slot.status is SlotStatus.ERROR]
    bots = await _bots_of(context, slots)
    return [
        Decision(
            step=IN_ERROR,
            subject=slot.slot_name,
            outcome=Outcome.RECOVERED,
            reason=(
                f"{slot.error_message}; {slot.recovery_attempts} of"
                f" {context.settings.max_recovery_attempts} recoveries have failed"
            ),
            bot=bots.get(slot.id),
            act=partial(repair, slot),
        )
        for slot in slots
    ]


async def overdue(context: Context) -> list[Decision]:
    """Bots that wait past their deadline."""
    late = await context.store.queue.overdue()
    bots = await context.store.bots.some(late) if late else {}
    return [
        Decision(
            step="queue",
            subject=f"bot {bot_id}",
            outcome=Outcome.FAILED,
            reason="it waited past its deadline",
            bot=bots.get(bot_id),
            act=context.pool.queue.expire,
        )
        for bot_id in late
    ]


async def abandoned(context: Context) -> list[Decision]:
    """Reservations of slots and pulls that no replica renews any more."""
    expired = await context.store.reservations.expired()
    bots = await _bots_of(context, expired)
    slots = [
        Decision(
            step="reservation",
            subject=slot.slot_name,
            outcome=Outcome.RECOVERED,
            reason=f"{slot.reserved_by} is gone",
            bot=bots.get(slot.id),
            act=partial(context.store.reservations.abandon, [slot.id]),
        )
        for slot in expired
    ]
    pulls = [
        Decision(
            step="pull",
            subject=f"{pull.image} on {pull.host}",
            outcome=Outcome.RECOVERED,
            reason=f"{pull.reserved_by} is gone",
            bot=await context.store.bots.first_waiting(pull),
            act=partial(_abandon_pull, context, pull.key),
        )
        for pull in await context.store.pulls.expired()
    ]
    return [*slots, *pulls]


async def _abandon_pull(context: Context, key: PullKey) -> None:
    if await context.store.pulls.abandon(key):
        await context.store.pulls.wake(key, 0)


async def _end(context: Context, ending: Ending) -> None:
    if not await context.pool.assignments.end_assignment(ending):
        raise StaleLease("Its bot was heard in the meantime.")
