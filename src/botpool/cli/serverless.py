"""The API without a server: in this process, on the database, for commands that need no more.

Whoever has the database is its admin.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import httpx

from botpool.access.keys import Keys
from botpool.api import create_app
from botpool.models.keys import ApiKey
from botpool.pool import Pool
from botpool.states import Role
from botpool.store import Store, check_schema, open_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from botpool.settings import Settings


@asynccontextmanager
async def serverless(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API in this process. Raises a `SetupError` if the database can't be used."""
    async with open_database(settings) as database:
        await check_schema(database)
        store = Store(database)
        app = create_app(store, Pool(store, settings), settings, Keys(store, settings))

        async def as_admin(scope: Scope, receive: Receive, send: Send) -> None:
            scope["state"] = {"key": _OPERATOR, "session": None}
            await app(scope, receive, send)

        transport = httpx.ASGITransport(app=as_admin)
        async with httpx.AsyncClient(transport=transport, base_url=settings.local_url) as client:
            yield client


_OPERATOR = ApiKey(
    id=0,
    name="command line",
    role=Role.ADMIN,
    project_id=None,
    prefix="",
    created_at=datetime.min.replace(tzinfo=UTC),
    last_used_at=None,
    expires_at=None,
)
