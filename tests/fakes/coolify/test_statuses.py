"""What the imitation says of an application is as late, as wrong and as odd as with Coolify."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.coolify import ContainerState, Faults, RunningContainer, TaskContainers
from tests.fakes.coolify.scene import Scene, imitated
from tests.support.virtual_time import virtual

EXITED = "exited:unhealthy"
RUNNING = "running:unknown"


async def status(scene: Scene, uuid: str) -> str:
    return str((await scene.call("GET", f"/applications/{uuid}"))["status"])


@virtual
async def test_a_stop_writes_the_status_since_4_3_3_however_late_the_rest_is() -> None:
    async with imitated(version="4.3.3", status_lag_seconds=90) as scene:
        application = await scene.started()
        await asyncio.sleep(90)
        assert await status(scene, application.uuid) == RUNNING
        for _ in range(2):
            await scene.stop(application)
            await scene.coolify.idle()
            await asyncio.sleep(100)
            assert await status(scene, application.uuid) == EXITED
            await scene.start(application)
            await scene.coolify.idle()
            assert await status(scene, application.uuid) == EXITED


@virtual
async def test_before_4_3_3_a_status_is_old_until_the_next_look_at_the_server() -> None:
    async with imitated(version="4.3.2") as scene:
        await asyncio.sleep(10)
        application, _ = await scene.started(), await scene.started()
        await scene.stop(application)
        await scene.coolify.idle()
        await asyncio.sleep(49)
        assert await status(scene, application.uuid) == RUNNING
        await asyncio.sleep(1)
        assert await status(scene, application.uuid) == EXITED


@virtual
async def test_before_4_3_3_a_status_is_old_for_ever_if_nothing_is_left_on_the_server() -> None:
    async with imitated(version="4.3.2", servers=("server-a", "server-b")) as scene:
        application = await scene.started()
        await scene.started(server_uuid="server-b")
        await scene.stop(application)
        await scene.coolify.idle()
        await asyncio.sleep(100_000)
        assert await status(scene, application.uuid) == RUNNING
        other = await scene.started()
        assert await status(scene, application.uuid) == EXITED
        assert await status(scene, other.uuid) == RUNNING


@virtual
async def test_what_is_seen_is_what_was_true_when_coolify_looked() -> None:
    async def ends_once(container: RunningContainer) -> int:
        if container.restart_count == 0:
            await asyncio.sleep(59.95)
            return 0
        return await asyncio.sleep(1000, 0)

    async with imitated(TaskContainers(ends_once)) as scene:
        application = await scene.started()
        await asyncio.sleep(90)
        assert application.status == RUNNING
        assert await status(scene, application.uuid) == "restarting:unknown"
        await asyncio.sleep(60)
        assert await status(scene, application.uuid) == RUNNING


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (ContainerState.CREATED, "starting:unknown"),
        (ContainerState.PAUSED, "paused:unknown"),
        (ContainerState.DEAD, "degraded:unhealthy"),
        (ContainerState.RESTARTING, "restarting:unknown"),
    ],
)
async def test_docker_may_say_odd_things(state: ContainerState, shown: str) -> None:
    async with imitated(sync_seconds=0) as scene:
        application = await scene.started()
        await scene.coolify.set_state(application.uuid, state)
        assert await status(scene, application.uuid) == shown
        await scene.call("GET", f"/applications/{application.uuid}/logs", 400)
        alive = state in {ContainerState.CREATED, ContainerState.PAUSED}
        assert scene.coolify.running() == ([application.uuid] if alive else [])
        await scene.stop(application)
        await scene.coolify.idle()
        assert await status(scene, application.uuid) == EXITED


@pytest.mark.parametrize("health", ["healthy", "unhealthy"])
async def test_a_health_check_has_its_say(health: str) -> None:
    async with imitated(sync_seconds=0) as scene:
        application = await scene.started()
        await scene.coolify.set_health(application.uuid, health)
        assert await status(scene, application.uuid) == f"running:{health}"


@pytest.mark.parametrize(
    ("version", "limit", "stopped"),
    [("4.3.0", None, True), ("4.3.0", 0, False), ("4.3.0", 20, False), ("4.2.9", None, False)],
)
@virtual
async def test_what_restarts_too_often_is_stopped_and_its_image_goes(
    version: str, limit: int | None, stopped: bool
) -> None:
    async def exits(_: RunningContainer) -> int:
        return 0

    async with imitated(TaskContainers(exits), version=version) as scene:
        application = await scene.application()
        if limit is not None:
            application.fields["max_restart_count"] = limit
        await scene.start(application)
        await asyncio.sleep(500)
        assert (application.containers == []) == stopped
        assert (scene.coolify.servers["server-a"].images == set()) == stopped
        await scene.start(application)
        await scene.coolify.idle()
        assert len(application.containers) == 1


async def test_logs_say_that_nothing_runs_if_a_command_fails() -> None:
    async with imitated(faults=Faults(ssh=1.0)) as scene:
        application = await scene.started()
        answer = await scene.call("GET", f"/applications/{application.uuid}/logs", 400)
        assert answer == {"message": "Application is not running."}


async def test_logs_say_that_nothing_runs_on_a_swarm() -> None:
    async with imitated(server_settings={"is_swarm_manager": True}) as scene:
        application = await scene.started()
        await scene.call("GET", f"/applications/{application.uuid}/logs", 400)
        assert (await scene.call("GET", "/servers/server-a"))["settings"]["is_swarm_manager"]
        assert application.running
