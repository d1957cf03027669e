"""Connections to PostgreSQL. Its errors become ours here, and nowhere else."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg

from botpool.errors import (
    BotpoolError,
    DatabaseTooOld,
    DatabaseUnreachable,
    InvalidRequest,
    StaleLease,
    TransitionRefused,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    Connection = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]

MINIMUM_VERSION = 14

_CONNECT_TIMEOUT_SECONDS = 10.0

# Every query has an index made for it, and is planned once, whatever the statistics say: a plan
# made while a table was empty would otherwise read all of it, long after it has filled.
_SERVER_SETTINGS = {
    "application_name": "botpool",
    "enable_seqscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}

_OURS: dict[str, type[BotpoolError]] = {
    "BP001": TransitionRefused,
    "BP002": StaleLease,
    "BP003": TransitionRefused,
    "BP004": TransitionRefused,
}


@contextmanager
def _mapped_errors() -> Iterator[None]:
    """Turn PostgreSQL's refusals into ours, by their code, and a lost server into one error."""
    try:
        yield
    except asyncpg.PostgresConnectionError as error:
        raise DatabaseUnreachable(f"The database connection was lost: {error}") from error
    except asyncpg.DataError as error:
        raise InvalidRequest(f"The database can't take this value: {error}") from error
    except asyncpg.PostgresError as error:
        ours = _OURS.get(error.sqlstate or "")
        if ours is None:
            raise
        raise ours(str(error)) from error
    except (OSError, asyncpg.InterfaceError) as error:
        raise DatabaseUnreachable(f"The database does not answer: {error}") from error


class Database:
    """A pool of connections to one database. Safe to share between tasks."""

    def __init__(self, connections: asyncpg.Pool[asyncpg.Record]) -> None:
        self._connections = connections

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        """Run one statement in a transaction of its own and return its rows."""
        with _mapped_errors():
            return await self._connections.fetch(sql, *args)

    async def fetch_one(self, sql: str, *args: object) -> asyncpg.Record | None:
        """Run one statement and return its first row, if it has one."""
        with _mapped_errors():
            return await self._connections.fetchrow(sql, *args)

    async def execute(self, sql: str, *args: object) -> int:
        """Run one statement, or without arguments several, and return how many rows it touched."""
        with _mapped_errors():
            tag = await self._connections.execute(sql, *args)
        count = tag.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection inside a transaction: committed at the end, rolled back by an error."""
        with _mapped_errors():
            async with self._connections.acquire() as connection, connection.transaction():
                yield connection


@asynccontextmanager
async def connect(dsn: str, *, max_connections: int = 10) -> AsyncIterator[Database]:
    """Open the database at `dsn`, and close it at the end.

    Raises `DatabaseUnreachable` or `DatabaseTooOld`; neither shows a password.
    """
    connections = await _open(dsn, max_connections)
    try:
        yield Database(connections)
    finally:
        await connections.close()


async def _open(dsn: str, max_connections: int) -> asyncpg.Pool[asyncpg.Record]:
    try:
        connections = await asyncpg.create_pool(
            dsn,
            min_size=1,
            max_size=max_connections,
            timeout=_CONNECT_TIMEOUT_SECONDS,
            init=_prepare,
            # Nothing that we do outlives its transaction, so a connection needs no clean-up.
            reset=_keep,
            server_settings=_SERVER_SETTINGS,
        )
    except (
        OSError,
        ValueError,
        TimeoutError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
    ) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise DatabaseUnreachable(f"The database at {_shown(dsn)} can't be used: {why}") from error
    try:
        async with connections.acquire() as connection:
            _check_version(connection.get_server_version())
    except BaseException:
        await connections.close()
        raise
    return connections


async def _prepare(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads
    )


async def _keep(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    pass


def _check_version(version: Any) -> None:
    if version.major < MINIMUM_VERSION:
        raise DatabaseTooOld(
            f"The database server is PostgreSQL {version.major};"
            f" botpool needs {MINIMUM_VERSION} or later."
        )


def _shown(dsn: str) -> str:
    """The address without its user and password."""
    parts = urlsplit(dsn)
    return f"{parts.hostname or 'localhost'}{f':{parts.port}' if parts.port else ''}{parts.path}"
