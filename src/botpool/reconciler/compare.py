"""Compare an engine's containers with the slots.

Slots are read before the engine's list, so the list must show the container of every slot. If the
list can't be read, nothing changes.

| found | done |
|---|---|
| a busy slot whose container ended or is gone | the bot is relaunched, or fails: `crashed` |
| an idle slot whose container is gone or was started | it gets another one, or it is stopped |
| an idle slot without a container, whose image is there | it gets one |
| a container of ours that no slot has | stopped and removed |
| a container that looks like ours but never was | logged once, and left alone |

If an engine lags, a bot that was heard recently runs, whatever the engine says.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Self

import structlog

from botpool.engines.base import STOPPED, ContainerState, Observation
from botpool.errors import (
    BotpoolError,
    NotFound,
    StaleLease,
)
from botpool.logs import log_failure
from botpool.models.assignments import Ending, FailedLaunch, last_heard
from botpool.reconciler.containers import create_if_image, evidence
from botpool.reconciler.context import container_of
from botpool.reconciler.proof import lost
from botpool.reconciler.shown_status import description
from botpool.states import BotStatus, FailureCause, SlotStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from botpool.engines.base import Container, Engine, ListedContainer
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context
    from botpool.reconciler.reservations import Reservations

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")


_FORGOTTEN_AFTER = timedelta(days=1)
"""So long a container without a slot is kept, because its node may come back and tell its end."""

_AT_A_TIME = 8
"""How many containers without a slot are removed at a time."""

# It ended by itself, even if something is left of it.
_ENDED = frozenset({ContainerState.EXITED, ContainerState.MISSING, ContainerState.FAILED})


@dataclass
class CompareCounts:
    """What one comparison did."""

    crashed: int = 0
    created_again: int = 0
    removed: int = 0
    foreign: int = 0
    """Containers that are named like slots and never were of one: they may yet be imported."""

    def __iadd__(self, other: CompareCounts) -> Self:
        """Add the counts of another comparison."""
        self.crashed += other.crashed
        self.created_again += other.created_again
        self.removed += other.removed
        self.foreign += other.foreign
        return self


async def compare(
    context: Context,
    reservations: Reservations,
    engine: Engine,
    host: str,
) -> CompareCounts:
    """Compare the containers of one host with its slots. Raises `EngineError`."""
    counts = CompareCounts()
    slots = await context.store.slots.of_host(engine.name, host)
    if not slots and engine.name != context.settings.engine:
        return counts  # the engine is not in use, and may not even exist
    listed = await engine.list(host)
    by_ref = {found.container.ref: found for found in listed}
    for slot in slots:
        with _apart(slot_name=slot.slot_name):
            await _compare_one(context, reservations, slot, by_ref, counts)
        found = by_ref.get(slot.container_ref or "")
        # What is not shown yet, or is just being sent, is not missed.
        if found is not None and slot.show_at is None and not _described(slot, found):
            await context.store.slots.show_again(slot)
    for slot in await context.store.slots.without_container(
        engine.name,
        host,
        pulls_at_start=engine.traits.pulls_at_start or engine.traits.has_nodes,
    ):
        with _apart(slot_name=slot.slot_name):
            counts.created_again += await _create_again(context, reservations, slot)
    # A container that was created meanwhile belongs to a new slot: read the slots again.
    known = {slot.container_ref for slot in await context.store.slots.of_host(engine.name, host)}
    left = iter([found for found in listed if found.container.ref not in known])

    async def look_after_left() -> None:
        for found in left:
            with _apart(container_ref=found.container.ref):
                if await _is_foreign(context, engine, found):
                    counts.foreign += 1
                else:
                    removed = await _remove(context, reservations, engine, found)
                    counts.removed += removed  # not in one: others count meanwhile

    # Side by side: many of them may be on one node that keeps everybody waiting.
    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_A_TIME):
            group.create_task(look_after_left())
    return counts


@contextmanager
def _apart(**what: str) -> Iterator[None]:
    """Log an error with one slot or container, so that the others are still compared."""
    try:
        yield
    except BotpoolError as error:
        log_failure("not compared", error, **what)


async def _compare_one(
    context: Context,
    reservations: Reservations,
    slot: Slot,
    by_ref: Mapping[str, ListedContainer],
    counts: CompareCounts,
) -> None:
    found = by_ref.get(slot.container_ref or "")
    observation = found.observation if found else Observation(state=ContainerState.MISSING)
    if slot.status is SlotStatus.BUSY and observation.node not in {None, slot.node}:
        await context.store.slots.record_node(slot, observation.node or "")
    await _set_right(context, reservations, slot, observation, counts)


async def compare_slot(context: Context, reservations: Reservations, slot: Slot) -> tuple[str, str]:
    """Compare one slot with its container, and set right what differs.

    Returns what the engine says of it, in a word and in a sentence. Raises `EngineError`.
    """
    container = container_of(slot)
    if container is None:
        return "none", "it has no container yet"
    engine = context.engine(slot)
    # Where nodes may be cut off, what became of a start says more than what is there now.
    deployment = slot.deployment_ref if engine.traits.has_nodes else None
    observation = await engine.observe(container, deployment)
    counts = CompareCounts()
    await _set_right(context, reservations, slot, observation, counts)
    code = "" if observation.exit_code is None else f" with code {observation.exit_code}"
    detail = f" ({observation.detail})" if observation.detail else ""
    said = f"the engine says that its container is {observation.state}{code}{detail}"
    if counts.crashed:
        return observation.state, f"{said}; so its bot is not there any more"
    if counts.created_again:
        return observation.state, f"{said}; so it got another container"
    if _as_expected(context, slot, observation.state):
        return observation.state, f"{said}, as it should be"
    return observation.state, f"{said}, while the slot is {slot.status}"


def _as_expected(context: Context, slot: Slot, state: ContainerState) -> bool:
    """Whether a container is in a state that fits its slot's status."""
    match slot.status:
        case SlotStatus.IDLE:
            return state in _waiting(context, slot)
        case SlotStatus.BUSY:
            return state is ContainerState.RUNNING
        case SlotStatus.DEPLOYING:
            return state not in {ContainerState.FAILED, ContainerState.MISSING}
        case _:
            return state is not ContainerState.FAILED


