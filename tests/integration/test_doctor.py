"""What `botpool doctor` finds in the database, the settings and on this machine."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from botpool.doctor import ENGINES, Finding, Result, diagnose, folders
from botpool.doctor import database as doctor_database
from botpool.settings import Settings
from botpool.store import connect
from botpool.store.embedded import embedded_postgres
from tests.engines.docker_scene import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from tests.scene import Scene

NOWHERE = "postgresql://me:hunter22@127.0.0.1:1/pool"


def of(findings: Sequence[Finding], check: str, engine: str | None = None) -> list[Finding]:
    """The findings of one check."""
    return [each for each in findings if (each.check, each.engine) == (check, engine)]


def only(findings: Sequence[Finding], check: str, engine: str | None = None) -> Finding:
    (found,) = of(findings, check, engine)
    return found


def problems(findings: Sequence[Finding]) -> set[tuple[str | None, str]]:
    return {(each.engine, each.check) for each in findings if each.result is Result.PROBLEM}


@pytest.fixture
def settings_of(tmp_path: Path) -> Any:
    """Settings whose data folder is the test's own."""

    def make(**changes: Any) -> Settings:
        return Settings(**{"data_dir": tmp_path / "data", **changes})

    return make


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
    settings_of: Any, database_url: str
) -> None:
    findings = await diagnose(settings_of(database_url=database_url))
    assert problems(findings) == set()
    assert only(findings, "database").found.startswith("PostgreSQL ")
    assert only(findings, "schema").result is Result.OK


async def test_a_database_that_is_not_there_is_a_problem_and_its_schema_is_left_out(
    settings_of: Any,
) -> None:
    findings = await diagnose(settings_of(database_url=NOWHERE))
    found = only(findings, "database")
    assert found.result is Result.PROBLEM
    assert "BOTPOOL_DATABASE_URL" in found.mend
    assert of(findings, "schema") == []
    assert "hunter22" not in str(findings)


@pytest.mark.parametrize(
    "address", ["mysql://me:hunter22@localhost/pool", "host=localhost password=hunter22"]
)
async def test_an_address_of_no_database_is_a_problem_and_shows_no_password(
    settings_of: Any, address: str
) -> None:
    findings = await diagnose(settings_of(database_url=address))
    assert only(findings, "database").result is Result.PROBLEM
    assert "hunter22" not in str(findings)


async def test_a_database_that_is_silent_is_given_up(
    settings_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_database, "_SECONDS", 0.2)
    async with mute() as port:
        url = f"postgresql://me:hunter22@127.0.0.1:{port}/pool"
        async with asyncio.timeout(10):
            findings = await diagnose(settings_of(database_url=url))
    assert only(findings, "database").found == "There was no answer in time"


async def test_a_database_that_is_not_migrated_is_told_so_and_left_as_it_is(
    settings_of: Any, empty_database_url: str
) -> None:
    findings = await diagnose(settings_of(database_url=empty_database_url))
    found = only(findings, "schema")
    assert found.result is Result.PROBLEM
    assert "botpool migrate" in found.mend
    async with connect(empty_database_url) as database:
        assert await database.fetch("SELECT FROM pg_tables WHERE schemaname = 'public'") == []


async def test_a_database_of_a_newer_botpool_wants_a_newer_botpool(
    settings_of: Any, database_url: str
) -> None:
    async with connect(database_url) as database:
        await database.execute("INSERT INTO schema_migrations VALUES (9999, 'later', '')")
    findings = await diagnose(settings_of(database_url=database_url))
    assert only(findings, "schema").mend.startswith("Start a newer botpool")


