"""Connections to PostgreSQL. Only here are its errors turned into ours."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

import asyncpg
import orjson

from botpool.errors import (
    BotpoolError,
    ConstraintViolated,
    DatabaseBusy,
    DatabaseTooOld,
    DatabaseUnreachable,
    InvalidRequest,
    StaleLease,
    TransitionRefused,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    Connection = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]

MINIMUM_VERSION = 14

_CONNECT_TIMEOUT_SECONDS = 10.0
# A server that doesn't answer within this time is not just busy.
_COMMAND_TIMEOUT_SECONDS = 60.0
LONG_SECONDS = 24 * 3600.0
"""For statements that may take long."""

# Every query has its index and is planned once. Sequential scans are off, because a plan made while
# a table was empty would otherwise read all of it, long after it has filled.
_SERVER_SETTINGS = {
    "application_name": "botpool",
    "enable_seqscan": "off",
    "jit": "off",
    "lock_timeout": "10s",
    "plan_cache_mode": "force_generic_plan",
}

# By an error's code, or how it begins. BP is ours: schema/functions/guards.sql.
_OURS: tuple[tuple[str, type[BotpoolError]], ...] = (
    ("BP002", StaleLease),
    ("BP", TransitionRefused),
    ("08", DatabaseUnreachable),
    ("22", InvalidRequest),
    ("25006", DatabaseUnreachable),  # the server is read-only
    ("23", ConstraintViolated),
    ("40", DatabaseBusy),  # such as deadlocks
    ("53", DatabaseUnreachable),  # too many connections, a full disk
    ("55P03", DatabaseBusy),  # a lock could not be acquired in time
    ("57", DatabaseUnreachable),  # the server shuts down, starts up, or ended the query
)


@contextmanager
def _mapped_errors() -> Iterator[None]:
    """Turn PostgreSQL's errors into ours by their code; a lost server is `DatabaseUnreachable`."""
    try:
        yield
    except asyncpg.PostgresError as error:
        code = error.sqlstate or ""
        ours = next((ours for prefix, ours in _OURS if code.startswith(prefix)), None)
        if ours is None:
            raise
        message = " ".join(str(error).split())
        if ours is ConstraintViolated:
            raise ConstraintViolated(message, getattr(error, "constraint_name", None)) from error
        raise ours(message) from error
    except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise DatabaseUnreachable(f"The database doesn't answer: {error}") from error


class Database:
    """A pool of connections to one database. Safe to share between tasks.

    Returning a connection to asyncpg's pool and taking it again costs more than a short query. So
    a connection is kept at hand while no task waits for one.
    """

    def __init__(self, connections: asyncpg.Pool[asyncpg.Record]) -> None:
        self._connections = connections
        self._at_hand: list[Connection] = []
        self._waiting = 0
        self._closing = False

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        """Run one statement in a transaction of its own and return its rows."""
        async with self._connection() as connection:
            return await connection.fetch(sql, *args)

    async def fetch_one(self, sql: str, *args: object) -> asyncpg.Record | None:
        """Run one statement and return its first row, if it has one."""
        async with self._connection() as connection:
            return await connection.fetchrow(sql, *args)

    async def execute(self, sql: str, *args: object, seconds: float | None = None) -> int:
        """Run one statement, or without arguments several, and return how many rows it touched.

        `seconds` is how long it may take, for statements that may take long.
        """
        async with self._connection() as connection:
            tag = await connection.execute(sql, *args, timeout=seconds)
        count = tag.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection inside a transaction: committed at the end, rolled back by an error."""
        async with self._connection() as connection, connection.transaction():
            yield connection

    async def listen(self, channel: str, heard: Callable[[], None]) -> None:
        """Call `heard` now, and with every notification, until the connection is lost."""
        with _mapped_errors():
            connection = await self._connections.acquire()
            lost = asyncio.Event()

            def notified(*_: object) -> None:
                heard()

            def terminated(*_: object) -> None:
                lost.set()

            try:
                connection.add_termination_listener(terminated)
                await connection.add_listener(channel, notified)
                heard()
                await lost.wait()
            finally:
                # If the server ended the connection, asyncpg has released it, and this raises.
                with suppress(asyncpg.InterfaceError):
                    try:
                        if not connection.is_closed():
                            connection.remove_termination_listener(terminated)
                            await connection.remove_listener(channel, notified)
                    finally:
                        # Even if cancelled again: otherwise `close` would wait for it for ever.
                        await self._connections.release(connection)

    async def close(self) -> None:
        """Close every connection, once those in use are returned."""
        self._closing = True
        while self._at_hand:
            await self._connections.release(self._at_hand.pop())
        await self._connections.close()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        with _mapped_errors():
            connection = await self._take()
            try:
                yield connection
            except BaseException:
                await self._connections.release(connection)
                raise
            if self._waiting or self._closing:
                await self._connections.release(connection)
            else:
                self._at_hand.append(connection)

    async def _take(self) -> Connection:
        while self._at_hand:
            connection = self._at_hand.pop()
            # If the server ended the connection, asyncpg has released it, and this raises.
            with suppress(asyncpg.InterfaceError):
                if not connection.is_closed():
                    return connection
                await self._connections.release(connection)
        self._waiting += 1
        try:
            return await self._connections.acquire()
        finally:
            self._waiting -= 1


@asynccontextmanager
async def connect(dsn: str, *, max_connections: int = 10) -> AsyncIterator[Database]:
    """Open the database at `dsn`, and close it at the end.

    Raises `DatabaseUnreachable` or `DatabaseTooOld`; neither shows a password.
    """
    database = Database(await _open(dsn, max_connections))
    try:
        yield database
    finally:
        await database.close()


async def _open(dsn: str, max_connections: int) -> asyncpg.Pool[asyncpg.Record]:
    try:
        connections = await asyncpg.create_pool(
            dsn,
            min_size=0,
            max_size=max_connections,
            timeout=_CONNECT_TIMEOUT_SECONDS,
            command_timeout=_COMMAND_TIMEOUT_SECONDS,
            init=_prepare,
            # Nothing outlives its transaction, so a connection needs no clean-up.
            reset=_keep,
            server_settings=_SERVER_SETTINGS,
        )
        async with connections.acquire() as connection:
            version = connection.get_server_version()
    except (ValueError, asyncpg.InterfaceError):
        # asyncpg's error about an invalid URL may show a part of the password.
        raise DatabaseUnreachable(
            "BOTPOOL_DATABASE_URL is not the URL of a PostgreSQL server:"
            " it must look like postgresql://user:password@host:5432/database."
        ) from None
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InternalClientError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise DatabaseUnreachable(
            f"The database at BOTPOOL_DATABASE_URL can't be used: {why}."
        ) from error
    if version.major < MINIMUM_VERSION:
        await connections.close()
        raise DatabaseTooOld(
            f"The database server is PostgreSQL {version.major};"
            f" botpool needs {MINIMUM_VERSION} or later."
        )
    return connections


async def _prepare(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=_json, decoder=orjson.loads
    )


def _json(value: object) -> str:
    """A value as jsonb; a dataclass becomes an object with its fields."""
    return orjson.dumps(value, default=_jsonable).decode()


def _jsonable(value: object) -> object:
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"  # as PostgreSQL writes a bytea
    if isinstance(value, (frozenset, set)):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


async def _keep(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    pass
