"""The feed as server-sent events, which a browser's `EventSource` reads and resumes by itself.

Every event has an `id`. A block without data carries an id, too, so that a reader that got no event
can resume as well. A comment line every few seconds keeps proxies from closing a quiet stream.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Annotated

import structlog
from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from botpool.api.auth import KeyRoute, TheCaller, TheSession
from botpool.api.dependencies import TheKeys, TheSessions
from botpool.api.errors import documented
from botpool.api.wire import PlatformName
from botpool.errors import (
    BotpoolError,
    InvalidPosition,
    InvalidRequest,
    PositionGone,
    TooManyRequests,
    Unauthorized,
)
from botpool.feed.stream import (
    Feed,
    Filter,
    Position,
    StreamEvent,
    Subscription,
)
from botpool.logs import log_failure
from botpool.models.events import EventType

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool.api")

REVOKED = "the key was revoked"

_KEEP_ALIVE_SECONDS = 15.0
_SEND_SECONDS = 30.0
_MOST_AT_A_TIME = 100

_EXAMPLE = """id: 1042-317-1767225600000
event: bot.status_changed
data: {"id":"evt_317","type":"bot.status_changed","timestamp":"2026-01-01T00:00:00.000000Z",\
"data":{"botId":99,"status":"IN_CALL","previousStatus":"JOINING_CALL","platform":"zoom","meetingUrl":\
"https://zoom.us/j/92345678901","botDisplayName":"Notes","correlationId":"c-99","metadata":{},"reason":\
"admitted","details":{},"failureCause":null,"failureReason":null,"slotId":4,"slotName":"pool-zoom-004",\
"containerRef":"c4","lease":2}}

"""

_SCHEMA = {
    "type": "string",
    "contentMediaType": "text/event-stream",
    "contentSchema": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "Resume after it with `Last-Event-ID`."},
                "event": {"type": "string", "enum": list(EventType)},
                "data": {
                    "type": "string",
                    "contentMediaType": "application/json",
                    "contentSchema": {"$ref": "#/components/schemas/Event"},
                },
            },
        },
    },
}

router = APIRouter(prefix="/api/v1", tags=["stream"], route_class=KeyRoute)


async def feed_of(request: Request) -> Feed:
    """The feed that the app was made with."""
    feed: Feed = request.app.state.feed
    return feed


TheFeed = Annotated[Feed, Depends(feed_of)]


class EventStream(Response):
    """Events as they come, until the reader disconnects, is too slow, or loses its access.

    `still_open` is called now and then and says whether the reader still has access.
    """

    media_type = "text/event-stream"

    def __init__(
        self, subscription: Subscription, still_open: Callable[[], Awaitable[bool]]
    ) -> None:
        self.status_code = 200
        self.background = None
        self._subscription = subscription
        self._still_open = still_open
        # nginx buffers an answer unless it is told not to.
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        gone = asyncio.create_task(self._until_gone(receive))
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            await self._stream(send)
        except TimeoutError:
            # The server closes an unfinished response.
            _log.warning("a reader of the stream does not read")
        finally:
            self._subscription.close()
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)

    async def _until_gone(self, receive: Receive) -> None:
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            self._subscription.close()

    async def _stream(self, send: Send) -> None:
        subscription = self._subscription
        clock = asyncio.get_running_loop().time
        checked_at = clock()
        await _send(send, self._where())
        async with aclosing(subscription.batches(_KEEP_ALIVE_SECONDS)) as batches:
            async for batch in batches:
                for text in _texts(batch):
                    await _send(send, text)
                if not batch:
                    await _send(send, b": nothing new\n" + self._where())
                if clock() - checked_at >= _KEEP_ALIVE_SECONDS:
                    checked_at = clock()
                    if not await self._still_open():
                        subscription.close(REVOKED)
        last = f": {subscription.ended}; resume after the last id\n\n"
        await _send(send, last.encode(), more=False)

    def _where(self) -> bytes:
        return f"id: {self._subscription.position}\n\n".encode()


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    async with asyncio.timeout(_SEND_SECONDS):
        await send({"type": "http.response.body", "body": body, "more_body": more})


def _texts(batch: Sequence[StreamEvent]) -> list[bytes]:
    """The events in pieces that are small enough to send at once."""
    return [
        b"".join([event.text for event in batch[start : start + _MOST_AT_A_TIME]])
        for start in range(0, len(batch), _MOST_AT_A_TIME)
    ]


@router.get(
    "/stream",
    status_code=200,
    response_class=EventStream,
    responses={
        200: {
            "description": "Events, for as long as the connection lasts.",
            "content": {"text/event-stream": {"schema": _SCHEMA, "example": _EXAMPLE}},
        },
        **documented(Unauthorized, TooManyRequests, InvalidRequest, InvalidPosition, PositionGone),
    },
)
async def stream_events(
    caller: TheCaller,
    session: TheSession,
    keys: TheKeys,
    sessions: TheSessions,
    feed: TheFeed,
    platform: Annotated[
        PlatformName | None, Query(description="Only events of this platform.")
    ] = None,
    bot_id: Annotated[
        int | None, Query(alias="botId", ge=0, le=2**63 - 1, description="Only events of this bot.")
    ] = None,
    last_event_id: Annotated[
        str | None,
        Header(description="Resume after the event with this id. Browsers send it by themselves."),
    ] = None,
    last_event_id_asked: Annotated[
        str | None,
        Query(alias="lastEventId", description="The same, for callers that can't send a header."),
    ] = None,
) -> EventStream:
    """Get every event as it happens, in the same order for every reader.

    A client's key gets the events of its project's bots, and none of slots. Each event comes
    once. A reader that is too slow is disconnected, and can resume after the last id that it got.
    """
    # A browser that reconnects sends the newest id in the header, and the query unchanged.
    after = last_event_id or last_event_id_asked
    wanted = Filter(
        platform=platform,
        bot_id=bot_id,
        project_id=caller.project_id,
    )
    subscription = await feed.subscribe(Position.parse(after) if after else None, wanted)

    async def still_open() -> bool:
        try:
            if session is not None:
                return await sessions.opens(session.id)
            return await keys.opens(caller.id)
        except BotpoolError as error:
            log_failure("can't check whether a key is still valid", error)
            return True

    return EventStream(subscription, still_open)