async def test_a_server_that_is_too_old_is_a_problem(
    settings_of: Any, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server older than the oldest that we take is at hand, so the limit is raised."""
    monkeypatch.setattr("botpool.store.database.MINIMUM_VERSION", 99)
    found = only(await diagnose(settings_of(database_url=database_url)), "database")
    assert found.result is Result.PROBLEM
    assert "botpool needs 99 or later" in found.found


async def test_nothing_is_made_on_a_fresh_machine(settings_of: Any, tmp_path: Path) -> None:
    findings = await diagnose(settings_of())
    assert problems(findings) == set()
    assert "the first start of botpool makes" in only(findings, "database").found
    assert [*tmp_path.iterdir()] == []


async def test_an_embedded_database_is_started_for_the_check_and_stopped_again(
    settings_of: Any, tmp_path: Path
) -> None:
    async with embedded_postgres(tmp_path / "data"):
        pass
    findings = await diagnose(settings_of())
    assert "embedded in" in only(findings, "database").found
    assert "botpool migrate" in only(findings, "schema").mend
    assert not (tmp_path / "data" / "postgres" / "postmaster.pid").exists()


async def test_a_data_folder_that_cannot_be_is_a_problem_and_no_database_is_looked_for(
    settings_of: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    findings = await diagnose(settings_of(data_dir=tmp_path / "file" / "data"))
    assert problems(findings) == {(None, "data folder"), ("process", "slots folder")}
    assert only(findings, "database").result is Result.NOT_CHECKED


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
async def test_a_data_folder_of_somebody_else_is_a_problem(settings_of: Any) -> None:
    assert (None, "data folder") in problems(await diagnose(settings_of(data_dir="/botpool")))


async def test_a_disk_that_is_nearly_full_is_a_warning(
    settings_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No disk is that full, so the limit is raised."""
    monkeypatch.setattr(folders, "LEAST_BYTES", 2**70)
    found = only(await diagnose(settings_of()), "data folder")
    assert found.result is Result.WARNING
    assert "BOTPOOL_DATA_DIR" in found.mend


# Engines


async def test_an_engine_that_is_unknown_is_a_problem_that_names_those_there_are(
    settings_of: Any,
) -> None:
    findings = await diagnose(settings_of(engine="podman"))
    found = only(findings, "engine")
    assert found.result is Result.PROBLEM
    assert all(name in found.mend for name in ENGINES)
    assert {each.engine for each in findings} == {None}


async def test_engines_that_slots_are_on_are_examined_as_well(
    settings_of: Any, scene: Scene, database_url: str
) -> None:
    await scene.create()
    await scene.database.execute("UPDATE bot_pool_slots SET engine = 'docker', host = 'gone'")
    docker_hosts = "unix:///nowhere/docker.sock"
    settings = settings_of(database_url=database_url, docker_hosts=docker_hosts)
    findings = await diagnose(settings)
    assert {each.engine for each in findings} == {None, "process", "docker"}
    lost = only(findings, "slots", "docker")
    assert lost.result is Result.WARNING
    assert "1 of 1 slots are on gone" in lost.found
    assert {each.engine for each in await diagnose(settings, "process")} == {None, "process"}


async def test_slots_on_an_engine_that_is_unknown_are_a_problem(
    settings_of: Any, scene: Scene, database_url: str
) -> None:
    await scene.create()
    await scene.database.execute("UPDATE bot_pool_slots SET engine = 'kubernetes'")
    findings = await diagnose(settings_of(database_url=database_url))
    assert [each.result for each in of(findings, "engine")] == [Result.OK, Result.PROBLEM]


async def test_a_pool_that_its_hosts_have_no_room_for_is_a_warning(settings_of: Any) -> None:
    findings = await diagnose(settings_of(max_slots_per_host=5, max_pool_size=6))
    assert only(findings, "room", "process").result is Result.WARNING
    findings = await diagnose(settings_of(max_slots_per_host=5, max_pool_size=5))
    assert only(findings, "room", "process").result is Result.OK


# Images


@pytest.mark.parametrize(
    ("image", "docker", "coolify"),
    [
        ("registry.example:5000/bots/meet-bot:7", Result.OK, Result.OK),
        ("meet-bot:latest", Result.WARNING, Result.WARNING),
        ("registry.example:5000/meet-bot", Result.WARNING, Result.WARNING),
        (f"meet-bot@sha256:{'0' * 64}", Result.WARNING, Result.PROBLEM),
        ("https://registry.example/meet-bot:7", Result.PROBLEM, Result.PROBLEM),
        ("meet bot:7", Result.PROBLEM, Result.PROBLEM),
    ],
)
async def test_an_image_must_stay_what_it_is(
    settings_of: Any, image: str, docker: Result, coolify: Result
) -> None:
    settings = settings_of(image_zoom=image, docker_hosts="unix:///nowhere/docker.sock")
    for engine, result in (("docker", docker), ("coolify", coolify)):
        findings = of(await diagnose(settings, engine), "image", engine)
        assert [each.result for each in findings] == [result, Result.OK]
        assert image in findings[0].found
        assert "google-meet, microsoft-teams" in findings[1].found


@pytest.mark.parametrize("engine", ["docker", "coolify"])
async def test_no_image_at_all_is_a_problem(settings_of: Any, engine: str) -> None:
    found = only(await diagnose(settings_of(), engine), "image", engine)
    assert found.result is Result.PROBLEM
    assert "BOTPOOL_IMAGE_MICROSOFT_TEAMS" in found.mend


async def test_a_platform_that_is_used_needs_an_image(
    settings_of: Any, scene: Scene, database_url: str
) -> None:
    await scene.create()
    settings = settings_of(database_url=database_url, image_zoom="zoom-bot:7")
    bad = [
        each
        for each in of(await diagnose(settings, "docker"), "image", "docker")
        if each.result is Result.PROBLEM
    ]
    assert [each.mend for each in bad] == ["Set BOTPOOL_IMAGE_GOOGLE_MEET."]


# The address


@pytest.mark.parametrize(
    ("changes", "docker", "coolify"),
    [
        ({}, Result.PROBLEM, Result.PROBLEM),
        ({"host": "0.0.0.0"}, Result.PROBLEM, Result.PROBLEM),  # noqa: S104
        ({"public_url": "http://localhost:8000"}, Result.PROBLEM, Result.PROBLEM),
        ({"public_url": "http://[::1]:8000"}, Result.PROBLEM, Result.PROBLEM),
        ({"docker_network": "host"}, Result.OK, Result.PROBLEM),
        (
            {"docker_network": "host", "docker_hosts": "tcp://203.0.113.9:2376"},
            Result.PROBLEM,
            Result.PROBLEM,
        ),
        ({"public_url": "http://host.docker.internal:8000"}, Result.WARNING, Result.OK),
        ({"public_url": "https://botpool.invalid"}, Result.OK, Result.OK),
        ({"host": "192.0.2.7", "port": 1}, Result.OK, Result.OK),
    ],
)
async def test_containers_must_be_able_to_reach_the_address(
    settings_of: Any,
    changes: dict[str, Any],
    docker: Result,
    coolify: Result,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("botpool.doctor.address._ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("botpool.doctor.docker._SECONDS", 0.2)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    for engine, result in (("docker", docker), ("coolify", coolify)):
        found = only(await diagnose(settings_of(**changes), engine), "address", engine)
        assert found.result is result
        if result is Result.PROBLEM:
            assert "BOTPOOL_PUBLIC_URL" in found.mend


@pytest.mark.parametrize(
    "changes",
    [
        {"public_url": "botpool.example"},
        {"public_url": "ftp://botpool.example"},
        {"public_url": "http://botpool:port"},
        {"public_url": "http://"},
        {"host": "::"},
        {"port": 0},
    ],
)
async def test_an_address_must_be_one_of_http(settings_of: Any, changes: dict[str, Any]) -> None:
    findings = await diagnose(settings_of(**changes), "docker")
    found = only(findings, "address")
    assert found.result is Result.PROBLEM
    assert "BOTPOOL_PUBLIC_URL" in found.mend
    assert of(findings, "address", "docker") == []


async def answering(settings_of: Any, url: str) -> Finding:
    return only(await diagnose(settings_of(public_url=url)), "address")


async def test_what_answers_at_the_address_must_be_botpool(settings_of: Any) -> None:
    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<h1>It works!</h1>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/pool/healthz", health)
    app.router.add_get("/healthz", page)
    async with serving(app) as url:
        with_password = url.replace("//", "//me:hunter22@")
        ours = await answering(settings_of, f"{with_password}/pool/")
        other = await answering(settings_of, url)
        nothing = await answering(settings_of, f"{url}/elsewhere")
        tls = await answering(settings_of, url.replace("http:", "https:"))
    gone = await answering(settings_of, url)
    assert (ours.result, ours.found) == (Result.OK, f"botpool answers at {url}/pool")
    for found in (other, nothing):
        assert found.result is Result.WARNING
        assert "Something else than botpool" in found.found
    assert "TLS fails" in tls.found
    assert "refused" in gone.found
    assert "botpool serve" in gone.mend
    unknown = await answering(settings_of, "http://botpool.invalid")
    assert unknown.result is Result.WARNING
    assert "not known here" in unknown.found
    assert (await answering(settings_of, "http://host.docker.internal")).result is (
        Result.NOT_CHECKED
    )


# The process engine


@pytest.mark.parametrize(
    ("command", "result", "word"),
    [
        (None, Result.OK, "sample bot"),
        (f"{sys.executable} -m bot", Result.OK, "python"),
        ("sh -c 'sleep 1'", Result.OK, "/sh"),
        ("no-such-program", Result.PROBLEM, "is not there"),
        ("/no/such/program --fast", Result.PROBLEM, "is not there"),
        ("./bot.sh", Result.PROBLEM, "in the folder of a slot"),
        ("{folder}/bot.sh", Result.PROBLEM, "can't be executed"),
        ("sh bot.sh", Result.WARNING, "in the folder of a slot"),
        ("sh 'unclosed", Result.PROBLEM, "can't be split"),
    ],
)
async def test_the_command_must_be_found_where_a_bot_runs(
    settings_of: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str | None,
    result: Result,
    word: str,
) -> None:
    (tmp_path / "bot.sh").touch(mode=0o644)
    monkeypatch.chdir(tmp_path)
    command = command and command.format(folder=tmp_path)
    found = only(await diagnose(settings_of(process_command=command)), "command", "process")
    assert found.result is result
    assert word in found.found
    assert result is Result.OK or "BOTPOOL_PROCESS_COMMAND" in found.found + found.mend


async def test_a_check_that_fails_stops_no_other(
    settings_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("one over nothing")

    monkeypatch.setattr("botpool.doctor.process._check_command", fail)
    findings = await diagnose(settings_of())
    found = only(findings, "command", "process")
    assert found.result is Result.PROBLEM
    assert "ZeroDivisionError: one over nothing" in found.found
    assert only(findings, "slots folder", "process").result is Result.OK
