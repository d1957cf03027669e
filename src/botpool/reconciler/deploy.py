"""Start the container of a slot that is deploying.

The database and the engine know what was done so far. So each look at the slot continues where the
last look, by any replica, ended:

1. The image, unless the container exists: it was created from the image. On engines whose starts
   bring the image, the first deployment on a host goes ahead alone, and the others wait for it,
   with their containers made.
2. Its turn on the host, after a pause if the bot has just failed there. It is recorded as
   `deployment_started_at` before the container is started.
3. The container, created if there is none, and created again if the engine has lost it.
4. The start. If an earlier look may have called it, the engine is asked first; if not, and the
   engine counts requests, what the database proves is enough.
5. The watch, until the container runs, fails, or takes too long.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from botpool.engines.base import (
    STOPPED,
    Container,
    ContainerState,
    Observation,
)
from botpool.errors import (
    ContainerMissing,
    EngineRefused,
    ImageMissing,
    NoImage,
)
from botpool.models.assignments import FailedLaunch
from botpool.models.slots import WaitsFor
from botpool.models.storable import storable
from botpool.reconciler.checkpoints import Checkpoint
from botpool.reconciler.containers import bring_up_to_date, create, evidence
from botpool.reconciler.context import NOW, container_of
from botpool.reconciler.environment import environment_of_start
from botpool.reconciler.proof import lost
from botpool.reconciler.pulls import TRIES_IN_VAIN
from botpool.states import BotStatus, FailureCause, SlotStatus

if TYPE_CHECKING:
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context
    from botpool.reconciler.pulls import Pulls

_SAYS_OF_HOST = frozenset({FailureCause.ENGINE, FailureCause.START_TIMEOUT})
"""Failures that may be the host's fault."""


async def deploy(context: Context, pulls: Pulls, slot: Slot) -> float | None:
    """Do what can be done for a deployment now; return in how many seconds to look again."""
    context.reached(Checkpoint.DEPLOY_TAKEN)
    settings = context.settings
    waited = (slot.read_at - slot.last_assigned_at).total_seconds()
    if waited * 1000 >= settings.deployment_limit_ms and await _had_its_time(context, slot):
        await _fail(context, slot, *_late(slot, waited))
        return NOW
    if slot.deployment_started_at is not None and not context.has_host(slot):
        await _give_up(context, slot, f"no replica's settings have its host {slot.host} any more")
        return NOW
    if slot.deployment_started_at is None and (misplaced := context.misplaced(slot)):
        await _fail_launch(context, slot, FailureCause.ENGINE, misplaced, counts=False)
        return NOW
    try:
        if await _left_for_another_host(context, slot):
            return NOW
        return await _deploy(context, pulls, slot)
    except EngineRefused as error:
        # If this replica was paused, the refusal may come from what another replica did meanwhile.
        await context.confirm(slot)
        cause = FailureCause.IMAGE_PULL if isinstance(error, NoImage) else FailureCause.ENGINE
        await _fail(context, await context.store.slots.get(slot.id), cause, str(error))
        return NOW


async def _had_its_time(context: Context, slot: Slot) -> bool:
    """Whether its bot could be heard for as long as a deployment may take."""
    heard = await context.store.listening.heard_for(slot.last_assigned_at)
    return heard.total_seconds() * 1000 >= context.settings.deployment_limit_ms


def _late(slot: Slot, waited: float) -> tuple[FailureCause, str]:
    """The cause and the evidence of a deployment that took too long."""
    reason = f"not running after {waited:.0f} s"
    if slot.deployment:
        reason += f", last status: {slot.deployment}"
    if slot.step_error:
        return FailureCause.ENGINE, f"{reason}, last error: {slot.step_error}"
    no_image = slot.waits_for is WaitsFor.IMAGE
    return FailureCause.IMAGE_PULL if no_image else FailureCause.START_TIMEOUT, reason


async def _left_for_another_host(context: Context, slot: Slot) -> bool:
    """Let a bot leave a host that does not serve it, if another can; return whether it has left.

    That costs a launch, except the first time and if the host is healthy and nothing was started.
    """
    if slot.deployment_ref is not None:
        return False
    unfit = slot.held and await _gets_no_work(context, slot)
    reason = f"its host {slot.host} gets no new work" if unfit else await _in_vain(context, slot)
    if reason is None or not await context.store.hosts.could_serve(slot, any_pull=unfit):
        return False
    bot = await context.store.bots.get(slot.assigned_bot_id or 0)
    may_be_started = slot.deployment_started_at is not None and slot.container_ref is not None
    counts = unfit or may_be_started or bot.avoid_host is not None
    if counts and not context.pool.relaunch.may_relaunch(bot):
        return False
    await _fail_launch(context, slot, FailureCause.ENGINE, reason, counts=counts)
    return True


async def _gets_no_work(context: Context, slot: Slot) -> bool:
    """Whether a slot's host is unhealthy or drained. One that just doesn't answer may be back."""
    return any(
        (host.engine, host.host) == (slot.engine, slot.host)
        and not (host.healthy and host.drained_at is None)
        for host in await context.store.hosts.all()
    )


