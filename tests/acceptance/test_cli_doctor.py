"""`botpool doctor`, as an operator runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from botpool.engines.base import EngineName
from tests.fakes.coolify import Rules
from tests.support.command import botpool, run
from tests.support.coolify_server import served_coolify
from tests.support.server import served

_COMMAND = (str(Path(sys.executable).parent / "botpool"), "doctor")
KEYS = ["check", "engine", "result", "found", "mend"]


async def doctor(*options: str, **settings: str) -> tuple[int | None, list[dict[str, Any]]]:
    """Its exit code, and what it has found."""
    code, output, error = await botpool("doctor", "--json", *options, **settings)
    assert error == ""
    findings: list[dict[str, Any]] = json.loads(output)
    assert all([*finding] == KEYS for finding in findings)
    return code, findings


def results(findings: list[dict[str, Any]]) -> dict[tuple[str | None, str], str]:
    return {(each["engine"], each["check"]): each["result"] for each in findings}


async def test_a_fresh_machine_has_no_problem_and_is_left_as_it_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    code, findings = await doctor(data_dir=str(data), port="1")
    assert code == 0
    assert results(findings) == {
        (None, "data folder"): "ok",
        (None, "database"): "ok",
        (None, "address"): "warning",
        (None, "engine"): "ok",
        ("process", "command"): "ok",
        ("process", "slots folder"): "ok",
        ("process", "temporary files"): "ok",
    }
    assert not data.exists()


async def test_a_botpool_that_runs_is_found_and_not_disturbed(folder: Path) -> None:
    async with served(folder) as site:
        port = site.said[0].rpartition(":")[2]
        code, findings = await doctor(data_dir=str(folder), port=port)
        assert {*results(findings).values()} == {"ok"}
        assert (None, "schema") in results(findings)
        assert code == 0
        assert (await site.client.get("/readyz")).status_code == 200
        assert await site.ends() == 0


async def test_a_problem_is_exit_code_1(empty_database_url: str) -> None:
    code, findings = await doctor(database_url=empty_database_url)
    assert code == 1
    assert results(findings)[None, "schema"] == "problem"


async def test_settings_that_cannot_be_read_are_a_problem_too() -> None:
    code, findings = await doctor(max_pool_size="many")
    assert code == 1
    assert results(findings) == {(None, "settings"): "problem"}
    assert "BOTPOOL_MAX_POOL_SIZE" in findings[0]["found"]


async def test_an_engine_can_be_examined_before_it_is_used(tmp_path: Path) -> None:
    settings = {"data_dir": str(tmp_path), "docker_hosts": f"unix://{tmp_path}/no.sock"}
    code, findings = await doctor("--engine", "docker", **settings)
    assert code == 1
    assert results(findings)["docker", "host"] == "problem"
    assert {each["engine"] for each in findings} == {None, "docker"}
    code, output, _ = await botpool("doctor", "--engine", "podman")
    assert (code, output) == (2, "")


@pytest.mark.parametrize("engine", EngineName)
async def test_every_engine_can_be_asked_for(tmp_path: Path, engine: EngineName) -> None:
    settings = {"data_dir": str(tmp_path), "docker_hosts": f"unix://{tmp_path}/no.sock"}
    _, findings = await doctor("--engine", engine, **settings)
    assert {each["engine"] for each in findings} == {None, engine}


@pytest.mark.parametrize("width", ["80", "120"])
async def test_the_table_fits_its_width_and_tells_how_to_mend(tmp_path: Path, width: str) -> None:
    async with served_coolify(Rules(concurrent_builds=2)) as (coolify, settings):
        given = {"data_dir": str(tmp_path), "coolify_environment_name": "[bold]staging", **settings}
        environment = {f"BOTPOOL_{name.upper()}": value for name, value in given.items()}
        code, output, error = await botpool("doctor", **given)
        assert (code, error) == (1, "")
        assert coolify.token.partition("|")[2] not in output
        narrow = await run(*_COMMAND, COLUMNS=width, **environment)
    lines = narrow[1].splitlines()
    assert max(len(line.rstrip()) for line in lines) <= int(width)
    assert lines[0].split() == ["check", "result", "found,", *lines[0].split()[3:]]
    words = " ".join(output.split())
    assert "→ Correct BOTPOOL_COOLIFY_ENVIRONMENT_NAME." in words
    assert "[bold]staging" in words
    assert output.splitlines()[-1].endswith(("problem", "problems", "not checked"))


async def test_neither_output_shows_a_secret(tmp_path: Path) -> None:
    async with served_coolify(Rules()) as (coolify, settings):
        coolify.token_expired = True
        secrets = {
            "admin_key": "hunter22-of-the-admin",
            "database_url": "postgresql://me:hunter22@127.0.0.1:1/pool",
            "public_url": "http://me:hunter22@127.0.0.1:1",
        }
        given = {"data_dir": str(tmp_path), **settings, **secrets}
        for options in ((), ("--json",)):
            code, output, error = await botpool("doctor", *options, **given)
            assert (code, error) == (1, "")
            assert coolify.token.partition("|")[2] not in output
            assert "hunter22" not in output
            assert "expired" in output
