"""Engines on real servers, which the tests of a run share."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from botpool.engines.docker import DockerEngine
from tests.engines.testbed import (
    BOT_IMAGE,
    Daemon,
    busybox_image,
    docker_daemon,
    load,
    podman_service,
    registry,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.engines.testbed import Registry


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
    engine = DockerEngine({"a": docker.address}, installation="test", network="host")
    yield engine
    await engine.close()


@pytest.fixture(scope="session")
async def podman_engine(podman: Daemon) -> AsyncIterator[DockerEngine]:
    """The same as `docker_engine`, on Podman."""
    engine = DockerEngine({"a": podman.address}, installation="test", network="host")
    yield engine
    await engine.close()


@pytest.fixture
async def store(folder: Path) -> AsyncIterator[Registry]:
    """An empty registry that everybody may use."""
    async with registry(folder / "registry") as store:
        yield store


@pytest.fixture
async def private_store(folder: Path) -> AsyncIterator[Registry]:
    """An empty registry that asks for a name and a password."""
    async with registry(folder / "private", private=True) as store:
        yield store
