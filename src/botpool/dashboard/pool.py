"""The page at `/`: the whole pool at a glance, and a field to send a bot."""

import asyncio
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from botpool.api.auth import TheAdmin, TheCaller
from botpool.api.dependencies import ThePool, TheStore
from botpool.dashboard.overview import Overview
from botpool.dashboard.page import PageRoute, TheForm, answered, back, is_part, page
from botpool.dashboard.sending import Sending
from botpool.dashboard.words import PLATFORMS
from botpool.models.keys import ApiKey
from botpool.states import Platform
from botpool.store import Store

router = APIRouter(include_in_schema=False, route_class=PageRoute)


async def overview_of(request: Request) -> Overview:
    """The overview that the dashboard was made with."""
    overview: Overview = request.app.state.overview
    return overview


TheOverview = Annotated[Overview, Depends(overview_of)]


@router.get("/")
async def show(
    request: Request, caller: TheCaller, store: TheStore, overview: TheOverview
) -> Response:
    """The page. A client's key sees its own bots only, so it is led to them."""
    if caller.project_id is not None:
        return RedirectResponse("/bots", HTTPStatus.SEE_OTHER)
    if is_part(request):
        return answered(request, await overview.part(caller))
    return await whole(request, caller, store, overview)


async def whole(
    request: Request,
    caller: ApiKey,
    store: Store,
    overview: Overview,
    typed: Sending | None = None,
) -> HTMLResponse:
    """The page with its form; as it was `typed`, if something is wrong with that."""
    view, projects = await asyncio.gather(overview.read(), store.projects.all())
    return page(
        request,
        "pool.html",
        caller,
        view.now,
        status=HTTPStatus.UNPROCESSABLE_ENTITY if typed else HTTPStatus.OK,
        here="/",
        view=view,
        sending=typed,
        projects=projects,
    )


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
