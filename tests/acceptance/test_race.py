"""Separate processes on one database."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from botpool.pool import Pool
from botpool.settings import Settings
from botpool.states import Platform
from botpool.store import Store, connect
from botpool.store.invariants import broken_invariants
from tests.support.scene import add_host

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = tuple[str, str | None, int | None]


async def creators(database_url: str, works: Sequence[Sequence[str]]) -> list[Row]:
    """Start a process for each work, let them all go at once, and return what their bots got."""
    environment = {**os.environ, "BOTPOOL_DATABASE_URL": database_url}
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.creator", *work),
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for work in works
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    outputs = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [tuple(json.loads(line)) for output, _ in outputs for line in output.splitlines()]


@pytest.mark.parametrize(
    "platforms", [[Platform.GOOGLE_MEET], [Platform.GOOGLE_MEET, Platform.ZOOM]], ids=len
)
async def test_130_bots_at_once_from_4_processes_get_100_slots_and_30_places(
    database_url: str, platforms: list[Platform]
) -> None:
    async with connect(database_url) as database:
        store = Store(database)
        pool = Pool(store, Settings(max_pool_size=100))
        await pool.queue.configure()
        await add_host(pool)
        works = [[f"{platform}={count}" for platform in platforms] for count in (33, 33, 32, 32)]
        rows = await creators(database_url, works)
        for platform in platforms:
            mine = [row for row in rows if row[0] == platform]
            assert sorted(name for _, name, _ in mine if name) == [
                f"pool-{platform}-{number:03}" for number in range(1, 101)
            ]
            assert sorted(place for *_, place in mine if place) == list(range(1, 31))
        for numbers in await store.pools.numbers():
            expected = (100, 30) if numbers.platform in platforms else (0, 0)
            assert (numbers.total, numbers.queued) == expected
        assert await broken_invariants(database) == []
