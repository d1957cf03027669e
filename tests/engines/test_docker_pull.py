"""Pulls through the docker engine, from a real registry, and the credentials for it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from botpool.engines.docker import credentials
from botpool.engines.docker.credentials import registry_header
from botpool.errors import EngineError, EngineRefused, EngineUnavailable
from testbed.docker import PASSWORD, USERNAME, busybox_image, docker_daemon, load, push
from tests.support.docker_scene import opened, spec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from botpool.engines.base import PullProgress
    from botpool.engines.docker.engine import DockerEngine
    from testbed.docker import Daemon, Registry

SECRET = "not-to-be-seen"  # noqa: S105 - that is what it is for
AUTH = base64.b64encode(f"{USERNAME}:{PASSWORD}".encode()).decode()
WRONG_AUTH = base64.b64encode(f"{USERNAME}:{SECRET}".encode()).decode()


@pytest.fixture
async def engine(docker: Daemon) -> AsyncIterator[DockerEngine]:
    async with opened(docker) as engine:
        yield engine


@pytest.fixture(autouse=True)
def docker_config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Docker's credentials are looked for. There are none."""
    config = folder / "config"
    config.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(config))
    return config


def log_in(config: Path, **entries: Any) -> None:
    (config / "config.json").write_text(json.dumps(entries))


