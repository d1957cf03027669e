"""Find what is stuck, decide what becomes of it, and say why.

Each step looks once, and decides for each thing that it finds. What was decided is written under
the lease, so it changes nothing if somebody else has gone on meanwhile; any number of replicas may
do this at the same time.

| found | done |
|---|---|
| deploying for long, no heartbeat, or an old one | the bot is `FATAL`, the slot released |
| the same, with a heartbeat that is not old | skipped, its time pushed on, and counted |
| the same, skipped often enough | the slot is busy |
| the same, and it still waits, or the engine says that it is under way, or nothing | skipped |
| busy, heartbeat too old | the bot is tried again, or `FATAL`; the slot stopped |
| a slot whose bot has ended | released |
| a slot in error | tried again when it is time; at once by hand |
| a bot that waits past its deadline | `FATAL` |
| claims and pulls of somebody who is gone | let go |
| an ill host whose time has come | probed |
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from botpool.engines.base import ContainerState
from botpool.errors import BotpoolError, EngineError, EngineUnavailable, NotFound, StaleLease
from botpool.models import WAITS_FOR_IMAGE, Ending
from botpool.reconciler.context import container_of
from botpool.reconciler.evidence import evidence
from botpool.states import BotStatus, FailureCause, SlotStatus
from botpool.texts import storable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from datetime import datetime

    from botpool.models import Bot, Slot
    from botpool.reconciler.context import Context

SILENT = "no heartbeat"
"""How the reason begins for which a bot that is not heard is taken off its slot."""

_LONGEST_REASON = 4000
_MOST_LOOKS_AT_A_TIME = 32
_LOOK_SECONDS = 15.0


class Outcome(StrEnum):
    """What became of something that was stuck."""

    RECOVERED = "recovered"
    FAILED = "failed"
    DELETED = "deleted"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to become of one thing, and why. `act` brings it about; without, nothing is done."""

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
    """Everything that is stuck, and what is to become of it. Nothing is changed yet.

    By hand, slots in error are tried again at once.
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
    """Bring a decision about. One that somebody was faster with is skipped."""
    if decision.act is None:
        return decision
    try:
        await decision.act()
    except (StaleLease, NotFound):
        return _skipped(decision, "somebody has gone on with it")
    except BotpoolError as error:
        return _skipped(decision, str(error))
    return decision


def _skipped(decision: Decision, reason: str) -> Decision:
    return Decision(
        step=decision.step, subject=decision.subject, outcome=Outcome.SKIPPED, reason=reason
    )


async def deploying(context: Context) -> list[Decision]:
    """Deployments that take longer than they should."""
    slots = await context.store.list_deploying(context.settings.deploying_timeout_ms)
    return await _judged(context, slots, partial(_judge_deploying, context))


async def _judged(
    context: Context, slots: Iterable[Slot], judge: Callable[[Slot, Bot], Awaitable[Decision]]
) -> list[Decision]:
    """What is decided of each slot. Several at a time: a host that hangs holds up no other."""
    hands = asyncio.Semaphore(_MOST_LOOKS_AT_A_TIME)

    async def judged(slot: Slot) -> Decision:
        async with hands:
            try:
                return await judge(slot, await context.pool.get_bot(slot.assigned_bot_id or 0))
            except Exception as error:  # noqa: BLE001 - whatever it is, others are not held up
                return Decision(
                    step=str(slot.status),
                    subject=slot.slot_name,
                    outcome=Outcome.SKIPPED,
                    reason=f"it can't be judged: {error!r}",
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
        reason = f"its bot {bot.id} is heard"
        if slot.recovery_attempts >= settings.max_skipped_recoveries:
            busy = (slot.id, slot.lease, BotStatus.JOINING_CALL, f"{reason} for long")
            return decided(
                Outcome.RECOVERED,
                f"{reason}, and has been for long: it is busy",
                partial(pool.advance, *busy, heard=False),
            )
        act = partial(pool.push_on, slot.id, slot.lease, f"skipped: {reason}")
        return decided(Outcome.SKIPPED, reason, act)
    if slot.deployment_started_at is None:
        return decided(Outcome.SKIPPED, f"it {slot.deployment_status or WAITS_FOR_IMAGE}")
    try:
        said = await _state_of(context, slot, ContainerState.STARTING)
    except EngineError as error:
        return decided(Outcome.SKIPPED, f"the engine can't tell: {error}")
    if said is None:
        return decided(Outcome.SKIPPED, "the engine says that it is under way")
    heard = f"last heard at {bot.last_heartbeat:%H:%M:%S}" if bot.last_heartbeat else "never heard"
    took = (slot.read_at - slot.last_assigned_at).total_seconds()
    reason = storable(f"deploying for {took:.0f} s, and its bot {heard}; {said}", _LONGEST_REASON)
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
    """Bots that were in their call, or on their way into it, and are not heard any more."""
    freshness_ms = context.settings.heartbeat_freshness_ms
    since = await context.store.now() - _ms(freshness_ms)
    slots = await context.store.list_silent(since, freshness_ms)
    return await _judged(context, slots, partial(_judge_silent, context, since))


async def _judge_silent(context: Context, since: datetime, slot: Slot, bot: Bot) -> Decision:
    try:
        said = await _state_of(context, slot)
    except EngineError as error:
        said = f"the engine can't tell: {error}"
    heard = bot.last_heartbeat or bot.started_at or slot.last_assigned_at
    age = (slot.read_at - heard).total_seconds()
    most = context.settings.heartbeat_freshness_ms / 1000
    reason = storable(
        f"{SILENT} for {age:.0f} s, more than {most:g} s; last status {bot.status}; {said}",
        _LONGEST_REASON,
    )
    again = context.may_launch_again(bot)
    return Decision(
        step="silent",
        subject=slot.slot_name,
        outcome=Outcome.RECOVERED if again else Outcome.FAILED,
        reason=f"{reason}{': launched again' if again else ''}",
        act=_end_silent(context, slot, since, reason, again=again),
    )


def _end_silent(
    context: Context, slot: Slot, since: datetime, reason: str, *, again: bool
) -> Callable[[], Awaitable[object]]:
    if again:
        return partial(_relaunch, context, slot, since, reason)
    ending = Ending(
        slot_id=slot.id,
        lease=slot.lease,
        bot_status=BotStatus.FATAL,
        failure_cause=FailureCause.HEARTBEAT_LOST,
        reason=reason,
        unless_heard_since=since,
        details={"thresholdMs": context.settings.heartbeat_freshness_ms},
    )
    return partial(_end, context, ending)


async def ended(context: Context) -> list[Decision]:
    """Slots that still have a bot which has ended."""
    decisions = []
    for slot in await context.store.list_ended():
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
    """Slots in error: their next attempt is due by itself."""
    return [
        Decision(
            step="error",
            subject=slot.slot_name,
            outcome=Outcome.RECOVERED if by_hand else Outcome.SKIPPED,
            reason=(
                f"{slot.error_message}; {slot.recovery_attempts} of"
                f" {context.settings.max_recovery_attempts} attempts have failed"
            ),
            act=partial(context.pool.retry_slot, slot.id) if by_hand else None,
        )
        for slot in await context.pool.slots()
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
            act=context.pool.expire_queue,
        )
        for bot_id in await context.store.list_overdue()
    ]


async def abandoned(context: Context) -> list[Decision]:
    """Claims and pulls that nobody renews any more."""
    claims = [
        Decision(
            step="claim",
            subject=slot.slot_name,
            outcome=Outcome.RECOVERED,
            reason=f"{slot.claimed_by} is gone",
            act=partial(context.store.abandon_claims, [slot.id]),
        )
        for slot in await context.store.list_abandoned()
    ]
    pulls = [
        Decision(
            step="pull",
            subject=f"{pull.image} on {pull.host}",
            outcome=Outcome.RECOVERED,
            reason=f"{pull.claimed_by} is gone",
            act=partial(_abandon_pull, context, (pull.engine, pull.host, pull.image)),
        )
        for pull in await context.store.list_expired_pulls()
    ]
    return [*claims, *pulls]


async def _abandon_pull(context: Context, key: tuple[str, str, str]) -> None:
    if await context.store.abandon_pull(key):
        await context.store.wake_pull(key, WAITS_FOR_IMAGE, 0)


async def _state_of(
    context: Context, slot: Slot, unless: ContainerState | None = None
) -> str | None:
    """What the engine says of a slot's container, with its last words; None if it is `unless`.

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


async def _relaunch(context: Context, slot: Slot, since: datetime, reason: str) -> None:
    cause = FailureCause.HEARTBEAT_LOST
    if not await context.pool.mark_error(
        slot.id, slot.lease, cause, reason, unless_heard_since=since
    ):
        raise StaleLease("Its bot was heard in the meantime.")


async def _end(context: Context, ending: Ending) -> None:
    if not await context.pool.release(ending):
        raise StaleLease("Its bot was heard in the meantime.")


def _ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)
