"""The app: its routes, and what holds for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from botpool import __version__
from botpool.api import runtime
from botpool.api.errors import add_error_handlers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from botpool.pool import Pool
    from botpool.settings import Settings

_LARGEST_BODY_BYTES = 2**20


def create_app(pool: Pool, settings: Settings) -> FastAPI:
    """The REST API on this pool, for any ASGI server to run."""
    app = FastAPI(
        title="botpool",
        version=__version__,
        summary="Puts meeting bots into calls fast.",
        redoc_url=None,
    )
    app.state.pool = pool
    app.state.settings = settings
    app.add_middleware(BodyLimit, most_bytes=_LARGEST_BODY_BYTES)
    add_error_handlers(app)
    app.include_router(runtime.router)
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
