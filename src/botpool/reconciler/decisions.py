"""Decisions about what is stuck: what is done about each thing, and why."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import structlog

from botpool.errors import EngineUnavailable
from botpool.reconciler.containers import evidence
from botpool.reconciler.context import container_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from botpool.engines.base import ContainerState
    from botpool.models.bots import Bot
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context

_MOST_LOOKS_AT_A_TIME = 32
_LOOK_SECONDS = 15.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")


class Outcome(StrEnum):
    """What was done about something that was stuck."""

    RECOVERED = "recovered"
    FAILED = "failed"
    DELETED = "deleted"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do about one thing, and why. `act` does it; without `act`, nothing is done.

    `bot` is whose story it is part of.
    """

    step: str
    subject: str
    outcome: Outcome
    reason: str
    bot: Bot | None = field(default=None, repr=False, compare=False)
    act: Callable[[], Awaitable[object]] | None = field(default=None, repr=False, compare=False)


class DecisionLog:
    """Writes a line a decision.

    What is skipped again, round after round, gets another line only if the reason is another.
    """

    def __init__(self) -> None:
        self._skipped: dict[tuple[str, str], str] = {}

    def write(self, decision: Decision) -> None:
        """Write a line, unless the same was skipped for the same reason before."""
        what, reason = (decision.step, decision.subject), re.sub(r"\d+", "#", decision.reason)
        if decision.outcome is not Outcome.SKIPPED:
            self._skipped.pop(what, None)
        elif self._skipped.get(what) == reason:
            return
        else:
            self._skipped[what] = reason
        _log.info(
            "recovery",
            outcome=decision.outcome,
            found=decision.step,
            subject=decision.subject,
            reason=decision.reason,
            bot_id=decision.bot.id if decision.bot else None,
            correlation_id=decision.bot.correlation_id if decision.bot else None,
        )

    def forget_others(self, decisions: Iterable[Decision]) -> None:
        """Forget what was skipped before and is not found any more."""
        found = {(decision.step, decision.subject) for decision in decisions}
        self._skipped = {what: why for what, why in self._skipped.items() if what in found}


def counted(decisions: Iterable[Decision]) -> dict[Outcome, int]:
    """How many things had each outcome."""
    counts = dict.fromkeys(Outcome, 0)
    for decision in decisions:
        counts[decision.outcome] += 1
    return counts


async def judged(
    context: Context, slots: Iterable[Slot], judge: Callable[[Slot, Bot], Awaitable[Decision]]
) -> list[Decision]:
    """The decision about each slot. Several at a time, so that a hanging host delays no other."""
    hands = asyncio.Semaphore(_MOST_LOOKS_AT_A_TIME)

    async def judged_one(slot: Slot) -> Decision:
        bot = None
        async with hands:
            try:
                bot = await context.store.bots.get(slot.assigned_bot_id or 0)
                return replace(await judge(slot, bot), bot=bot)
            except Exception as error:  # noqa: BLE001 - whatever it is, it delays no other slot
                return Decision(
                    step=str(slot.status),
                    subject=slot.slot_name,
                    outcome=Outcome.SKIPPED,
                    reason=f"the check failed: {error!r}",
                    bot=bot,
                )

    return await asyncio.gather(*map(judged_one, slots))


async def state_of(
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
