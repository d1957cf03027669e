"""The container of a slot: what it is called, how it is made, and how it ended."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
import structlog

from botpool.engines.base import Container, ContainerSpec
from botpool.errors import EngineError, EngineRefused, ImageMissing, NoImage
from botpool.models.storable import storable
from botpool.reconciler.checkpoints import Checkpoint
from botpool.reconciler.context import container_of
from botpool.reconciler.environment import new_environment

if TYPE_CHECKING:
    from botpool.engines.base import Observation
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

_LAST_LINES = 5
_DIGEST = hashlib.sha256().digest_size


def container_name(installation: str, slot: Slot, number: int) -> str:
    """The name of a slot's `number`-th container.

    Every replica uses the same name, so a container that was created but not recorded is replaced
    by the next attempt. No other slot's container has this name, nor an earlier one of this slot.
    """
    seed = f"{installation}/{slot.id}/{number}"
    suffix = base64.b32encode(hashlib.sha256(seed.encode()).digest())[:6].decode().lower()
    return f"{slot.slot_name}-{suffix}"


def spec_digest(context: Context, slot: Slot) -> bytes:
    """A digest of what a container of this slot is made with now: all but its token and its bot.

    Secrets are in it, so it is all that is kept of them. If the engine can make containers in
    several places, a digest of the place follows.
    """
    options = context.settings.container_options(slot.platform)
    traits = context.engine(slot).traits
    told_at_start = traits.reusable and traits.environment_at_start
    made_with: dict[str, object] = {
        "image": slot.image,
        "url": None if told_at_start else context.settings.runtime_url,
        "environment": options.environment,
        # Without defaults, so that a new option changes nothing for those who don't use it.
        "docker": options.docker.model_dump(mode="json", exclude_defaults=True),
    }
    if options.kubernetes.pod_template is not None:
        made_with["kubernetes"] = options.kubernetes.pod_template
    if traits.made_with:
        made_with["engine"] = traits.made_with
    place = hashlib.sha256(traits.place.encode()).digest() if traits.place else b""
    return hashlib.sha256(orjson.dumps(made_with, option=orjson.OPT_SORT_KEYS)).digest() + place


async def create(context: Context, slot: Slot, number: int, *, remade: bool = False) -> Container:
    """Create the `number`-th container of a slot, with a new token, and record it.

    It replaces a stopped container that was created with the same number before. `remade`: launches
    failed on the last one. Raises `ImageMissing`, and `StaleLease` if we don't have the slot any
    more.
    """
    if slot.host is None:
        raise ValueError(f"{slot.slot_name} has no host")
    environment, first = await new_environment(context, slot)
    context.reached(Checkpoint.CREATE_TOKEN)
    spec = _spec(context, slot, slot.host, number)
    ref = await context.engine(slot).create(replace(spec, environment=environment, first=first))
    context.reached(Checkpoint.CREATE_DONE)
    await context.pool.slots.record_container(
        slot.id,
        slot.lease,
        ref,
        host=slot.host,
        attempt=number,
        spec_digest=spec_digest(context, slot),
        remade=remade,
    )
    context.reached(Checkpoint.CREATE_RECORDED)
    return Container(slot.host, ref)


def _spec(context: Context, slot: Slot, host: str, number: int) -> ContainerSpec:
    return ContainerSpec(
        host=host,
        name=container_name(context.installation, slot, number),
        slot_id=slot.id,
        slot_name=slot.slot_name,
        platform=slot.platform,
        image=slot.image,
        environment={},
    )


async def create_if_image(context: Context, slot: Slot, *, remade: bool = False) -> bool:
    """Create the next container of a slot without a bot; return whether its image is there.

    If it isn't, a pull or the next deployment brings the image, and the container is created then.
    """
    try:
        await create(context, slot, slot.creations + 1, remade=remade)
    except (ImageMissing, NoImage):
        return False
    return True


async def bring_up_to_date(context: Context, slot: Slot) -> Slot:
    """Adapt a slot to the settings, so that its next bot gets a container as they say now.

    A stopped container that was made with anything else is changed if the engine can do that, and
    otherwise removed; a container that is being started is left alone.
    """
    image = context.settings.image(slot.platform)
    current = slot.image == image and not _made_otherwise(context, slot)
    if current or (slot.deployment_started_at is not None and slot.assigned_bot_id is not None):
        return slot
    if (container := container_of(slot)) is not None:
        if (adapted := await _adapted(context, slot, container, image)) is not None:
            return adapted
        await context.engine(slot).remove(container)
    return await context.pool.slots.give_up_container(
        slot, image, f"container removed: {_what_changed(slot, image)}"
    )


def _what_changed(slot: Slot, image: str | None) -> str:
    """What is new in the settings for a slot."""
    return "other settings of containers" if slot.image == image else f"its image is {image} now"


async def _adapted(
    context: Context, slot: Slot, container: Container, image: str | None
) -> Slot | None:
    """The slot with its container changed to this image and the settings; None if it can't be."""
    traits = context.engine(slot).traits
    now = spec_digest(context, replace(slot, image=image))
    moved = slot.spec_digest is not None and slot.spec_digest[_DIGEST:] not in {b"", now[_DIGEST:]}
    if not traits.adaptable or moved:
        return None
    spec = _spec(context, replace(slot, image=image), container.host, slot.creations)
    await context.confirm(slot)
    try:
        await context.engine(slot).create(replace(spec, ref=container.ref))
    except EngineRefused as error:
        _log.info(
            "a container can't be changed, so it is made anew",
            slot_name=slot.slot_name,
            container_ref=container.ref,
            error=str(error),
        )
        return None
    return await context.pool.slots.adapt_container(
        slot, image, now, f"container changed: {_what_changed(slot, image)}"
    )


def _made_otherwise(context: Context, slot: Slot) -> bool:
    """Whether the slot has a container of ours that was made with something else.

    What another pool has made is kept as it is. It gets its variables at each start.
    """
    if slot.container_ref is None or slot.creations == 0:
        return False
    return slot.spec_digest != spec_digest(context, slot)


async def evidence(
    context: Context, slot: Slot, container: Container, observation: Observation
) -> str:
    """The state of a container, its deployment, and the last lines that it wrote."""
    code = "" if observation.exit_code is None else f" with code {observation.exit_code}"
    detail = f" ({observation.detail})" if observation.detail else ""
    deployment = f", deployment {slot.deployment_ref}" if slot.deployment_ref else ""
    try:
        lines = await context.engine(slot).logs(container, _LAST_LINES)
    except EngineError as error:
        lines = [f"(no logs: {error})"]
    said = "; its last lines:\n" + "\n".join(lines) if lines else ""
    return storable(f"container {observation.state}{code}{detail}{deployment}{said}")
