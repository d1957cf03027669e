"""Servers that botpool can't use, or not yet, and how it says so: at its start, and in doctor."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg
import pytest
from structlog.testing import capture_logs

from botpool.doctor import Finding, Result, diagnose
from botpool.errors import DatabaseUnfit, DatabaseUnreachable, SettingsInvalid
from botpool.settings import Settings
from botpool.store import Store, connect, migrate
from botpool.store.postgres import database as database_module
from botpool.store.postgres.embedded import embedded_postgres
from tests.support.postgres import (
    ask,
    make_certificate,
    pooler,
    reachable_folder,
    socket_folder,
    standby,
    with_hosts,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

SESSION = {"pool_mode": "session"}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with reachable_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
async def primary(folder: Path) -> AsyncIterator[str]:
    async with embedded_postgres(folder / "primary") as url:
        yield url


async def refusal(url: str) -> str:
    """Why the database can't be used."""
    with pytest.raises((DatabaseUnfit, DatabaseUnreachable, SettingsInvalid)) as raised:
        async with connect(url):
            pass
    return f"{type(raised.value).__name__}: {raised.value}"


async def finding(folder: Path, url: str, check: str = "database", **settings: int) -> Finding:
    """What doctor finds."""
    findings = await diagnose(
        Settings(database_url=url, data_dir=folder / "data", port=0, **settings)  # type: ignore[arg-type]
    )
    (found,) = [each for each in findings if each.check == check and each.engine is None]
    return found


# Poolers


@pytest.mark.parametrize("sessions", [1, 3])
@pytest.mark.parametrize("server_round_robin", ["0", "1"])
async def test_a_pooler_that_shares_sessions_is_refused_and_told_by_doctor(
    folder: Path, primary: str, server_round_robin: str, sessions: int
) -> None:
    """Whether it gives out the session that was used last, or first, or has no other."""
    async with pooler(
        folder,
        primary,
        pool_mode="transaction",
        default_pool_size=str(sessions),
        server_round_robin=server_round_robin,
    ) as url:
        others = [await asyncpg.connect(url, statement_cache_size=0) for _ in range(sessions)]
        for each in others:
            await each.execute("BEGIN")
        for each in others:
            await each.execute("COMMIT")  # so the pooler has all its sessions
        said = await refusal(url)
        found = await finding(folder, url)
        for each in others:
            await each.close()
    assert said.startswith("DatabaseUnfit: The server at postgresql://127.0.0.1:")
    assert said.endswith("use its session mode, or PostgreSQL's own address.")
    assert (found.result, f"DatabaseUnfit: {found.found}") == (Result.PROBLEM, said)
    assert "docs/how-to/postgresql.md" in found.mend


async def test_a_pooler_that_keeps_sessions_is_used(folder: Path, primary: str) -> None:
    async with pooler(folder, primary, **SESSION) as url, connect(url) as database:
        await migrate(database)
        (row,) = await database.fetch("SHOW enable_seqscan")
        assert row[0] == "off"
        heard = asyncio.Event()
        listening = asyncio.create_task(database.listen("anything", heard.set))
        await heard.wait()
        heard.clear()
        await database.execute("NOTIFY anything")
        await heard.wait()
        listening.cancel()
        await asyncio.wait({listening})


# Standbys


async def test_a_standby_alone_is_waited_for_until_it_is_promoted(folder: Path) -> None:
    async with (
        embedded_postgres(folder / "old") as old,
        standby(old, folder / "new") as new,
    ):
        said = await refusal(new)
        assert said.startswith("DatabaseUnreachable: The server at postgresql:///botpool?host=")
        assert " is a standby: use the address of the primary" in said
        assert (await finding(folder, new)).result is Result.PROBLEM
        both = with_hosts(socket_folder(old), socket_folder(new))
        async with connect(both) as database:
            assert not (await database.fetch("SELECT pg_is_in_recovery()"))[0][0]
        only = with_hosts(socket_folder(new))
        assert "target_session_attrs asks for" in await refusal(only)
        with capture_logs() as lines:
            opening = asyncio.create_task(_opened(new, wait_ms=600_000))
            while not lines:
                await asyncio.sleep(0.05)
            assert await ask(new, "SELECT pg_promote()")
            assert await opening == "off"
        assert [line["event"] for line in lines] == [
            "waiting for the database",
            "the database can be used",
        ]
        assert " is a standby: " in lines[0]["error"]


async def _opened(url: str, wait_ms: int) -> str:
    async with connect(url, wait_ms=wait_ms) as database:
        (row,) = await database.fetch("SHOW transaction_read_only")
        found: str = row[0]
        return found


async def test_a_database_that_is_set_to_be_read_only_is_unreachable(primary: str) -> None:
    await ask(primary, "CREATE DATABASE shut")
    await ask(primary, "ALTER DATABASE shut SET default_transaction_read_only = on")
    assert " is set to be read-only: " in await refusal(primary.replace("/botpool?", "/shut?"))


async def test_a_server_that_is_silent_does_not_hide_the_next_one(primary: str) -> None:
    asked = 0

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with silent:
        port = silent.sockets[0].getsockname()[1]
        url = with_hosts(f"127.0.0.1:{port}", socket_folder(primary))
        async with connect(url) as database, database.transaction(), database.transaction():
            assert (await database.fetch("SELECT 1"))[0][0] == 1
    assert asked == 1  # the server that answered is tried first from then on


# Rights and connections


@asynccontextmanager
async def guest(primary: str, name: str, options: str = "") -> AsyncIterator[str]:
    """The URL of a database that another user owns, for a user with these options."""
    connection = await asyncpg.connect(primary)
    try:
        await connection.execute(f"CREATE ROLE {name} LOGIN {options}")
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        yield primary.replace("postgres@/botpool", f"{name}@/{name}")
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await connection.execute(f"DROP ROLE {name}")
    finally:
        await connection.close()


