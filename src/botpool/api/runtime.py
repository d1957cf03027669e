"""The calls that a container makes, with its slot's token, from its claim to its bot's end.

A call for an assignment that is over is answered with 410, code `assignment_ended` and action
`exit`: the container only has to wait until it is stopped.
"""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from botpool.api.auth import count_wrong_key
from botpool.api.connections import caller_is_known
from botpool.api.dependencies import TheMetrics, ThePool, TheSettings, store_of
from botpool.api.errors import documented
from botpool.api.routes import GuardedRoute
from botpool.api.wire import (
    Claimed,
    ClaimRequest,
    EventsRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    LogsRequest,
    StatusRequest,
)
from botpool.errors import (
    InvalidRequest,
    SlotNotFound,
    StaleLease,
    Unauthorized,
)
from botpool.feed.orders import Orders
from botpool.models.assignments import Heartbeat, what_a_bot_is_told
from botpool.models.slots import Slot
from botpool.settings import Settings
from botpool.states import BotStatus

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="slotToken",
    description="A slot's token. Its container has it in the variable `BOTPOOL_SLOT_TOKEN`.",
)


async def identify(request: Request) -> Slot:
    """The slot that the caller's token belongs to. Raises `Unauthorized`."""
    found: Slot | None = getattr(request.state, "slot", None)
    if found is not None:
        return found
    store = await store_of(request)
    credentials = await _bearer(request)
    slot = await store.slots.of_token(credentials.credentials) if credentials else None
    if slot is None:
        if credentials is not None:
            count_wrong_key(request)
        raise Unauthorized("The request has no valid slot token.")
    caller_is_known(request)
    request.state.slot = slot
    return slot


class SlotRoute(GuardedRoute):
    """A route for containers."""

    async def identify(self, request: Request) -> None:
        """Raise what `identify` raises."""
        await identify(request)


router = APIRouter(
    prefix="/api/v1/runtime",
    tags=["runtime"],
    route_class=SlotRoute,
    responses=documented(Unauthorized, StaleLease, InvalidRequest),
)


async def calling_slot(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> AsyncIterator[Slot]:
    """The slot that the caller's token belongs to. Raises `Unauthorized`."""
    slot = await identify(request)
    try:
        yield slot
    except SlotNotFound as error:
        # The slot was deleted since we looked, so its last assignment is over, too.
        raise StaleLease(str(error)) from error


TheSlot = Annotated[Slot, Depends(calling_slot)]


async def orders_of(request: Request) -> Orders:
    """The orders that the app was made with."""
    orders: Orders = request.app.state.orders
    return orders


TheOrders = Annotated[Orders, Depends(orders_of)]


@router.post("/claim")
async def claim_bot(
    _: ClaimRequest, slot: TheSlot, pool: ThePool, settings: TheSettings
) -> Claimed:
    """Fetch the bot that this container runs. A container that restarts gets the same bot again."""
    bot = await pool.assignments.claim(slot)
    told = what_a_bot_is_told(
        bot,
        slot.lease,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        max_silence_ms=settings.max_silence_ms,
    )
    return Claimed.model_validate(told)


@router.post("/heartbeat")
async def send_heartbeat(
    request: HeartbeatRequest,
    slot: TheSlot,
    pool: ThePool,
    settings: TheSettings,
    metrics: TheMetrics,
) -> HeartbeatAnswer:
    """Report that the bot is alive. The answer says whether it should leave its call."""
    found = await pool.assignments.heartbeat(slot.id, request.lease)
    metrics.heard()
    return _answer(found, settings)


def _answer(found: Heartbeat, settings: Settings) -> HeartbeatAnswer:
    return HeartbeatAnswer(
        action="leave" if found.bot_status is BotStatus.LEAVING else "continue",
        log_level=settings.log_level,
    )


@router.post("/wait")
async def wait_for_order(
    request: HeartbeatRequest,
    slot: TheSlot,
    pool: ThePool,
    settings: TheSettings,
    orders: TheOrders,
    metrics: TheMetrics,
) -> HeartbeatAnswer:
    """Wait for an order to leave: the answer of a heartbeat comes with it, or after 25 seconds.

    It is a heartbeat, too. Ask again as soon as it has answered.
    """
    with orders.expected((slot.id, request.lease)) as expected:
        # Looked at after the wait has begun: an order between the two is not missed.
        found = await pool.assignments.heartbeat(slot.id, request.lease)
        metrics.heard()
        if found.bot_status is not BotStatus.LEAVING:
            await expected.wait()
            found = await pool.assignments.heartbeat(slot.id, request.lease)
            metrics.heard()
    return _answer(found, settings)


@router.post("/status", status_code=204)
async def report_status(request: StatusRequest, slot: TheSlot, pool: ThePool) -> None:
    """Report how far the bot has come. A status that is not a step forward changes nothing."""
    reason = request.reason or "the bot says so"
    await pool.assignments.advance(
        slot.id, request.lease, request.status, reason, cause=request.cause
    )


@router.post("/events", status_code=204)
async def report_events(request: EventsRequest, slot: TheSlot, pool: ThePool) -> None:
    """Report what happens in the call, such as a participant who joins or a chat message.

    The newest 5,000 events are kept.
    """
    told = [(event.type, event.data) for event in request.events]
    await pool.assignments.add_events(slot.id, request.lease, told)


@router.post("/logs", status_code=204)
async def send_logs(request: LogsRequest, slot: TheSlot, pool: ThePool) -> None:
    """Send log lines. The newest 5,000 lines are kept."""
    lines = [(line.level, line.line) for line in request.lines]
    await pool.assignments.add_log_lines(slot.id, request.lease, lines)
