"""The page at `/`: the whole pool at a glance, and a field to send a bot."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from botpool.api.auth import TheAdmin, TheCaller
from botpool.api.dependencies import ThePool
from botpool.dashboard.overview import Overview
from botpool.dashboard.page import PageRoute, TheForm, answered, back, is_part, page
from botpool.dashboard.words import PLATFORMS
from botpool.states import Platform

router = APIRouter(include_in_schema=False, route_class=PageRoute)


async def overview_of(request: Request) -> Overview:
    """The overview that the dashboard was made with."""
    overview: Overview = request.app.state.overview
    return overview


TheOverview = Annotated[Overview, Depends(overview_of)]


@router.get("/")
async def show(request: Request, caller: TheCaller, overview: TheOverview) -> Response:
    """The page. A client's key sees its own bots only, so it is led to them."""
    if caller.project_id is not None:
        return RedirectResponse("/bots", HTTPStatus.SEE_OTHER)
    if is_part(request):
        return answered(await overview.part(caller))
    view = await overview.read()
    return page(request, "pool.html", caller, view.now, view=view, sending=None)


@router.post("/pools/{platform}/pause")
async def pause(
    platform: Platform, caller: TheAdmin, pool: ThePool, form: TheForm
) -> RedirectResponse:
    """Launch no new bot of a platform."""
    await pool.queue.pause(platform, by=caller.name, reason=form.text("reason") or None)
    return back("/", f"New launches of {PLATFORMS[platform]} are paused. Bots that run stay.")


@router.post("/pools/{platform}/resume")
async def resume(platform: Platform, caller: TheAdmin, pool: ThePool) -> RedirectResponse:
    """Launch bots of a platform again."""
    await pool.queue.resume(platform, by=caller.name)
    return back("/", f"New launches of {PLATFORMS[platform]} go on.")