async def _in_vain(context: Context, slot: Slot) -> str | None:
    """What was tried for a slot on its host too often in vain, if anything."""
    if slot.failed_steps >= TRIES_IN_VAIN and not context.engine(slot).traits.one_api:
        return f"{slot.failed_steps} attempts failed on {slot.host}: {slot.step_error}"
    if slot.waits_for is not WaitsFor.IMAGE:
        return None
    pull = await context.store.pulls.of_slot(slot)
    if pull is None or pull.attempts < TRIES_IN_VAIN:
        return None
    if pull.retry_at is None or pull.retry_at <= slot.read_at:
        return None  # it is tried again
    return f"{pull.attempts} pulls of {slot.image} failed on {slot.host}: {pull.error}"


async def _deploy(context: Context, pulls: Pulls, slot: Slot) -> float | None:
    slot = await bring_up_to_date(context, slot)
    newly_admitted = slot.deployment_started_at is None
    pulls_at_start = context.engine(slot).traits.pulls_at_start
    if pulls_at_start and newly_admitted and slot.container_ref is None:
        # While another one's start brings the image, and it waits for its turn.
        await create(context, slot, slot.creations + 1)
        slot = await context.store.slots.get(slot.id)
    wants_image = newly_admitted if pulls_at_start else slot.container_ref is None
    if wants_image and (wait := await _wait_for_image(context, pulls, slot)):
        return wait
    if newly_admitted and (wait := await _wait_for_turn(context, slot)):
        return wait
    context.reached(Checkpoint.DEPLOY_ADMITTED)
    try:
        return await _bring_up(context, slot, newly_admitted=newly_admitted)
    except ContainerMissing:
        return await _create_again(context, pulls, slot)
    except ImageMissing:
        await pulls.forget_image(slot)
        return context.next_look_at_start(slot)


async def _wait_for_image(context: Context, pulls: Pulls, slot: Slot) -> float:
    """How many seconds to wait for the image. If it is not there, record that, and look again.

    A pull that ends after the recording wakes the slot; the second look sees a pull that ended
    before. If that was the last try in vain, the bot leaves for another host.
    """
    if await pulls.wait_for_image(slot) == NOW:
        return NOW
    await context.pool.assignments.record_deployment(
        slot, slot.deployment_ref, waits_for=WaitsFor.IMAGE
    )
    wait = await pulls.wait_for_image(slot)
    if wait != NOW:
        await _left_for_another_host(context, await context.store.slots.get(slot.id))
    return wait


async def _wait_for_turn(context: Context, slot: Slot) -> float:
    """How many seconds to wait for its turn on the host, or after a launch that failed there.

    A deployment that ends wakes the deployments that wait for their turn.
    """
    settings = context.settings
    wait = await context.store.hosts.admit_deployment(
        slot, settings.admitted_deployments, settings.relaunch_wait_ms
    )
    return context.safety_net if wait is None else wait


async def _bring_up(context: Context, slot: Slot, *, newly_admitted: bool) -> float | None:
    """Start the container unless a replica has already, and see how it does."""
    container = container_of(slot)
    if container is None:
        container = await create(context, slot, slot.creations + 1)
    if newly_admitted and _known_stopped(context, slot):
        slot, _ = await _start(context, slot, container)
        return context.next_look_at_start(slot)
    observation = await context.engine(slot).observe(container, slot.deployment_ref)
    slot = await _note_node(context, slot, observation)
    if newly_admitted and not _may_start(context, slot, observation):
        if observation.state is ContainerState.MISSING:
            raise ContainerMissing(f"{container.ref} is gone.")
        # A late replica or a person has started it, so no bot may get it.
        raise EngineRefused(f"{container.ref} is {observation.state} before botpool started it.")
    if _may_start(context, slot, observation):
        slot, observation = await _start(context, slot, container)
    return await _judge(context, slot, container, observation)


def _known_stopped(context: Context, slot: Slot) -> bool:
    """Whether a slot that was just admitted can be started without a look at its container.

    The database proves that nothing runs in it: a slot gets a bot only when it is idle or new, it
    is idle only when its container was proved stopped, and no replica has started it since, for
    `deployment_started_at` is recorded before a start, so a botpool that was killed in between is
    followed by a look. What nobody can prove is that no person has started it: such a container has
    the old token, so it can't claim the bot, and the start takes its place; while the slot is idle,
    the comparison with the engine finds it. If starts don't bring a new token, we look.
    """
    traits = context.engine(slot).traits
    return traits.metered and traits.environment_at_start


def _may_start(context: Context, slot: Slot, observation: Observation) -> bool:
    """Whether the container was not started for this bot yet, as far as the engine knows."""
    if context.engine(slot).traits.reusable and slot.deployment_ref is None:
        return observation.state in STOPPED - {ContainerState.MISSING}
    return observation.state is ContainerState.CREATED