async def _set_right(
    context: Context,
    reservations: Reservations,
    slot: Slot,
    observation: Observation,
    counts: CompareCounts,
) -> None:
    if lost(context, slot, observation):
        return  # it may run on: what becomes of its bot is judged by its heartbeats
    if slot.status is SlotStatus.BUSY and observation.state in _ENDED:
        counts.crashed += await _crashed(context, slot)
    elif slot.status is SlotStatus.IDLE and observation.state not in _waiting(context, slot):
        counts.created_again += await _create_again(context, reservations, slot)


async def _crashed(context: Context, slot: Slot) -> bool:
    """End the assignment of a busy slot whose container ended. Returns whether that was done."""
    container = container_of(slot)
    if container is None or not await _may_have_ended(context, slot):
        return False
    # The list may be older than a restart, or lack the exit code: look at this container.
    observation = await context.engine(slot).observe(container)
    if observation.state not in _ENDED or lost(context, slot, observation):
        return False
    reason = await evidence(context, slot, container, observation)
    try:
        bot = await context.store.bots.get(slot.assigned_bot_id or 0)
        if bot.status is BotStatus.LEAVING and observation.exit_code == 0:
            written = await context.pool.assignments.end_assignment(
                Ending(
                    slot_id=slot.id,
                    lease=slot.lease,
                    bot_status=BotStatus.DONE,
                    reason="the bot left and its container ended",
                )
            )
        else:
            written = await context.pool.relaunch.fail_launch(
                FailedLaunch(
                    slot_id=slot.id,
                    lease=slot.lease,
                    cause=FailureCause.CRASHED,
                    reason=reason,
                    was=SlotStatus.BUSY,
                )
            )
    except (StaleLease, NotFound):
        return False
    return bool(written)


