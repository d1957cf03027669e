"""What a container calls, with the token of its slot, from its claim to its bot's end.

A call on behalf of an assignment that is over is answered with 410, code `assignment_ended`, and
action `exit`: the container has nothing to do but to wait until it is stopped.
"""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from botpool.api.dependencies import ThePool, TheSettings
from botpool.api.errors import documented
from botpool.api.wire import (
    Claimed,
    ClaimRequest,
    EventsRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    LogsRequest,
    StatusRequest,
)
from botpool.errors import InvalidRequest, SlotNotFound, StaleLease, Unauthorized
from botpool.models import Slot
from botpool.states import BotStatus

router = APIRouter(
    prefix="/api/v1/runtime",
    tags=["runtime"],
    responses=documented(Unauthorized, StaleLease, InvalidRequest),
)

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="slotToken",
    description="What botpool puts into a container's environment as `BOTPOOL_SLOT_TOKEN`.",
)


async def calling_slot(
    pool: ThePool, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> AsyncIterator[Slot]:
    """The slot whose token the caller has. Raises `Unauthorized`."""
    slot = await pool.slot_of_token(credentials.credentials) if credentials else None
    if slot is None:
        raise Unauthorized("The request has no token of a slot.")
    try:
        yield slot
    except SlotNotFound as error:
        # Deleted since we looked: its last assignment is as much over as any other.
        raise StaleLease(str(error)) from error


TheSlot = Annotated[Slot, Depends(calling_slot)]


@router.post("/claim")
async def claim(_: ClaimRequest, slot: TheSlot, pool: ThePool, settings: TheSettings) -> Claimed:
    """Fetch the bot that this container is to be. A container that came back gets it again."""
    bot = await pool.claim(slot)
    return Claimed(
        bot_id=bot.id,
        lease=slot.lease,
        correlation_id=bot.correlation_id,
        meeting_url=bot.meeting_url,
        bot_display_name=bot.bot_display_name,
        platform=bot.platform,
        config=bot.config,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
    )


@router.post("/heartbeat")
async def heartbeat(
    request: HeartbeatRequest, slot: TheSlot, pool: ThePool, settings: TheSettings
) -> HeartbeatAnswer:
    """Tell that the bot lives, and hear whether it is to leave its call."""
    found = await pool.heartbeat(slot.id, request.lease)
    return HeartbeatAnswer(
        action="leave" if found.bot_status is BotStatus.LEAVING else "continue",
        log_level=settings.log_level,
    )


@router.post("/status", status_code=204)
async def status(request: StatusRequest, slot: TheSlot, pool: ThePool) -> None:
    """Tell how far the bot has come. What is no step forward changes nothing."""
    reason = request.reason or "the bot says so"
    await pool.advance(slot.id, request.lease, request.status, reason, cause=request.cause)


@router.post("/events", status_code=204)
async def events(request: EventsRequest, slot: TheSlot, pool: ThePool) -> None:
    """Tell what happens in the call: who came, what was written. The newest 5,000 are kept."""
    told = [(event.type, event.data) for event in request.events]
    await pool.add_events(slot.id, request.lease, told)


@router.post("/logs", status_code=204)
async def logs(request: LogsRequest, slot: TheSlot, pool: ThePool) -> None:
    """Send log lines. The newest 5,000 are kept."""
    lines = [(line.level, line.line) for line in request.lines]
    await pool.add_log_lines(slot.id, request.lease, lines)
