"""What only the docker engine has, on a real Docker and a real Podman."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiodocker.docker
import pytest
from aiohttp import web

from botpool.engines.base import Container, ContainerState, Observation
from botpool.errors import ContainerMissing, EngineRefused, ImageMissing
from testbed.docker import BOT_IMAGE, Daemon, busybox_image, docker_daemon, load
from tests.support.docker_scene import (
    inspected,
    opened,
    spec,
    started,
    until_over,
    until_said,
    web_server,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from botpool.engines.docker.engine import DockerEngine


@pytest.fixture(params=["docker", "podman"])
def daemon(request: pytest.FixtureRequest) -> Daemon:
    """One after the other."""
    found: Daemon = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def engine(docker: Daemon) -> AsyncIterator[DockerEngine]:
    async with opened(docker) as engine:
        yield engine


async def test_limits_labels_and_policies_are_set(docker: Daemon) -> None:
    async with opened(docker, cpus=0.5, memory=2**26, shm_size=2**25) as engine:
        container = await started(engine, spec("limited"))
        found = await inspected(docker, container.ref)
    config = found["HostConfig"]
    assert (config["NanoCpus"], config["Memory"], config["ShmSize"]) == (5 * 10**8, 2**26, 2**25)
    assert config["RestartPolicy"]["Name"] == "no"
    assert config["Init"] is True
    assert config["LogConfig"]["Type"] == "json-file"
    assert config["LogConfig"]["Config"].keys() == {"max-size", "max-file"}
    assert found["Config"]["Labels"] == {
        "botpool.installation": "other",
        "botpool.slot-id": "7",
        "botpool.slot-name": "pool-zoom-007",
    }


async def test_a_container_on_a_bridge_knows_its_host_by_name(folder: Path) -> None:
    image = "botpool-test/hosts:1"
    async with docker_daemon(folder / "docker", "172.30.91.1/24") as daemon:
        await load(
            daemon, busybox_image(folder / "a.tar", image, script="#!/bin/sh\ncat /etc/hosts")
        )
        async with opened(daemon, network="bridge") as engine:
            container = await started(engine, spec("bridged", image=image))
            await until_over(daemon, container.ref)
            hosts = [line.split() for line in await engine.logs(container, 100)]
    assert ["172.30.91.1", "host.docker.internal"] in hosts


@pytest.mark.parametrize("owner", ["another botpool", None])
async def test_a_container_that_is_not_ours_is_left_alone(
    daemon: Daemon, owner: str | None
) -> None:
    container = Container("a", "taken")
    async with daemon.client() as client, opened(daemon) as engine:
        theirs = await client.containers.create(
            {
                "Image": BOT_IMAGE,
                "Env": ["TEST_BEHAVIOUR=run"],
                "Labels": {"botpool.installation": owner} if owner else {},
                "HostConfig": {"NetworkMode": "host"},
            },
            name="taken",
        )
        try:
            with pytest.raises(EngineRefused, match=f"taken .* {owner or 'another program'}"):
                await engine.create(spec("taken"))
            await theirs.start()
            with pytest.raises(EngineRefused, match=f"taken .* {owner or 'another program'}"):
                await engine.create(spec("taken"))
            with pytest.raises(ContainerMissing):
                await engine.start(container, {})
            assert (await engine.observe(container)).state is ContainerState.MISSING
            assert await engine.logs(container, 10) == []
            assert await engine.list("a") == []
            await engine.stop(container, 0)
            await engine.remove(container)
            assert (await theirs.show())["State"]["Running"]
        finally:
            await theirs.delete(force=True)


async def test_a_container_is_not_found_by_the_beginning_of_its_id(
    engine: DockerEngine, docker: Daemon
) -> None:
    container = await started(engine, spec("whole"))
    identity = (await inspected(docker, container.ref))["Id"]
    assert (await engine.observe(Container("a", identity[:12]))).state is ContainerState.MISSING


async def test_an_image_that_is_missing_is_told_from_other_things(engine: DockerEngine) -> None:
    with pytest.raises(ImageMissing):
        await engine.create(spec("missing", image="botpool-test/missing:1"))
    with pytest.raises(EngineRefused, match="has no image") as raised:
        await engine.create(spec("missing", image=None))
    assert not isinstance(raised.value, ImageMissing)


async def test_what_can_not_be_started_is_refused_in_the_words_of_docker(docker: Daemon) -> None:
    async with opened(docker, network="nowhere") as engine:
        container = Container("a", await engine.create(spec("nowhere")))
        # Docker answers 404 for this, as it does for a container that is gone.
        with pytest.raises(EngineRefused, match="network nowhere not found") as raised:
            await engine.start(container, {})
        assert not isinstance(raised.value, ContainerMissing)
        observed = await engine.observe(container)
    assert observed.state is ContainerState.CREATED
    assert "network nowhere not found" in observed.detail


async def test_a_command_that_is_not_there_exits(
    engine: DockerEngine, docker: Daemon, folder: Path
) -> None:
    image = "botpool-test/broken:1"
    await load(docker, busybox_image(folder / "broken.tar", image, script="#!/nowhere\n"))
    container = await started(engine, spec("broken", image=image))
    await until_over(docker, container.ref)
    assert await engine.observe(container) == Observation(
        state=ContainerState.EXITED, exit_code=127, detail="exited", restarts=0
    )


async def test_out_of_memory_is_seen(docker: Daemon, folder: Path) -> None:
    image = "botpool-test/hungry:1"
    script = "#!/bin/sh\nexec tail /dev/zero\n"
    await load(docker, busybox_image(folder / "hungry.tar", image, script=script))
    async with opened(docker, memory=2**24) as engine:
        container = await started(engine, spec("hungry", image=image))
        await until_over(docker, container.ref)
        assert await engine.observe(container) == Observation(
            state=ContainerState.EXITED, exit_code=137, detail="exited, OOMKilled", restarts=0
        )
        [listed] = await engine.list("a")
    assert listed.observation.state is ContainerState.EXITED
    assert listed.observation.detail.startswith("Exited (137)")


async def test_a_paused_container_runs(engine: DockerEngine, docker: Daemon) -> None:
    container = await started(engine, spec("paused"))
    async with docker.client() as client:
        await client.containers.container("paused").pause()
        assert (await engine.observe(container)).state is ContainerState.RUNNING
        with pytest.raises(EngineRefused):
            await engine.remove(container)
        await client.containers.container("paused").unpause()


async def test_a_start_that_comes_late_starts_nothing(
    engine: DockerEngine, docker: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.create(spec("late"))
    start = aiodocker.containers.DockerContainer.start

    async def start_after_the_next_one_was_made(self: Any) -> None:
        await engine.create(spec("late"))
        await start(self)

    monkeypatch.setattr(
        "aiodocker.containers.DockerContainer.start", start_after_the_next_one_was_made
    )
    with pytest.raises(ContainerMissing):
        await engine.start(Container("a", "late"), {})
    assert (await inspected(docker, "late"))["State"]["Status"] == "created"


async def test_a_long_line_is_one_line(engine: DockerEngine, docker: Daemon, folder: Path) -> None:
    image = "botpool-test/long:1"
    script = "#!/bin/sh\nhead -c 40000 /dev/zero\necho\nprintf 'not \\377 text\\n' >&2\n"
    await load(docker, busybox_image(folder / "long.tar", image, script=script))
    container = await started(engine, spec("long", image=image))
    await until_over(docker, container.ref)
    assert sorted(await engine.logs(container, 100)) == [
        "\0" * 40_000,
        "not \N{REPLACEMENT CHARACTER} text",
    ]
    assert await engine.logs(container, 0) == []


async def test_the_bot_of_the_tests_claims_and_ends(engine: DockerEngine, docker: Daemon) -> None:
    asked: list[tuple[str | None, str]] = []

    async def claim(request: web.Request) -> web.Response:
        asked.append((request.headers.get("Authorization"), await request.text()))
        return web.json_response({"botId": "the bot"})

    app = web.Application()
    app.router.add_post("/api/v1/runtime/claim", claim)
    async with web_server(app) as url:
        environment = {"BOTPOOL_URL": url, "BOTPOOL_SLOT_TOKEN": "token"}
        container = await started(engine, spec("claiming", environment=environment))
        await until_said(docker, container.ref, "claimed: 0")
    await engine.stop(container, 60)
    assert asked == [("Bearer token", "{}")]
    assert (await engine.logs(container, 10))[0] == '{"botId": "the bot"}claimed: 0'
    assert (await engine.observe(container)).exit_code == 0


async def test_podman_works_likewise(podman: Daemon) -> None:
    async with opened(podman) as engine:
        container = Container("a", await engine.create(spec("likewise")))
        assert (await engine.observe(container)).state is ContainerState.CREATED
        assert await engine.create(spec("likewise")) == container.ref
        await engine.stop(container, 1)
        await engine.start(container, {})
        await engine.start(container, {})
        await until_said(podman, container.ref, "hello")
        assert (await engine.observe(container)).state is ContainerState.RUNNING
        [listed] = await engine.list("a")
        assert (listed.container, listed.slot_id) == (container, 7)
        assert listed.observation.state is ContainerState.RUNNING
        for refused in (engine.remove(container), engine.create(spec("likewise"))):
            with pytest.raises(EngineRefused, match="is running"):
                await refused
        await engine.stop(container, 60)
        stopped = await engine.observe(container)
        assert (stopped.state, stopped.exit_code) == (ContainerState.EXITED, 0)
        assert await engine.logs(container, 10) == ["hello"]
        await engine.remove(container)
        assert (await engine.observe(container)).state is ContainerState.MISSING
        assert await engine.list("a") == []
        await engine.stop(container, 1)
        await engine.remove(container)
        with pytest.raises(ContainerMissing):
            await engine.start(container, {})
        with pytest.raises(ImageMissing):
            await engine.create(spec("likewise", image="127.0.0.1:1/missing:1"))