async def _may_have_ended(context: Context, slot: Slot) -> bool:
    """Whether to believe the engine: if it lags, only when the bot has been silent."""
    if not context.engine(slot).traits.lags:
        return True
    bot = await context.store.bots.get(slot.assigned_bot_id or 0)
    silent = slot.read_at - last_heard(bot, slot)
    return silent.total_seconds() * 1000 >= context.settings.deploy_grace_ms


def _described(slot: Slot, found: ListedContainer) -> bool:
    """Whether the engine's interface shows what the slot does, ignoring the time."""
    if found.description is None:
        return True
    return found.description.rpartition(" - ")[0] == description(slot).rpartition(" - ")[0]


def _waiting(context: Context, slot: Slot) -> frozenset[ContainerState]:
    """The states that the container of an idle slot may have."""
    unused = frozenset({ContainerState.CREATED})
    reusable = context.engine(slot).traits.reusable
    return unused | {ContainerState.EXITED} if reusable else unused


async def _create_again(context: Context, reservations: Reservations, slot: Slot) -> bool:
    """Give an idle slot another container, because its own is gone or was started from outside.

    A container that can be used again is only stopped.
    """
    async with reservations.take(slot.id) as taken:
        if taken is None or taken.status is not SlotStatus.IDLE or taken.lease != slot.lease:
            return False
        engine, old = context.engine(taken), container_of(taken)
        if old is not None:
            observation = await engine.observe(old)
            if observation.state in _waiting(context, taken):
                return False
            await engine.stop(old, context.settings.stop_grace_ms / 1000)
            if observation.state is not ContainerState.MISSING and engine.traits.reusable:
                return False
            if (await engine.observe(old)).state not in STOPPED:
                return False
        if not await create_if_image(context, taken):
            return False
        if old is not None:
            await engine.remove(old)
    return True


async def _is_foreign(context: Context, engine: Engine, found: ListedContainer) -> bool:
    """Whether a container only looks like ours. Such a container is logged once."""
    if found.slot_id is not None or await context.store.bots.had_container(found.container.ref):
        return False
    context.tell_once(found.container.ref, slot_name=found.slot_name, engine=engine.name)
    return True


async def _remove(
    context: Context, reservations: Reservations, engine: Engine, found: ListedContainer
) -> bool:
    """Remove a container that no slot has, unless a replica works on its slot."""
    container = found.container
    if found.slot_id is None:
        if not await _stop_and_remove(context, engine, container):
            return False
    else:
        async with reservations.take(found.slot_id) as taken:
            if taken is None and await context.store.slots.find(found.slot_id) is not None:
                return False
            if taken is not None and taken.container_ref == container.ref:
                return False
            if not await _stop_and_remove(context, engine, container):
                return False
    _log.info(
        "container removed",
        engine=engine.name,
        host=container.host,
        container_ref=container.ref,
        slot_name=found.slot_name,
        reason="no slot has it",
    )
    return True


async def _stop_and_remove(context: Context, engine: Engine, container: Container) -> bool:
    await engine.stop(container, context.settings.stop_grace_ms / 1000)
    observation = await engine.observe(container)
    unproved = observation.state not in STOPPED
    if unproved:
        over_at = observation.over_at if engine.traits.has_nodes else None
        if over_at is None or await context.store.installation.now() - over_at < _FORGOTTEN_AFTER:
            return False  # the next comparison goes on
        _log.warning(
            "a container is forgotten that was not proved stopped: its node has been away for long",
            host=container.host,
            node=observation.node,
            container_ref=container.ref,
        )
    await engine.remove(container, unproved=unproved)
    return True