async def _start(context: Context, slot: Slot, container: Container) -> tuple[Slot, Observation]:
    engine = context.engine(slot)
    environment = await environment_of_start(context, slot)
    context.reached(Checkpoint.START_TOKEN)
    await context.confirm(slot)
    # Nobody calls this without proof.
    deployment_ref = await engine.start(
        container, environment, stopped=True, avoid_node=await _avoided_node(context, slot)
    )
    context.reached(Checkpoint.START_DONE)
    if engine.traits.lags:
        observation = Observation(state=ContainerState.STARTING)
    else:
        observation = await engine.observe(container, deployment_ref)
    if observation.state is not ContainerState.RUNNING or engine.traits.has_nodes:
        await _note_deployment(context, slot, deployment_ref, observation)
    slot = await _note_node(context, slot, observation)
    context.reached(Checkpoint.START_SEEN)
    return (
        replace(slot, deployment_ref=deployment_ref, deployment_started_at=slot.read_at),
        observation,
    )


async def _judge(
    context: Context, slot: Slot, container: Container, observation: Observation
) -> float | None:
    """Act on what the engine says about a started container."""
    if slot.deployment_ref is None and observation.deployment is not None:
        slot = replace(slot, deployment_ref=observation.deployment)  # the start's reply was lost
    match observation.state:
        case ContainerState.RUNNING:
            await context.pool.assignments.advance(
                slot.id,
                slot.lease,
                BotStatus.JOINING_CALL,
                "container runs",
                details={"deployment": slot.deployment_ref},
                heard=False,
            )
            context.reached(Checkpoint.DEPLOY_RUNNING)
            return NOW
        case ContainerState.FAILED:
            cause = FailureCause.IMAGE_PULL if observation.image_failed else FailureCause.ENGINE
            await _fail(context, slot, cause, observation.detail or "failed")
            return NOW
        case ContainerState.MISSING if lost(context, slot, observation):
            # Another one must not be started beside it: nobody knows whether it runs.
            await _fail(
                context, slot, FailureCause.ENGINE, "its container is gone: deleted by somebody"
            )
            return NOW
        case ContainerState.MISSING:
            raise ContainerMissing(f"{container.ref} is gone.")
        case ContainerState.EXITED if not context.in_grace(slot):
            said = await evidence(context, slot, container, observation)
            await _fail(context, slot, FailureCause.CRASHED, said)
            return NOW
    if slot.deployment_ref is not None:
        await _note_deployment(context, slot, slot.deployment_ref, observation)
    return context.next_look_at_start(slot)


async def _note_deployment(
    context: Context, slot: Slot, deployment_ref: str, observation: Observation
) -> None:
    """Record what the engine says of a deployment; on a cluster also why it may last."""
    said: str = observation.state
    if observation.detail and context.engine(slot).traits.has_nodes:
        prefix = "" if observation.image_failed else f"{observation.state}: "
        said = storable(f"{prefix}{observation.detail}")
    await context.pool.assignments.record_deployment(
        slot, deployment_ref, said, waits_for=WaitsFor.IMAGE if observation.image_failed else None
    )


async def _note_node(context: Context, slot: Slot, observation: Observation) -> Slot:
    """The slot, with the node that its container is on recorded."""
    if observation.node is None or observation.node == slot.node:
        return slot
    await context.store.slots.record_node(slot, observation.node)
    return replace(slot, node=observation.node)


async def _avoided_node(context: Context, slot: Slot) -> str | None:
    """The node on which the last launch of the slot's bot failed, if its host has others."""
    if not context.engine(slot).traits.has_nodes:
        return None
    return (await context.store.bots.get(slot.assigned_bot_id or 0)).avoid_node


async def _create_again(context: Context, pulls: Pulls, slot: Slot) -> float | None:
    """Create another container, with another name: the engine has lost the old one."""
    if wait := await _wait_for_image(context, pulls, slot):
        return wait
    try:
        await create(context, slot, (await context.store.slots.get(slot.id)).creations + 1)
    except ImageMissing:
        await pulls.forget_image(slot)
    return context.next_look_at_start(slot)


async def _fail(context: Context, slot: Slot, cause: FailureCause, reason: str) -> None:
    """Record a failed launch, unless its container was heard meanwhile."""
    reason = storable(reason)
    if await _fail_launch(context, slot, cause, reason) and cause in _SAYS_OF_HOST:
        if slot.node is not None:
            return  # it may be the node's fault, and the next launch avoids that
        await context.health.failed(slot, reason)


async def _give_up(context: Context, slot: Slot, reason: str) -> None:
    """Record a launch as failed because of its host, whose trouble is already known."""
    await _fail_launch(context, slot, FailureCause.ENGINE, reason)


async def _fail_launch(
    context: Context, slot: Slot, cause: FailureCause, reason: str, *, counts: bool = True
) -> bool:
    """Record a failed launch. Returns whether the slot was still deploying."""
    failed = FailedLaunch(
        slot_id=slot.id,
        lease=slot.lease,
        cause=cause,
        reason=reason,
        was=SlotStatus.DEPLOYING,
        elsewhere=cause is FailureCause.IMAGE_PULL,
        counts=counts,
    )
    return bool(await context.pool.relaunch.fail_launch(failed))
