"""The schema: applied once, by one at a time, and never by older code."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import asyncpg
import pytest

from botpool.errors import SchemaTooNew, SchemaUnfit, SetupError
from botpool.models.queue import QueuePage
from botpool.models.slots import WaitsFor
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.states import BotStatus
from botpool.store import Store, connect, migrate
from botpool.store.invariants import broken_invariants
from botpool.store.schema.migrate import Migration, functions, migrations
from tests.support.scene import add_host, new_bot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from botpool.store import Database

pytestmark = pytest.mark.older_postgres

PLACE = "botpool.store.schema.migrate"


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


async def test_functions_are_replaced_under_load_and_no_work_fails(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a deadlock for the pools that work, nor for the migration."""
    async with connect(database_url) as working, connect(database_url) as migrating:
        store = Store(working)
        pools = [Pool(store, Settings(max_pool_size=4)) for _ in range(4)]
        await pools[0].queue.configure()
        await add_host(pools[0])
        done = False

        async def work(pool: Pool) -> int:
            lives = 0
            while not done:
                slot = await store.slots.of_bot((await pool.creation.create_bot(new_bot())).bot.id)
                if slot is not None:
                    await pool.assignments.advance(slot.id, slot.lease, BotStatus.DONE, "over")
                    await pool.slots.make_idle(slot.id, slot.lease)
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
        assert await broken_invariants(working) == []


