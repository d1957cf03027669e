"""The app: its routes, and what applies to all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from botpool import __version__
from botpool.access.limits import RateLimits, WrongKeys
from botpool.access.sessions import Sessions
from botpool.api import (
    attention,
    bots,
    doctor,
    health,
    insights,
    launches,
    metrics,
    operations,
    pools,
    projects,
    runtime,
    sessions,
    sign_in,
    stream,
    webhooks,
)
from botpool.api.connections import LARGEST_BODY_BYTES
from botpool.api.docs import add_docs, operation_id
from botpool.api.errors import add_error_handlers, documented_everywhere
from botpool.api.keys import router as keys_router
from botpool.api.prefix import PathPrefix
from botpool.feed.orders import Orders
from botpool.metrics import Metrics

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from botpool.access.keys import Keys
    from botpool.feed.stream import Feed
    from botpool.pool import Pool
    from botpool.settings import Settings
    from botpool.store import Store


def create_app(
    store: Store,
    pool: Pool,
    settings: Settings,
    keys: Keys,
    feed: Feed | None = None,
    counted: Metrics | None = None,
) -> FastAPI:
    """The REST API as an ASGI app, for callers with one of these keys.

    It has `/stream` only if there is a feed. `/metrics` tells what was `counted`.
    """
    app = FastAPI(
        title="botpool",
        version=__version__,
        summary="Puts meeting bots into calls fast.",
        docs_url=None,
        redoc_url=None,
        # A redirect would lead to whatever host the request names.
        redirect_slashes=False,
        responses=documented_everywhere(),
        generate_unique_id_function=operation_id,
        servers=[{"url": settings.path_prefix}] if settings.path_prefix else None,
    )
    app.state.store = store
    app.state.pool = pool
    app.state.feed = feed
    # Without a feed nobody tells of orders, and bots learn them when they have waited.
    app.state.orders = (feed and feed.orders) or Orders(store, settings)
    _add_callers(app, store, settings, keys)
    _add_health(app, store, counted or Metrics())
    app.add_middleware(BodyLimit, most_bytes=LARGEST_BODY_BYTES)
    if settings.trusted_proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=settings.trusted_proxies)
    if settings.path_prefix:
        app.add_middleware(PathPrefix, prefix=settings.path_prefix)
    add_error_handlers(app)
    # Routes are tried in this order: what is called most comes first.
    app.include_router(health.router)
    app.include_router(metrics.router)
    app.include_router(runtime.router)
    app.include_router(bots.router)
    app.include_router(pools.router)
    app.include_router(operations.router)
    app.include_router(launches.router)
    app.include_router(insights.router)
    app.include_router(attention.router)
    app.include_router(doctor.router)
    app.include_router(projects.router)
    app.include_router(keys_router)
    app.include_router(webhooks.router)
    app.include_router(sessions.router)
    app.include_router(sign_in.router)
    add_docs(app)
    if feed is not None:
        app.include_router(stream.router)
    return app


def create_worker_app(
    store: Store, settings: Settings, keys: Keys, counted: Metrics | None = None
) -> FastAPI:
    """What a worker without an API answers: whether it is alive and can work, and its metrics."""
    app = FastAPI(title="botpool worker", version=__version__, openapi_url=None)
    _add_callers(app, store, settings, keys)
    _add_health(app, store, counted or Metrics())
    add_error_handlers(app)
    app.include_router(health.router)
    app.include_router(metrics.router)
    return app


def _add_callers(app: FastAPI, store: Store, settings: Settings, keys: Keys) -> None:
    """What an app needs to know its callers."""
    app.state.settings = settings
    app.state.keys = keys
    app.state.sessions = Sessions(store)
    app.state.limits = RateLimits(settings.rate_limit_per_second)
    app.state.wrong_keys = WrongKeys()


def _add_health(app: FastAPI, store: Store, counted: Metrics) -> None:
    """What an app tells of how its replica does."""
    app.state.readiness = health.Readiness(store)
    app.state.metrics = counted
    app.state.scrapes = metrics.Scrapes(store, counted)


class BodyLimit:
    """Limits the body of a request, and answers a larger one with 413."""

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
