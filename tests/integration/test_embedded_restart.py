"""The embedded PostgreSQL is started again when it dies, and nothing in it is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import asyncpg
import pytest
from structlog.testing import capture_logs

from botpool.errors import EmbeddedPostgresFailed
from botpool.store.postgres import embedded
from botpool.store.postgres.embedded import embedded_postgres, keep_embedded_postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

DIED, FAILED, BACK = (
    "the embedded PostgreSQL has died",
    "the embedded PostgreSQL can't be restarted",
    "the embedded PostgreSQL is back",
)


def kill(home: Path) -> None:
    os.kill(int((home / "postgres" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)


async def ask(address: str, query: str) -> object:
    """The answer, as soon as there is one."""
    while True:
        try:
            connection = await asyncpg.connect(address)
        except (OSError, asyncpg.PostgresError):
            await asyncio.sleep(0.05)
            continue
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()


@asynccontextmanager
async def kept(home: Path) -> AsyncIterator[asyncio.Task[None]]:
    """A task that keeps the server, which it has found running."""
    found = asyncio.Event()
    joined = embedded.embedded_postgres

    @asynccontextmanager
    async def watched(data_dir: Path) -> AsyncIterator[str]:
        async with joined(data_dir) as address:
            yield address
        found.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "embedded_postgres", watched)
        keeper = asyncio.create_task(keep_embedded_postgres(home))
        await found.wait()
    try:
        async with asyncio.timeout(60):
            yield keeper
    finally:
        keeper.cancel()
        with suppress(asyncio.CancelledError, EmbeddedPostgresFailed):
            await keeper


async def test_a_killed_server_is_back_at_its_address_with_all_that_was_written(
    tmp_path: Path,
) -> None:
    with capture_logs() as lines:
        async with embedded_postgres(tmp_path) as address, kept(tmp_path), kept(tmp_path):
            await ask(address, "CREATE TABLE kept AS SELECT 1 AS number")
            for number in (1, 2):
                kill(tmp_path)
                assert await ask(address, "SELECT max(number) FROM kept") == number
                await ask(address, f"INSERT INTO kept SELECT {number + 1}")
                while len([line for line in lines if line["event"] == BACK]) < 2 * number:
                    await asyncio.sleep(0.05)
    events = [line["event"] for line in lines if line["event"] != FAILED]
    assert sorted(events) == sorted([DIED, BACK] * 4)  # two keepers, two deaths
    assert not (tmp_path / "postgres" / "postmaster.pid").exists()


async def test_a_start_that_fails_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [EmbeddedPostgresFailed("No space left on device.")]

    @asynccontextmanager
    async def at_first_failing(data_dir: Path) -> AsyncIterator[str]:
        if faults and not (data_dir / "postgres" / "postmaster.pid").exists():
            raise faults.pop()
        async with embedded_postgres(data_dir) as address:
            yield address

    monkeypatch.setattr(embedded, "embedded_postgres", at_first_failing)
    with capture_logs() as lines:
        async with embedded_postgres(tmp_path) as address, kept(tmp_path):
            assert await ask(address, "SELECT 1") == 1
            kill(tmp_path)
            (tmp_path / "postgres" / "postmaster.pid").unlink()
            assert await ask(address, "SELECT 2") == 2
            while lines[-1]["event"] != BACK:
                await asyncio.sleep(0.05)
    assert [line["event"] for line in lines][:2] == [DIED, FAILED]
    assert lines[1]["error"] == "No space left on device."


async def test_a_server_that_comes_back_elsewhere_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = iter(["here", "elsewhere"])

    @asynccontextmanager
    async def moving(_: Path) -> AsyncIterator[str]:
        yield next(addresses)

    monkeypatch.setattr(embedded, "embedded_postgres", moving)
    with capture_logs():
        async with kept(tmp_path) as keeper:  # there is no server at all
            with pytest.raises(EmbeddedPostgresFailed, match="at another address"):
                await keeper
