"""What operators ask for: pauses, deletions, comparisons and pulls. Workers call the engines."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field

from botpool.api.auth import KeyRoute, TheAdmin
from botpool.api.dependencies import ThePool, TheStore
from botpool.api.errors import documented
from botpool.api.pools import HostName, SlotId
from botpool.api.shapes import HostOut, PoolNumbersOut, SlotOut
from botpool.api.waiting import surroundings
from botpool.api.wire import Asked, PlatformName
from botpool.errors import (
    Forbidden,
    HostNotFound,
    InvalidRequest,
    SlotHasBot,
    SlotNotFound,
    TooManyRequests,
    Unauthorized,
)
from botpool.models.slots import Slot
from botpool.models.waiting import slot_waits_for
from botpool.states import Platform
from botpool.store import Store

router = APIRouter(
    prefix="/api/v1",
    tags=["pool"],
    route_class=KeyRoute,
    responses=documented(Unauthorized, Forbidden, TooManyRequests),
)

PlatformPath = Annotated[PlatformName, Path()]


class PausePool(Asked):
    """The reason for pausing a pool."""

    reason: str | None = Field(default=None, max_length=500, description="Told to operators.")


class PullImage(Asked):
    """The image to bring to a host."""

    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=500,
        pattern=r"^\S+$",
        description="By default the images of all platforms.",
    )


@router.post("/pools/{platform}/pause")
async def pause_pool(
    platform: PlatformPath,
    caller: TheAdmin,
    pool: ThePool,
    store: TheStore,
    request: PausePool | None = None,
) -> PoolNumbersOut:
    """Launch no bot of a platform until it is resumed. Bots that have a slot stay on it.

    New bots wait, with those that wait already, and so do bots whose launch fails. Their deadlines
    run on. Pausing a paused pool changes nothing.
    """
    await pool.queue.pause(platform, by=caller.name, reason=request.reason if request else None)
    return await _numbers(store, platform)


@router.post("/pools/{platform}/resume")
async def resume_pool(
    platform: PlatformPath, caller: TheAdmin, pool: ThePool, store: TheStore
) -> PoolNumbersOut:
    """Launch bots of a platform again. Those that wait are served at once, in order."""
    await pool.queue.resume(platform, by=caller.name)
    return await _numbers(store, platform)


async def _numbers(store: Store, platform: Platform) -> PoolNumbersOut:
    numbers = await store.pools.numbers()
    return PoolNumbersOut.of(next(row for row in numbers if row.platform is platform))


@router.delete("/slots/{slotId}", status_code=202, responses=documented(SlotNotFound, SlotHasBot))
async def delete_slot(slot_id: SlotId, _: TheAdmin, pool: ThePool, store: TheStore) -> SlotOut:
    """Delete a slot that has no bot; a worker removes its container.

    A slot that is idle or in `error` is gone at once, even if its engine doesn't answer; one that
    is `releasing` when its container is proved stopped. A slot with a bot is refused: stop the bot
    first, or drain the slot.
    """
    before = await store.slots.get(slot_id)
    await pool.slots.remove(slot_id)
    return (await _shown(store, before)).model_copy(update={"draining": True})


@router.post("/slots/{slotId}/compare", status_code=202, responses=documented(SlotNotFound))
async def compare_slot(slot_id: SlotId, _: TheAdmin, pool: ThePool, store: TheStore) -> SlotOut:
    """Compare a slot with its engine now, and set right what differs: a worker does it.

    The outcome is on the slot (`comparedAt`, `comparedState`, `comparedSaid`) and in its timeline.
    """
    await pool.slots.ask_comparison(slot_id)
    return await _shown(store, await store.slots.get(slot_id))


async def _shown(store: Store, slot: Slot) -> SlotOut:
    return SlotOut.of(slot, slot_waits_for(slot, await surroundings(store, [slot])))


@router.post(
    "/hosts/{engine}/{host}/pull",
    status_code=202,
    responses=documented(HostNotFound, InvalidRequest),
)
async def pull_image(
    engine: HostName,
    host: HostName,
    caller: TheAdmin,
    pool: ThePool,
    store: TheStore,
    request: PullImage | None = None,
) -> HostOut:
    """Bring an image to a host now, or the images of all platforms: a worker does it.

    `GET /hosts` has the progress, and the stream the outcome (`host.noted`). An image that is there
    is not fetched again; one that is on its way is not fetched twice.
    """
    image = request.image if request else None
    found = await pool.hosts.ask_pull(engine, host, image, by=caller.name)
    return HostOut.of(found, await store.pulls.all())