def install_helper(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program `docker-credential-test` where programs are found."""
    programs = folder / "programs"
    programs.mkdir()
    helper = programs / "docker-credential-test"
    helper.write_text(f"#!/bin/sh\n{script}\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


async def pushed(
    daemon: Daemon, folder: Path, store: Registry, *, padding: int = 2**23, private: bool = False
) -> str:
    """An image that is in a registry, and on no host."""
    image, here = f"{store.address}/bots/bot:1", "botpool-test/pushed:1"
    await load(daemon, busybox_image(folder / "pushed.tar", here, padding=padding))
    await push(daemon, here, image, private=private)
    async with daemon.client() as client:
        await client.images.delete(here)
    return image


def decoded(header: str | None) -> dict[str, str]:
    assert header
    credentials: dict[str, str] = json.loads(base64.urlsafe_b64decode(header))
    return credentials


async def test_an_image_is_fetched_once(
    engine: DockerEngine, docker: Daemon, folder: Path, store: Registry
) -> None:
    image = await pushed(docker, folder, store)
    seen: list[PullProgress] = []
    before = len(await store.requests())
    assert await engine.pull("a", image, seen.append)
    asked = (await store.requests())[before:]
    fetched = sum(one.size for one in asked if one.method == "GET" and "/blobs/" in one.path)
    assert fetched > 2**23
    assert seen[-1].current == seen[-1].total > 2**23
    assert [one.current for one in seen] == sorted(one.current for one in seen)

    assert not await engine.pull("a", image, seen.append)
    assert len(await store.requests()) == before + len(asked)
    await engine.create(spec("pulled", image=image))


async def test_podman_fetches_an_image_once(
    podman: Daemon, docker: Daemon, folder: Path, store: Registry
) -> None:
    image = await pushed(docker, folder, store)
    async with opened(podman) as engine:
        assert await engine.pull("a", image, print)
        before = len(await store.requests())
        assert not await engine.pull("a", image, print)
        assert len(await store.requests()) == before
        await engine.create(spec("pulled", image=image))


async def test_an_image_that_is_nowhere_is_refused(engine: DockerEngine, store: Registry) -> None:
    for image in (f"{store.address}/missing:1", "Not/An Image"):
        with pytest.raises(EngineRefused):
            await engine.pull("a", image, print)


async def test_podman_refuses_an_image_that_is_nowhere_and_waits_for_a_registry(
    podman: Daemon, store: Registry
) -> None:
    async with opened(podman) as engine:
        with pytest.raises(EngineRefused, match="unknown"):
            await engine.pull("a", f"{store.address}/missing:1", print)
        with pytest.raises(EngineUnavailable):
            await engine.pull("a", "127.0.0.1:1/bot:1", print)


async def test_a_registry_that_is_down_is_no_refusal(engine: DockerEngine) -> None:
    with pytest.raises(EngineUnavailable):
        await engine.pull("a", "127.0.0.1:1/bot:1", print)


async def test_a_pull_that_is_cancelled_stops_fetching(folder: Path, store: Registry) -> None:
    size = 2**26
    async with docker_daemon(folder / "docker") as daemon, opened(daemon) as engine:
        image = await pushed(daemon, folder, store, padding=size)

        def cancel_in_the_large_layer(progress: PullProgress) -> None:
            if progress.current > 2_000_000:
                pull.cancel()

        pull = asyncio.create_task(engine.pull("a", image, cancel_in_the_large_layer))
        await asyncio.wait({pull})
        assert pull.cancelled()
        # The registry writes this when it has sent the layer, or can't send more of it.
        line = r'"GET /v2/bots/bot/blobs/\S+ \S+" 200 ([2-9]\d{6}|\d{8,}) '
        sent = await store.output.said(line)
        assert int(sent[1]) < size
        async with daemon.client() as client:
            assert await client.images.list() == []


async def test_a_private_registry_wants_the_credentials_of_docker(
    engine: DockerEngine, docker: Daemon, folder: Path, docker_config: Path, private_store: Registry
) -> None:
    image = await pushed(docker, folder, private_store, private=True)
    with pytest.raises(EngineRefused, match="no basic auth credentials"):
        await engine.pull("a", image, print)
    log_in(docker_config, auths={private_store.address: {"auth": WRONG_AUTH}})
    with pytest.raises(EngineRefused) as raised:
        await engine.pull("a", image, print)
    assert SECRET not in str(raised.value)
    log_in(docker_config, auths={f"http://{private_store.address}/v1/": {"auth": AUTH}})
    assert await engine.pull("a", image, print)


async def test_podman_takes_the_credentials_of_docker(
    podman: Daemon, docker: Daemon, folder: Path, docker_config: Path, private_store: Registry
) -> None:
    image = await pushed(docker, folder, private_store, private=True)
    async with opened(podman) as engine:
        with pytest.raises(EngineRefused, match="unauthorized"):
            await engine.pull("a", image, print)
        log_in(docker_config, auths={private_store.address: {"auth": AUTH}})
        assert await engine.pull("a", image, print)


async def test_a_program_may_keep_the_credentials(
    engine: DockerEngine,
    docker: Daemon,
    folder: Path,
    docker_config: Path,
    private_store: Registry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = await pushed(docker, folder, private_store, private=True)
    answer = json.dumps({"ServerURL": "any", "Username": USERNAME, "Secret": PASSWORD})
    install_helper(
        folder, monkeypatch, f"[ \"$1 $(cat)\" = 'get {private_store.address}' ] && echo '{answer}'"
    )
    log_in(docker_config, credHelpers={private_store.address: "test"}, credsStore="other")
    assert await engine.pull("a", image, print)


@pytest.mark.parametrize(
    ("image", "server"),
    [
        ("bot:1", "https://index.docker.io/v1/"),
        ("bots/bot", "https://index.docker.io/v1/"),
        ("docker.io/bots/bot:1", "https://index.docker.io/v1/"),
        ("localhost/bot:1", "localhost"),
        ("bots.example/bot:1", "bots.example"),
        (f"bots:5000/bot@sha256:{'0' * 64}", "bots:5000"),
    ],
)
async def test_credentials_belong_to_the_registry_of_the_image(
    image: str, server: str, docker_config: Path
) -> None:
    others = {"elsewhere.example": {"auth": WRONG_AUTH}, "bots.example:1": {"auth": WRONG_AUTH}}
    log_in(docker_config, auths=others)
    assert await registry_header(image) is None
    log_in(docker_config, auths={**others, server: {"auth": AUTH}})
    assert decoded(await registry_header(image)) == {
        "username": USERNAME,
        "password": PASSWORD,
        "serveraddress": server,
    }


async def test_a_token_takes_the_place_of_a_password(
    folder: Path, docker_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(docker_config, auths={"bots.example": {"auth": AUTH, "identitytoken": SECRET}})
    expected = {"identitytoken": SECRET, "serveraddress": "bots.example"}
    assert decoded(await registry_header("bots.example/bot")) == expected
    install_helper(folder, monkeypatch, f'echo \'{{"Username": "<token>", "Secret": "{SECRET}"}}\'')
    log_in(docker_config, credsStore="test")
    assert decoded(await registry_header("bots.example/bot")) == expected


async def test_a_registry_that_a_program_does_not_know_is_asked_without_a_name(
    folder: Path, docker_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_helper(folder, monkeypatch, "echo credentials not found in native keychain; exit 1")
    log_in(docker_config, credsStore="test")
    assert await registry_header("bots.example/bot") is None


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (f"echo {SECRET}; exit 1", EngineUnavailable),
        (f"echo {SECRET}", EngineUnavailable),
        (f"echo '\"{SECRET}\"'", EngineUnavailable),
        (f'echo \'{{"Secret": "{SECRET}"}}\'', EngineUnavailable),
        ("exec sleep 3600", EngineUnavailable),
        (None, EngineRefused),
    ],
)
async def test_a_program_that_fails_is_named_and_not_quoted(
    script: str | None,
    error: type[EngineError],
    folder: Path,
    docker_config: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(credentials, "_HELPER_SECONDS", 0.5)
    if script:
        install_helper(folder, monkeypatch, script)
    log_in(docker_config, credsStore="test")
    with pytest.raises(error, match="docker-credential-test") as raised:
        await registry_header("bots.example/bot")
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None or script is None


@pytest.mark.parametrize(
    "text",
    [
        f"{{{SECRET}",
        f'["{SECRET}"]',
        json.dumps({"auths": {"bots.example": {"auth": SECRET}}}),
        json.dumps({"auths": {"bots.example": {"auth": base64.b64encode(b"\xff").decode()}}}),
    ],
)
async def test_credentials_that_can_not_be_read_are_not_shown(
    text: str, docker_config: Path
) -> None:
    (docker_config / "config.json").write_text(text)
    with pytest.raises(EngineRefused) as raised:
        await registry_header("bots.example/bot")
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None
