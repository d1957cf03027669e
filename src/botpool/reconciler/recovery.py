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
| a slot in error | repaired when it is due; by hand at once |
| a bot that waits past its deadline | `FATAL` |
| reservations and pulls of a replica that is gone | removed |
| an unhealthy host that is due for a probe | probed |
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from botpool.engines.base import ContainerState
from botpool.errors import (
    BotpoolError,
    EngineError,
    EngineUnavailable,
    NotFound,
    StaleLease,
)
from botpool.models.assignments import Ending, FailedLaunch, last_heard
from botpool.models.slots import WaitsFor
from botpool.models.storable import storable
from botpool.reconciler.containers import evidence
from botpool.reconciler.context import container_of
from botpool.states import BotStatus, FailureCause, SlotStatus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from datetime import datetime

    from botpool.models.bots import Bot
    from botpool.models.pulls import PullKey
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context

_MOST_LOOKS_AT_A_TIME = 32
_LOOK_SECONDS = 15.0


class Outcome(StrEnum):
    """What was done about something that was stuck."""

    RECOVERED = "recovered"
    FAILED = "failed"
    DELETED = "deleted"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do about one thing, and why. `act` does it; without `act`, nothing is done."""

    step: str
    subject: str
    outcome: Outcome
    reason: str
    act: Callable[[], Awaitable[object]] | None = field(default=None, repr=False, compare=False)


def counted(decisions: Iterable[Decision]) -> dict[Outcome, int]:
    """How many things had each outcome."""
    counts = dict.fromkeys(Outcome, 0)
    for decision in decisions:
        counts[decision.outcome] += 1
    return counts


async def decide(context: Context, *, by_hand: bool = False) -> list[Decision]:
    """Everything that is stuck, and what to do about it. Changes nothing yet.

    By hand, slots in error are repaired at once.
    """
    return [
        *await deploying(context),
        *await silent(context),
        *await ended(context),
        *await in_error(context, by_hand=by_hand),
        *await overdue(context),
        *await abandoned(context),
    ]


async def carry_out(decision: Decision) -> Decision:
    """Carry out a decision. If another replica was faster, it is skipped."""
    if decision.act is None:
        return decision
    try:
        await decision.act()
    except (StaleLease, NotFound):
        return _skipped(decision, "another replica was faster")
    except BotpoolError as error:
        return _skipped(decision, str(error))
    return decision


def _skipped(decision: Decision, reason: str) -> Decision:
    return Decision(
        step=decision.step, subject=decision.subject, outcome=Outcome.SKIPPED, reason=reason
    )


async def deploying(context: Context) -> list[Decision]:
    """Deployments that take longer than they should."""
    slots = await context.store.slots.stuck(context.settings.stuck_after_ms)
    return await _judged(context, slots, partial(_judge_deploying, context))


async def _judged(
    context: Context, slots: Iterable[Slot], judge: Callable[[Slot, Bot], Awaitable[Decision]]
) -> list[Decision]:
    """The decision about each slot. Several at a time, so that a hanging host delays no other."""
    hands = asyncio.Semaphore(_MOST_LOOKS_AT_A_TIME)

    async def judged(slot: Slot) -> Decision:
        async with hands:
            try:
                return await judge(slot, await context.store.bots.get(slot.assigned_bot_id or 0))
            except Exception as error:  # noqa: BLE001 - whatever it is, it delays no other slot
                return Decision(
                    step=str(slot.status),
                    subject=slot.slot_name,
                    outcome=Outcome.SKIPPED,
                    reason=f"the check failed: {error!r}",
                )

    return await asyncio.gather(*map(judged, slots))


async def _judge_deploying(context: Context, slot: Slot, bot: Bot) -> Decision:
    def decided(
        outcome: Outcome, reason: str, act: Callable[[], Awaitable[object]] | None = None
    ) -> Decision:
        return Decision(
            step="deploying", subject=slot.slot_name, outcome=outcome, reason=reason, act=act
        )

    settings, pool = context.settings, context.pool
    freshness = _ms(settings.heartbeat_freshness_ms)
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
        said = await _state_of(context, slot, ContainerState.STARTING)
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


async def silent(context: Context) -> list[Decision]:
    """Bots in their call, or on their way into it, that are not heard any more."""
    freshness_ms = context.settings.heartbeat_freshness_ms
    since = await context.store.installation.now() - _ms(freshness_ms)
    slots = await context.store.slots.silent(since, freshness_ms)
    return await _judged(context, slots, partial(_judge_silent, context, since))


async def _judge_silent(context: Context, since: datetime, slot: Slot, bot: Bot) -> Decision:
    try:
        said = await _state_of(context, slot)
    except EngineError as error:
        said = f"the engine can't say: {error}"
    age = (slot.read_at - last_heard(bot, slot)).total_seconds()
    most = context.settings.heartbeat_freshness_ms / 1000
    reason = storable(
        f"no heartbeat for {age:.0f} s, more than {most:g} s; last status {bot.status}; {said}",
    )
    again = context.may_launch_again(bot)
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
    assignments = context.pool.assignments
    if again:
        written = await assignments.fail_launch(silence)
    else:
        ending = replace(silence.ending, slot_status=SlotStatus.RELEASING)
        written = await assignments.end_assignment(ending)
    if not written:
        raise StaleLease("Its bot was heard in the meantime.")


async def ended(context: Context) -> list[Decision]:
    """Slots that still have an ended bot."""
    decisions = []
    for slot in await context.store.slots.with_ended_bot():
        reason = f"its bot {slot.assigned_bot_id} has ended"
        ending = Ending(slot_id=slot.id, lease=slot.lease, bot_status=BotStatus.DONE, reason=reason)
        decisions.append(
            Decision(
                step="ended",
                subject=slot.slot_name,
                outcome=Outcome.RECOVERED,
                reason=reason,
                act=partial(_end, context, ending),
            )
        )
    return decisions


async def in_error(context: Context, *, by_hand: bool) -> list[Decision]:
    """Slots in error. Their next repair comes by itself; by hand it comes at once."""
    return [
        Decision(
            step="error",
            subject=slot.slot_name,
            outcome=Outcome.RECOVERED if by_hand else Outcome.SKIPPED,
            reason=(
                f"{slot.error_message}; {slot.recovery_attempts} of"
                f" {context.settings.max_recovery_attempts} recoveries have failed"
            ),
            act=partial(context.pool.slots.retry, slot.id) if by_hand else None,
        )
        for slot in await context.store.slots.all()
        if slot.status is SlotStatus.ERROR
    ]


async def overdue(context: Context) -> list[Decision]:
    """Bots that wait past their deadline."""
    return [
        Decision(
            step="queue",
            subject=f"bot {bot_id}",
            outcome=Outcome.FAILED,
            reason="it waited past its deadline",
            act=context.pool.queue.expire,
        )
        for bot_id in await context.store.queue.overdue()
    ]


async def abandoned(context: Context) -> list[Decision]:
    """Reservations of slots and pulls that no replica renews any more."""
    slots = [
        Decision(
            step="reservation",
            subject=slot.slot_name,
            outcome=Outcome.RECOVERED,
            reason=f"{slot.reserved_by} is gone",
            act=partial(context.store.reservations.abandon, [slot.id]),
        )
        for slot in await context.store.reservations.expired()
    ]
    pulls = [
        Decision(
            step="pull",
            subject=f"{pull.image} on {pull.host}",
            outcome=Outcome.RECOVERED,
            reason=f"{pull.reserved_by} is gone",
            act=partial(_abandon_pull, context, pull.key),
        )
        for pull in await context.store.pulls.expired()
    ]
    return [*slots, *pulls]


async def _abandon_pull(context: Context, key: PullKey) -> None:
    if await context.store.pulls.abandon(key):
        await context.store.pulls.wake(key, 0)


async def _state_of(
    context: Context, slot: Slot, unless: ContainerState | None = None
) -> str | None:
    """What the engine says about a slot's container, with its last lines; None if it is `unless`.

    Raises `EngineError`, also if the engine hangs.
    """
    container = container_of(slot)
    if container is None:
        return f"it has no container{f', last error: {slot.step_error}' if slot.step_error else ''}"
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            observation = await context.engine(slot).observe(container, slot.deployment_ref)
            if observation.state is unless:
                return None
            return await evidence(context, slot, container, observation)
    except TimeoutError:
        raise EngineUnavailable(f"no answer within {_LOOK_SECONDS:g} s") from None


async def _end(context: Context, ending: Ending) -> None:
    if not await context.pool.assignments.end_assignment(ending):
        raise StaleLease("Its bot was heard in the meantime.")


def _ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)
