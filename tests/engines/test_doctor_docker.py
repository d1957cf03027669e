"""What `botpool doctor` finds on real Docker hosts, and on what is none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from botpool.doctor import Result, diagnose, folders
from botpool.doctor import docker as doctor_docker
from botpool.settings import Settings
from testbed.docker import BOT_IMAGE
from tests.integration.test_doctor import mute, of, only
from tests.support.docker_scene import web_server

if TYPE_CHECKING:
    from pathlib import Path

    from botpool.doctor import Finding
    from testbed.docker import Daemon


async def examine(folder: Path, hosts: str, **changes: Any) -> list[Finding]:
    settings = Settings(
        **{
            "data_dir": folder,
            "docker_hosts": hosts,
            "docker_network": "host",
            "image_zoom": BOT_IMAGE,
            **changes,
        }
    )
    findings = await diagnose(settings, "docker")
    return [each for each in findings if each.engine == "docker"]


def the(findings: list[Finding], check: str) -> Finding:
    return only(findings, check, "docker")


async def test_a_host_that_has_everything_is_ok(docker: Daemon, folder: Path) -> None:
    findings = await examine(folder, f"a={docker.address}", max_slots_per_host=100)
    found = {each.check: each.found for each in findings if each.result is Result.OK}
    assert {*found} == {"image", "address", "host", "network", "image on host", "disk", "room"}
    assert found["host"].startswith("a: Docker ")
    assert found["image on host"] == f"a has {BOT_IMAGE}"
    assert {each.result for each in findings} == {Result.OK}


async def test_podman_is_examined_as_docker_is(podman: Daemon, folder: Path) -> None:
    findings = await examine(folder, f"a={podman.address}", docker_network="bridge")
    assert the(findings, "host").found.startswith("a: Podman ")
    assert the(findings, "network").result is Result.OK
    assert the(findings, "image on host").result is Result.OK


async def test_nothing_is_made_or_pulled(docker: Daemon, folder: Path) -> None:
    async def everything() -> object:
        async with docker.client() as client:
            containers = {one.id for one in await client.containers.list(all=True)}
            networks = {one["Id"] for one in await client.networks.list()}
            images = {one["Id"] for one in await client.images.list()}
            return containers, networks, images

    before = await everything()
    image = "registry.invalid/bot:1"
    findings = await examine(folder, f"a={docker.address}", image_zoom=image)
    found = the(findings, "image on host")
    assert (found.result, image in found.mend) == (Result.WARNING, True)
    assert await everything() == before


@pytest.mark.parametrize(
    ("network", "result"),
    [
        ("nowhere", Result.PROBLEM),
        ("bridge", Result.PROBLEM),  # this daemon was started without one
        ("none", Result.PROBLEM),
        ("host", Result.OK),
        ("container:other", Result.NOT_CHECKED),
    ],
)
async def test_the_network_must_be_there(
    docker: Daemon, folder: Path, network: str, result: Result
) -> None:
    findings = await examine(folder, docker.address, docker_network=network)
    assert the(findings, "network").result is result


async def test_one_host_that_is_not_there_stops_no_other(docker: Daemon, folder: Path) -> None:
    findings = await examine(folder, f"gone=unix://{folder}/no.sock,a={docker.address}")
    hosts = of(findings, "host", "docker")
    assert [each.result for each in hosts] == [Result.PROBLEM, Result.OK]
    assert "BOTPOOL_DOCKER_HOSTS" in hosts[0].mend
    assert len(of(findings, "image on host", "docker")) == 1


async def test_a_disk_that_is_nearly_full_is_a_warning(
    docker: Daemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No disk is that full, so the limit is raised."""
    monkeypatch.setattr(folders, "LEAST_BYTES", 2**70)
    found = the(await examine(folder, docker.address), "disk")
    assert (found.result, "docker system df" in found.mend) == (Result.WARNING, True)


async def test_a_socket_of_others_wants_its_group(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root, who runs this, may use every socket."""

    async def barred(*_: object, **__: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_unix_connection", barred)
    assert "group `docker`" in the(await examine(folder, "unix:///x"), "host").mend


async def test_what_is_not_docker_or_silent_is_a_problem(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_docker, "_SECONDS", 0.5)

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<h1>It works!</h1>", content_type="text/html")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", page)
    async with web_server(app) as url, mute() as port, asyncio.timeout(10):
        findings = await examine(folder, f"page={url},mute=tcp://127.0.0.1:{port}")
    assert [each.result for each in of(findings, "host", "docker")] == [Result.PROBLEM] * 2


async def test_hosts_that_make_no_sense_are_a_problem(folder: Path) -> None:
    found = the(await examine(folder, "tcp://me:secret@10.0.0.2:2376"), "hosts")
    assert found.result is Result.PROBLEM
    assert "secret" not in found.found + found.mend
