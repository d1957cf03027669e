"""The image, built for real, and the compose file, run with it on a real Docker."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from testbed.docker import docker_daemon, need
from testbed.image import BASE_IMAGE, botpool_image, docker, need_packages, run
from tests.engines.conftest import short_folder
from tests.support.docker_ground import free_port
from tests.support.server import BOTS, MEET
from tests.support.waiting import a_moment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from testbed.docker import Daemon

ROOT = Path(__file__).parents[2]
IMAGES = Path(__file__).parent / "images"
KEY = "a-key-that-an-operator-thought-up"


@pytest.fixture(scope="module")
async def machine() -> AsyncIterator[Daemon]:
    """A Docker that has botpool's image."""
    need("docker", "busybox", "caddy", "docker-compose", "iptables")
    need_packages()
    with short_folder() as folder:
        async with docker_daemon(folder / "docker") as daemon:
            await botpool_image(daemon, folder, "botpool:local")
            yield daemon


async def made(machine: Daemon, name: str, folder: Path, *programs: str) -> str:
    """An image of tests/deploy/images, with programs of this machine."""
    for program in programs:
        shutil.copy(shutil.which(program) or "", folder / program)
    tag = f"botpool-test/{name}:1"
    await docker(
        *(machine, "build", "--network", "host", "--tag", tag),
        *("--build-arg", f"BASE={BASE_IMAGE}", "--file", str(IMAGES / name), str(folder)),
    )
    return tag


@asynccontextmanager
async def running(machine: Daemon, *options: str) -> AsyncIterator[str]:
    """A container of the image. It and its volumes are gone at the end."""
    name = "botpool"
    await docker(machine, "run", "--detach", "--name", name, "--network", "host", *options)
    try:
        yield name
    finally:
        await docker(machine, "rm", "--force", "--volumes", name)


async def until_healthy(machine: Daemon, name: str) -> None:
    wanted = "{{.State.Status}} {{.State.Health.Status}}"
    while (found := await docker(machine, "inspect", "--format", wanted, name)) != (
        "running healthy\n"
    ):
        assert found in {"running starting\n", "running unhealthy\n"}, await said(machine, name)
        await asyncio.sleep(0.2)  # each look is a process


async def said(machine: Daemon, name: str) -> str:
    return await run(
        "sh", "-c", f"docker logs {name} 2>&1 | tail -n 20", DOCKER_HOST=machine.address
    )


async def in_call(caller: httpx.AsyncClient, **changes: Any) -> int:
    """The number of a new bot, once it is in its call."""
    body = {"meetingUrl": MEET, "config": {"sample": {"stayMs": 3_600_000}}, **changes}
    created = await caller.post(BOTS, json=body)
    assert created.status_code == 201, created.text
    bot: int = created.json()["bot"]["id"]
    while (found := (await caller.get(f"{BOTS}/{bot}")).json())["status"] != "IN_CALL":
        assert found["endedAt"] is None, found
        await a_moment()
    return bot


def caller(url: str, **options: Any) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {KEY}", **options.pop("headers", {})}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=60, **options)


async def test_the_image_works_by_itself_on_a_root_that_nobody_can_write(machine: Daemon) -> None:
    port = str(free_port())
    options = ("--read-only", "--tmpfs", "/tmp", "--env", f"BOTPOOL_ADMIN_KEY={KEY}")  # noqa: S108
    async with running(machine, *options, "--env", f"BOTPOOL_PORT={port}", "botpool:local") as name:
        await until_healthy(machine, name)
        assert (await docker(machine, "exec", name, "id", "-u")).strip() == "10001"
        async with caller(f"http://127.0.0.1:{port}") as http:
            bot = await in_call(http)
            stopped = await http.post(f"{BOTS}/{bot}/stop")
            assert stopped.status_code in {200, 202}
            while (await http.get(f"{BOTS}/{bot}")).json()["endedAt"] is None:
                await a_moment()
        # What bots leave to process 1 is waited for there: nothing stays as a zombie.
        while await zombies(machine, name):
            await a_moment()
        await docker(machine, "stop", "--time", "60", name)
        assert (await docker(machine, "inspect", "-f", "{{.State.ExitCode}}", name)) == "0\n"
        assert "shutting down" in await said(machine, name)


async def zombies(machine: Daemon, name: str) -> list[str]:
    """The processes of a container that have ended, and that nobody has waited for."""
    script = "cat /proc/[0-9]*/stat 2>/dev/null || true"
    found = await docker(machine, "exec", name, "sh", "-c", script)
    return [line for line in found.splitlines() if line.rpartition(")")[2].split()[:1] == ["Z"]]


