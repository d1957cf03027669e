"""The page of a bot: why it isn't in its call yet, what happened, and what it says."""

from datetime import datetime
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse

from botpool.api.auth import TheCaller, is_operator
from botpool.api.bots import visible
from botpool.api.dependencies import ThePool, TheSettings, TheStore
from botpool.api.waiting import what_bots_wait_for
from botpool.dashboard import sending
from botpool.dashboard.bots import send_all
from botpool.dashboard.page import PageRoute, back, is_part, page
from botpool.dashboard.waterfall import waterfall
from botpool.dashboard.words import of_bot
from botpool.models.bots import Bot, LogLine
from botpool.states import BOT_ENDED, BotStatus
from botpool.store import Store

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_MOST_EVENTS = 200
_MOST_EVENT_BYTES = 2**18
_MOST_LINES = 500
_LINES_A_READ = 5000
_MOST_LOG_BYTES = 2**20
_LEVELS = ("debug", "info", "warning", "error")

BotId = Annotated[int, Path(ge=0, le=2**63 - 1)]
Level = Annotated[str, Query(pattern="^(debug|info|warning|error)?$")]
Text = Annotated[str, Query(max_length=200)]


class Logs(NamedTuple):
    """The lines that match, and how many there are in all."""

    lines: list[LogLine]
    container: list[str]
    found: int
    total: int
    q: str
    level: str


@router.get("/bots/{bot_id}")
async def show(
    request: Request,
    bot_id: BotId,
    caller: TheCaller,
    store: TheStore,
    settings: TheSettings,
    q: Text = "",
    level: Level = "",
) -> HTMLResponse:
    """The page."""
    bot = await visible(store, caller, bot_id)
    slots, waiting = await what_bots_wait_for(store, [bot])
    events = await store.events.of_bot(bot_id, 0, _MOST_EVENTS, _MOST_EVENT_BYTES)
    deliveries = await store.webhooks.deliveries(bot_id)
    place = await store.queue.place(bot_id) if bot.status is BotStatus.QUEUED else None
    waits = waiting.get(bot_id)
    now = await store.installation.now()
    launch = await store.launches.of_bot(bot_id)
    slot = slots.get(bot_id)
    return page(
        request,
        "bot.html",
        caller,
        now,
        bot=bot,
        fall=None if launch is None else waterfall(launch, now, bot.ended_at),
        slot=slot if is_operator(caller) else None,
        container=await store.bots.container_facts(bot, slot),
        waiting=waits,
        sentence=of_bot(bot, waits, place),
        place=place,
        events=[
            (datetime.fromisoformat(each.timestamp), each)
            for each in events.events
            if is_operator(caller) or each.type.of_bot
        ],
        more_events=events.last is not None,
        webhooks=deliveries[::-1],
        # Our script fetches them by themselves.
        logs=None if is_part(request) else await _logs(store, bot, q, level),
        levels=_LEVELS,
        project=await store.projects.get(bot.project_id),
        ended=bot.status in BOT_ENDED,
        limits=settings.container_options(bot.platform).docker,
    )


@router.post("/bots/{bot_id}/stop")
async def stop(
    bot_id: BotId, caller: TheCaller, pool: ThePool, store: TheStore
) -> RedirectResponse:
    """Stop the bot."""
    await visible(store, caller, bot_id)
    await pool.assignments.stop_bot(bot_id, "stopped by a person")
    return back(f"/bots/{bot_id}", f"Bot {bot_id} is told to stop.")


@router.post("/bots/{bot_id}/again")
async def send_again(
    bot_id: BotId, caller: TheCaller, pool: ThePool, store: TheStore, settings: TheSettings
) -> RedirectResponse:
    """Send a bot like this one."""
    request = sending.again(await visible(store, caller, bot_id))
    return await send_all([request], caller, pool, settings, to="/")


@router.get("/bots/{bot_id}/logs")
async def logs(
    request: Request,
    bot_id: BotId,
    caller: TheCaller,
    store: TheStore,
    pool: ThePool,
    q: Text = "",
    level: Level = "",
) -> Response:
    """What the bot logs and its containers write, as it is now: a worker reads it."""
    bot = await visible(store, caller, bot_id)
    if not is_part(request):
        return RedirectResponse(f"/bots/{bot_id}", 303)
    if bot.ended_at is None:
        await pool.container_logs.refresh(bot_id)
    now = await store.installation.now()
    found = await _logs(store, bot, q, level)
    return page(request, "logs.html", caller, now, bot=bot, logs=found, levels=_LEVELS)


@router.get("/bots/{bot_id}/logs.txt")
async def download(bot_id: BotId, caller: TheCaller, store: TheStore) -> PlainTextResponse:
    """All of it, as a file."""
    bot = await visible(store, caller, bot_id)
    lines = [
        f"{line.at.isoformat()} {line.level} {line.line}" for line in await _all_lines(store, bot)
    ]
    written = await store.bots.container_logs(bot.id)
    text = "\n".join([*lines, *(["", "# written by its containers"] if written else []), *written])
    name = f'attachment; filename="bot-{bot.id}.log"'
    headers = {
        "Content-Disposition": name,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return PlainTextResponse(f"{text}\n", headers=headers)


async def _all_lines(store: Store, bot: Bot) -> list[LogLine]:
    """Every line that a bot logged and that is kept, in order."""
    lines: list[LogLine] = []
    after: int | None = 0
    while after is not None:
        page = await store.bots.log_lines(bot.id, after, _LINES_A_READ, _MOST_LOG_BYTES)
        lines += page.lines
        after = page.last
    return lines


async def _logs(store: Store, bot: Bot, q: str, level: str) -> Logs:
    lines = await _all_lines(store, bot)
    written = await store.bots.container_logs(bot.id)
    wanted = _LEVELS[_LEVELS.index(level) :] if level else None
    text = q.casefold()
    found = [
        line
        for line in lines
        if (wanted is None or line.level in wanted) and text in line.line.casefold()
    ]
    output = [line for line in written if text in line.casefold()]
    return Logs(
        found[-_MOST_LINES:],
        output[-_MOST_LINES:],
        len(found) + len(output),
        len(lines) + len(written),
        q,
        level,
    )
