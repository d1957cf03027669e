"""`botpool serve` and a PostgreSQL that comes late, goes away, or is taken over by another."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from botpool.store.postgres.embedded import embedded_postgres
from tests.support.command import botpool
from tests.support.postgres import (
    ask,
    end,
    pooler,
    reachable_folder,
    socket_folder,
    standby,
    with_hosts,
)
from tests.support.server import BOTS, ENDED, MEET, Serve, served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

NOWHERE = "postgresql://me:hunter22@127.0.0.1:1/pool"
WAITING, THERE = "waiting for the database", "the database can be used"
BEGUN, OVER = "the database can't be used", "the database can be used again"


@pytest.fixture
def servers() -> Iterator[Path]:
    """A folder for PostgreSQLs."""
    with reachable_folder() as folder:
        yield folder


@asynccontextmanager
async def starting(folder: Path, **settings: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A `botpool serve` that is not up yet. Its log is what it writes to its standard error."""
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).parent / "botpool"), "serve"),
        env={
            "PATH": os.environ["PATH"],
            "BOTPOOL_DATA_DIR": str(folder),
            "BOTPOOL_PORT": "0",
            **{f"BOTPOOL_{name.upper()}": value for name, value in settings.items()},
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line_of(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """Its next log line."""
    assert process.stderr is not None
    line: dict[str, Any] = json.loads(await process.stderr.readline())
    return line


async def test_a_database_that_is_not_up_yet_is_waited_for(folder: Path, servers: Path) -> None:
    async with embedded_postgres(servers) as url:
        pass
    async with starting(folder, database_url=url) as process:
        line = await line_of(process)
        assert line["event"] == WAITING
        assert line["error"] == (
            f"The database at postgresql:///botpool?host={servers}/postgres.socket&port=5432"
            " can't be used: No such file or directory."
        )
        assert 0 < line["up_to_ms"] <= 60_000
        async with embedded_postgres(servers):
            while line["event"] == WAITING:  # the server may also say that it is starting
                line = await line_of(process)
            assert line["event"] == THERE
            assert process.stdout is not None
            assert (await process.stdout.readline()).startswith(b"botpool listens on http://")
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0


async def test_after_the_wait_it_is_one_sentence_and_exit_code_3(folder: Path) -> None:
    code, output, error = await botpool(
        "serve", data_dir=str(folder), port="0", database_url=NOWHERE, database_wait_ms="1"
    )
    assert (code, output) == (3, "")
    sentence = error.splitlines()[-1]
    assert sentence == (
        "botpool: The database at postgresql://127.0.0.1:1/pool can't be used: Connection refused."
    )
    assert "hunter22" not in error


async def test_what_no_wait_mends_is_not_waited_for(folder: Path, servers: Path) -> None:
    async with embedded_postgres(servers) as url:
        absent = url.replace("/botpool?", "/absent?")
        code, _, error = await botpool("serve", data_dir=str(folder), database_url=absent, port="0")
    assert (code, error.count("\n")) == (2, 1)
    assert error.endswith('can\'t be used: database "absent" does not exist.\n')


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
async def test_while_it_waits_a_signal_ends_it_quietly(
    folder: Path, number: signal.Signals, code: int
) -> None:
    async with starting(folder, database_url=NOWHERE) as process:
        assert (await line_of(process))["event"] == WAITING
        process.send_signal(number)
        assert await process.communicate() == (b"", b"")
        assert process.returncode == code


async def test_while_its_own_postgresql_starts_ctrl_c_ends_it_quietly(folder: Path) -> None:
    async with starting(folder) as process:
        while not [*folder.glob("postgres.new-*")]:  # initdb is at work
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert await process.communicate() == (b"", b"")
        assert process.returncode == 130
    assert not (folder / "postgres" / "postmaster.pid").exists()


async def test_while_it_is_imported_ctrl_c_ends_it_quietly(folder: Path) -> None:
    """Typer is imported as one of the first, and here tells of it and waits."""
    (folder / "typer.py").write_text("import time; print('at it', flush=True); time.sleep(600)")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).parent / "botpool"), "serve"),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert await process.communicate() == (b"", b"")
    assert process.returncode == -signal.SIGINT  # a shell shows it as 130


