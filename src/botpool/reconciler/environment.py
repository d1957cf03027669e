"""What a container gets: its variables, botpool's address, a token of its slot, its bot's data."""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING, NamedTuple

import orjson

from botpool.errors import StaleLease
from botpool.models.assignments import what_a_bot_is_told

if TYPE_CHECKING:
    from botpool.models.slots import Slot
    from botpool.reconciler.context import Context

_LONGEST_DATA = 64 * 1024
_NO_DATA = base64.urlsafe_b64encode(b"{}").decode()


class NewEnvironment(NamedTuple):
    """Variables with a new token. `first`: the slot never had one before."""

    variables: dict[str, str]
    first: bool


async def new_environment(context: Context, slot: Slot) -> NewEnvironment:
    """The variables of the container file, and what a container needs to call botpool.

    Its token is new; the slot's old token is invalid. Raises `StaleLease` if we don't have the slot
    any more.
    """
    token = secrets.token_urlsafe(32)
    first = await context.store.slots.set_token(slot, context.replica, token)
    if first is None:
        raise StaleLease(f"Another replica has {slot.slot_name}.")
    variables = {
        **context.settings.container_options(slot.platform).environment,
        "BOTPOOL_URL": context.settings.runtime_url,
        "BOTPOOL_SLOT_TOKEN": token,
    }
    return NewEnvironment(variables, first)


async def environment_without_bot(context: Context, slot: Slot) -> dict[str, str]:
    """The environment of a start that has no bot, with nothing of the last one in it."""
    traits = context.engine(slot).traits
    if not traits.environment_at_start:
        return {}
    return {"BOT_DATA": _NO_DATA, **(await new_environment(context, slot)).variables}


async def environment_of_start(context: Context, slot: Slot) -> dict[str, str]:
    """The environment that a start adds.

    A container that ran another bot before gets a new token, so that nothing left of that bot can
    claim this one.
    """
    traits = context.engine(slot).traits
    environment = {}
    if traits.environment_at_start:
        bot = await context.store.bots.get(slot.assigned_bot_id or 0)
        told = what_a_bot_is_told(
            bot,
            slot.lease,
            heartbeat_interval_ms=context.settings.heartbeat_interval_ms,
            max_silence_ms=context.settings.max_silence_ms,
        )
        data = base64.urlsafe_b64encode(orjson.dumps(told)).decode()
        # Left out if it is too long for an environment: the claim returns the same.
        if len(data) <= _LONGEST_DATA:
            environment["BOT_DATA"] = data
    made_elsewhere = slot.creations == 0 and slot.container_ref is not None
    if traits.reusable and (traits.environment_at_start or made_elsewhere):
        environment |= (await new_environment(context, slot)).variables
    return environment
