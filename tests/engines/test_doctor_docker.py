"""What `botpool doctor` finds on real Docker hosts, and on what is none."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from botpool.doctor import Result, clocks, diagnose, folders
from botpool.doctor import docker as doctor_docker
from botpool.settings import Settings
from testbed.docker import (
    BOT_IMAGE,
    PASSWORD,
    USERNAME,
    busybox_image,
    docker_daemon,
    load,
    push,
)
from tests.integration.test_doctor import mute, of, only
from tests.support.docker_scene import web_server

if TYPE_CHECKING:
    from pathlib import Path

    from botpool.doctor import Finding
    from testbed.docker import Daemon, Registry


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
    assert {*found} == {
        *("image", "address", "host", "clock", "network", "image on host", "init program", "disk"),
        "room",
    }
    assert found["host"].startswith("a: Docker ")
    assert found["image on host"] == f"a has {BOT_IMAGE}"
    assert {each.result for each in findings} == {Result.OK}


async def test_podman_is_examined_as_docker_is(podman: Daemon, folder: Path) -> None:
    findings = await examine(folder, f"a={podman.address}", docker_network="bridge")
    assert the(findings, "host").found.startswith("a: Podman ")
    assert the(findings, "network").result is Result.OK
    assert the(findings, "image on host").result is Result.OK


async def image_in(store: Registry, docker: Daemon, folder: Path, *, private: bool = False) -> str:
    """An image that is in a registry, and nowhere else."""
    local, image = "botpool-test/pushed:1", f"{store.address}/bot:1"
    await load(docker, busybox_image(folder / "pushed.tar", local))
    await push(docker, local, image, private=private)
    return image


def container_file(folder: Path, keys: str, platform: str = "all") -> Path:
    """A container file with these keys for Docker."""
    file = folder / "containers.toml"
    file.write_text(f"[{platform}.docker]\n{keys}\n")
    return file


async def test_nothing_is_made_or_pulled(docker: Daemon, folder: Path, store: Registry) -> None:
    async def everything() -> object:
        async with docker.client() as client:
            containers = {one.id for one in await client.containers.list(all=True)}
            networks = {one["Id"] for one in await client.networks.list()}
            images = {one["Id"] for one in await client.images.list()}
            return containers, networks, images

    image = await image_in(store, docker, folder)
    before = await everything()
    findings = await examine(folder, f"a={docker.address}", image_zoom=image)
    found = the(findings, "image on host")
    assert (found.result, f"docker pull {image}" in found.mend) == (Result.WARNING, True)
    assert await everything() == before


async def test_why_an_image_can_t_be_pulled_is_told(
    docker: Daemon,
    folder: Path,
    store: Registry,
    private_store: Registry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    private = await image_in(private_store, docker, folder, private=True)

    async def why(image: str) -> tuple[str, str]:
        findings = await examine(folder, f"a={docker.address}", image_zoom=image)
        found = the(findings, "image on host")
        assert found.result is Result.PROBLEM
        assert found.found.startswith(f"a doesn't have {image} yet, and ")
        return found.found.partition(" yet, and ")[2], found.mend

    def log_in(password: str) -> None:
        auth = b64encode(f"{USERNAME}:{password}".encode()).decode()
        entries = {"auths": {private_store.address: {"auth": auth}}}
        (folder / "config.json").write_text(json.dumps(entries))

    assert await why(f"{store.address}/bot:gone") == (
        f"{store.address} has no such image",
        "Push it, or correct its name or tag in BOTPOOL_IMAGE_….",
    )
    found, mend = await why(private)
    assert found.startswith(f"{private_store.address} wants credentials")
    assert f"docker login {private_store.address}" in mend
    log_in("not-to-be-seen")
    found, mend = await why(private)
    assert found.startswith(f"{private_store.address} refuses the credentials")
    assert "not-to-be-seen" not in found + mend
    found, mend = await why("127.0.0.1:1/bot:1")
    assert "connection refused" in found
    assert mend.startswith("Start the registry")
    log_in(PASSWORD)
    findings = await examine(folder, f"a={docker.address}", image_zoom=private)
    assert the(findings, "image on host").result is Result.WARNING


async def test_an_image_that_podman_or_nobody_pulls_is_not_asked_for(
    docker: Daemon, podman: Daemon, folder: Path
) -> None:
    image = "127.0.0.1:1/bot:1"
    findings = await examine(folder, f"a={podman.address}", image_zoom=image)
    found = the(findings, "image on host")
    assert (found.result, "podman pull" in found.mend) == (Result.WARNING, True)
    file = container_file(folder, 'pull = "never"')
    findings = await examine(folder, f"a={docker.address}", image_zoom=image, container_file=file)
    found = the(findings, "image on host")
    assert (found.result, "`never`" in found.found) == (Result.PROBLEM, True)


async def test_a_docker_that_lacks_its_init_program_is_a_problem(folder: Path) -> None:
    async with docker_daemon(folder / "docker", None, "--init-path", "/nowhere") as daemon:
        found = the(await examine(folder, daemon.address), "init program")
        assert (found.result, "/nowhere" in found.found) == (Result.PROBLEM, True)
        file = container_file(folder, "init = false")
        findings = await examine(folder, daemon.address, container_file=file)
        assert of(findings, "init program", "docker") == []


async def test_podman_s_init_program_is_looked_for_where_podman_looks(
    podman: Daemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = folder / "containers.conf"
    monkeypatch.setattr(doctor_docker, "_PODMAN_SETTINGS", (str(settings),))
    monkeypatch.setattr(doctor_docker, "_PODMAN_FOLDERS", (str(folder),))
    monkeypatch.setenv("PATH", str(folder))

    async def found() -> Result:
        return the(await examine(folder, podman.address), "init program").result

    assert await found() is Result.WARNING
    program = folder / "catatonit"
    program.touch(0o755)
    assert await found() is Result.OK
    settings.write_text('[containers]\ninit_path = "/nowhere"\n')
    assert await found() is Result.WARNING
    settings.write_text(f'[engine]\ninit_path = "{program}"\n')
    assert await found() is Result.OK


@pytest.mark.parametrize("seconds", [37, -37])
async def test_a_host_whose_clock_is_off_is_a_warning(
    docker: Daemon, folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    off = timedelta(seconds=seconds)
    monkeypatch.setattr(doctor_docker, "now", lambda: clocks.now() + off)
    found = the(await examine(folder, f"a={docker.address}"), "clock")
    way = "behind" if seconds > 0 else "ahead of"
    assert found.result is Result.WARNING
    assert found.found.startswith(f"The clock of a is 37 s {way} this machine's")


@pytest.mark.parametrize(
    ("keys", "result", "words"),
    [
        ('volumes = ["/nowhere/fonts:/fonts", "models:/models"]', "warning", "/nowhere/fonts"),
        ('devices = ["/dev/nowhere"]', "problem", "/dev/nowhere"),
        ('runtime = "nvidia"', "problem", "no runtime nvidia"),
        ('gpus = "all"', "warning", "no runtime nvidia"),
        ('log_driver = "nowhere"', "problem", "no log driver nowhere"),
        ('log_driver = "none"', "warning", "last lines"),
        ('volumes = ["/tmp:/tmp"]\nlog_driver = "local"', "ok", "has what it asks for"),
    ],
)
async def test_what_a_host_lacks_for_the_container_file_is_told(
    docker: Daemon, folder: Path, keys: str, result: str, words: str
) -> None:
    file = container_file(folder, keys)
    found = the(await examine(folder, docker.address, container_file=file), "container file")
    assert found.result == result
    assert words in found.found


async def test_each_network_of_the_container_file_must_be_there(
    docker: Daemon, folder: Path
) -> None:
    file = container_file(folder, 'network = "nowhere"', "zoom")
    findings = await examine(folder, docker.address, container_file=file)
    found = {each.found.split()[-1]: each.result for each in of(findings, "network", "docker")}
    assert found == {"host": Result.OK, "nowhere": Result.PROBLEM}


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
