"""`/metrics`: what this replica has counted, and how the pool stands, for Prometheus."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.security import HTTPAuthorizationCredentials

from botpool.api.auth import admin, identify, key_header
from botpool.api.dependencies import keys_of, settings_of
from botpool.api.errors import documented
from botpool.errors import (
    BotpoolError,
    DatabaseUnreachable,
    Forbidden,
    TooManyRequests,
    Unauthorized,
)
from botpool.metrics import Metrics
from botpool.models.gauges import PoolGauges
from botpool.store import Store
from botpool.tasks.sharing import SharedCall

_ANSWER_SECONDS = 2.0

router = APIRouter(tags=["health"])


class Scrapes:
    """Answers scrapes. Those that overlap share one look into the database."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._metrics = metrics
        self._read = SharedCall(store.gauges.read)

    async def answer(self, accept: str | None) -> tuple[bytes, str]:
        """What there is to tell, in a format that the reader accepts, and its content type."""
        return self._metrics.exposition(await self._gauges(), accept)

    async def _gauges(self) -> PoolGauges | None:
        """What the database says; `None` if it doesn't answer within seconds."""
        try:
            return await self._read.within(_ANSWER_SECONDS)
        except (BotpoolError, TimeoutError):
            return None


async def scrapes_of(request: Request) -> Scrapes:
    """What answers scrapes in the app."""
    scrapes: Scrapes = request.app.state.scrapes
    return scrapes


async def may_scrape(
    request: Request, key: Annotated[HTTPAuthorizationCredentials | None, Depends(key_header)]
) -> None:
    """Raise `Unauthorized` or `Forbidden` unless metrics are open, or the key is an operator's.

    While the database is away, a key counts as it was last read: that is when one wants to see how
    a replica does, and nothing of the database is told then.
    """
    if (await settings_of(request)).metrics_open:
        return
    try:
        # Prometheus doesn't wait for as long as a database that hangs may let us.
        async with asyncio.timeout(_ANSWER_SECONDS):
            found = await identify(request)
    except (DatabaseUnreachable, TimeoutError) as error:
        last = (await keys_of(request)).last_read(key.credentials) if key else None
        if last is None:
            raise DatabaseUnreachable from error
        found = last
    await admin(found)


@router.get(
    "/metrics",
    dependencies=[Depends(may_scrape)],
    response_class=Response,
    responses={
        200: {
            "description": "The metrics of this replica.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **documented(Unauthorized, Forbidden, TooManyRequests, DatabaseUnreachable),
    },
)
async def get_metrics(
    scrapes: Annotated[Scrapes, Depends(scrapes_of)],
    accept: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> Response:
    """Tell Prometheus what this replica has counted, and how the pool stands.

    For an admin's or a viewer's key, or for anybody with `BOTPOOL_METRICS_OPEN`. If the database
    is away, `botpool_database_up` is 0, and what comes from it is missing.
    """
    content, content_type = await scrapes.answer(accept)
    return Response(content, headers={"Content-Type": content_type, "Cache-Control": "no-store"})
