"""Pools, slots, hosts and the queue, for operators."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from botpool.api.auth import KeyRoute, TheAdmin
from botpool.api.bots import shown
from botpool.api.dependencies import ThePool, TheStore
from botpool.api.errors import documented
from botpool.api.events import MOST_BYTES, Timeline
from botpool.api.paging import Cursor, Limit, page_of, place_of, whole_number
from botpool.api.shapes import (
    BotOut,
    HostList,
    HostOut,
    PoolList,
    PoolNumbersOut,
    QueueEntryOut,
    QueueList,
    ReplicaList,
    ReplicaOut,
    SlotList,
    SlotOut,
)
from botpool.api.waiting import surroundings
from botpool.api.wire import PlatformName, Text
from botpool.errors import (
    BotNotFound,
    Forbidden,
    HostNotFound,
    InvalidCursor,
    InvalidRequest,
    SlotNotFound,
    TooManyRequests,
    Unauthorized,
)
from botpool.models.queue import QueuePage
from botpool.models.slots import SlotPage
from botpool.models.waiting import slot_waits_for
from botpool.states import Platform, SlotStatus
from botpool.store import Store

router = APIRouter(
    prefix="/api/v1",
    tags=["pool"],
    route_class=KeyRoute,
    responses=documented(Unauthorized, Forbidden, TooManyRequests),
)

_LARGEST = 2**63 - 1

SlotId = Annotated[int, Path(alias="slotId", ge=0, le=_LARGEST)]
HostName = Annotated[str, Path(max_length=255)]


@router.get("/pool")
async def get_pool(_: TheAdmin, store: TheStore) -> PoolList:
    """Count the slots of each platform by status, and the bots that wait, and list every host."""
    return PoolList(
        platforms=[PoolNumbersOut.of(row) for row in await store.pools.numbers()],
        hosts=await _hosts(store),
    )


@router.get("/slots", responses=documented(InvalidRequest, InvalidCursor))
async def list_slots(
    _: TheAdmin,
    store: TheStore,
    platform: PlatformName | None = None,
    status: Annotated[list[SlotStatus] | None, Query()] = None,
    slot_name: Annotated[Text | None, Query(alias="slotName")] = None,
    container_ref: Annotated[Text | None, Query(alias="containerRef")] = None,
    assigned_bot_id: Annotated[int | None, Query(alias="assignedBotId", ge=0, le=_LARGEST)] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> SlotList:
    """List the slots, by name, or those that match."""
    found = await store.slots.page(
        SlotPage(
            after=None if cursor is None else place_of(cursor, Platform, whole_number),
            limit=limit + 1,
            platform=platform,
            statuses=status,
            slot_name=slot_name,
            container_ref=container_ref,
            assigned_bot_id=assigned_bot_id,
        )
    )
    page, next_cursor = page_of(found, limit, lambda slot: (slot.platform, slot.number))
    around = await surroundings(store, page)
    return SlotList(
        slots=[SlotOut.of(slot, slot_waits_for(slot, around)) for slot in page],
        next_cursor=next_cursor,
    )


@router.get("/slots/{slotId}", responses=documented(SlotNotFound))
async def get_slot(slot_id: SlotId, _: TheAdmin, store: TheStore) -> SlotOut:
    """Get one slot."""
    slot = await store.slots.get(slot_id)
    return SlotOut.of(
        slot,
        slot_waits_for(slot, await surroundings(store, [slot])),
        await store.bots.container_facts_of_slot(slot),
    )


@router.get(
    "/slots/{slotId}/timeline", responses=documented(SlotNotFound, InvalidRequest, InvalidCursor)
)
async def get_slot_timeline(
    slot_id: SlotId, _: TheAdmin, store: TheStore, cursor: Cursor = None, limit: Limit = 200
) -> Timeline:
    """List what happened to a slot, the newest first; also to one that is deleted by now."""
    (before,) = (_LARGEST,) if cursor is None else place_of(cursor, whole_number)
    page = await store.events.of_slot(slot_id, before, limit, MOST_BYTES)
    if cursor is None and not page.events:
        await store.slots.get(slot_id)
    return Timeline.of(page)


@router.get("/containers/{containerRef}/bot", responses=documented(BotNotFound))
async def get_bot_of_container(
    container_ref: Annotated[str, Path(alias="containerRef", max_length=255)],
    caller: TheAdmin,
    store: TheStore,
) -> BotOut:
    """Get the bot that a container has now; after its end, the one that it had last."""
    bot = await store.bots.of_container(container_ref)
    if bot is None:
        raise BotNotFound(f"No bot is known for the container {container_ref}.")
    return await shown(store, caller, bot)


@router.post("/slots/{slotId}/recover", status_code=202, responses=documented(SlotNotFound))
async def recover_slot(slot_id: SlotId, _: TheAdmin, pool: ThePool, store: TheStore) -> SlotOut:
    """Have a slot in `error` recovered: a worker does it at once.

    If no worker runs, `waitingFor` says so. A slot in any other status is left as it is.
    """
    await pool.slots.retry(slot_id)
    slot = await store.slots.get(slot_id)
    return SlotOut.of(slot, slot_waits_for(slot, await surroundings(store, [slot])))


@router.post("/slots/{slotId}/drain", status_code=202, responses=documented(SlotNotFound))
async def drain_slot(slot_id: SlotId, _: TheAdmin, pool: ThePool, store: TheStore) -> SlotOut:
    """Drain a slot: it gets no further bot, and is deleted once it has none."""
    before = await store.slots.get(slot_id)
    await pool.slots.drain(slot_id)
    return SlotOut.of(before).model_copy(update={"draining": True})


@router.get("/hosts")
async def list_hosts(_: TheAdmin, store: TheStore) -> HostList:
    """List every host: its health, its room, what runs there, and its images."""
    return HostList(hosts=await _hosts(store))


async def _hosts(store: Store) -> list[HostOut]:
    pulls = await store.pulls.all()
    return [HostOut.of(host, pulls) for host in await store.hosts.all()]


@router.post("/hosts/{engine}/{host}/drain", responses=documented(HostNotFound))
async def drain_host(
    engine: HostName, host: HostName, _: TheAdmin, pool: ThePool, store: TheStore
) -> HostOut:
    """Give a host no new work until it is undrained. The bots that run there stay."""
    drained = await pool.hosts.drain(engine, host)
    return HostOut.of(drained, await store.pulls.all())


@router.post("/hosts/{engine}/{host}/undrain", responses=documented(HostNotFound))
async def undrain_host(
    engine: HostName, host: HostName, _: TheAdmin, pool: ThePool, store: TheStore
) -> HostOut:
    """Give a drained host new work again. Bots that wait get its slots and its room at once."""
    undrained = await pool.hosts.drain(engine, host, drain=False)
    return HostOut.of(undrained, await store.pulls.all())


@router.get("/replicas")
async def list_replicas(_: TheAdmin, store: TheStore) -> ReplicaList:
    """List the running botpools on this database. Without a worker, bots wait."""
    return ReplicaList(replicas=[ReplicaOut.of(each) for each in await store.replicas.live()])


@router.get("/queue", responses=documented(InvalidRequest, InvalidCursor))
async def list_queue(
    _: TheAdmin,
    store: TheStore,
    platform: PlatformName | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> QueueList:
    """List the bots that wait, by platform and in the order in which they will get a slot."""
    after = None if cursor is None else place_of(cursor, Platform, whole_number, whole_number)
    found = await store.queue.page(QueuePage(after=after, platform=platform, limit=limit + 1))
    page, next_cursor = page_of(found, limit, lambda e: (e.platform, e.priority, e.bot_id))
    return QueueList(entries=[QueueEntryOut.of(entry) for entry in page], next_cursor=next_cursor)