async def test_a_user_who_may_not_create_is_told_so_by_doctor(folder: Path, primary: str) -> None:
    async with guest(primary, "guest") as url:
        found = await finding(folder, url, "rights")
        assert found.result is Result.PROBLEM
        assert found.found == "guest may not create tables and functions in the schema public"
        assert "OWNER TO guest" in found.mend
        await ask(primary, "ALTER DATABASE guest OWNER TO guest")
        assert (await finding(folder, url, "rights")).result is Result.OK
        async with connect(url) as database:
            assert await migrate(database)


async def test_what_another_user_has_made_can_t_be_used_and_is_one_sentence(primary: str) -> None:
    async with guest(primary, "guest") as url:
        async with connect(primary.replace("/botpool?", "/guest?")) as database:
            await migrate(database)
        async with connect(url) as database:
            with pytest.raises(DatabaseUnfit, match="may not migrate the database: permission"):
                await migrate(database)
            with pytest.raises(DatabaseUnfit, match="permission denied for table bots"):
                await Store(database).bots.find(1)


async def test_few_connections_are_a_warning_that_counts_those_of_others(
    folder: Path, primary: str
) -> None:
    async with guest(primary, "guest", "CONNECTION LIMIT 12") as url, connect(url) as database:
        assert await Store(database).server.connections_left() == 12  # its own are botpool's
        other = await asyncpg.connect(url)
        assert await Store(database).server.connections_left() == 11
        found = await finding(folder, url, "connections", database_connections=12)
        assert found.result is Result.WARNING
        assert found.found == "The server leaves botpool 11; each `botpool serve` uses up to 12"
        await other.close()
        found = await finding(folder, url, "connections", database_connections=11)
        assert found.result is Result.OK
        await ask(primary, "ALTER DATABASE guest CONNECTION LIMIT 7")
        assert await Store(database).server.connections_left() == 7
    async with connect(primary) as database:
        assert await Store(database).server.connections_left() == 97  # of 100, less 3 reserved


async def test_a_server_without_a_connection_left_is_unreachable(primary: str) -> None:
    async with guest(primary, "guest", "CONNECTION LIMIT 1") as url:
        other = await asyncpg.connect(url)
        assert (await refusal(url)).startswith("DatabaseUnreachable: ")
        assert "too many connections for role" in await refusal(url)
        await other.close()


# TLS


@pytest.fixture(scope="module")
async def certificate(folder: Path) -> tuple[Path, Path]:
    return await make_certificate(folder, "localhost")


@pytest.fixture(scope="module")
async def with_tls(
    folder: Path, primary: str, certificate: tuple[Path, Path]
) -> AsyncIterator[str]:
    """The URL of a server that lets nobody in without TLS, by a name in its certificate."""
    file, key = certificate
    tls = {
        "client_tls_sslmode": "require",
        "client_tls_cert_file": str(file),
        "client_tls_key_file": str(key),
    }
    async with pooler(folder, primary, **SESSION, **tls) as url:
        yield url.replace("127.0.0.1", "localhost")


@pytest.mark.parametrize("mode", ["require", "prefer", "verify-ca", "verify-full"])
async def test_a_connection_is_encrypted_and_the_server_checked_as_sslmode_says(
    with_tls: str, certificate: tuple[Path, Path], mode: str
) -> None:
    root = f"&sslrootcert={certificate[0]}" if mode.startswith("verify") else ""
    async with connect(f"{with_tls}?sslmode={mode}{root}") as database:
        assert (await database.fetch("SELECT 1"))[0][0] == 1


async def test_what_is_wrong_with_tls_is_one_sentence(
    folder: Path, primary: str, with_tls: str, certificate: tuple[Path, Path]
) -> None:
    full = f"sslmode=verify-full&sslrootcert={certificate[0]}"
    assert "its certificate can't be trusted: " in await refusal(
        f"{with_tls.replace('localhost', '127.0.0.1')}?{full}"
    )
    foreign, _ = await make_certificate(folder, "elsewhere.example")
    assert "DatabaseUnfit: The database at postgresql://localhost:" in await refusal(
        f"{with_tls}?sslmode=verify-ca&sslrootcert={foreign}"
    )
    async with pooler(folder, primary, **SESSION) as plain:
        said = await refusal(f"{plain}?sslmode=require")
        assert said.startswith("DatabaseUnfit: The database at postgresql://127.0.0.1:")
        assert said.endswith("can't be used: it has no TLS, which sslmode asks for.")


# Machines that are gone without a word


@asynccontextmanager
async def wire(server: str) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """The URL of a server behind a wire, and what cuts it: then nothing arrives or ends."""
    cut = asyncio.Event()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not cut.is_set():
                writer.write(data)
        writer.close()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_unix_connection(f"{socket_folder(server)}/.s.PGSQL.5432")
        await asyncio.gather(carry(reader, there[1]), carry(there[0], writer))

    relay = await asyncio.start_server(join, "127.0.0.1", 0)
    async with relay:
        yield with_hosts(f"127.0.0.1:{relay.sockets[0].getsockname()[1]}"), cut


async def test_a_listener_notices_that_its_server_is_gone(
    primary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "_LISTENER_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(database_module, "_LISTENER_ANSWER_SECONDS", 1.0)
    async with wire(primary) as (url, cut), connect(url) as database:
        heard = asyncio.Event()
        listening = asyncio.create_task(database.listen("anything", heard.set))
        await heard.wait()
        cut.set()
        with pytest.raises(DatabaseUnreachable, match="no answer in time"):
            await listening
