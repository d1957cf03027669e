"""Bring up the container of a slot that is deploying.

Everything that was done is in the database or at the engine, so each look at the slot begins where
the last one, of whichever replica, came to:

1. a host, of those that are open the one with the fewest slots;
2. the image, unless the container is there already: whoever made that had the image. Where a start
   brings it, the first deployment on a host goes on alone, and the others wait for it;
3. room on the host, after a rest if the bot has failed there; recorded as `deployment_started_at`
   before the container is started;
4. the container, made if there is none, and made again if the engine has lost it;
5. the start. If an earlier look may have called it, the engine is asked first;
6. the watch, until it runs, fails, or takes too long.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from botpool.engines.base import STOPPED, Container, ContainerState, Observation
from botpool.errors import ContainerMissing, EngineRefused, ImageMissing, NoImage, StaleLease
from botpool.models import RESTS, WAITS_FOR_HOST, WAITS_FOR_IMAGE, WAITS_FOR_ROOM
from botpool.reconciler.context import NOW, container_of
from botpool.reconciler.create import create, new_environment
from botpool.reconciler.evidence import evidence
from botpool.reconciler.points import Point
from botpool.reconciler.release import give_up_outdated
from botpool.states import BotStatus, FailureCause, SlotStatus
from botpool.texts import storable

if TYPE_CHECKING:
    from botpool.models import Bot, Slot
    from botpool.reconciler.context import Context
    from botpool.reconciler.pulls import Pulls

_LONGEST_REASON = 4000
_LONGEST_DATA = 64 * 1024
_SAYS_OF_HOST = frozenset({FailureCause.ENGINE, FailureCause.START_TIMEOUT})
"""Failures that may well be the host's fault."""


async def deploy(context: Context, pulls: Pulls, slot: Slot) -> float | None:
    """Do what can be done for a deployment now, and say in how many seconds to look again."""
    context.reached(Point.DEPLOY_TAKEN)
    settings = context.settings
    waited = (slot.read_at - slot.last_assigned_at).total_seconds()
    if waited * 1000 >= settings.deploy_timeout_ms and await _had_its_time(context, slot):
        await _fail(context, slot, *_late(slot, waited))
        return NOW
    if slot.deployment_started_at is not None and not context.has_host(slot):
        await _give_up(context, slot, f"nobody has its host {slot.host} any more")
        return NOW
    if await _better_elsewhere(context, slot):
        await _give_up(context, slot, f"its host {slot.host} is ill")
        return NOW
    try:
        return await _deploy(context, pulls, slot)
    except EngineRefused as error:
        # What is refused to one who was paused may well be right for those who went on.
        await context.confirm(slot)
        cause = FailureCause.IMAGE_PULL if isinstance(error, NoImage) else FailureCause.ENGINE
        await _fail(context, await context.pool.get_slot(slot.id), cause, str(error))
        return NOW


async def _had_its_time(context: Context, slot: Slot) -> bool:
    """Whether there was somebody to hear its bot for as long as a deployment may take."""
    heard = await context.store.heard_for(slot.last_assigned_at)
    return heard.total_seconds() * 1000 >= context.settings.deploy_timeout_ms


def _late(slot: Slot, waited: float) -> tuple[FailureCause, str]:
    """Why a deployment took too long, and the evidence."""
    reason = f"not running after {waited:.0f} s"
    if slot.deployment_status:
        reason += f", last status: {slot.deployment_status}"
    if slot.step_error:
        return FailureCause.ENGINE, f"{reason}, last error: {slot.step_error}"
    no_image = slot.deployment_status == WAITS_FOR_IMAGE
    return FailureCause.IMAGE_PULL if no_image else FailureCause.START_TIMEOUT, reason


async def _better_elsewhere(context: Context, slot: Slot) -> bool:
    """Whether a bot that may go elsewhere waits for a host that is ill."""
    if not slot.held or slot.deployment_ref is not None:
        return False
    bot = await context.pool.get_bot(slot.assigned_bot_id or 0)
    if not context.may_launch_again(bot):
        return False
    known = await context.store.list_hosts()
    ill = {host.host for host in known if host.engine == slot.engine and host.ill_since}
    return any(host not in ill for host in await context.engine(slot).open_hosts())


