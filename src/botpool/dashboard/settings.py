"""Who has access, what is told to whom, and how this botpool is set up."""

from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from botpool.access.projects import Projects
from botpool.access.sessions import Sessions
from botpool.api.auth import TheAdmin
from botpool.api.dependencies import TheKeys, ThePool, TheSessions, TheSettings, TheStore
from botpool.dashboard.page import Form, PageRoute, TheForm, back, page
from botpool.errors import BotpoolError, InvalidRequest
from botpool.feed.endpoints import Endpoints
from botpool.models.keys import ApiKey
from botpool.models.projects import ProjectLimits
from botpool.models.webhooks import ENDPOINT_EVENTS, DeliveryPage
from botpool.settings import Settings, effective_settings
from botpool.states import Role
from botpool.store import Store

router = APIRouter(prefix="/settings", include_in_schema=False, route_class=PageRoute)

_MOST_DELIVERIES = 20

Id = Annotated[int, Path(ge=1, le=2**63 - 1)]


@router.get("")
async def show(
    request: Request, caller: TheAdmin, store: TheStore, settings: TheSettings
) -> HTMLResponse:
    """The page."""
    return await _page(request, caller, store, settings)


async def _page(
    request: Request, caller: ApiKey, store: Store, settings: Settings, **made: Any
) -> HTMLResponse:
    """The page; with a secret that was just made, which no other page shows."""
    status = HTTPStatus.CREATED if made.get("secret") else HTTPStatus.OK
    return page(
        request,
        "settings.html",
        caller,
        await store.installation.now(),
        status=HTTPStatus.UNPROCESSABLE_ENTITY if made.get("error") else status,
        here="/settings",
        made={"secret": "", "what": "", "error": "", **made},
        projects=await store.projects.all(),
        keys=await store.keys.all(),
        endpoints=await store.webhooks.endpoints(),
        deliveries=await store.webhooks.page(DeliveryPage(limit=_MOST_DELIVERIES)),
        sessions=await sessions_of_app(request).listed(),
        session=request.state.session,
        replicas=await store.replicas.live(),
        diagnosis=await store.diagnoses.newest(),
        effective=effective_settings(settings),
        roles=[*Role],
        event_types=ENDPOINT_EVENTS,
    )


def sessions_of_app(request: Request) -> Sessions:
    """The sessions that the app was made with."""
    sessions: Sessions = request.app.state.sessions
    return sessions


# Doctor


@router.post("/doctor/check")
async def check(caller: TheAdmin, pool: ThePool) -> RedirectResponse:
    """Have doctor examine the installation: a worker does it."""
    await pool.diagnoses.ask(by=caller.name)
    return back("/settings", "A worker checks the installation. What it finds is shown here.")


# Projects


@router.post("/projects")
async def make_project(
    request: Request, caller: TheAdmin, store: TheStore, settings: TheSettings, form: TheForm
) -> HTMLResponse:
    """Make a project. The answer shows its secret."""
    try:
        limits = ProjectLimits(
            max_live_bots=_limit(form, "live"),
            max_creations_per_minute=_limit(form, "creations"),
            max_duration_ms=_limit(form, "minutes", 60_000),
        )
        project, secret = await Projects(store).create(form.text("name"), limits)
    except BotpoolError as error:
        return await _page(request, caller, store, settings, error=str(error))
    what = f"The secret that signs webhooks of the project {project.name}"
    return await _page(request, caller, store, settings, secret=secret, what=what)


@router.post("/projects/{project_id}/delete")
async def delete_project(project_id: Id, _: TheAdmin, store: TheStore) -> RedirectResponse:
    """Delete a project."""
    project = await store.projects.get(project_id)
    await Projects(store).delete(project_id)
    return back("/settings", f"The project {project.name} is deleted.")


def _limit(form: Form, name: str, factor: int = 1) -> int | None:
    return form.number(name, 0) * factor or None


# Keys


