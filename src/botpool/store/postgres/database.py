"""Connections to PostgreSQL, shared between tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import asyncpg
import orjson

from botpool.store.postgres.address import Address
from botpool.store.postgres.failures import mapped_errors
from botpool.store.postgres.outage import Outage
from botpool.store.postgres.servers import Servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    Connection = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]

# A server that doesn't answer within this time is not just busy.
_COMMAND_TIMEOUT_SECONDS = 60.0
_LISTENER_LOOK_SECONDS = 30.0
_LISTENER_ANSWER_SECONDS = 10.0
LONG_SECONDS = 24 * 3600.0
"""For statements that may take long."""

# Every query has its index and is planned once. Sequential scans are off, because a plan made while
# a table was empty would otherwise read all of it, long after it has filled. They are set once
# connected: a pooler may refuse or drop settings that come with the connection.
_SESSION = """
SET enable_seqscan = off;
SET jit = off;
SET lock_timeout = '10s';
SET plan_cache_mode = force_generic_plan;
"""


class Database:
    """A pool of connections to one database. Safe to share between tasks.

    Returning a connection to asyncpg's pool and taking it again costs more than a short query. So
    a connection is kept at hand while no task waits for one. It logs when the database can't be
    used, and when it can be used again.
    """

    def __init__(self, connections: asyncpg.Pool[asyncpg.Record]) -> None:
        self._connections = connections
        self._at_hand: list[Connection] = []
        self._waiting = 0
        self._closing = False
        self._outage = Outage()

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
        with self._outage.noticed(), mapped_errors():
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
                while not await _set_within(lost, _LISTENER_LOOK_SECONDS):
                    await _check_alive(connection)
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
        with self._outage.noticed(), mapped_errors():
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
async def connect(
    dsn: str, *, max_connections: int = 10, wait_ms: int = 0
) -> AsyncIterator[Database]:
    """Open the database at `dsn`, and close it at the end.

    Raises a `SetupError` that shows no password. `DatabaseUnreachable` may pass by itself: it is
    only raised when `wait_ms` are over.
    """
    servers = Servers(Address.read(dsn))
    await servers.wait_until_fit(wait_ms)
    database = Database(await open_connections(servers, max_connections))
    try:
        yield database
    finally:
        await database.close()


async def open_connections(servers: Servers, max_connections: int) -> asyncpg.Pool[asyncpg.Record]:
    """Connections as a `Database` needs them. Each is opened when it is needed first."""
    return await asyncpg.create_pool(
        min_size=0,
        max_size=max_connections,
        connect=servers.connect,
        command_timeout=_COMMAND_TIMEOUT_SECONDS,
        init=_prepare,
        # Nothing outlives its transaction, so a connection needs no clean-up.
        reset=_keep,
        server_settings={"application_name": "botpool"},
    )


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await event.wait()
    return False


async def _check_alive(connection: Connection) -> None:
    """Give up a connection to a machine that is gone: it would not end by itself."""
    try:
        await connection.execute("SELECT 1", timeout=_LISTENER_ANSWER_SECONDS)
    except TimeoutError:
        connection.terminate()
        raise


async def _prepare(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    await connection.execute(_SESSION)
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
