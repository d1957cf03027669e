"""The schema: applied once, by one at a time, and never by older code."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import asyncpg
import pytest

from botpool.errors import SchemaTooNew, SetupError
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.states import BotStatus
from botpool.store import Store, connect, migrate
from botpool.store.migrations import Migration, functions, migrations
from tests.scene import new_bot

if TYPE_CHECKING:
    from botpool.store import Database

PLACE = "botpool.store.migrations"


async def test_replicas_that_start_together_apply_each_migration_once(
    empty_database_url: str,
) -> None:
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(connect(empty_database_url)) for _ in range(8)]
        applied = await asyncio.gather(*(migrate(replica) for replica in replicas))
    assert sorted(applied) == [[]] * 7 + [
        [*(migration.name for migration in migrations()), "functions"]
    ]


async def test_a_database_newer_than_the_code_is_refused(database: Database) -> None:
    await database.execute("INSERT INTO schema_migrations VALUES (9999, 'later', '')")
    with pytest.raises(SchemaTooNew, match=r"version 9999, .* up to \d+: start a newer"):
        await migrate(database)


async def test_a_migration_that_fails_leaves_the_schema_as_it_was(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [
        Migration(1, "0001_good", "CREATE TABLE good ()"),
        Migration(2, "0002_bad", "NONSENSE"),
    ]
    monkeypatch.setattr(f"{PLACE}.migrations", lambda: broken)
    async with connect(empty_database_url) as database:
        with pytest.raises(asyncpg.PostgresSyntaxError):
            await migrate(database)
        tables = await database.fetch("SELECT FROM pg_tables WHERE schemaname = 'public'")
    assert tables == []


async def test_functions_are_installed_again_when_they_differ(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await migrate(database) == []
    monkeypatch.setattr(
        f"{PLACE}.guards",
        lambda: "CREATE FUNCTION answer() RETURNS int LANGUAGE sql AS 'SELECT 42';",
    )
    assert await migrate(database) == ["functions"]
    row = await database.fetch_one("SELECT answer()")
    assert row is not None
    assert row[0] == 42


async def test_functions_are_replaced_under_load_and_nobody_notices(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a deadlock for those who work, nor for the one who migrates."""
    async with connect(database_url) as working, connect(database_url) as migrating:
        pools = [Pool(Store(working), Settings(max_pool_size=4)) for _ in range(4)]
        await pools[0].configure()
        done = False

        async def work(pool: Pool) -> int:
            lives = 0
            while not done:
                slot = await pool.slot_of_bot((await pool.create_bot(new_bot())).bot.id)
                if slot is not None:
                    await pool.advance(slot.id, slot.lease, BotStatus.DONE, "over")
                    await pool.free(slot.id, slot.lease)
                    lives += 1
            return lives

        workers = [asyncio.create_task(work(pool)) for pool in pools]
        for version in range(5):
            text = functions().sql + f"-- {version}"
            monkeypatch.setattr(
                f"{PLACE}.functions", lambda text=text: Migration(0, "functions", text)
            )
            assert await migrate(migrating) == ["functions"]
        done = True
        assert sum(await asyncio.gather(*workers)) > 0
        assert await Store(working).broken_invariants() == []


async def test_a_migration_changed_after_it_was_applied_is_refused(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, *later = migrations()
    changed = [Migration(1, "0001_core", "SELECT 'something else'"), *later]
    monkeypatch.setattr(f"{PLACE}.migrations", lambda: changed)
    with pytest.raises(SetupError, match="another text of migration 0001_core"):
        await migrate(database)


async def test_slots_of_before_the_reconciler_are_due_at_once(empty_database_url: str) -> None:
    core = migrations()[0]
    async with connect(empty_database_url) as database:
        await database.execute(
            f"""
            {core.sql};
            CREATE TABLE schema_migrations (
                version integer PRIMARY KEY, name text, checksum text,
                applied_at timestamptz DEFAULT clock_timestamp()
            );
            INSERT INTO schema_migrations VALUES (1, '{core.name}', '{core.checksum}');
            INSERT INTO bot_pool_slots (platform, number, slot_name, engine, status, lease,
                last_used_at, last_assigned_at, error_message, created_at)
            VALUES ('zoom', 1, 'pool-zoom-001', 'process', 'idle', 1, now(), now(), NULL, now()),
                ('zoom', 2, 'pool-zoom-002', 'process', 'releasing', 1, now(), now(), NULL, now()),
                ('zoom', 3, 'pool-zoom-003', 'process', 'error', 1, now(), now(), 'broken', now());
            """
        )
        assert (await migrate(database))[0] == "0002_reconciler"
        claimed = await Store(database).claim_slots("me", 1000, 10, [], 1_500_000, "process", 1)
        assert sorted(slot.slot_name for slot in claimed) == ["pool-zoom-002", "pool-zoom-003"]