async def test_a_migration_changed_after_it_was_applied_is_refused(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, *later = migrations()
    changed = [Migration(1, "0001_core", "SELECT 'something else'"), *later]
    monkeypatch.setattr(f"{PLACE}.migrations", lambda: changed)
    with pytest.raises(SetupError, match="another version of migration 0001_core"):
        await migrate(database)


async def apply(database: Database, steps: Sequence[Migration]) -> None:
    """Let a database be as an older botpool has left it, but for its functions."""
    await database.execute(
        "CREATE TABLE schema_migrations (version integer PRIMARY KEY, name text, checksum text,"
        " applied_at timestamptz DEFAULT clock_timestamp())"
    )
    for step in steps:
        await database.execute(step.sql)
        await database.execute(
            "INSERT INTO schema_migrations VALUES ($1, $2, $3)",
            step.version,
            step.name,
            step.checksum,
        )


async def test_slots_of_before_the_reconciler_are_due_at_once(empty_database_url: str) -> None:
    async with connect(empty_database_url) as database:
        await apply(database, migrations()[:1])
        await database.execute(
            """
            INSERT INTO bot_pool_slots (platform, number, slot_name, engine, status, lease,
                last_used_at, last_assigned_at, error_message, created_at)
            VALUES ('zoom', 1, 'pool-zoom-001', 'process', 'idle', 1, now(), now(), NULL, now()),
                ('zoom', 2, 'pool-zoom-002', 'process', 'releasing', 1, now(), now(), NULL, now()),
                ('zoom', 3, 'pool-zoom-003', 'process', 'error', 1, now(), now(), 'broken', now());
            """
        )
        assert (await migrate(database))[0] == "0002_reconciler"
        reserved = await Store(database).reservations.reserve_due(
            "me",
            ttl_ms=1000,
            most=10,
            hosts=[],
            deployment_limit_ms=1_500_000,
            engine="process",
        )
        assert sorted(slot.slot_name for slot in reserved) == ["pool-zoom-002", "pool-zoom-003"]


async def test_what_was_said_in_sentences_is_kept_as_values(empty_database_url: str) -> None:
    """Of slots that wait, of duties, and of what a replica has taken."""
    async with connect(empty_database_url) as database:
        await apply(database, migrations()[:5])
        await database.execute(
            """
            CREATE FUNCTION next_probe(p_ill_since timestamptz) RETURNS timestamptz
                LANGUAGE sql AS 'SELECT p_ill_since';
            INSERT INTO bots (platform, meeting_url, bot_display_name, status, priority,
                queue_timeout_ms, correlation_id, metadata, config, created_at)
            SELECT 'zoom', '', '', 'DEPLOYING', 1, 0, '', '{}', '{}', now()
            FROM generate_series(1, 5);
            INSERT INTO bot_pool_slots (platform, number, slot_name, engine, status,
                assigned_bot_id, lease, last_used_at, last_assigned_at, deployment_status,
                due_at, claimed_by, claimed_until, created_at)
            SELECT 'zoom', n, 'pool-zoom-' || n, 'process', 'deploying', n, 1, now(), now(), said,
                now(), 'me', now(), now()
            FROM unnest(ARRAY['waits for a host', 'waits for the image',
                'waits for room on the host', 'waits after a failed launch', 'in_progress'])
                WITH ORDINALITY AS s (said, n);
            INSERT INTO hosts (engine, host, ill_since, probe_at)
            VALUES ('process', 'local', now(), now());
            INSERT INTO duties VALUES ('sync process/local', now()), ('hear', now());
            """
        )
        assert (await migrate(database))[0] == "0006_words"
        slots = await Store(database).slots.all()
        assert [(slot.waits_for, slot.deployment_status) for slot in slots] == [
            (None, None),
            *((waits_for, None) for waits_for in WaitsFor),
            (None, "in_progress"),
        ]
        assert {slot.reserved_by for slot in slots} == {"me"}
        duties = await database.fetch("SELECT name FROM duties ORDER BY name")
        assert [duty["name"] for duty in duties] == ["compare process/local"]
        assert await database.fetch("SELECT FROM hosts WHERE unhealthy_since IS NULL") == []


async def test_bots_that_waited_before_they_were_counted_keep_their_places(
    empty_database_url: str,
) -> None:
    async with connect(empty_database_url) as database:
        older = [step for step in migrations() if step.name < "0009_queue_counts"]
        await apply(database, older)
        await database.execute(
            """
            INSERT INTO bots (id, platform, meeting_url, bot_display_name, status, priority,
                queue_timeout_ms, correlation_id, metadata, config, created_at)
            SELECT n, 'zoom', '', '', 'QUEUED', 100, 0, '', '{}', '{}', now()
            FROM unnest(ARRAY[1, 1023, 1024, 5000]) n;
            INSERT INTO bot_pool_queue (bot_id, platform, priority, queued_at, timeout_at)
            SELECT id, platform, priority, created_at, now() FROM bots;
            """
        )
        await migrate(database)
        queue = await Store(database).queue.page(QueuePage())
        assert [(entry.bot_id, entry.position) for entry in queue] == [
            (1, 1),
            (1023, 2),
            (1024, 3),
            (5000, 4),
        ]
        assert await database.fetch("SELECT FROM queue_changes") == []


async def test_what_keys_owned_before_belongs_to_projects(empty_database_url: str) -> None:
    """A client's bots to a project named after its key, all others to the default project."""
    async with connect(empty_database_url) as database:
        await apply(database, [step for step in migrations() if step.version < 12])
        await database.execute(
            """
            CREATE FUNCTION refuse_ended() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN RAISE EXCEPTION ''it has ended''; END';
            CREATE TRIGGER bots_ended BEFORE UPDATE ON bots
                FOR EACH ROW WHEN (OLD.ended_at IS NOT NULL) EXECUTE FUNCTION refuse_ended();
            INSERT INTO api_keys (name, role, digest, prefix, created_at, revoked_at)
            VALUES ('admin', 'admin', '1', '', now(), NULL), ('b', 'admin', '2', '', now(), NULL),
                ('notes', 'client', '3', '', now(), NULL),
                ('notes', 'client', '4', '', now(), now()),
                ('default', 'client', '5', '', now(), NULL);
            INSERT INTO bots (platform, meeting_url, bot_display_name, status, priority,
                queue_timeout_ms, correlation_id, metadata, config, created_at, ended_at, key_id,
                idempotency_key, request_digest, callback_url)
            SELECT 'zoom', '', '', 'DONE', 1, 0, '', '{}', '{}', now(), now(), key, 'same', 'd', 'u'
            FROM unnest(ARRAY[1, 2, 3, 4, 5, NULL]) WITH ORDINALITY AS k (key, n) ORDER BY n;
            INSERT INTO webhook_deliveries (bot_id, transition_id, callback_url, payload,
                created_at, next_attempt_at, attempts)
            SELECT id, 0, callback_url, '{"type": "bot.status_changed", "data": {}}',
                now(), now(), 2
            FROM bots WHERE key_id = 4;
            """
        )
        await migrate(database)
        store = Store(database)
        projects = {project.id: project.name for project in await store.projects.all()}
        assert list(projects.values()) == ["default", "notes", "notes (key 4)", "default (key 5)"]
        keys = await store.keys.all()
        assert [projects.get(key.project_id or 0) for key in keys] == [
            *(None, None),
            *("notes", "notes (key 4)", "default (key 5)"),
        ]
        assert [key.expires_at is not None for key in keys] == [False, False, False, True, False]
        bots = [await store.bots.get(bot_id) for bot_id in range(1, 7)]
        assert [projects[bot.project_id] for bot in bots] == [
            *("default", "default"),
            *("notes", "notes (key 4)", "default (key 5)"),
            "default",
        ]
        # In the default project the newest one is the answer to the request.
        assert [bot.request_digest for bot in bots] == [None, None, b"d", b"d", b"d", b"d"]
        (delivery,) = await store.webhooks.deliveries(4)
        assert (delivery.project_id, delivery.url, delivery.attempts) == (3, "u", 2)
        (due,) = await store.webhooks.reserve("me", 1000, 10, [], 10)
        assert (due.tries, due.secrets, due.url) == (2, [], "u")


async def test_a_botpool_from_before_finds_that_the_schema_is_not_its_own(
    database: Database,
) -> None:
    """One that still runs can't let a client see what isn't its own, nor sign for it."""
    for query in (
        "SELECT * FROM api_keys WHERE revoked_at IS NULL",
        "SELECT callback_url FROM webhook_deliveries",
        "SELECT FROM a_table_of_later",
        "SELECT a_function_of_later()",
    ):
        with pytest.raises(SchemaUnfit):
            await database.fetch(query)
