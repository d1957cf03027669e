"""What a route needs: FastAPI passes it in, and a test can pass in something else."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from botpool.access.keys import Keys
from botpool.access.sessions import Sessions
from botpool.metrics import Metrics
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.store import Store


async def pool_of(request: Request) -> Pool:
    """The pool that the app was made with."""
    pool: Pool = request.app.state.pool
    return pool


async def store_of(request: Request) -> Store:
    """The store that the app was made with."""
    store: Store = request.app.state.store
    return store


async def settings_of(request: Request) -> Settings:
    """The settings that the app was made with."""
    settings: Settings = request.app.state.settings
    return settings


async def keys_of(request: Request) -> Keys:
    """The keys that the app was made with."""
    keys: Keys = request.app.state.keys
    return keys


async def sessions_of(request: Request) -> Sessions:
    """The sessions that the app was made with."""
    sessions: Sessions = request.app.state.sessions
    return sessions


async def metrics_of(request: Request) -> Metrics:
    """The metrics that the app was made with."""
    metrics: Metrics = request.app.state.metrics
    return metrics


ThePool = Annotated[Pool, Depends(pool_of)]
TheSettings = Annotated[Settings, Depends(settings_of)]
TheMetrics = Annotated[Metrics, Depends(metrics_of)]
TheStore = Annotated[Store, Depends(store_of)]
TheKeys = Annotated[Keys, Depends(keys_of)]
TheSessions = Annotated[Sessions, Depends(sessions_of)]
