"""The list of bots: found, sent, and stopped or sent again, many at once."""

import asyncio
from http import HTTPStatus
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from botpool.api.auth import TheCaller
from botpool.api.bots import create_bot, visible
from botpool.api.dependencies import ThePool, TheSettings, TheStore
from botpool.api.shapes import CreateBot, CreatedBotOut
from botpool.api.waiting import what_bots_wait_for
from botpool.dashboard import sending
from botpool.dashboard.page import Form, PageRoute, TheForm, back, page
from botpool.dashboard.pool import TheOverview, whole
from botpool.dashboard.words import of_bot
from botpool.errors import BotpoolError, InvalidRequest
from botpool.models.bots import Bot, BotSearch, BotSort
from botpool.models.keys import ApiKey
from botpool.pool import Pool
from botpool.quantities import counted
from botpool.settings import Settings
from botpool.states import BOT_ENDED, BOT_RELAUNCHABLE, BotStatus, Platform
from botpool.store import Store

router = APIRouter(include_in_schema=False, route_class=PageRoute)

GROUPS = {
    "live": ("Live", frozenset(BotStatus) - BOT_ENDED),
    "waiting": ("Waiting", frozenset({BotStatus.QUEUED})),
    "launching": ("Launching", BOT_RELAUNCHABLE),
    "in-call": ("In call", frozenset({BotStatus.IN_CALL})),
    "failed": ("Failed", frozenset({BotStatus.FATAL})),
    "ended": ("Ended", BOT_ENDED),
}
"""The statuses that people filter by."""

_ALL = {"q": "", "status": "", "platform": "", "project": ""}
_A_PAGE = 50
_MOST_AT_ONCE = 500
_LONGEST_TEXT = 200
_LARGEST = 2**63 - 1

Group = Literal["", "live", "waiting", "launching", "in-call", "failed", "ended"]
Sort = Annotated[str, Query(pattern="^-?(created|name|platform|status|slot)$")]
PlatformOrAll = Literal["", "google-meet", "microsoft-teams", "zoom"]


@router.get("/bots")
async def show(
    request: Request,
    caller: TheCaller,
    store: TheStore,
    q: Annotated[str, Query(max_length=_LONGEST_TEXT)] = "",
    status: Group = "",
    platform: PlatformOrAll = "",
    project: Annotated[str, Query(pattern=r"^\d{0,18}$")] = "",
    sort: Sort = "-created",
    after: Annotated[int | None, Query(ge=0, le=_LARGEST)] = None,
    value: str = "",
) -> HTMLResponse:
    """The bots that match, a page of them."""
    chosen = {"q": q, "status": status, "platform": platform, "project": project}
    return await _page(request, caller, store, chosen, sort, after, value)


async def _page(
    request: Request,
    caller: ApiKey,
    store: Store,
    filters: dict[str, str],
    sort: str = "-created",
    after: int | None = None,
    value: str = "",
    typed: sending.Sending | None = None,
) -> HTMLResponse:
    """The page; with its form as it was `typed`, if something is wrong with that."""
    q, status, platform, project = filters.values()
    by: BotSort = sort.removeprefix("-")  # type: ignore[assignment]
    search = BotSearch(
        text=q.strip() or None,
        project_id=caller.project_id or (int(project) if project else None),
        platform=Platform(platform) if platform else None,
        statuses=GROUPS[status][1] if status else None,
        sort=by,
        descending=sort.startswith("-"),
        after_value=value,
        after_id=after,
        limit=_A_PAGE + 1,
    )
    now, found, projects = await asyncio.gather(
        store.installation.now(), store.bots.search(search), store.projects.all()
    )
    bots = found[:_A_PAGE]
    slots, waiting = await what_bots_wait_for(store, bots)
    kept = {name: chosen for name, chosen in filters.items() if chosen}
    rows = [(bot, of_bot(bot, waiting.get(bot.id)), slots.get(bot.id)) for bot in bots]
    following = None
    if len(found) > _A_PAGE:
        last = bots[-1]
        place = {"sort": sort, "after": last.id, "value": _value(last, by)}
        following = f"/bots?{urlencode({**kept, **place})}"
    return page(
        request,
        "bots.html",
        caller,
        now,
        status=HTTPStatus.UNPROCESSABLE_ENTITY if typed else HTTPStatus.OK,
        here="/bots" if typed else "",
        sending=typed,
        rows=rows,
        filters=filters,
        sort=sort,
        kept=kept,
        groups=GROUPS,
        projects={each.id: each.name for each in projects},
        following=following,
        first=after is None,
    )


