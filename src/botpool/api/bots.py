"""Bots: create one, look at it, stop it."""

import asyncio
import hashlib
from typing import Annotated

import orjson
from fastapi import APIRouter, Depends, Header, Path, Query, Response
from pydantic import ValidationError

from botpool.api.auth import KeyRoute, TheCaller, is_operator
from botpool.api.dependencies import ThePool, TheSettings, TheStore
from botpool.api.errors import documented, invalid_fields, problem_of
from botpool.api.events import MOST_BYTES, Timeline
from botpool.api.metadata import METADATA_PARAMETER, Metadata, metadata_asked
from botpool.api.paging import Cursor, Limit, cursor_of, page_of, place_of, whole_number
from botpool.api.shapes import (
    BotList,
    BotOut,
    BulkBot,
    CreateBot,
    CreateBots,
    CreatedBotOut,
    CreatedBots,
    FailedOut,
    LogLineOut,
    Logs,
    StopBot,
    StopBots,
    StoppedBotOut,
    StoppedBots,
)
from botpool.api.waiting import what_bots_wait_for
from botpool.api.wire import Moment, PlatformName, Text, check_size
from botpool.errors import (
    BotLive,
    BotNotFound,
    CallbackInvalid,
    CallbackPrivate,
    DuplicateBot,
    DurationTooLong,
    Forbidden,
    IdempotencyMismatch,
    InvalidCursor,
    InvalidRequest,
    MeetingUrlUnknown,
    NotFound,
    PlatformMismatch,
    ProjectNotFound,
    QueueTimeoutOutOfBounds,
    Refused,
    TooManyBots,
    TooManyCreations,
    TooManyRequests,
    Unauthorized,
)
from botpool.feed.addresses import check_callback
from botpool.meetings import platform_of
from botpool.models.bots import Bot, BotPage, NewBot
from botpool.models.keys import ApiKey
from botpool.models.projects import DEFAULT_PROJECT
from botpool.settings import Settings
from botpool.states import BotStatus
from botpool.store import Store

router = APIRouter(
    prefix="/api/v1/bots",
    tags=["bots"],
    route_class=KeyRoute,
    responses=documented(Unauthorized, Forbidden, InvalidRequest, TooManyRequests),
)

_LARGEST_ID = 2**63 - 1
_IDS = range(_LARGEST_ID + 1)
_STOPPED = "stop requested"

LogLimit = Annotated[int, Query(ge=1, le=5000, description="The most lines that a page has.")]
BotId = Annotated[int, Path(alias="botId", description="The bot's id.")]


@router.post(
    "",
    status_code=201,
    responses={
        201: {
            "headers": {
                "Location": {
                    "description": "The path of the bot.",
                    "schema": {"type": "string", "format": "uri-reference"},
                }
            }
        },
        **documented(
            DuplicateBot,
            InvalidRequest,
            MeetingUrlUnknown,
            PlatformMismatch,
            QueueTimeoutOutOfBounds,
            CallbackInvalid,
            CallbackPrivate,
            IdempotencyMismatch,
            DurationTooLong,
            ProjectNotFound,
            TooManyRequests,
            TooManyBots,
            TooManyCreations,
        ),
    },
)
async def create_bot(
    request: CreateBot,
    response: Response,
    caller: TheCaller,
    pool: ThePool,
    settings: TheSettings,
    idempotency_key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            min_length=1,
            max_length=255,
            description="Requests with the same key and body create one bot and get the same"
            " answer.",
        ),
    ] = None,
) -> CreatedBotOut:
    """Create a bot. It gets the next free slot, or a place in the queue.

    A bot belongs to a project: all keys of the project see it and may stop it.
    """
    created = await pool.creation.create_bot(
        new_bot(request, caller, settings, idempotency_key=idempotency_key)
    )
    response.headers["Location"] = f"/api/v1/bots/{created.bot.id}"
    return CreatedBotOut.of(created)


@router.post("/bulk")
async def create_bots(
    request: CreateBots, caller: TheCaller, pool: ThePool, settings: TheSettings
) -> CreatedBots:
    """Create bots, at most 100. Each gets an answer of its own, in the order of the requests."""

    async def created(asked: object) -> CreatedBotOut | FailedOut:
        try:
            wanted = BulkBot.model_validate(asked)
            new = new_bot(wanted, caller, settings, idempotency_key=wanted.idempotency_key)
            return CreatedBotOut.of(await pool.creation.create_bot(new))
        except ValidationError as error:
            return FailedOut(error=invalid_fields(error.errors(), part="body"))
        except (Refused, NotFound) as error:
            return FailedOut(error=problem_of(error))

    # Those that are created together are one write.
    return CreatedBots(results=await asyncio.gather(*map(created, request.bots)))


