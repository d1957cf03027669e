"""The app: its routes, and what holds for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from botpool import __version__
from botpool.api import auth, bots, health, home, pools, runtime, stream
from botpool.api.docs import add_docs
from botpool.api.errors import add_error_handlers, documented_everywhere
from botpool.api.limits import RateLimits

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from botpool.access import Access
    from botpool.pool import Pool
    from botpool.record import Record
    from botpool.settings import Settings

_LARGEST_BODY_BYTES = 2**20


def create_app(
    pool: Pool, settings: Settings, access: Access, record: Record | None = None
) -> FastAPI:
    """The REST API on this pool for those whom `access` knows, for any ASGI server to run.

    `/stream` is there if somebody follows the record.
    """
    app = FastAPI(
        title="botpool",
        version=__version__,
        summary="Puts meeting bots into calls fast.",
        docs_url=None,
        redoc_url=None,
        responses=documented_everywhere(),
    )
    app.state.pool = pool
    app.state.settings = settings
    app.state.access = access
    app.state.record = record
    app.state.readiness = health.Readiness(pool)
    app.state.limits = RateLimits(settings.rate_limit_per_second)
    app.add_middleware(BodyLimit, most_bytes=_LARGEST_BODY_BYTES)
    add_error_handlers(app)
    app.include_router(auth.router)
    app.include_router(bots.router)
    app.include_router(pools.router)
    app.include_router(runtime.router)
    app.include_router(home.router)
    app.include_router(health.router)
    add_docs(app)
    if record is not None:
        app.include_router(stream.router)
    return app


class BodyLimit:
    """Reads no more of a request than its bound, and answers a larger one with 413."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app = app
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app on the request."""
        left = self._most_bytes

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413)
            return message

        await self._app(scope, bounded, send)
