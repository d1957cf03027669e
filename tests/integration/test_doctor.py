"""What `botpool doctor` finds in the database, the settings and on this machine."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from botpool.doctor import (
    Finding,
    Result,
    clocks,
    diagnose,
    folders,
)
from botpool.doctor import database as doctor_database
from botpool.doctor.findings import Report
from botpool.doctor.hosts import examine_room
from botpool.engines.base import EngineName
from botpool.models.replicas import ReplicaRole
from botpool.settings import Settings
from botpool.store import Store, connect
from botpool.store.postgres.embedded import embedded_postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from botpool.store import Database
    from tests.support.scene import Scene

NOWHERE = "postgresql://me:hunter22@127.0.0.1:1/pool"


def of(findings: Sequence[Finding], check: str, engine: str | None = None) -> list[Finding]:
    """The findings of one check."""
    return [each for each in findings if (each.check, each.engine) == (check, engine)]


def only(findings: Sequence[Finding], check: str, engine: str | None = None) -> Finding:
    (found,) = of(findings, check, engine)
    return found


def problems(findings: Sequence[Finding]) -> set[tuple[str | None, str]]:
    return {(each.engine, each.check) for each in findings if each.result is Result.PROBLEM}


def settings_in(folder: Path, **changes: Any) -> Settings:
    """Settings whose data folder is the test's own."""
    return Settings(**{"data_dir": folder / "data", **changes})


@asynccontextmanager
async def mute() -> AsyncIterator[int]:
    """The port of a server that takes connections and says nothing."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


# The database


async def test_a_database_that_fits_is_ok_and_tells_its_version(
    tmp_path: Path, database_url: str
) -> None:
    findings = await diagnose(settings_in(tmp_path, database_url=database_url))
    assert problems(findings) == set()
    assert only(findings, "database").found.startswith("PostgreSQL ")
    assert only(findings, "schema").result is Result.OK


@pytest.mark.parametrize(
    ("roles", "result", "found", "mend"),
    [
        ([], Result.WARNING, "No botpool runs", "Run `botpool serve`."),
        (["api"], Result.WARNING, "No worker runs", "--role worker"),
        (["worker"], Result.WARNING, "No API runs", "--role api"),
        (["api", "worker"], Result.OK, "2 run: 0 (api, 1.2), 1 (worker, 1.2)", ""),
        (["all"], Result.OK, "1 run: 0 (all, 1.2)", ""),
    ],
)
async def test_a_database_on_which_no_worker_or_no_api_runs_is_a_warning(
    tmp_path: Path,
    database_url: str,
    roles: list[str],
    result: Result,
    found: str,
    mend: str,
) -> None:
    async with connect(database_url) as database:
        for name, role in enumerate(roles):
            await Store(database).replicas.seen(str(name), ReplicaRole(role), "1.2", "here")
    finding = only(await diagnose(settings_in(tmp_path, database_url=database_url)), "replicas")
    assert finding.result is result
    assert finding.found.startswith(found)
    assert mend in finding.mend


async def test_a_database_that_is_open_is_used_and_none_is_opened(
    tmp_path: Path, database: Database
) -> None:
    settings = settings_in(tmp_path, database_url=NOWHERE)
    assert only(await diagnose(settings, database=database), "database").result is Result.OK


async def test_a_database_that_is_not_there_is_a_problem_and_its_schema_is_left_out(
    tmp_path: Path,
) -> None:
    findings = await diagnose(settings_in(tmp_path, database_url=NOWHERE))
    found = only(findings, "database")
    assert found.result is Result.PROBLEM
    assert "BOTPOOL_DATABASE_URL" in found.mend
    assert of(findings, "schema") == []
    assert "hunter22" not in str(findings)


@pytest.mark.parametrize(
    "address", ["mysql://me:hunter22@localhost/pool", "host=localhost password=hunter22"]
)
async def test_an_address_of_no_database_is_a_problem_and_shows_no_password(
    tmp_path: Path, address: str
) -> None:
    findings = await diagnose(settings_in(tmp_path, database_url=address))
    assert only(findings, "database").result is Result.PROBLEM
    assert "hunter22" not in str(findings)


async def test_a_database_that_is_silent_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_database, "_SECONDS", 0.2)
    async with mute() as port:
        url = f"postgresql://me:hunter22@127.0.0.1:{port}/pool"
        async with asyncio.timeout(10):
            findings = await diagnose(settings_in(tmp_path, database_url=url))
    assert only(findings, "database").found == "No answer in time"


async def test_a_database_that_is_not_migrated_is_told_so_and_left_as_it_is(
    tmp_path: Path, empty_database_url: str
) -> None:
    findings = await diagnose(settings_in(tmp_path, database_url=empty_database_url))
    found = only(findings, "schema")
    assert found.result is Result.PROBLEM
    assert "botpool migrate" in found.mend
    async with connect(empty_database_url) as database:
        assert await database.fetch("SELECT FROM pg_tables WHERE schemaname = 'public'") == []


async def test_a_database_of_a_newer_botpool_wants_a_newer_botpool(
    tmp_path: Path, database_url: str
) -> None:
    async with connect(database_url) as database:
        await database.execute("INSERT INTO schema_migrations VALUES (9999, 'later', '')")
    findings = await diagnose(settings_in(tmp_path, database_url=database_url))
    assert only(findings, "schema").mend.startswith("Start a newer botpool")


async def test_a_server_that_is_too_old_is_a_problem(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server older than the oldest that we take is at hand, so the limit is raised."""
    monkeypatch.setattr("botpool.store.postgres.servers.MINIMUM_VERSION", 99)
    found = only(await diagnose(settings_in(tmp_path, database_url=database_url)), "database")
    assert found.result is Result.PROBLEM
    assert "botpool needs 99 or later" in found.found


