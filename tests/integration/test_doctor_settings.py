"""What `botpool doctor` finds in the settings of images and addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from botpool.doctor import Finding, Result, diagnose
from tests.integration.test_doctor import (
    of,
    only,
    problems,
    settings_in,
)
from tests.support.docker_scene import web_server

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.scene import Scene

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
    tmp_path: Path, image: str, docker: Result, coolify: Result
) -> None:
    settings = settings_in(tmp_path, image_zoom=image, docker_hosts="unix:///nowhere/docker.sock")
    for engine, result in (("docker", docker), ("coolify", coolify)):
        findings = of(await diagnose(settings, engine), "image", engine)
        assert [each.result for each in findings] == [result, Result.OK]
        assert image in findings[0].found
        assert "google-meet, microsoft-teams" in findings[1].found


@pytest.mark.parametrize("engine", ["docker", "coolify"])
async def test_no_image_at_all_is_a_problem(tmp_path: Path, engine: str) -> None:
    found = only(await diagnose(settings_in(tmp_path), engine), "image", engine)
    assert found.result is Result.PROBLEM
    assert "BOTPOOL_IMAGE_MICROSOFT_TEAMS" in found.mend


async def test_a_platform_that_is_used_needs_an_image(
    tmp_path: Path, scene: Scene, database_url: str
) -> None:
    await scene.create()
    settings = settings_in(tmp_path, database_url=database_url, image_zoom="zoom-bot:7")
    bad = [
        each
        for each in of(await diagnose(settings, "docker"), "image", "docker")
        if each.result is Result.PROBLEM
    ]
    assert [each.mend for each in bad] == ["Set BOTPOOL_IMAGE_GOOGLE_MEET."]


# The container file


async def test_a_container_file_whose_secrets_others_may_read_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "containers.toml"
    for text, mode, result in (
        ('[all.env]\nA = "1"', 0o640, Result.WARNING),
        ('[all.env]\nA = "1"', 0o600, Result.OK),
        ("[all.docker]\ncpus = 1", 0o644, Result.OK),
    ):
        file.write_text(text)
        file.chmod(mode)
        found = only(await diagnose(settings_in(tmp_path, container_file=file)), "container file")
        assert (found.result, str(file) in found.found) == (result, True)


@pytest.mark.parametrize(("engine", "result"), [("process", "warning"), ("coolify", "problem")])
async def test_what_an_engine_can_t_do_of_the_container_file_is_told(
    tmp_path: Path, engine: str, result: str
) -> None:
    file = tmp_path / "containers.toml"
    settings = {"container_file": file, "coolify_api_url": None}
    file.write_text('[zoom.docker]\nvolumes = ["a1:/a"]\n')
    found = only(
        await diagnose(settings_in(tmp_path, **settings), engine), "container file", engine
    )
    assert found.result == result
    assert "docker.volumes" in found.found
    file.write_text('[zoom.env]\nA = "1"\n')
    assert (
        of(await diagnose(settings_in(tmp_path, **settings), engine), "container file", engine)
        == []
    )


async def test_variables_of_containers_are_shown_in_no_finding(tmp_path: Path) -> None:
    file = tmp_path / "containers.toml"
    file.write_text('[all.env]\nA = "hunter22.invalid"\n')
    settings = settings_in(
        tmp_path, container_file=file, public_url="http://hunter22.invalid", image_zoom="z:1"
    )
    assert "hunter22" not in str(await diagnose(settings, "coolify"))


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
    tmp_path: Path,
    changes: dict[str, Any],
    docker: Result,
    coolify: Result,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("botpool.doctor.address._ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("botpool.doctor.docker._SECONDS", 0.2)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    for engine, result in (("docker", docker), ("coolify", coolify)):
        found = only(await diagnose(settings_in(tmp_path, **changes), engine), "address", engine)
        assert found.result is result
        if result is Result.PROBLEM:
            assert "BOTPOOL_PUBLIC_URL" in found.mend


async def test_an_address_that_is_none_is_a_problem_that_is_told_once(tmp_path: Path) -> None:
    findings = await diagnose(settings_in(tmp_path, host="[x"), "docker")
    found = only(findings, "address")
    assert found.result is Result.PROBLEM
    assert "BOTPOOL_PUBLIC_URL" in found.mend
    assert of(findings, "address", "docker") == []


async def test_a_port_that_is_not_known_yet_is_not_asked(tmp_path: Path) -> None:
    findings = await diagnose(settings_in(tmp_path, port=0))
    assert only(findings, "address").result is Result.NOT_CHECKED
    assert problems(findings) == set()


async def answering(tmp_path: Path, url: str) -> Finding:
    return only(await diagnose(settings_in(tmp_path, public_url=url)), "address")


async def test_what_answers_at_the_address_must_be_botpool(tmp_path: Path) -> None:
    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<h1>It works!</h1>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/pool/healthz", health)
    app.router.add_get("/healthz", page)
    async with web_server(app) as url:
        with_password = url.replace("//", "//me:hunter22@")
        ours = await answering(tmp_path, f"{with_password}/pool/")
        other = await answering(tmp_path, url)
        nothing = await answering(tmp_path, f"{url}/elsewhere")
        tls = await answering(tmp_path, url.replace("http:", "https:"))
    gone = await answering(tmp_path, url)
    assert (ours.result, ours.found) == (Result.OK, f"botpool answers at {url}/pool")
    for found in (other, nothing):
        assert found.result is Result.WARNING
        assert "Something other than botpool" in found.found
    assert "TLS error" in tls.found
    assert "refused" in gone.found
    assert "botpool serve" in gone.mend
    unknown = await answering(tmp_path, "http://botpool.invalid")
    assert unknown.result is Result.WARNING
    assert "can't be resolved" in unknown.found
    assert (await answering(tmp_path, "http://host.docker.internal")).result is (Result.NOT_CHECKED)
