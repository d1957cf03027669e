"""Make the container of a slot."""

from __future__ import annotations

import hashlib
import secrets
from base64 import b32encode
from typing import TYPE_CHECKING

from botpool.engines.base import Container, ContainerSpec
from botpool.errors import StaleLease
from botpool.lookups import token_digest
from botpool.reconciler.points import Point

if TYPE_CHECKING:
    from botpool.models import Slot
    from botpool.reconciler.context import Context


def container_name(installation: str, slot: Slot, number: int) -> str:
    """What the container is called that a slot has as its `number`-th.

    The same for whoever makes it, so that one that was made and not recorded is replaced by the
    next attempt; and never the name of another slot's, nor of one that was lost.
    """
    seed = f"{installation}/{slot.id}/{number}"
    suffix = b32encode(hashlib.sha256(seed.encode()).digest())[:6].decode().lower()
    return f"{slot.slot_name}-{suffix}"


async def new_environment(context: Context, slot: Slot) -> dict[str, str]:
    """What a container needs to call botpool, with a token that is new and the only one that opens.

    Raises `StaleLease` if the slot is not ours any more.
    """
    token, url = secrets.token_urlsafe(32), context.settings.runtime_url
    if not await context.store.set_slot_token(slot, context.replica, token_digest(token), url):
        raise StaleLease(f"{slot.slot_name} is somebody else's.")
    return {"BOTPOOL_URL": url, "BOTPOOL_SLOT_TOKEN": token}


async def create(context: Context, slot: Slot, number: int) -> Container:
    """Make the `number`-th container of a slot, with a token of its own, and record it.

    One that was made under this number before, and doesn't run, is replaced. Raises `ImageMissing`,
    and `StaleLease` if the slot is not ours any more.
    """
    if slot.host is None:
        raise ValueError(f"{slot.slot_name} has no host")
    environment = await new_environment(context, slot)
    context.reached(Point.CREATE_TOKEN)
    ref = await context.engine(slot).create(
        ContainerSpec(
            host=slot.host,
            name=container_name(context.installation, slot, number),
            slot_id=slot.id,
            slot_name=slot.slot_name,
            image=slot.image,
            environment=environment,
        )
    )
    context.reached(Point.CREATE_DONE)
    await context.pool.record_container(slot.id, slot.lease, ref, host=slot.host, attempt=number)
    context.reached(Point.CREATE_RECORDED)
    return Container(slot.host, ref)
