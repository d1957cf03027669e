"""Connections: shared, given back, and found again after the server was away."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from botpool.errors import DatabaseUnreachable, InvalidRequest
from botpool.store import connect

OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


async def test_more_callers_than_connections_are_all_served(database_url: str) -> None:
    async with connect(database_url, max_connections=2) as database:
        rows = await asyncio.gather(
            *(database.fetch("SELECT $1::integer, pg_sleep(0)", n) for n in range(50))
        )
        assert [row[0]["int4"] for row in rows] == list(range(50))
        async with database.transaction(), database.transaction():
            third = asyncio.create_task(database.fetch("SELECT 3"))
            await asyncio.sleep(0)
        assert (await third)[0][0] == 3


async def test_a_close_waits_for_what_is_under_way(database_url: str) -> None:
    async with connect(database_url) as database:
        await database.fetch("SELECT 1")
        late = asyncio.create_task(database.fetch("SELECT pg_sleep(0.05), 42 AS answer"))
        await asyncio.sleep(0)
    assert (await late)[0]["answer"] == 42


async def test_a_connection_whose_statement_failed_is_used_again(database_url: str) -> None:
    async with connect(database_url, max_connections=1) as database:
        for _ in range(3):
            with pytest.raises(InvalidRequest, match="division by zero"):
                await database.fetch("SELECT 1 / $1::integer", 0)
        assert (await database.fetch("SELECT 1"))[0][0] == 1


async def test_connections_that_the_server_ended_are_replaced(database_url: str) -> None:
    async with connect(database_url) as database:
        async with database.transaction() as first, database.transaction() as second:
            assert first != second
        killer = await asyncpg.connect(database_url)
        await killer.execute(OTHERS)
        await killer.close()
        for _ in range(3):
            try:
                assert (await database.fetch("SELECT 1"))[0][0] == 1
            except DatabaseUnreachable:
                continue
            break
        else:
            pytest.fail("the database is there again, and was not found")


async def test_a_connection_lost_in_the_middle_is_said_to_be(database_url: str) -> None:
    async with connect(database_url) as database:
        with pytest.raises(DatabaseUnreachable):
            await database.fetch("SELECT pg_terminate_backend(pg_backend_pid())")
        assert (await database.fetch("SELECT 1"))[0][0] == 1


async def test_a_value_that_cannot_be_sent_is_the_callers_fault(database_url: str) -> None:
    async with connect(database_url) as database:
        for value in ({1: "a key that is no text"}, {"too": 2**70}):
            with pytest.raises(InvalidRequest):
                await database.fetch("SELECT $1::jsonb", value)


async def test_a_listener_that_is_cancelled_twice_gives_its_connection_back(
    database_url: str,
) -> None:
    async with connect(database_url, max_connections=1) as database:
        heard = asyncio.Event()
        listening = asyncio.create_task(database.listen("anything", heard.set))
        await heard.wait()
        listening.cancel()
        await asyncio.sleep(0)  # it tells the server by now
        listening.cancel()
        await asyncio.wait({listening})
        assert listening.cancelled()
        async with asyncio.timeout(30):
            assert (await database.fetch("SELECT 1"))[0][0] == 1
            await database.close()