async def _deploy(context: Context, pulls: Pulls, slot: Slot) -> float | None:
    slot = await _placed(context, await give_up_outdated(context, slot))
    if slot.host is None:
        await context.pool.record_deployment(slot.id, slot.lease, None, WAITS_FOR_HOST)
        return context.safety_net
    newly_admitted = slot.deployment_started_at is None
    pulls_at_start = context.engine(slot).traits.pulls_at_start
    wants_image = newly_admitted if pulls_at_start else slot.container_ref is None
    if wants_image and (wait := await _wait_for_image(context, pulls, slot)):
        return wait
    if newly_admitted and (wait := await _wait_for_room(context, slot)):
        return wait
    context.reached(Point.DEPLOY_ADMITTED)
    try:
        return await _bring_up(context, slot, newly_admitted=newly_admitted)
    except ContainerMissing:
        return await _create_again(context, pulls, slot)
    except ImageMissing:
        await pulls.forget_image(slot)
        return _next_look(context, slot)


async def _wait_for_image(context: Context, pulls: Pulls, slot: Slot) -> float:
    """How many seconds to wait for the image. If it is not there, record so, and look again.

    Who brings it after the record wakes the slot; what came before is seen by the second look.
    """
    if await pulls.wait_for_image(slot) == NOW:
        return NOW
    await context.pool.record_deployment(slot.id, slot.lease, slot.deployment_ref, WAITS_FOR_IMAGE)
    return await pulls.wait_for_image(slot)


async def _wait_for_room(context: Context, slot: Slot) -> float:
    """How many seconds to wait for room on the host, or after a launch that failed there.

    Who leaves the host wakes those who wait for room.
    """
    settings = context.settings
    wait = await context.store.admit_deployment(
        *(slot, settings.max_concurrent_deployments, settings.relaunch_wait_ms),
        waiting=WAITS_FOR_ROOM,
        resting=RESTS,
    )
    return context.safety_net if wait is None else wait


async def _placed(context: Context, slot: Slot) -> Slot:
    """The slot on a host, if one is open and has room."""
    if slot.host is not None:
        return slot
    hosts = await context.engine(slot).open_hosts()
    placed = await context.store.place_slot(slot, hosts, context.settings.max_slots_per_host)
    if placed is None:
        raise StaleLease(f"Lease {slot.lease} of {slot.slot_name} is over.")
    context.reached(Point.DEPLOY_PLACED)
    return placed


async def _bring_up(context: Context, slot: Slot, *, newly_admitted: bool) -> float | None:
    """Start the container if nobody has yet, and see how it does."""
    container = container_of(slot)
    if container is None:
        container = await create(context, slot, slot.creations + 1)
    observation = await context.engine(slot).observe(container, slot.deployment_ref)
    if newly_admitted and not _may_start(context, slot, observation):
        if observation.state is ContainerState.MISSING:
            raise ContainerMissing(f"{container.ref} is gone.")
        # Somebody was late, or somebody else: it is not what a bot may be given.
        raise EngineRefused(f"{container.ref} is {observation.state} before it was started.")
    if _may_start(context, slot, observation):
        slot, observation = await _start(context, slot, container)
    return await _judge(context, slot, container, observation)


def _may_start(context: Context, slot: Slot, observation: Observation) -> bool:
    """Whether the container was not started for this bot yet, as far as anybody can tell."""
    if context.engine(slot).traits.reusable and slot.deployment_ref is None:
        return observation.state in STOPPED - {ContainerState.MISSING}
    return observation.state is ContainerState.CREATED


async def _start(context: Context, slot: Slot, container: Container) -> tuple[Slot, Observation]:
    engine = context.engine(slot)
    environment = await _environment(context, slot)
    context.reached(Point.START_TOKEN)
    await context.confirm(slot)
    deployment_ref = await engine.start(container, environment)
    context.reached(Point.START_DONE)
    if engine.traits.lags:
        observation = Observation(state=ContainerState.STARTING)
    else:
        observation = await engine.observe(container, deployment_ref)
    if observation.state is not ContainerState.RUNNING:
        await context.pool.record_deployment(slot.id, slot.lease, deployment_ref, observation.state)
    context.reached(Point.START_SEEN)
    return (
        replace(slot, deployment_ref=deployment_ref, deployment_started_at=slot.read_at),
        observation,
    )


