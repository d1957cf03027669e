"""What a route asks for: FastAPI hands it in, and a test can hand in something else."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from botpool.access import Access
from botpool.pool import Pool
from botpool.settings import Settings


async def pool_of(request: Request) -> Pool:
    """The pool that the app was made with."""
    pool: Pool = request.app.state.pool
    return pool


async def settings_of(request: Request) -> Settings:
    """The settings that the app was made with."""
    settings: Settings = request.app.state.settings
    return settings


async def access_of(request: Request) -> Access:
    """The keys that the app was made with."""
    access: Access = request.app.state.access
    return access


ThePool = Annotated[Pool, Depends(pool_of)]
TheSettings = Annotated[Settings, Depends(settings_of)]
TheAccess = Annotated[Access, Depends(access_of)]
