"""Deployments, stops and containers of the imitation are as those of Coolify."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.coolify import DeploymentStatus, RunningContainer, TaskContainers
from tests.fakes.coolify.scene import imitated
from tests.support.virtual_time import virtual

IMAGE = ("server-a", "ghcr.io/x/bot:1")
EXITED = "exited:unhealthy"


async def exits(container: RunningContainer) -> int:
    container.say(f"run {container.restart_count}")
    return 0


# Deployments


@virtual
async def test_a_server_runs_two_deployments_at_a_time() -> None:
    servers = ("server-a", "server-b")
    async with imitated(servers=servers, pull_seconds=10, check_seconds=5) as scene:
        for _ in range(3):
            await scene.start(await scene.application())
        other = await scene.start(await scene.application(server_uuid="server-b"))
        active = await scene.call("GET", "/deployments")
        statuses = [one["status"] for one in active.values()]
        assert statuses == ["in_progress", "in_progress", "queued", "in_progress"]
        assert active["3"]["deployment_uuid"] == other
        await asyncio.sleep(11)
        (last,) = await scene.call("GET", "/deployments")
        assert last["status"] == "in_progress"
        await scene.coolify.idle()
        # The third finds the image that the first two have pulled, both of them.
        assert scene.coolify.pulls == {IMAGE: 2, ("server-b", IMAGE[1]): 1}
        assert scene.coolify.most_pulls[IMAGE] == 2
        assert asyncio.get_running_loop().time() == 15


@virtual
async def test_an_image_is_there_before_the_container_is_started() -> None:
    async with imitated(pull_seconds=10, check_seconds=1, start_seconds=5) as scene:
        first, second = await scene.application(), await scene.application()
        await scene.start(first)
        await asyncio.sleep(10.5)
        assert scene.coolify.servers["server-a"].images == {IMAGE[1]}
        assert scene.coolify.running() == []
        await scene.start(second)
        await asyncio.sleep(5)
        assert scene.coolify.running() == [first.uuid]
        await scene.coolify.idle()
        assert asyncio.get_running_loop().time() == 16.5


@virtual
async def test_workers_serve_stops_after_what_they_have_begun() -> None:
    async with imitated(workers=1, pull_seconds=30) as scene:
        await scene.started()
        (uuid,) = scene.coolify.running()
        await scene.start(await scene.application(docker_registry_image_tag="2"))
        await scene.stop(scene.coolify.applications[uuid])
        await asyncio.sleep(29)
        assert scene.coolify.running() == [uuid]
        await scene.coolify.idle()
        assert uuid not in scene.coolify.running()


@virtual
async def test_a_deployment_that_waits_for_a_worker_holds_its_place() -> None:
    async with imitated(workers=1, concurrent_builds=2, pull_seconds=30) as scene:
        deployments = []
        for tag in "123":
            application = await scene.application(docker_registry_image_tag=tag)
            deployments.append(await scene.start(application))
        statuses = [await scene.status_of(one) for one in deployments]
        assert statuses == ["in_progress", "in_progress", "queued"]
        await asyncio.sleep(29)
        assert scene.coolify.most_pulls["server-a", "ghcr.io/x/bot:2"] == 0
        await asyncio.sleep(2)
        statuses = [await scene.status_of(one) for one in deployments]
        assert statuses == ["finished", "in_progress", "in_progress"]


@virtual
async def test_one_that_is_cancelled_while_it_waits_for_a_worker_starts_nothing() -> None:
    async with imitated(workers=1, pull_seconds=30) as scene:
        first, second = [await scene.application() for _ in range(2)]
        await scene.start(first)
        waits = await scene.start(second)
        await scene.call("POST", f"/deployments/{waits}/cancel")
        await scene.coolify.idle()
        assert scene.coolify.running() == [first.uuid]


@virtual
async def test_a_full_queue_answers_with_deployments_that_are_none() -> None:
    async with imitated(pull_seconds=10, concurrent_builds=1, deployment_queue_limit=1) as scene:
        for _ in range(2):
            await scene.start(await scene.application())
        third = await scene.application()
        phantom = await scene.start(third)
        await scene.call("GET", f"/deployments/{phantom}", 404)
        found = await scene.call("GET", f"/deployments/applications/{third.uuid}?take=1")
        assert found == {"count": 0, "deployments": []}
        answer = await scene.client.post("/deploy", json={"uuid": third.uuid})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")
        await scene.coolify.idle()
        assert not third.running


@virtual
async def test_one_that_is_under_way_is_not_queued_again() -> None:
    async with imitated(pull_seconds=10) as scene:
        application = await scene.application()
        real = await scene.start(application)
        again = await scene.call("POST", f"/applications/{application.uuid}/start")
        assert "deployment_uuid" not in again
        (answer,) = (await scene.call("POST", f"/deploy?uuid={application.uuid}"))["deployments"]
        await scene.call("GET", f"/deployments/{answer['deployment_uuid']}", 404)
        forced = f"/applications/{application.uuid}/start?force=true"
        second = (await scene.call("POST", forced))["deployment_uuid"]
        assert await scene.status_of(second) == "queued"
        found = await scene.call("GET", f"/deployments/applications/{application.uuid}")
        assert [one["deployment_uuid"] for one in found["deployments"]] == [second, real]
        path = f"/application/{application.uuid}/deployment/{second}"
        assert path in found["deployments"][0]["deployment_url"]


@virtual
async def test_a_stop_does_not_cancel_a_deployment() -> None:
    async with imitated(pull_seconds=10) as scene:
        application = await scene.application()
        deployment = await scene.start(application)
        await scene.stop(application)
        await asyncio.sleep(5)
        assert (await scene.shown(application))["status"] == EXITED
        await scene.coolify.idle()
        assert await scene.status_of(deployment) == "finished"
        assert application.running


@virtual
async def test_what_is_cancelled_starts_nothing_and_makes_room() -> None:
    async with imitated(pull_seconds=10, concurrent_builds=1) as scene:
        applications = [await scene.application() for _ in range(3)]
        first, second, third = [await scene.start(one) for one in applications]
        for uuid in (second, first):
            answer = await scene.call("POST", f"/deployments/{uuid}/cancel")
            assert answer["status"] == "cancelled-by-user"
        assert await scene.status_of(third) == "in_progress"
        assert scene.coolify.killed == [scene.coolify.rules.servers[0]]  # by the first
        await scene.coolify.idle()
        assert scene.coolify.running() == [applications[2].uuid]
        assert scene.coolify.pulls == {IMAGE: 1}
        for uuid, status in ((first, 400), (third, 400), ("none", 404)):
            await scene.call("POST", f"/deployments/{uuid}/cancel", status)


async def test_nothing_can_be_cancelled_before_beta_436() -> None:
    async with imitated(version="4.0.0-beta.435") as scene:
        application = await scene.application()
        path = f"/deployments/{await scene.start(application)}/cancel"
        assert (await scene.call("POST", path, 404))["message"] == "Not found."


@virtual
async def test_a_redeployment_overlaps_with_what_it_replaces() -> None:
    async def leaves_slowly(container: RunningContainer) -> int:
        await container.asked_to_stop.wait()
        await asyncio.sleep(5)
        return 0

    async with imitated(TaskContainers(leaves_slowly)) as scene:
        application = await scene.started()
        deployment = await scene.start(application)
        await asyncio.sleep(1)
        old, new = application.containers
        assert (old.asked_to_stop.is_set(), new.asked_to_stop.is_set()) == (True, False)
        assert await scene.status_of(deployment) == "in_progress"
        await scene.coolify.idle()
        assert application.containers == [new]
        assert scene.coolify.started[application.uuid] == 2


@virtual
async def test_a_restart_of_coolify_fails_every_deployment() -> None:
    async with imitated(pull_seconds=10, concurrent_builds=1) as scene:
        running = await scene.started()
        other = {"docker_registry_image_tag": "2"}
        deployments = [await scene.start(await scene.application(**other)) for _ in range(2)]
        await scene.coolify.restart_coolify()
        await scene.coolify.idle()
        assert [await scene.status_of(one) for one in deployments] == ["failed", "failed"]
        assert scene.coolify.running() == [running.uuid]


async def test_a_deployment_needs_the_registry_even_with_the_image() -> None:
    async with imitated() as scene:
        application = await scene.started()
        scene.coolify.registry_answers = False
        deployment = await scene.start(application)
        await scene.coolify.idle()
        assert await scene.status_of(deployment) == "failed"
        assert application.running


# Containers


@virtual
async def test_a_container_that_ends_is_started_again_until_it_is_stopped() -> None:
    starts = []

    async def notes(container: RunningContainer) -> int:
        starts.append(asyncio.get_running_loop().time())
        return await exits(container)

    async with imitated(TaskContainers(notes), sync_seconds=0) as scene:
        application = await scene.application()
        application.fields["max_restart_count"] = 0
        await scene.start(application)
        await scene.coolify.idle()
        await asyncio.sleep(1)
        assert starts == pytest.approx([0, 0.1, 0.3, 0.7])
        shown = await scene.shown(application)
        assert (shown["status"], shown["restart_count"]) == ("restarting:unknown", 3)
        (container,) = application.containers
        assert [line for _, line in container.output] == [f"run {n}" for n in range(4)]
        await asyncio.sleep(1000)
        assert starts[-1] - starts[-2] == pytest.approx(60)
        await scene.stop(application)
        await scene.coolify.idle()
        count = len(starts)
        await asyncio.sleep(1000)
        assert (len(starts), application.status) == (count, EXITED)
        assert scene.coolify.started[application.uuid] == 1


@virtual
async def test_a_run_that_lasted_is_followed_by_a_short_wait() -> None:
    async def crashes(container: RunningContainer) -> int:
        await asyncio.sleep(11)
        raise ValueError("no")

    async with imitated(TaskContainers(crashes)) as scene:
        application = await scene.started()
        await asyncio.sleep(100)
        (container,) = application.containers
        assert [time for time, _ in container.output] == pytest.approx(
            [11 + 11.1 * n for n in range(9)]
        )
        assert container.output[0][1] == "ValueError: no"
        assert set(container.exit_codes) == {1}


@virtual
async def test_a_container_that_does_not_end_is_killed_after_its_grace() -> None:
    async def stays(_: RunningContainer) -> int:
        await asyncio.Event().wait()
        return 0

    async with imitated(TaskContainers(stays)) as scene:
        application = await scene.started()
        (container,) = application.containers
        await scene.stop(application)
        await scene.coolify.idle()
        assert container.exit_codes == [137]
        assert asyncio.get_running_loop().time() == 30
        other = await scene.started(stop_grace_period=60)
        await scene.stop(other)
        await scene.coolify.idle()
        assert asyncio.get_running_loop().time() == 90


@virtual
async def test_a_status_is_old_and_logs_are_not() -> None:
    async with imitated(version="4.3.2", sync_seconds=0, status_lag_seconds=60) as scene:
        application, _ = await scene.started(), await scene.started()
        path = f"/applications/{application.uuid}/logs"
        application.containers[0].say("one")
        application.containers[0].say("two")
        assert (await scene.shown(application))["status"] == EXITED
        assert await scene.call("GET", path) == {"logs": "one\ntwo"}
        assert await scene.call("GET", f"{path}?lines=1") == {"logs": "two"}
        await asyncio.sleep(60)
        await scene.stop(application)
        await scene.coolify.idle()
        assert (await scene.shown(application))["status"] == "running:unknown"
        assert await scene.call("GET", path, 400) == {"message": "Application is not running."}
        await asyncio.sleep(60)
        assert (await scene.shown(application))["status"] == EXITED


async def test_a_server_that_is_lost_looks_idle_and_is_not() -> None:
    async with imitated() as scene:
        application = await scene.started()
        await scene.coolify.set_reachable("server-a", False)
        assert (await scene.shown(application))["status"] == EXITED
        assert not (await scene.call("GET", "/servers"))[0]["is_reachable"]
        assert not (await scene.call("GET", "/servers/server-a"))["settings"]["is_usable"]
        await scene.call("GET", f"/applications/{application.uuid}/logs", 500)
        deployment = await scene.start(application)
        await scene.stop(application)
        await scene.coolify.idle()
        assert await scene.status_of(deployment) == "failed"
        assert scene.coolify.running("server-a") == [application.uuid]
        await scene.coolify.set_reachable("server-a", True)
        assert (await scene.shown(application))["status"] == "running:unknown"


@pytest.mark.parametrize(
    ("version", "cleanup", "tag", "kept"),
    [
        ("4.3.11", None, "1", False),
        ("4.3.11", "false", "1", True),
        ("4.0.0-beta.466", "false", "1", True),
        ("4.0.0-beta.466", "false", "sha256:0", False),
        ("4.0.0-beta.452", "false", "1", False),
    ],
)
async def test_a_stop_may_take_the_image_along(
    version: str, cleanup: str | None, tag: str, kept: bool
) -> None:
    async with imitated(version=version) as scene:
        application = await scene.started(docker_registry_image_tag=tag)
        await scene.stop(application, **({"docker_cleanup": cleanup} if cleanup else {}))
        await scene.coolify.idle()
        assert scene.coolify.servers["server-a"].images == ({application.image} if kept else set())
        await scene.start(application)
        await scene.coolify.idle()
        assert scene.coolify.pulls["server-a", application.image] == (1 if kept else 2)


async def test_images_in_use_stay() -> None:
    async with imitated() as scene:
        application, _ = await scene.started(), await scene.started()
        await scene.stop(application)
        await scene.coolify.idle()
        await scene.coolify.drop_images("server-a")
        assert scene.coolify.servers["server-a"].images == {IMAGE[1]}


@virtual
async def test_a_deletion_takes_its_time() -> None:
    async with imitated(delete_seconds=30) as scene:
        application = await scene.started()
        path = f"/applications/{application.uuid}"
        answer = await scene.call("DELETE", path, params={"docker_cleanup": "0"})
        assert answer == {"message": "Application deletion request queued."}
        await asyncio.sleep(29)
        assert (await scene.shown(application))["status"] == "running:unknown"
        await scene.coolify.idle()
        await scene.call("GET", path, 404)
        assert scene.coolify.running() == []
        assert scene.coolify.servers["server-a"].images == {IMAGE[1]}


async def test_a_deletion_on_a_lost_server_leaves_an_orphan() -> None:
    async with imitated() as scene:
        application = await scene.started()
        await scene.coolify.set_reachable("server-a", False)
        await scene.call("DELETE", f"/applications/{application.uuid}")
        await scene.coolify.idle()
        assert await scene.call("GET", "/applications") == []
        assert scene.coolify.running() == [application.uuid]


async def test_applications_are_started_and_deleted_by_hand() -> None:
    async with imitated() as scene:
        application = await scene.application()
        deployment = await scene.coolify.start_by_hand(application.uuid)
        await scene.coolify.idle()
        assert await scene.status_of(str(deployment)) == DeploymentStatus.FINISHED
        await scene.coolify.remove_application(application.uuid)
        assert (scene.coolify.running(), scene.coolify.applications) == ([], {})