def _value(bot: Bot, by: BotSort) -> str:
    """What a bot is ordered by, as the database has it."""
    values: dict[BotSort, str] = {
        "created": "",
        "name": bot.bot_display_name.lower(),
        "platform": bot.platform,
        "status": bot.status,
        "slot": bot.slot_name or "",
    }
    return values[by]


@router.post("/bots")
async def send(
    request: Request,
    caller: TheCaller,
    pool: ThePool,
    store: TheStore,
    settings: TheSettings,
    overview: TheOverview,
    form: TheForm,
) -> Response:
    """Send the bots that a form asks for: all of them, or none if something is wrong."""
    try:
        return await send_all(sending.asked(form), caller, pool, settings, to="/")
    except BotpoolError as error:
        typed = sending.Sending.of(form, str(error))
    if caller.project_id is not None:
        return await _page(request, caller, store, _ALL, typed=typed)
    return await whole(request, caller, store, overview, typed)


async def send_all(
    requests: list[CreateBot], caller: ApiKey, pool: Pool, settings: Settings, *, to: str
) -> RedirectResponse:
    """Send these bots, and say where they are."""
    created = await asyncio.gather(
        *(create_bot(each, Response(), caller, pool, settings) for each in requests),
        return_exceptions=True,
    )
    sent = [each for each in created if isinstance(each, CreatedBotOut)]
    failed = [each for each in created if isinstance(each, BaseException)]
    for each in failed:
        if not isinstance(each, BotpoolError) or not sent:
            raise each
    said = _said(sent)
    if failed:
        said += f" {counted(len(failed), 'bot')} could not be sent: {failed[0]}"
    return back(to, said)


def _said(sent: list[CreatedBotOut]) -> str:
    if len(sent) == 1:
        bot = sent[0].bot
        where = f"on {bot.slot_name}" if bot.slot_name else "in the queue"
        return f"Bot {bot.id} is on its way, {where}."
    waiting = sum(each.bot.slot_name is None for each in sent)
    said = f"{counted(len(sent), 'bot')} are on their way, {sent[0].bot.id} to {sent[-1].bot.id}."
    return f"{said} {waiting} of them wait in the queue." if waiting else said


@router.post("/bots/stop")
async def stop(
    caller: TheCaller, pool: ThePool, store: TheStore, form: TheForm
) -> RedirectResponse:
    """Stop the bots that are selected. Those that have ended are left as they are."""
    chosen = await _chosen(store, caller, form)
    await asyncio.gather(*(pool.assignments.stop_bot(bot, "stopped by a person") for bot in chosen))
    return back(_where(form), f"{counted(len(chosen), 'bot')} told to stop.")


@router.post("/bots/again")
async def send_again(
    caller: TheCaller, pool: ThePool, store: TheStore, settings: TheSettings, form: TheForm
) -> RedirectResponse:
    """Send bots like those that are selected."""
    bots = [await store.bots.get(bot) for bot in await _chosen(store, caller, form)]
    requests = [sending.again(bot) for bot in bots[: sending.MOST]]
    return await send_all(requests, caller, pool, settings, to=_where(form))


async def _chosen(store: Store, caller: ApiKey, form: Form) -> list[int]:
    texts = form.every("bot")[:_MOST_AT_ONCE]
    if not texts:
        raise InvalidRequest("Select bots first.")
    if not all(text.isascii() and text.isdecimal() and len(text) < 19 for text in texts):  # noqa: PLR2004
        raise InvalidRequest("A bot is selected by its number.")
    return [(await visible(store, caller, int(text))).id for text in texts]


def _where(form: Form) -> str:
    """The list that the form was on, with its filters."""
    query = form.text("query")
    return f"/bots?{query}" if query else "/bots"