async def test_nothing_is_made_on_a_fresh_machine(tmp_path: Path) -> None:
    findings = await diagnose(settings_in(tmp_path))
    assert problems(findings) == set()
    assert "botpool creates it when it first starts" in only(findings, "database").found
    assert [*tmp_path.iterdir()] == []


async def test_an_embedded_database_is_started_for_the_check_and_stopped_again(
    tmp_path: Path,
) -> None:
    async with embedded_postgres(tmp_path / "data"):
        pass
    findings = await diagnose(settings_in(tmp_path))
    assert "embedded in" in only(findings, "database").found
    assert "botpool migrate" in only(findings, "schema").mend
    assert not (tmp_path / "data" / "postgres" / "postmaster.pid").exists()


async def test_a_data_folder_that_cannot_be_is_a_problem_and_no_database_is_looked_for(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    findings = await diagnose(settings_in(tmp_path, data_dir=tmp_path / "file" / "data"))
    assert problems(findings) == {(None, "data folder"), ("process", "slots folder")}
    assert only(findings, "database").result is Result.NOT_CHECKED


async def test_a_data_folder_of_another_user_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root, which may run this, can write everywhere."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = only(await diagnose(settings_in(tmp_path)), "data folder")
    assert found.result is Result.PROBLEM
    assert "can't write to" in found.found


async def test_a_disk_that_is_nearly_full_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No disk is that full, so the limit is raised."""
    monkeypatch.setattr(folders, "LEAST_BYTES", 2**70)
    found = only(await diagnose(settings_in(tmp_path)), "data folder")
    assert found.result is Result.WARNING
    assert "BOTPOOL_DATA_DIR" in found.mend


# Settings


async def test_a_variable_that_looks_like_a_setting_is_a_warning_without_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOTPOOL_DATABASE_URI", "hunter22")
    findings = of(await diagnose(settings_in(tmp_path)), "settings")
    (found,) = [each for each in findings if "BOTPOOL_DATABASE_URI" in each.found]
    assert found.result is Result.WARNING
    assert "BOTPOOL_DATABASE_URL" in found.mend
    assert "hunter22" not in str(findings)


# Engines


async def test_an_engine_that_is_unknown_is_a_problem_that_names_those_there_are(
    tmp_path: Path,
) -> None:
    findings = await diagnose(settings_in(tmp_path, engine="podman"))
    found = only(findings, "engine")
    assert found.result is Result.PROBLEM
    assert all(name in found.mend for name in EngineName)
    assert {each.engine for each in findings} == {None}


async def test_engines_that_slots_are_on_are_examined_as_well(
    tmp_path: Path, scene: Scene, database_url: str
) -> None:
    await scene.create()
    await scene.database.execute("UPDATE bot_pool_slots SET engine = 'docker', host = 'gone'")
    docker_hosts = "unix:///nowhere/docker.sock"
    settings = settings_in(tmp_path, database_url=database_url, docker_hosts=docker_hosts)
    findings = await diagnose(settings)
    assert {each.engine for each in findings} == {None, "process", "docker"}
    lost = only(findings, "slots", "docker")
    assert lost.result is Result.WARNING
    assert "1 of 1 slots are on gone" in lost.found
    assert {each.engine for each in await diagnose(settings, "process")} == {None, "process"}


async def test_slots_on_an_engine_that_is_unknown_are_a_problem(
    tmp_path: Path, scene: Scene, database_url: str
) -> None:
    await scene.create()
    await scene.database.execute("UPDATE bot_pool_slots SET engine = 'nomad'")
    findings = await diagnose(settings_in(tmp_path, database_url=database_url))
    assert [each.result for each in of(findings, "engine")] == [Result.OK, Result.PROBLEM]


async def test_a_pool_that_its_hosts_have_no_room_for_is_a_warning(tmp_path: Path) -> None:
    findings = await diagnose(settings_in(tmp_path, max_slots_per_host=5, max_pool_size=6))
    assert only(findings, "room", "process").result is Result.WARNING
    findings = await diagnose(settings_in(tmp_path, max_slots_per_host=5, max_pool_size=5))
    assert only(findings, "room", "process").result is Result.OK


@pytest.mark.parametrize(
    ("warm", "left_out"),
    [
        ("google-meet=5", "microsoft-teams, zoom"),
        ("google-meet=5,zoom=1", "microsoft-teams, zoom"),
        ("google-meet=3,zoom=2", "microsoft-teams"),
        ("google-meet=2,zoom=2", None),
        ("2", None),
    ],
)
async def test_warm_slots_that_leave_no_room_for_another_platform_are_a_warning(
    tmp_path: Path, warm: str, left_out: str | None
) -> None:
    findings = await diagnose(
        settings_in(tmp_path, max_slots_per_host=5, max_pool_size=5, warm_slots=warm)
    )
    found = only(findings, "room", "process")
    if left_out is None:
        assert found.result is Result.OK
    else:
        assert found.result is Result.WARNING
        assert f"bots for {left_out} may wait in vain" in found.found


async def test_warm_slots_take_room_from_no_platform_without_an_image() -> None:
    settings = Settings(
        engine="docker", image_zoom="bot:1", max_slots_per_host=2, warm_slots="zoom=2"
    )
    report = Report("docker")
    await examine_room(report, settings, hosts=50)
    await examine_room(report, settings.model_copy(update={"max_pool_size": 2}), hosts=1)
    assert {finding.result for finding in report.findings} == {Result.OK}


# The process engine


@pytest.mark.parametrize(
    ("command", "result", "word"),
    [
        (None, Result.OK, "sample bot"),
        (f"{sys.executable} -m bot", Result.OK, "python"),
        ("sh -c 'sleep 1'", Result.OK, "/sh"),
        ("no-such-program", Result.PROBLEM, "was not found"),
        ("/no/such/program --fast", Result.PROBLEM, "was not found"),
        ("./bot.sh", Result.PROBLEM, "relative to the slot's folder"),
        ("{folder}/bot.sh", Result.PROBLEM, "is not executable"),
        ("sh bot.sh", Result.WARNING, "relative to the slot's folder"),
        ("sh 'unclosed", Result.PROBLEM, "can't be split"),
    ],
)
async def test_the_command_must_be_found_where_a_bot_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str | None,
    result: Result,
    word: str,
) -> None:
    (tmp_path / "bot.sh").touch(mode=0o644)
    monkeypatch.chdir(tmp_path)
    command = command and command.format(folder=tmp_path)
    found = only(
        await diagnose(settings_in(tmp_path, process_command=command)), "command", "process"
    )
    assert found.result is result
    assert word in found.found
    assert result is Result.OK or "BOTPOOL_PROCESS_COMMAND" in found.found + found.mend


def test_the_docs_explain_every_check() -> None:
    modules = Path(doctor_database.__file__).parent.glob("*.py")
    named = re.compile(r'check(?:=|\()"([\w -]+)"')
    checks = {name for path in modules for name in named.findall(path.read_text("utf-8"))}
    page = Path(__file__).parents[2] / "docs" / "how-to" / "doctor.md"
    assert {*re.findall(r"^\| ([\w -]+) \|", page.read_text("utf-8"), re.MULTILINE)} == (
        checks | {"check", "result"}
    )


async def test_a_check_that_fails_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("one over nothing")

    monkeypatch.setattr(shlex, "split", fail)
    findings = await diagnose(settings_in(tmp_path))
    found = only(findings, "command", "process")
    assert found.result is Result.PROBLEM
    assert "ZeroDivisionError: one over nothing" in found.found
    assert only(findings, "slots folder", "process").result is Result.OK


# The clock


@pytest.mark.parametrize(
    ("seconds", "result", "words"),
    [
        (37, Result.WARNING, "The clock of the database is 37 s behind"),
        (-37, Result.WARNING, "The clock of the database is 37 s ahead of"),
        (0, Result.OK, "agrees"),
    ],
)
async def test_a_database_whose_clock_is_off_is_a_warning(
    tmp_path: Path,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    seconds: int,
    result: Result,
    words: str,
) -> None:
    read = clocks.now
    monkeypatch.setattr(doctor_database, "now", lambda: read() + timedelta(seconds=seconds))
    found = only(await diagnose(settings_in(tmp_path, database_url=database_url)), "clock")
    assert found.result is result
    assert words in found.found