async def test_an_outage_is_a_few_log_lines_without_anything_of_python_s(
    folder: Path, servers: Path
) -> None:
    async with embedded_postgres(servers) as url, served(folder, database_url=url) as one:
        await one.ask(stayMs=3_600_000)
        await one.until("IN_CALL")
        before = len(one.log.read_text().splitlines())
        await end(servers, signal.SIGINT)
        for _ in range(20):
            assert (await one.client.get("/readyz")).status_code == 503
        while not one.logged(BEGUN):
            await asyncio.sleep(0.05)
        async with embedded_postgres(servers):
            while not one.logged(OVER):
                await asyncio.sleep(0.05)
            assert (await one.client.get("/readyz")).status_code == 200
            assert await one.statuses() == ["IN_CALL"]
            assert await one.ends() == 0
        lines = [json.loads(line) for line in one.log.read_text().splitlines()[before:]]
        assert [line["event"] for line in lines] == [BEGUN, OVER]
        assert not [line for line in lines if "<" in str(line) or "Error" in str(line)]


async def test_a_pooler_that_shares_sessions_is_refused_before_it_listens(
    folder: Path, servers: Path
) -> None:
    async with (
        embedded_postgres(servers) as url,
        pooler(servers, url, pool_mode="transaction") as pooled,
    ):
        code, output, error = await botpool(
            "serve", data_dir=str(folder), port="0", database_url=pooled
        )
    assert (code, output, error.count("\n")) == (2, "", 1)
    assert "use its session mode, or PostgreSQL's own address" in error


async def test_bots_go_through_their_lives_behind_a_pooler_that_keeps_sessions(
    folder: Path, servers: Path
) -> None:
    async with (
        embedded_postgres(servers) as url,
        pooler(servers, url, pool_mode="session") as pooled,
        served(folder, database_url=pooled) as one,
    ):
        await one.ask(5, stayMs=10)
        assert await one.until(*ENDED) == {"DONE": 5}
        assert await one.ends() == 0


async def test_few_connections_are_one_warning_at_its_start(folder: Path, servers: Path) -> None:
    async with embedded_postgres(servers) as url:
        await ask(url, "ALTER DATABASE botpool CONNECTION LIMIT 9")
        async with served(folder, database_url=url) as one:
            (line,) = [
                line for line in map(json.loads, one.log.read_text().splitlines()) if "left" in line
            ]
            assert (line["level"], line["left"], line["wanted"]) == ("warning", 9, 20)
            assert await one.ends() == 0


async def test_a_standby_that_takes_over_in_the_midst_of_it_loses_no_bot(
    folder: Path, servers: Path
) -> None:
    async with (
        embedded_postgres(servers / "one") as old,
        standby(old, servers / "two") as new,
    ):
        url = with_hosts(socket_folder(old), socket_folder(new))
        async with served(folder, database_url=url) as one:
            made: list[int] = []
            creating = asyncio.create_task(_create_until_cancelled(one, made))
            while len(made) < 10:
                await asyncio.sleep(0.05)
            await end(servers / "one", signal.SIGQUIT)  # at once, without a word to anybody
            assert await ask(new, "SELECT pg_promote()")
            before = len(made)
            while len(made) < before + 10:
                await asyncio.sleep(0.05)
            creating.cancel()
            await asyncio.wait({creating})
            await one.until(*ENDED)
            bots = (await one.client.get(BOTS, params={"limit": 200})).json()["bots"]
            assert {*made} <= {bot["id"] for bot in bots}
            assert {bot["status"] for bot in bots} == {"DONE"}
            assert await one.ends() == 0


async def _create_until_cancelled(botpool: Serve, made: list[int]) -> None:
    body = {"meetingUrl": MEET, "config": {"sample": {"stayMs": 10}}}
    while True:
        answer = await botpool.client.post(BOTS, json=body)
        if answer.status_code == 201:
            made.append(answer.json()["bot"]["id"])
        else:
            assert answer.status_code == 503, answer.text
