"""Whether it lives and whether it can work: told as it is, and again when that changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx
import pytest

from botpool.access.keys import Keys
from botpool.api import create_app, health
from botpool.errors import DatabaseBusy, DatabaseUnreachable
from botpool.models.replicas import ReplicaRole
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.store import Store, connect, migrate
from botpool.store.postgres.embedded import embedded_postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from botpool.store import Database


def client_of(store: Store) -> httpx.AsyncClient:
    settings = Settings()
    app = create_app(store, Pool(store, settings), settings, Keys(store, settings))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://botpool")


@pytest.fixture
def store(database: Database) -> Store:
    return Store(database)


@pytest.fixture
async def http(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(store) as client:
        yield client


async def ready(http: httpx.AsyncClient) -> Any:
    """`ready`, or the code that says what is wrong."""
    response = await http.get("/readyz")
    body = response.json()
    assert response.status_code == (200 if body["status"] == "ready" else 503)
    if response.status_code == 503:
        assert response.headers["content-type"] == "application/problem+json"
        return body["code"]
    assert response.headers["cache-control"] == "no-store"
    return body["status"]


async def test_all_is_well_without_a_key(http: httpx.AsyncClient) -> None:
    response = await http.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
    assert response.headers["cache-control"] == "no-store"
    assert await ready(http) == "ready"


async def test_a_database_that_is_gone_is_told_and_found_again(tmp_path: Path) -> None:
    server = embedded_postgres(tmp_path)
    dsn = await server.__aenter__()
    async with connect(dsn) as database, client_of(Store(database)) as http:
        await migrate(database)
        assert await ready(http) == "ready"
        await server.__aexit__(None, None, None)
        assert await ready(http) == "database_unreachable"
        assert (await http.get("/healthz")).status_code == 200
        async with embedded_postgres(tmp_path) as again:
            assert again == dsn
            assert await ready(http) == "ready"


async def test_a_database_that_hangs_is_told_in_time_and_found_again(
    http: httpx.AsyncClient, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await asyncpg.connect(database_url)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("LOCK TABLE schema_migrations")
    with monkeypatch.context() as patched:
        patched.setattr(health, "_ANSWER_SECONDS", 0.05)
        assert await ready(http) == "database_unreachable"
        assert await ready(http) == "database_unreachable"
    await transaction.rollback()
    await other.close()
    assert await ready(http) == "ready"


async def test_a_database_that_has_no_time_is_not_ready(
    http: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        raise DatabaseBusy

    monkeypatch.setattr(store.installation, "check_schema", check)
    assert await ready(http) == "database_unreachable"


async def test_a_database_that_is_not_migrated_is_told(empty_database_url: str) -> None:
    async with (
        connect(empty_database_url) as database,
        client_of(Store(database)) as http,
    ):
        assert await ready(http) == "schema_unfit"
        await migrate(database)
        assert await ready(http) == "ready"


async def test_a_database_of_a_newer_botpool_is_told(
    http: httpx.AsyncClient, database: Database
) -> None:
    await database.execute("INSERT INTO schema_migrations VALUES (9999, 'later', '')")
    assert await ready(http) == "schema_unfit"


async def test_requests_that_arrive_together_are_one_query(
    http: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = store.installation.check_schema
    asked = []

    async def counted() -> None:
        asked.append(1)
        await check()

    monkeypatch.setattr(store.installation, "check_schema", counted)
    assert await asyncio.gather(*(ready(http) for _ in range(20))) == ["ready"] * 20
    assert len(asked) == 1
    assert await ready(http) == "ready"
    assert len(asked) == 2, "an answer is not kept"


async def test_a_caller_that_goes_away_takes_the_answer_from_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()

    async def check() -> None:
        await go_on.wait()

    monkeypatch.setattr(store.installation, "check_schema", check)
    readiness = health.Readiness(store)
    first, second = [asyncio.create_task(readiness.check()) for _ in range(2)]
    await asyncio.sleep(0)
    first.cancel()
    go_on.set()
    await asyncio.wait({first, second})
    assert first.cancelled()
    assert second.exception() is None


async def test_a_check_that_can_not_even_be_given_up_stands_in_no_other_s_way(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_last = asyncio.Event()

    async def hang() -> None:
        try:
            await at_last.wait()
        finally:
            await at_last.wait()

    readiness = health.Readiness(store)
    with monkeypatch.context() as patched:
        patched.setattr(store.installation, "check_schema", hang)
        patched.setattr(health, "_ANSWER_SECONDS", 0.01)
        with pytest.raises(DatabaseUnreachable):
            await readiness.check()
    again = asyncio.create_task(readiness.check())
    await asyncio.wait({again})
    assert again.exception() is None
    at_last.set()


async def test_replicas_are_counted_by_what_they_do(
    http: httpx.AsyncClient, store: Store, database: Database
) -> None:
    await store.installation.use_virtual_clock()
    assert (await http.get("/readyz")).json() == {
        "status": "ready",
        "replicas": {"api": 0, "worker": 0},
    }
    for name, role in (("a", ReplicaRole.ALL), ("b", ReplicaRole.API), ("c", ReplicaRole.WORKER)):
        await store.replicas.seen(name, role, "1.0", "here")
    assert (await http.get("/readyz")).json()["replicas"] == {"api": 2, "worker": 2}
    await store.replicas.gone("c")
    await database.execute("UPDATE virtual_clock SET now = now + interval '19 seconds'")
    await store.replicas.seen("b", ReplicaRole.API, "1.0", "here")
    await database.execute("UPDATE virtual_clock SET now = now + interval '2 seconds'")
    assert (await http.get("/readyz")).json()["replicas"] == {"api": 1, "worker": 0}


async def test_a_database_that_takes_no_writes_is_not_ready(
    http: httpx.AsyncClient, database: Database
) -> None:
    (row,) = await database.fetch("SELECT current_database() AS name")
    await database.execute(f"ALTER DATABASE {row['name']} SET default_transaction_read_only = on")
    await database.execute("SET default_transaction_read_only = on")
    assert await ready(http) == "database_unreachable"
    await database.execute("SET default_transaction_read_only = off")
    assert await ready(http) == "ready"
