"""Engines on real servers, which the tests of a run share."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from botpool.engines.docker.engine import DockerEngine
from testbed.docker import (
    BOT_IMAGE,
    Daemon,
    busybox_image,
    docker_daemon,
    load,
    podman_service,
    registry,
)
from tests.fakes.coolify import Coolify, Rules, TaskContainers
from tests.support.coolify_engine import engine_on
from tests.support.docker_scene import made_with
from tests.support.kubernetes_engine import RULES, cluster_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from botpool.engines.coolify.engine import CoolifyEngine
    from botpool.engines.kubernetes.engine import KubernetesEngine
    from testbed.docker import Registry
    from testbed.kubernetes import Cluster
    from tests.fakes.coolify import RunningContainer


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose name is short enough for the sockets below it."""
    path = Path(tempfile.mkdtemp(prefix="botpool-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture(scope="session")
async def docker() -> AsyncIterator[Daemon]:
    """A Docker that has BOT_IMAGE."""
    with short_folder() as path:
        async with docker_daemon(path / "docker") as daemon:
            await load(daemon, busybox_image(path / "bot.tar", BOT_IMAGE))
            yield daemon


@pytest.fixture(scope="session")
async def podman() -> AsyncIterator[Daemon]:
    """A Podman that has BOT_IMAGE."""
    with short_folder() as path:
        async with podman_service(path / "podman") as daemon:
            await load(daemon, busybox_image(path / "bot.tar", BOT_IMAGE))
            yield daemon


@pytest.fixture(scope="session")
async def docker_engine(docker: Daemon) -> AsyncIterator[DockerEngine]:
    """Host "a" has BOT_IMAGE, whose `/bot` does what TEST_BEHAVIOUR in its environment says."""
    engine = DockerEngine({"a": docker.address}, installation="test", options=made_with())
    yield engine
    await engine.close()


@pytest.fixture(scope="session")
async def podman_engine(podman: Daemon) -> AsyncIterator[DockerEngine]:
    """The same as `docker_engine`, on Podman."""
    engine = DockerEngine({"a": podman.address}, installation="test", options=made_with())
    yield engine
    await engine.close()


async def play(container: RunningContainer) -> int:
    """What `/bot` of the other engines does, as its environment says."""
    behaviour = container.environment["TEST_BEHAVIOUR"]
    if behaviour == "write":
        for name, value in container.environment.items():
            container.say(f"{name}={value}")
    container.say({"ignore": "deaf"}.get(behaviour, "hello"))
    if behaviour == "ignore":
        await asyncio.Event().wait()
    if behaviour.startswith("exit:"):
        return int(behaviour.removeprefix("exit:"))
    await container.asked_to_stop.wait()
    return 0


@pytest.fixture(scope="session")
async def coolify_engine() -> AsyncIterator[CoolifyEngine]:
    """Server "a" of an imitated Coolify, whose containers do as those of `docker_engine`."""
    rules = Rules(servers=["a"], requests_per_minute=10**6, stop_grace_seconds=0.5)
    coolify = Coolify(rules, containers=TaskContainers(play))
    engine = engine_on(coolify, list_seconds=0.001)
    yield engine
    await engine.close()
    await coolify.close()


@pytest.fixture(scope="session")
async def kubernetes_engine(kubernetes: Cluster) -> AsyncIterator[KubernetesEngine]:
    """Cluster "a", with no more rights than it needs, whose bots do as those of `docker_engine`."""
    with short_folder() as path:
        image = await kubernetes.push(busybox_image(path / "bot.tar", BOT_IMAGE), "bot:1")
    async with kubernetes.namespace() as namespace:
        config = await kubernetes.kubeconfig_of(namespace, RULES)
        engine = cluster_engine(config, image)
        yield engine
        await engine.close()


@pytest.fixture
async def store(folder: Path) -> AsyncIterator[Registry]:
    """An empty registry that asks for no password."""
    async with registry(folder / "registry") as store:
        yield store


@pytest.fixture
async def private_store(folder: Path) -> AsyncIterator[Registry]:
    """An empty registry that asks for a name and a password."""
    async with registry(folder / "private", private=True) as store:
        yield store
