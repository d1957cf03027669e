"""The slots, and the page of one: what it does, what happened to it, and what can be done."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from botpool.api.auth import TheAdmin
from botpool.api.dependencies import ThePool, TheStore
from botpool.api.waiting import surroundings
from botpool.dashboard.page import PageRoute, back, page
from botpool.models.slots import Slot
from botpool.models.waiting import slot_waits_for
from botpool.states import SlotStatus

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_A_PAGE = 100
_MOST_EVENTS = 100
_MOST_EVENT_BYTES = 2**18
_LARGEST = 2**63 - 1

SlotId = Annotated[int, Path(ge=0, le=_LARGEST)]
Status = Literal["", "idle", "deploying", "busy", "releasing", "error"]
PlatformOrAll = Literal["", "google-meet", "microsoft-teams", "zoom"]
Sort = Annotated[str, Query(pattern="^-?(name|status|host|used|attempts|age)$")]

_ORDERS: dict[str, Callable[[Slot], Any]] = {
    "name": lambda slot: (slot.platform, slot.number),
    "status": lambda slot: ([*SlotStatus].index(slot.status), slot.platform, slot.number),
    "host": lambda slot: (slot.host or "", slot.platform, slot.number),
    "used": lambda slot: (slot.last_used_at, slot.id),
    "attempts": lambda slot: (slot.recovery_attempts, slot.id),
    "age": lambda slot: (slot.created_at, slot.id),
}


@router.get("/slots")
async def show_all(
    request: Request,
    caller: TheAdmin,
    store: TheStore,
    q: Annotated[str, Query(max_length=200)] = "",
    status: Status = "",
    platform: PlatformOrAll = "",
    host: Annotated[str, Query(max_length=255)] = "",
    sort: Sort = "name",
    start: Annotated[int, Query(ge=0, le=100_000)] = 0,
) -> HTMLResponse:
    """The slots that match, a page of them."""
    now, slots = await asyncio.gather(store.installation.now(), store.slots.all())
    text = q.strip().casefold()
    found = sorted(
        (
            slot
            for slot in slots
            if status in {"", slot.status}
            and platform in {"", slot.platform}
            and host in {"", slot.host}
            and text in _text(slot)
        ),
        key=_ORDERS[sort.removeprefix("-")],
        reverse=sort.startswith("-"),
    )
    shown = found[start : start + _A_PAGE]
    around = await surroundings(store, shown)
    filters = {"q": q, "status": status, "platform": platform, "host": host}
    kept = {name: chosen for name, chosen in filters.items() if chosen}
    more = start + _A_PAGE < len(found)
    return page(
        request,
        "slots.html",
        caller,
        now,
        rows=[(slot, slot_waits_for(slot, around)) for slot in shown],
        found=len(found),
        total=len(slots),
        hosts=sorted({slot.host for slot in slots if slot.host}),
        filters=filters,
        kept=kept,
        sort=sort,
        following=f"/slots?{urlencode({**kept, 'sort': sort, 'start': start + _A_PAGE})}"
        if more
        else None,
        first=not start,
    )


def _text(slot: Slot) -> str:
    words = (slot.slot_name, slot.container_ref, slot.image, slot.error_message)
    bot = "" if slot.assigned_bot_id is None else f"bot {slot.assigned_bot_id}"
    return " ".join(filter(None, (*words, bot))).casefold()


@router.get("/slots/{slot_id}")
async def show(
    request: Request, slot_id: SlotId, caller: TheAdmin, store: TheStore
) -> HTMLResponse:
    """One slot, and its history."""
    slot = await store.slots.get(slot_id)
    now, around, container, events = await asyncio.gather(
        store.installation.now(),
        surroundings(store, [slot]),
        store.bots.container_facts_of_slot(slot),
        store.events.of_slot(slot_id, _LARGEST, _MOST_EVENTS, _MOST_EVENT_BYTES),
    )
    return page(
        request,
        "slot.html",
        caller,
        now,
        slot=slot,
        container=container,
        waiting=slot_waits_for(slot, around),
        events=[(datetime.fromisoformat(each.timestamp), each) for each in events.events],
        more_events=events.last is not None,
    )


@router.post("/slots/{slot_id}/recover")
async def recover(slot_id: SlotId, _: TheAdmin, pool: ThePool, store: TheStore) -> RedirectResponse:
    """Have a slot in `error` repaired: a worker does it."""
    slot = await store.slots.get(slot_id)
    await pool.slots.retry(slot_id)
    return back(f"/slots/{slot_id}", f"A worker recovers {slot.slot_name} now.")


@router.post("/slots/{slot_id}/drain")
async def drain(slot_id: SlotId, _: TheAdmin, pool: ThePool, store: TheStore) -> RedirectResponse:
    """Give a slot no further bot."""
    slot = await store.slots.get(slot_id)
    await pool.slots.drain(slot_id)
    gone = await store.slots.find(slot_id) is None
    to = "/slots" if gone else f"/slots/{slot_id}"
    return back(to, f"{slot.slot_name} gets no further bot, and is deleted once it has none.")


@router.post("/slots/{slot_id}/compare")
async def compare(slot_id: SlotId, _: TheAdmin, pool: ThePool) -> RedirectResponse:
    """Have a slot compared with what its engine says: a worker asks it."""
    await pool.slots.ask_comparison(slot_id)
    return back(f"/slots/{slot_id}", "A worker asks the engine.")


@router.post("/slots/{slot_id}/delete")
async def delete(slot_id: SlotId, _: TheAdmin, pool: ThePool, store: TheStore) -> RedirectResponse:
    """Delete a slot that has no bot."""
    slot = await store.slots.get(slot_id)
    await pool.slots.remove(slot_id)
    if await store.slots.find(slot_id) is None:
        return back("/slots", f"{slot.slot_name} is deleted.")
    return back(f"/slots/{slot_id}", f"{slot.slot_name} is deleted once its container is stopped.")