async def test_a_signal_to_process_1_ends_the_image_as_it_ends_botpool(machine: Daemon) -> None:
    port = str(free_port())
    async with running(
        machine, "--env", f"BOTPOOL_PORT={port}", "--env", "BOTPOOL_ENGINE=none", "botpool:local"
    ) as name:
        # It can't start: the code says that something must be set up differently.
        assert (await docker(machine, "wait", name)).strip() == "2"
    async with running(machine, "--env", f"BOTPOOL_PORT={port}", "botpool:local") as name:
        await until_healthy(machine, name)
        await docker(machine, "kill", "--signal", signal.SIGINT.name, name)
        assert (await docker(machine, "wait", name)).strip() == "0"


@asynccontextmanager
async def composed(machine: Daemon, folder: Path, **variables: str) -> AsyncIterator[None]:
    """What compose.yaml has, running. All of it is gone at the end."""
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    text = "".join(f"{name}={value}\n" for name, value in variables.items())
    (folder / "deploy" / ".env").write_text(text)
    file = str(folder / "deploy" / "compose.yaml")
    compose = ("docker-compose", "--project-name", "test", "--file", file)
    host = {"DOCKER_HOST": machine.address, "COMPOSE_HTTP_TIMEOUT": "600"}
    try:
        await run(*compose, "up", "--detach", "--no-build", **host)
        yield
    finally:
        await run(*compose, "kill", **host)
        while left := (await run("docker", "ps", "--all", "--quiet", **host)).split():
            with suppress(RuntimeError):  # a worker has just asked for the removal of one
                await run("docker", "rm", "--force", *left, **host)
            await a_moment()
        await run(*compose, "down", "--volumes", **host)


async def test_compose_brings_a_page_a_stream_and_a_bot_through_caddy(
    machine: Daemon, tmp_path: Path
) -> None:
    images = {
        name: await made(machine, name, tmp_path, *programs)
        for name, programs in {
            "postgres": (),
            "bot": (),
            "caddy": ("caddy", "busybox"),
        }.items()
    }
    socket = machine.address.removeprefix("unix://")
    async with composed(
        machine,
        tmp_path / "site",
        SITE="http://botpool.test",
        POSTGRES_PASSWORD="abc123",  # noqa: S106
        POSTGRES_IMAGE=images["postgres"],
        CADDY_IMAGE=images["caddy"],
        BOTPOOL_ADMIN_KEY=KEY,
        BOTPOOL_ENGINE="docker",
        BOTPOOL_IMAGE_GOOGLE_MEET=images["bot"],
        BOTPOOL_HEARTBEAT_INTERVAL_MS="500",
        DOCKER_GROUP=str(Path(socket).stat().st_gid),
        DOCKER_SOCKET=socket,
    ):
        replicas = [f"test_{name}_1" for name in ("api-1", "api-2", "worker-1", "worker-2")]
        for name in (*replicas, "test_caddy_1", "test_postgres_1"):
            await until_healthy(machine, name)
        network = '{{(index .NetworkSettings.Networks "test_inside").IPAddress}}'
        address = (await docker(machine, "inspect", "-f", network, "test_caddy_1")).strip()
        host = {"Host": "botpool.test"}
        async with caller(f"http://{address}", headers=host) as http:
            # Caddy asks replicas every two seconds whether they are ready.
            while (ready := await http.get("/readyz")).status_code != 200:
                await a_moment()
            assert ready.json()["replicas"] == {"api": 2, "worker": 2}
            page = await http.get("/", headers={"Accept": "text/html"})
            assert (page.status_code, "Pool · botpool" in page.text) == (200, True)
            async with http.stream("GET", "/api/v1/stream") as stream:
                bot = await in_call(http)
                async for line in stream.aiter_lines():
                    if line.startswith("data:") and '"IN_CALL"' in line:
                        assert json.loads(line[5:])["data"]["botId"] == bot
                        break
            # One replica after the other is stopped and started: the bot stays in its call.
            for name in replicas:
                await docker(machine, "restart", "--time", "60", name)
                await until_healthy(machine, name)
            seen = (await http.get(f"{BOTS}/{bot}")).json()
            assert (seen["status"], seen["launchAttempts"]) == ("IN_CALL", 1)
            while (await http.get(f"{BOTS}/{bot}")).json()["lastHeartbeat"] == (
                seen["lastHeartbeat"]
            ):
                await a_moment()
            # Bots reach what bots call, and nothing else.
            container = seen["containerRef"]
            script = (
                "import sys, urllib.request as r\n"
                "try: r.urlopen('http://caddy:8080/api/v1/pool', timeout=30)\n"
                "except r.HTTPError as error: print(error.code)\n"
                "try: r.urlopen('http://api-1:8000/healthz', timeout=30)\n"
                "except OSError as error: print('unreachable')"
            )
            answers = await docker(machine, "exec", container, "python3", "-c", script)
            assert answers.split() == ["404", "unreachable"]
            await http.post(f"{BOTS}/{bot}/stop")
            while (await http.get(f"{BOTS}/{bot}")).json()["status"] != "DONE":
                await asyncio.sleep(0.2)
