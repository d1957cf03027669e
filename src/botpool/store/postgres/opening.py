"""The database that the settings name, or the embedded one."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from botpool.store.postgres.database import connect
from botpool.store.postgres.embedded import embedded_postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.settings import Settings
    from botpool.store.postgres.database import Database


@asynccontextmanager
async def open_database(
    settings: Settings, *, max_connections: int = 10, wait_ms: int = 0
) -> AsyncIterator[Database]:
    """Connect to `database_url`; without one, to a PostgreSQL of our own in `data_dir`.

    A database that can't be reached yet is tried again for `wait_ms`. Raises a `SetupError`, whose
    one sentence says what to fix.
    """
    async with AsyncExitStack() as stack:
        if settings.database_url is None:
            dsn = await stack.enter_async_context(embedded_postgres(settings.data_dir))
        else:
            dsn = settings.database_url.get_secret_value()
        yield await stack.enter_async_context(
            connect(dsn, max_connections=max_connections, wait_ms=wait_ms)
        )
