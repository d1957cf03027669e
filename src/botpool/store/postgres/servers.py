"""Connecting to one of the servers that an address names, and finding out whether it is fit."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import asyncpg
import structlog

from botpool.errors import DatabaseTooOld, DatabaseUnfit, DatabaseUnreachable
from botpool.store.postgres.failures import LOST, cannot_connect
from botpool.tasks.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.store.postgres.address import Address

    Connection = asyncpg.Connection[asyncpg.Record]

_log: structlog.stdlib.BoundLogger = structlog.get_logger("botpool")

MINIMUM_VERSION = 14

_SECONDS = 10.0
_NEXT = (OSError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched)
_TRIES = Backoff(0.2, 2.0)
_LOOKS = 3
_ABOUT = """
SELECT pg_backend_pid() AS session, pg_is_in_recovery() AS is_standby,
    current_setting('transaction_read_only')::boolean AS is_read_only
"""


class Servers:
    """The servers that an address names. The one that answered last is tried first.

    Each has its own time to answer: so a machine that is gone doesn't hide the one that took over.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._urls = [*address.urls]

    async def connect(self, *_: object, **options: Any) -> Connection:
        """Connect to the first server that can be used. Raises what the last one failed with."""
        *others, last = self._urls
        for url in others:
            try:
                return await self._connect(url, options)
            except _NEXT:
                continue
        return await self._connect(last, options)

    async def _connect(self, url: str, options: dict[str, Any]) -> Connection:
        seconds = _SECONDS / len(self._urls)
        connection: Connection = await asyncpg.connect(url, timeout=seconds, **options)
        self._urls.sort(key=lambda each: each != url)
        return connection

    async def wait_until_fit(self, wait_ms: int) -> None:
        """Check again and again while the database is unreachable, for `wait_ms` at most."""
        clock = asyncio.get_running_loop().time
        began = clock()
        told = ""
        for failures in count(1):
            try:
                await self.check()
            except DatabaseUnreachable as error:
                left_ms = wait_ms - _ms(clock() - began)
                if left_ms <= 0:
                    raise
                if told != str(error):
                    told = str(error)
                    _log.warning("waiting for the database", error=told, up_to_ms=left_ms)
            else:
                break
            await asyncio.sleep(min(_TRIES.seconds(failures), left_ms / 1000))
        if told:
            _log.warning("the database can be used", after_ms=_ms(clock() - began))

    async def check(self) -> None:
        """Connect, and raise a `SetupError` if botpool can't use the server as it is."""
        async with self._opened() as first:
            version = first.get_server_version()
            if version.major < MINIMUM_VERSION:
                raise DatabaseTooOld(
                    f"The database server is PostgreSQL {version.major};"
                    f" botpool needs {MINIMUM_VERSION} or later."
                )
            about = await _about(first)
            # A pooler between us and PostgreSQL makes up its own number for a connection.
            if about["session"] != first.get_server_pid() and await self._share_sessions(first):
                raise DatabaseUnfit(
                    f"The server at {self.address} is a pooler that gives each transaction another"
                    " session: use its session mode, or PostgreSQL's own address."
                )
            if about["is_read_only"]:
                what = "is a standby" if about["is_standby"] else "is set to be read-only"
                raise DatabaseUnreachable(
                    f"The server at {self.address} {what}: use the address of the primary, or name"
                    " all servers, with target_session_attrs=read-write."
                )

    async def _share_sessions(self, first: Connection) -> bool:
        """Whether connections change sessions, or two have the same. Poolers differ in whose."""
        of_first, of_second = set[int](), set[int]()
        async with self._opened() as second:
            for _ in range(_LOOKS):
                of_first.add((await _about(first))["session"])
                of_second.add((await _about(second))["session"])
                of_second.add((await _about(second))["session"])
        return len(of_first) > 1 or len(of_second) > 1 or of_first == of_second

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Connection]:
        """A connection of its own, without named statements: poolers may not keep them."""
        try:
            connection = await self.connect(statement_cache_size=0)
            try:
                yield connection
            except BaseException:
                connection.terminate()  # a goodbye could take long, and hide what happened
                raise
            await connection.close(timeout=_SECONDS)
        except (*LOST, asyncpg.PostgresError, ValueError) as error:
            # Without asyncpg's error, which may show a part of the password.
            raise cannot_connect(self.address, error) from None


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


async def _about(connection: Connection) -> asyncpg.Record:
    async with connection.transaction():
        (about,) = await connection.fetch(_ABOUT, timeout=_SECONDS)
        return about
