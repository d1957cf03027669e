"""The hosts: whether each gets work and why not, its room, its images, and how launches went."""

import asyncio
from datetime import timedelta
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Path, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from botpool.api.auth import TheAdmin
from botpool.api.dependencies import ThePool, TheStore
from botpool.dashboard.page import PageRoute, TheForm, back, page
from botpool.models.hosts import Host, HostLaunches
from botpool.models.pulls import ImagePull
from botpool.models.slots import Slot

router = APIRouter(include_in_schema=False, route_class=PageRoute)

LATELY = timedelta(hours=1)

Name = Annotated[str, Path(max_length=255)]


class HostView(NamedTuple):
    """A host, its slots and images, and how launches went there lately."""

    host: Host
    slots: list[Slot]
    images: list[ImagePull]
    lately: HostLaunches | None


@router.get("/hosts")
async def show(request: Request, caller: TheAdmin, store: TheStore) -> HTMLResponse:
    """Every host."""
    now = await store.installation.now()
    hosts, slots, pulls, launches = await asyncio.gather(
        store.hosts.all(), store.slots.all(), store.pulls.all(), store.hosts.launches(now - LATELY)
    )
    lately = {(each.engine, each.host): each for each in launches}
    views = [
        HostView(
            host,
            [slot for slot in slots if (slot.engine, slot.host) == (host.engine, host.host)],
            [pull for pull in pulls if (pull.engine, pull.host) == (host.engine, host.host)],
            lately.get((host.engine, host.host)),
        )
        for host in hosts
    ]
    return page(request, "hosts.html", caller, now, hosts=views)


@router.post("/hosts/{engine}/{host}/drain")
async def drain(engine: Name, host: Name, _: TheAdmin, pool: ThePool) -> RedirectResponse:
    """Give a host no new work."""
    drained = await pool.hosts.drain(engine, host)
    return back("/hosts", f"{host} gets no new work. Its {drained.running} bots stay.")


@router.post("/hosts/{engine}/{host}/undrain")
async def undrain(engine: Name, host: Name, _: TheAdmin, pool: ThePool) -> RedirectResponse:
    """Give a host work again."""
    await pool.hosts.drain(engine, host, drain=False)
    return back("/hosts", f"{host} gets work again.")


@router.post("/hosts/{engine}/{host}/pull")
async def pull(
    engine: Name, host: Name, caller: TheAdmin, pool: ThePool, form: TheForm
) -> RedirectResponse:
    """Have an image brought to a host, or those of all platforms: a worker does it."""
    image = form.text("image") or None
    await pool.hosts.ask_pull(engine, host, image, by=caller.name)
    return back("/hosts", f"{host} gets {image or 'the images of all platforms'}.")
