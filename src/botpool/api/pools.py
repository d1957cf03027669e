"""Pools, slots and the queue, for operators."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from botpool.api.auth import TheAdmin
from botpool.api.dependencies import ThePool, TheStore
from botpool.api.errors import documented
from botpool.api.shapes import (
    HostOut,
    PoolList,
    PoolNumbersOut,
    QueueEntryOut,
    QueueList,
    SlotList,
    SlotOut,
)
from botpool.api.wire import PlatformName
from botpool.errors import Forbidden, SlotNotFound, Unauthorized
from botpool.states import Platform, SlotStatus

router = APIRouter(prefix="/api/v1", tags=["pool"], responses=documented(Unauthorized, Forbidden))

SlotId = Annotated[int, Path(ge=0, le=2**63 - 1)]


@router.get("/pool")
async def numbers(_: TheAdmin, store: TheStore) -> PoolList:
    """How many slots each platform has in each status, how many bots wait, and every host."""
    return PoolList(
        platforms=[PoolNumbersOut.of(row) for row in await store.pools.numbers()],
        hosts=[HostOut.of(host) for host in await store.hosts.all()],
    )


@router.get("/slots")
async def slots(
    _: TheAdmin,
    store: TheStore,
    platform: PlatformName | None = None,
    status: Annotated[list[SlotStatus] | None, Query()] = None,
) -> SlotList:
    """Every slot, by name."""
    return SlotList(
        slots=[
            SlotOut.of(slot)
            for slot in await store.slots.all()
            if platform in {None, slot.platform} and (status is None or slot.status in status)
        ]
    )


@router.get("/slots/{slot_id}", responses=documented(SlotNotFound))
async def slot(slot_id: SlotId, _: TheAdmin, store: TheStore) -> SlotOut:
    """One slot."""
    return SlotOut.of(await store.slots.get(slot_id))


@router.post("/slots/{slot_id}/recover", responses=documented(SlotNotFound))
async def recover(slot_id: SlotId, _: TheAdmin, pool: ThePool, store: TheStore) -> SlotOut:
    """Recover a slot in `error` now. A slot in any other status is left as it is."""
    await pool.slots.retry(slot_id)
    return SlotOut.of(await store.slots.get(slot_id))


@router.post("/slots/{slot_id}/drain", status_code=202, responses=documented(SlotNotFound))
async def drain(slot_id: SlotId, _: TheAdmin, pool: ThePool, store: TheStore) -> SlotOut:
    """Drain a slot: it gets no further bot, and is deleted once it has none."""
    before = await store.slots.get(slot_id)
    await pool.slots.drain(slot_id)
    return SlotOut.of(before).model_copy(update={"draining": True})


@router.get("/queue")
async def queue(_: TheAdmin, store: TheStore, platform: PlatformName | None = None) -> QueueList:
    """The bots that wait for a slot, in the order in which they will get one."""
    platforms = [*Platform] if platform is None else [platform]
    return QueueList(
        entries=[
            QueueEntryOut.of(entry)
            for each in platforms
            for entry in await store.queue.entries(each)
        ]
    )