@router.post("/keys")
async def make_key(
    request: Request,
    caller: TheAdmin,
    store: TheStore,
    settings: TheSettings,
    keys: TheKeys,
    form: TheForm,
) -> HTMLResponse:
    """Make a key. The answer shows it."""
    try:
        role = form.text("role")
        if role not in [*Role]:
            raise InvalidRequest("Choose a role.")
        project = form.number("project", 0) or None if role == Role.CLIENT else None
        made, secret = await keys.create(form.text("name"), Role(role), project)
    except BotpoolError as error:
        return await _page(request, caller, store, settings, error=str(error))
    what = f"The key {made.name}"
    return await _page(request, caller, store, settings, secret=secret, what=what)


@router.post("/keys/{key_id}/rotate")
async def rotate_key(
    request: Request,
    key_id: Id,
    caller: TheAdmin,
    store: TheStore,
    settings: TheSettings,
    keys: TheKeys,
) -> HTMLResponse:
    """Replace a key. The answer shows the new one; the old one works on for a day."""
    made, secret = await keys.rotate(key_id, timedelta(days=1))
    what = f"The new key {made.name}; the old one works for another day"
    return await _page(request, caller, store, settings, secret=secret, what=what)


@router.post("/keys/{key_id}/revoke")
async def revoke_key(key_id: Id, _: TheAdmin, keys: TheKeys) -> RedirectResponse:
    """Revoke a key."""
    revoked = await keys.revoke(key_id)
    return back("/settings", f"The key {revoked.name} is revoked.")


# Webhooks


@router.post("/webhooks")
async def make_endpoint(
    request: Request, caller: TheAdmin, store: TheStore, settings: TheSettings, form: TheForm
) -> HTMLResponse:
    """Make an endpoint. The answer shows the secret that signs what it gets."""
    try:
        chosen = [each for each in ENDPOINT_EVENTS if each in form.every("type")]
        made, secret = await Endpoints(store, settings).create(
            form.number("project", 1),
            form.text("url"),
            event_types=chosen or [*ENDPOINT_EVENTS],
            description=form.text("description"),
        )
    except BotpoolError as error:
        return await _page(request, caller, store, settings, error=str(error))
    what = f"The secret that signs what endpoint {made.id} gets"
    return await _page(request, caller, store, settings, secret=secret, what=what)


@router.post("/webhooks/{endpoint_id}/{act}")
async def change_endpoint(
    request: Request,
    endpoint_id: Id,
    act: Annotated[str, Path(pattern="^(pause|resume|rotate|delete)$")],
    caller: TheAdmin,
    store: TheStore,
    settings: TheSettings,
) -> Response:
    """Pause or resume an endpoint, replace its secret, or delete it."""
    endpoints = Endpoints(store, settings)
    if act == "rotate":
        secret = await endpoints.rotate_secret(endpoint_id)
        what = f"The new secret of endpoint {endpoint_id}; both sign for another day"
        return await _page(request, caller, store, settings, secret=secret, what=what)
    if act == "delete":
        await endpoints.delete(endpoint_id)
    else:
        await endpoints.change(endpoint_id, {}, paused=act == "pause")
    done = {"pause": "paused", "resume": "resumed", "delete": "deleted"}[act]
    return back("/settings", f"Endpoint {endpoint_id} is {done}.")


@router.post("/deliveries/{delivery_id}/resend")
async def resend(
    delivery_id: Id, _: TheAdmin, store: TheStore, settings: TheSettings
) -> RedirectResponse:
    """Send a delivery again."""
    await Endpoints(store, settings).resend(delivery_id)
    return back("/settings", f"Delivery {delivery_id} is sent again.")


# Sessions


@router.post("/sessions/{session_id}/end")
async def end_session(session_id: Id, _: TheAdmin, sessions: TheSessions) -> RedirectResponse:
    """Sign a browser out."""
    await sessions.end(session_id)
    return back("/settings", "That browser is signed out.")