async def _environment(context: Context, slot: Slot) -> dict[str, str]:
    """What a container is told at its start.

    One that served another bot before gets a token of its own, so that nothing which is left of
    that bot can ask for this one.
    """
    traits = context.engine(slot).traits
    environment = {}
    if traits.environment_at_start:
        data = bot_data(context, slot, await context.pool.get_bot(slot.assigned_bot_id or 0))
        # What is too long for an environment is left out: the claim brings the same.
        if len(data) <= _LONGEST_DATA:
            environment["BOT_DATA"] = data
    made_elsewhere = slot.creations == 0 and slot.container_ref is not None
    if traits.reusable and (traits.environment_at_start or made_elsewhere):
        environment |= await new_environment(context, slot)
    return environment


async def _judge(
    context: Context, slot: Slot, container: Container, observation: Observation
) -> float | None:
    """What follows from what the engine says of a container that was started."""
    if slot.deployment_ref is None and observation.deployment is not None:
        slot = replace(slot, deployment_ref=observation.deployment)  # our start's reply was lost
    match observation.state:
        case ContainerState.RUNNING:
            await context.pool.advance(
                slot.id,
                slot.lease,
                BotStatus.JOINING_CALL,
                "container runs",
                details={"deployment": slot.deployment_ref},
                heard=False,
            )
            await context.note_success(slot)
            context.reached(Point.DEPLOY_RUNNING)
            return NOW
        case ContainerState.FAILED:
            await _fail(context, slot, FailureCause.ENGINE, observation.detail or "failed")
            return NOW
        case ContainerState.MISSING:
            raise ContainerMissing(f"{container.ref} is gone.")
        case ContainerState.EXITED if not _in_grace(context, slot):
            said = await evidence(context, slot, container, observation)
            await _fail(context, slot, FailureCause.CRASHED, said)
            return NOW
    if slot.deployment_ref is not None:
        await context.pool.record_deployment(
            slot.id, slot.lease, slot.deployment_ref, observation.state
        )
    return _next_look(context, slot)


def _in_grace(context: Context, slot: Slot) -> bool:
    """Whether an exit that the engine tells of may be of before the start."""
    started = slot.deployment_started_at or slot.read_at
    age_ms = (slot.read_at - started).total_seconds() * 1000
    return context.engine(slot).traits.lags and age_ms < context.settings.deploy_grace_ms


def _next_look(context: Context, slot: Slot) -> float:
    started = slot.deployment_started_at or slot.read_at
    return context.next_look((slot.read_at - started).total_seconds())


async def _create_again(context: Context, pulls: Pulls, slot: Slot) -> float | None:
    """The engine has lost the container: make another one, under another name."""
    if wait := await _wait_for_image(context, pulls, slot):
        return wait
    try:
        await create(context, slot, (await context.pool.get_slot(slot.id)).creations + 1)
    except ImageMissing:
        await pulls.forget_image(slot)
    return _next_look(context, slot)


async def _fail(context: Context, slot: Slot, cause: FailureCause, reason: str) -> None:
    """Let a launch have failed, unless its container was heard meanwhile."""
    reason = storable(reason, _LONGEST_REASON)
    was = SlotStatus.DEPLOYING
    failed = await context.pool.mark_error(slot.id, slot.lease, cause, reason, was=was)
    if failed and cause in _SAYS_OF_HOST:
        await context.note_failure(slot, reason)


async def _give_up(context: Context, slot: Slot, reason: str) -> None:
    """Let a launch have failed for what is known of its host already."""
    was = SlotStatus.DEPLOYING
    await context.pool.mark_error(slot.id, slot.lease, FailureCause.ENGINE, reason, was=was)


def bot_data(context: Context, slot: Slot, bot: Bot) -> str:
    """What a container is told of its bot through its environment: what its claim would answer."""
    data = {
        "botId": bot.id,
        "lease": slot.lease,
        "correlationId": bot.correlation_id,
        "meetingUrl": bot.meeting_url,
        "botDisplayName": bot.bot_display_name,
        "platform": bot.platform,
        "config": bot.config,
        "heartbeatIntervalMs": context.settings.heartbeat_interval_ms,
    }
    return base64.urlsafe_b64encode(orjson.dumps(data)).decode()