@router.post("/stop")
async def stop_bots(
    request: StopBots, caller: TheCaller, pool: ThePool, store: TheStore
) -> StoppedBots:
    """Stop bots, at most 100. Each gets an answer of its own, in the order of the request."""
    found = await store.bots.some([bot_id for bot_id in request.ids if bot_id in _IDS])
    mine = {bot_id for bot_id, bot in found.items() if caller.may_see(bot.project_id)}
    reason = request.reason or _STOPPED
    await asyncio.gather(*(pool.assignments.stop_bot(bot_id, reason) for bot_id in sorted(mine)))
    stopped = await store.bots.some(sorted(mine))
    return StoppedBots(
        results=[
            StoppedBotOut(bot=BotOut.of(stopped[bot_id]))
            if bot_id in stopped
            else FailedOut(error=problem_of(_no_bot(bot_id)))
            for bot_id in request.ids
        ]
    )


@router.get(
    "",
    responses=documented(InvalidRequest, InvalidCursor),
    openapi_extra={"parameters": [METADATA_PARAMETER]},
)
async def list_bots(
    caller: TheCaller,
    store: TheStore,
    conditions: Annotated[Metadata, Depends(metadata_asked)],
    status: Annotated[list[BotStatus] | None, Query()] = None,
    platform: PlatformName | None = None,
    container_ref: Annotated[Text | None, Query(alias="containerRef")] = None,
    correlation_id: Annotated[Text | None, Query(alias="correlationId")] = None,
    deduplication_key: Annotated[Text | None, Query(alias="deduplicationKey")] = None,
    project_id: Annotated[int | None, Query(alias="projectId", ge=1, le=_LARGEST_ID)] = None,
    meeting_url: Annotated[Text | None, Query(alias="meetingUrl")] = None,
    created_after: Annotated[
        Moment | None, Query(alias="createdAfter", description="Or at this time.")
    ] = None,
    created_before: Annotated[Moment | None, Query(alias="createdBefore")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> BotList:
    """List the bots that you may see, newest first.

    `metadata.team=sales` lists those whose `metadata` has `sales` as its `team`.
    """
    if not caller.may_see(project_id):
        return BotList(bots=[])
    (before,) = (_LARGEST_ID,) if cursor is None else place_of(cursor, whole_number)
    found = await store.bots.page(
        BotPage(
            before=before,
            limit=limit + 1,
            project_id=caller.project_id or project_id,
            platform=platform,
            statuses=status,
            container_ref=container_ref,
            correlation_id=correlation_id,
            deduplication_key=deduplication_key,
            meeting_url=meeting_url,
            metadata=conditions or None,
            created_after=created_after,
            created_before=created_before,
        )
    )
    page, next_cursor = page_of(found, limit, lambda bot: (bot.id,))
    _, waiting = await what_bots_wait_for(store, page)
    return BotList(
        bots=[
            BotOut.of(bot, waiting=waiting.get(bot.id), for_operator=is_operator(caller))
            for bot in page
        ],
        next_cursor=next_cursor,
    )


@router.get("/{botId:int}", responses=documented(BotNotFound))
async def get_bot(bot_id: BotId, caller: TheCaller, store: TheStore) -> BotOut:
    """Get one bot, with its place in the queue and its slot."""
    return await shown(store, caller, await visible(store, caller, bot_id))


@router.post("/{botId:int}/stop", responses=documented(BotNotFound))
async def stop_bot(
    bot_id: BotId,
    caller: TheCaller,
    pool: ThePool,
    store: TheStore,
    request: StopBot | None = None,
) -> BotOut:
    """Stop a bot. A bot without a container is `CANCELLED`; a bot in a call is told to leave.

    Stopping a bot twice, or after it has ended, changes nothing.
    """
    await visible(store, caller, bot_id)
    reason = request.reason if request and request.reason else _STOPPED
    await pool.assignments.stop_bot(bot_id, reason)
    return await shown(store, caller, await store.bots.get(bot_id))


@router.delete("/{botId:int}", status_code=204, responses=documented(BotNotFound, BotLive))
async def delete_bot(bot_id: BotId, caller: TheCaller, pool: ThePool, store: TheStore) -> None:
    """Delete an ended bot: its data, events, logs, timeline and webhooks.

    Of its slots' timelines only what happened and when remains, without its id and reasons. Its
    `Idempotency-Key` is free again.
    """
    await visible(store, caller, bot_id)
    await pool.assignments.delete_bot(bot_id)


@router.get(
    "/{botId:int}/timeline", responses=documented(BotNotFound, InvalidRequest, InvalidCursor)
)
async def get_bot_timeline(
    bot_id: BotId, caller: TheCaller, store: TheStore, cursor: Cursor = None, limit: Limit = 200
) -> Timeline:
    """List what happened to a bot and its slots, and what the bot reported, in order."""
    await visible(store, caller, bot_id)
    (after,) = (0,) if cursor is None else place_of(cursor, whole_number)
    page = await store.events.of_bot(bot_id, after, limit, MOST_BYTES)
    return Timeline.of(page, for_operator=is_operator(caller))


@router.get("/{botId:int}/logs", responses=documented(BotNotFound, InvalidRequest, InvalidCursor))
async def get_bot_logs(
    bot_id: BotId,
    caller: TheCaller,
    store: TheStore,
    pool: ThePool,
    cursor: Cursor = None,
    limit: LogLimit = 1000,
) -> Logs:
    """Get the log lines that a bot sent, and the output of its containers, while they run, too."""
    bot = await visible(store, caller, bot_id)
    (after,) = (0,) if cursor is None else place_of(cursor, whole_number)
    if bot.ended_at is None and cursor is None:
        await pool.container_logs.refresh(bot_id)
    page = await store.bots.log_lines(bot_id, after, limit, MOST_BYTES)
    return Logs(
        lines=[LogLineOut(at=line.at, level=line.level, line=line.line) for line in page.lines],
        container=await store.bots.container_logs(bot_id) if cursor is None else [],
        next_cursor=None if page.last is None else cursor_of((page.last,)),
        end_cursor=cursor if page.end is None else cursor_of((page.end,)),
    )


def new_bot(
    request: CreateBot, caller: ApiKey, settings: Settings, *, idempotency_key: str | None
) -> NewBot:
    """What a caller asks for. Raises `InvalidRequest` or `ProjectNotFound`."""
    project_id = _project_of(caller, request.project_id)
    check_size("metadata", request.metadata, settings.max_metadata_bytes)
    check_size("config", request.config, settings.max_config_bytes)
    if request.callback_url is not None:
        check_callback(request.callback_url, allow_private=settings.allow_private_callbacks)
    digest = None
    if idempotency_key is not None:
        canonical = request.model_dump(mode="json", exclude_unset=True, exclude={"idempotency_key"})
        digest = hashlib.sha256(orjson.dumps(canonical, option=orjson.OPT_SORT_KEYS)).digest()
    timeout_ms = request.queue_timeout_ms
    return NewBot(
        platform=platform_of(request.meeting_url, request.platform),
        meeting_url=request.meeting_url,
        bot_display_name=request.bot_display_name,
        queue_timeout_ms=settings.default_queue_timeout_ms if timeout_ms is None else timeout_ms,
        priority=request.priority,
        metadata=request.metadata,
        config=request.config,
        project_id=project_id,
        key_id=caller.id,
        callback_url=request.callback_url,
        deduplication_key=request.deduplication_key,
        idempotency_key=idempotency_key,
        request_digest=digest,
        max_launch_attempts=request.max_launch_attempts,
        relaunch_in_call=request.relaunch_in_call,
        max_duration_ms=request.max_duration_ms,
    )


async def visible(store: Store, caller: ApiKey, bot_id: int) -> Bot:
    """The bot, if the caller may see it. Raises `BotNotFound`, also for one of another project."""
    bot = await store.bots.find(bot_id) if bot_id in _IDS else None
    if bot is None or not caller.may_see(bot.project_id):
        raise _no_bot(bot_id)
    return bot


def _no_bot(bot_id: int) -> BotNotFound:
    return BotNotFound(f"There is no bot {bot_id}.")


def _project_of(caller: ApiKey, asked: int | None) -> int:
    """The project of a new bot. Raises `ProjectNotFound` for one that the caller may not see."""
    if not caller.may_see(asked):
        raise ProjectNotFound(f"There is no project {asked}.")
    return asked or caller.project_id or DEFAULT_PROJECT


async def shown(store: Store, caller: ApiKey, bot: Bot) -> BotOut:
    """A bot as the caller sees it, with its place in the queue, its slot and what it waits for."""
    place = await store.queue.place(bot.id) if bot.status is BotStatus.QUEUED else None
    slots, waiting = await what_bots_wait_for(store, [bot])
    slot = slots.get(bot.id)
    return BotOut.of(
        bot,
        place,
        slot,
        waiting.get(bot.id),
        await store.bots.container_facts(bot, slot),
        for_operator=is_operator(caller),
    )
