"""The engine on an imitated Coolify: what it asks for, and what it takes for proved."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock, patch

import pytest
from pydantic import ByteSize

from botpool.container_file import DockerOptions
from botpool.engines.base import Container, ContainerSpec, ContainerState
from botpool.errors import ContainerMissing, EngineRefused, EngineUnavailable
from botpool.states import Platform
from tests.fakes.coolify import Coolify, Rules
from tests.support.coolify_engine import api_of, engine_on
from tests.support.virtual_time import virtual

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from botpool.engines.coolify.api import CoolifyApi
    from botpool.engines.coolify.engine import CoolifyEngine
    from tests.fakes.coolify import Application

IMAGE = "registry:5000/x/bot:7"
CREATED, STARTING, RUNNING, EXITED, FAILED, MISSING = ContainerState


@dataclass(frozen=True)
class Site:
    """An engine, its Coolify, and the verbs that the tests need."""

    coolify: Coolify
    api: CoolifyApi
    engine: CoolifyEngine

    async def created(self, number: int = 1, **changes: Any) -> Container:
        name = f"pool-zoom-{number:03}"
        place = {"host": "a", "name": f"{name}-abcdef", "slot_id": number, "slot_name": name}
        environment = {"BOTPOOL_URL": "http://pool"}
        given = {"platform": Platform.ZOOM, "image": IMAGE, "environment": environment}
        spec = ContainerSpec(**{**place, **given, **changes})
        return Container("a", await self.engine.create(spec))

    async def started(self, **environment: str) -> tuple[Container, str]:
        container = await self.created()
        deployment = await self.engine.start(container, environment)
        await self.coolify.idle()
        return container, deployment

    def made(self, container: Container) -> Application:
        return self.coolify.applications[container.ref]

    async def reads(self, container: Container, status: str) -> None:
        """Let Coolify show a status, and every list from before that be forgotten."""
        self.made(container).history.append((self.coolify.now, status))
        await asyncio.sleep(3)

    async def state(self, container: Container, deployment: str | None = None) -> ContainerState:
        return (await self.engine.observe(container, deployment)).state

    def asked(self, since: int = 0, method: str = "") -> list[str]:
        """The calls that were made, without the uuids in their paths."""
        return [
            "/".join([one.method, *(part for part in one.path.split("/") if 0 < len(part) < 24)])
            for one in self.coolify.requests[since:]
            if method in one.method
        ]

    @contextmanager
    def reply_lost(self, call: str) -> Iterator[None]:
        """Let a call be made, and its answer be lost."""
        really = getattr(self.api, call)

        async def lose(*arguments: Any) -> None:
            await really(*arguments)
            raise EngineUnavailable("lost")

        with patch.object(self.api, call, lose), pytest.raises(EngineUnavailable, match="lost"):
            yield


@asynccontextmanager
async def site(options: dict[str, Any] | None = None, **rules: Any) -> AsyncIterator[Site]:
    coolify = Coolify(Rules(**{"servers": ["a"], "requests_per_minute": 10**6, **rules}))
    api = api_of(coolify)
    engine = engine_on(coolify, api=api, **(options or {}))
    try:
        yield Site(coolify, api, engine)
    finally:
        await engine.close()
        await coolify.close()


@virtual
async def test_an_application_is_made_with_everything_it_needs_and_no_public_address() -> None:
    limits = DockerOptions(cpus=1.5, memory=ByteSize(2 * 2**30), shm_size=ByteSize(2**30))
    async with site({"options": {Platform.ZOOM: limits}, "stop_grace_seconds": 7.5}) as s:
        made = s.made(await s.created())
        assert made.created == {
            "project_uuid": s.coolify.project_uuid,
            "environment_name": "production",
            "environment_uuid": s.coolify.environment_uuid,
            "server_uuid": "a",
            "destination_uuid": s.coolify.destinations["a"],
            "docker_registry_image_name": "registry:5000/x/bot",
            "docker_registry_image_tag": "7",
            "name": "pool-zoom-001",
            "description": "[DEPLOYING] Made by botpool test for slot 1 as pool-zoom-001-abcdef",
            "instant_deploy": False,
            "autogenerate_domain": False,
            "docker_images_to_keep": 3,
            "is_consistent_container_name_enabled": True,
            "stop_grace_period": 8,
            "tags": ["botpool"],
            "limits_cpus": "1.5",
            "limits_memory": "2048m",
            "custom_docker_run_options": "--init --shm-size=1024m",
        }
        assert made.environment == {"BOTPOOL_URL": "http://pool", "POOL_SLOT_UUID": made.uuid}
        await s.created(2)
        assert s.asked().count("GET/version") == 1


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        ("4.0.0-beta.453", {"ports_exposes"}),
        ("4.0.0-beta.454", {"ports_exposes", "autogenerate_domain"}),
        ("4.1.0", {"ports_exposes", "autogenerate_domain"}),
        (
            "4.2.0",
            {
                *("ports_exposes", "autogenerate_domain"),
                *("docker_images_to_keep", "stop_grace_period", "tags"),
            },
        ),
        (
            "4.3.0",
            {
                *("autogenerate_domain", "docker_images_to_keep", "stop_grace_period", "tags"),
                "is_consistent_container_name_enabled",
            },
        ),
    ],
)
@virtual
async def test_nothing_is_sent_that_was_not_chosen_or_that_an_old_coolify_would_refuse(
    version: str, fields: set[str]
) -> None:
    one_destination = {"servers": {"a": None}, "stop_grace_seconds": 10}
    async with site(one_destination, version=version) as s:
        made = s.made(await s.created())
        always = {
            *("project_uuid", "environment_name", "environment_uuid", "server_uuid"),
            *("docker_registry_image_name", "docker_registry_image_tag", "name", "description"),
            *("instant_deploy", "custom_docker_run_options"),
        }
        assert made.created.keys() == always | fields


@virtual
async def test_an_application_can_be_changed_and_then_starts_as_it_would_be_made_now() -> None:
    limits = DockerOptions(cpus=2.0)
    async with site({"options": {Platform.ZOOM: limits}}, version="4.3.11") as s:
        container = await s.created()
        before = len(s.coolify.requests)
        again = await s.created(image="registry:5000/x/bot:8", ref=container.ref, environment={})
        assert (again, s.asked(before)) == (container, ["PATCH/applications"])
        made = s.made(container)
        assert (made.image, made.fields["limits_cpus"]) == ("registry:5000/x/bot:8", "2")
        assert made.environment["BOTPOOL_URL"] == "http://pool"
        s.coolify.applications.clear()
        with pytest.raises(ContainerMissing):
            await s.created(ref=container.ref)


@pytest.mark.parametrize(
    ("images", "kept"),
    [
        ([], 3),
        (["registry:5000/x/bot:7"], 3),
        (["registry:5000/x/bot:zoom", "registry:5000/x/bot-teams:1", "other/bot:1"], 5),
    ],
)
@virtual
async def test_the_clean_up_keeps_every_image_of_ours_that_it_takes_for_one_of_this_name(
    images: list[str], kept: int
) -> None:
    async with site({"images": images}) as s:
        made = s.made(await s.created())
        assert made.fields["docker_images_to_keep"] == kept


@virtual
async def test_a_server_of_a_swarm_is_refused_with_a_sentence() -> None:
    async with site(server_settings={"is_swarm_manager": True}) as s:
        with pytest.raises(EngineRefused, match="part of a Docker Swarm"):
            await s.created()
        assert s.asked(method="POST") == []


@virtual
async def test_the_first_attempt_at_an_application_looks_for_none() -> None:
    async with site() as s:
        await s.created()
        before = len(s.coolify.requests)
        await s.created(2, first=True)
        assert s.asked(before) == [
            "POST/applications/dockerimage",
            "PATCH/applications/envs/bulk",
        ]


@virtual
async def test_a_few_applications_are_made_at_a_time_so_that_a_start_gets_through() -> None:
    async with site(latency_seconds=1) as s:
        container = await s.created(first=True)
        began = s.coolify.now
        many = [asyncio.create_task(s.created(number, first=True)) for number in range(2, 22)]
        await asyncio.sleep(0.5)
        assert s.asked().count("POST/applications/dockerimage") == 1 + 4
        await s.engine.start(container, {"BOT_DATA": "x"}, stopped=True)
        assert s.coolify.now == began + 2.5
        await asyncio.gather(*many)


@virtual
async def test_of_descriptions_that_wait_for_the_budget_only_the_newest_is_sent() -> None:
    async with site() as s:
        container = await s.created()
        s.api.budget.pause(30)
        texts = [f"[BUSY] Bot #{number}" for number in range(3)]
        await asyncio.gather(*(s.engine.describe(container, text) for text in texts))
        assert s.made(container).description == texts[-1]
        assert s.asked().count("PATCH/applications") == 1
        with pytest.raises(EngineUnavailable), patch.object(s.api, "describe", refuse):
            await s.engine.describe(container, "lost")
        await s.engine.describe(container, "after all")
        assert s.made(container).description == "after all"


async def refuse(*_: object) -> None:
    raise EngineUnavailable("no answer")


@pytest.mark.parametrize("image", [None, "", "bot@sha256:0", f"bot@sha256:{'0' * 64}"])
@virtual
async def test_nothing_is_made_of_no_image_or_of_one_without_a_tag(image: str | None) -> None:
    async with site() as s:
        with pytest.raises(EngineRefused):
            await s.created(image=image)
        assert s.asked(method="POST") == []


@virtual
async def test_an_application_whose_reply_was_lost_is_found_again() -> None:
    async with site() as s:
        with s.reply_lost("create_application"):
            await s.created()
        container = await s.created()
        assert [*s.coolify.applications] == [container.ref]
        assert s.made(container).environment["POOL_SLOT_UUID"] == container.ref
        await s.reads(container, "running:unknown")
        with pytest.raises(EngineRefused, match="is running"):
            await s.created()
        other = await s.created(name="pool-zoom-001-fedcba")
        assert [*s.coolify.applications] == [container.ref, other.ref]
        assert container != other


@virtual
async def test_an_application_that_is_deleted_while_it_is_made_is_not_taken_for_made() -> None:
    async with site() as s:
        deleted = AsyncMock(return_value=False)
        with (
            patch.object(s.api, "set_environment", deleted),
            pytest.raises(EngineUnavailable, match="deleted"),
        ):
            await s.created()


@virtual
async def test_a_description_and_logs_are_cut_to_what_fits() -> None:
    async with site() as s:
        container, _ = await s.started()
        await s.engine.describe(container, "é" * 300)
        assert s.made(container).description == "é" * 255
        for number in range(3):
            s.made(container).containers[0].say(str(number))
        assert await s.engine.logs(container, 2) == ["1", "2"]
        assert await s.engine.logs(container, 0) == []
        await s.engine.logs(container, 10**6)
        assert [one.query["lines"] for one in s.coolify.requests[-2:]] == ["2", "10000"]


# Starts


@virtual
async def test_a_start_sets_its_environment_first_if_it_has_any_and_the_container_has_it() -> None:
    async with site() as s:
        container, _ = await s.started(BOT_DATA="one")
        for data in ("one", "two"):
            (running,) = s.made(container).containers
            assert running.environment["BOT_DATA"] == data
            assert running.environment["POOL_SLOT_UUID"] == container.ref
            assert running.environment["BOTPOOL_URL"] == "http://pool"
            await s.coolify.stop_by_hand(container.ref)
            await s.engine.start(container, {"BOT_DATA": "two"})
            await s.coolify.idle()
        await s.coolify.stop_by_hand(container.ref)
        before = len(s.coolify.requests)
        await s.engine.start(container, {})
        assert s.asked(before, "P") == ["POST/applications/start"]


@pytest.mark.parametrize("environment", [{}, {"BOT_DATA": "x"}])
@virtual
async def test_an_application_that_is_gone_can_not_be_started(environment: dict[str, str]) -> None:
    async with site() as s:
        container = await s.created()
        s.coolify.applications.clear()
        with pytest.raises(ContainerMissing):
            await s.engine.start(container, environment)
        assert ("POST/applications/start" in s.asked()) == (environment == {})
        await s.engine.stop(container, 1)
        assert await s.state(container) is MISSING
        assert not s.engine._stops
        assert not s.engine._view._changed


@virtual
async def test_what_is_starting_or_runs_is_not_started_again() -> None:
    async with site(pull_seconds=50, status_lag_seconds=300) as s:
        container = await s.created()
        first = await s.engine.start(container, {})
        assert await s.engine.start(container, {"BOT_DATA": "two"}) == first
        await s.coolify.idle()
        assert await s.state(container) is RUNNING
        again = await s.engine.start(container, {"BOT_DATA": "two"})
        assert again not in s.coolify.deployments
        assert await s.state(container, again) is STARTING
        await asyncio.sleep(6)
        assert await s.state(container, again) is RUNNING
        assert (len(s.coolify.deployments), s.coolify.started[container.ref]) == (1, 1)
        assert "BOT_DATA" not in s.made(container).environment


@virtual
async def test_what_is_proved_stopped_is_started_with_two_requests() -> None:
    start = ["PATCH/applications/envs/bulk", "POST/applications/start"]
    look = ["GET/deployments/applications", "GET/applications/logs"]
    for stopped, asked in ((True, start), (False, [*look, *start])):
        async with site() as s:
            container = await s.created()
            before = len(s.coolify.requests)
            await s.engine.start(container, {"BOT_DATA": "x"}, stopped=stopped)
            assert s.asked(before) == asked


@virtual
async def test_a_start_whose_reply_was_lost_is_found_by_a_look() -> None:
    async with site() as s:
        container = await s.created()
        with s.reply_lost("start"):
            await s.engine.start(container, {}, stopped=True)
        await s.coolify.idle()
        await s.engine.start(container, {})
        assert len(s.coolify.deployments) == 1


@virtual
async def test_if_a_start_names_no_deployment_the_one_under_way_counts() -> None:
    async with site(pull_seconds=50) as s:
        container = await s.created()
        deployment = await s.coolify.start_by_hand(container.ref)
        assert await s.engine.start(container, {}, stopped=True) == deployment


@virtual
async def test_a_deployment_that_was_never_made_is_found_out_and_the_container_is_as_new() -> None:
    async with site(pull_seconds=50, concurrent_builds=1, deployment_queue_limit=1) as s:
        first, second, third = [await s.created(number) for number in (1, 2, 3)]
        for container in (first, second):
            await s.engine.start(container, {}, stopped=True)
        named = await s.engine.start(third, {}, stopped=True)
        assert named not in s.coolify.deployments
        assert await s.state(third, named) is STARTING
        await asyncio.sleep(6)
        found = await s.engine.observe(third, named)
        assert (found.state, "its queue was full" in found.detail) == (CREATED, True)
        await s.coolify.idle()
        assert await s.engine.start(third, {}, stopped=True) in s.coolify.deployments


# What is seen


@virtual
async def test_a_start_is_what_its_deployment_is_until_that_is_finished() -> None:
    async with site(pull_seconds=50, concurrent_builds=1) as s:
        containers = [await s.created(number) for number in (1, 2, 3)]
        runs, cancelled, fails = [await s.engine.start(one, {}) for one in containers]
        found = await s.engine.observe(containers[0], runs)
        assert (found.state, found.deployment) == (STARTING, runs)
        assert await s.state(containers[2], fails) is STARTING
        s.coolify.cancel_deployment(s.coolify.deployments[cancelled])
        await asyncio.sleep(10)
        s.coolify.registry_answers = False
        await s.coolify.idle()
        for container, deployment in zip(containers, (runs, cancelled, fails), strict=True):
            assert await s.state(container, deployment) is STARTING  # its bot will be heard soon
        await asyncio.sleep(6)
        assert await s.state(containers[0], runs) is RUNNING
        assert await s.state(containers[1], cancelled) is FAILED
        found = await s.engine.observe(containers[2], fails)
        assert (found.state, found.detail) == (FAILED, f"deployment {fails} is failed")


@virtual
async def test_each_status_has_its_meaning() -> None:
    meanings = {
        **dict.fromkeys(("running:healthy", "running:unhealthy", "running:unknown"), RUNNING),
        **dict.fromkeys(("exited:unhealthy", "stopped"), EXITED),
        **dict.fromkeys(("degraded:unhealthy", "error"), FAILED),
        **dict.fromkeys(("starting:unknown", "paused:unknown", "restarting:unknown"), STARTING),
    }
    async with site() as s:
        container, deployment = await s.started()
        await s.coolify.stop_by_hand(container.ref)
        await s.engine.observe(container, deployment)
        await asyncio.sleep(6)
        for status, state in meanings.items():
            await s.reads(container, status)
            assert await s.state(container) is state, status
            # Since its start it was up, so one that comes up again and again has ended.
            expected = EXITED if status == "restarting:unknown" else state
            found = await s.engine.observe(container, deployment)
            assert (found.state, found.detail) == (expected, status)


@virtual
async def test_a_status_from_before_the_start_hides_no_container_that_runs() -> None:
    async with site(status_lag_seconds=300) as s:
        container, deployment = await s.started()
        await s.engine.observe(container, deployment)
        await asyncio.sleep(6)
        assert await s.state(container, deployment) is RUNNING
        assert await s.state(container) is RUNNING
        with pytest.raises(EngineRefused):
            await s.engine.remove(container)
        await s.coolify.stop_by_hand(container.ref)
        assert await s.state(container) is EXITED


@virtual
async def test_nothing_is_proved_while_a_deployment_is_under_way() -> None:
    async with site(pull_seconds=50, concurrent_builds=1) as s:
        first, second = await s.created(1), await s.created(2)
        for container in (first, second):  # in progress, and queued
            deployment = await s.engine.start(container, {})
            found = await s.engine.observe(container)
            assert (found.state, found.deployment) == (STARTING, deployment)
            with pytest.raises(EngineRefused):
                await s.engine.remove(container)


# Stops


@pytest.mark.parametrize("version", ["4.3.11", "4.0.0-beta.430"])
@virtual
async def test_a_stop_cancels_what_is_queued(version: str) -> None:
    async with site(version=version, pull_seconds=50, concurrent_builds=1) as s:
        await s.engine.start(await s.created(2), {})
        container = await s.created(1)
        deployment = await s.engine.start(container, {})
        await s.engine.stop(container, 1)
        assert s.asked().count("POST/deployments/cancel") == 1
        await s.coolify.idle()
        old = version == "4.0.0-beta.430"  # it can't cancel, and starts it after the stop
        status = "finished" if old else "cancelled-by-user"
        assert s.coolify.deployments[deployment].status == status
        assert s.coolify.killed == []
        assert await s.state(container) is (RUNNING if old else EXITED)


@virtual
async def test_a_deployment_under_way_is_left_to_finish_and_stopped_then() -> None:
    async with site(check_seconds=20) as s:
        container, _ = await s.started()
        deployment = str(await s.coolify.start_by_hand(container.ref))
        await s.engine.stop(container, 1)
        assert await s.state(container) is STARTING
        await s.engine.stop(container, 1)
        assert s.asked().count("POST/applications/stop") == 1
        await s.coolify.idle()
        assert s.coolify.deployments[deployment].status == "finished"
        assert s.coolify.killed == []
        await s.engine.stop(container, 1)
        await s.coolify.idle()
        assert await s.state(container) is EXITED


@virtual
async def test_a_stop_is_not_repeated_within_a_minute_unless_a_deployment_was_seen() -> None:
    async with site(check_seconds=20, status_lag_seconds=1000) as s:
        container, _ = await s.started()
        stops = []
        for wait in (0, 30, 29, 1, 30):
            await asyncio.sleep(wait)
            await s.engine.stop(container, 1)
            stops.append(s.asked().count("POST/applications/stop"))
        assert stops == [1, 1, 1, 2, 2]
        await s.coolify.start_by_hand(container.ref)
        assert await s.state(container) is STARTING
        await s.engine.stop(container, 1)
        assert s.asked().count("POST/applications/stop") == 2  # what starts now would not hear it
        await s.coolify.idle()
        await s.engine.stop(container, 1)
        assert s.asked().count("POST/applications/stop") == 3


@virtual
async def test_from_4_3_3_on_the_lists_prove_a_stop() -> None:
    async with site(version="4.3.3", stop_seconds=5) as s:
        container, _ = await s.started()
        await s.engine.observe(container)
        before = len(s.coolify.requests)
        await s.engine.stop(container, 1)
        assert s.asked(before, "POST") == ["POST/applications/stop"]
        assert await s.state(container) is RUNNING
        await s.coolify.idle()
        assert await s.state(container) is EXITED
        assert {*s.asked(before, "GET")} == {"GET/applications", "GET/deployments"}


@pytest.mark.parametrize("version", ["4.3.3", "4.3.2"])
@virtual
async def test_an_exited_from_before_the_start_proves_nothing(version: str) -> None:
    """Coolify's own look at the server comes late, so it still shows the last life's end."""
    async with site(version=version, stop_seconds=30, status_lag_seconds=1000) as s:
        container, _ = await s.started()
        await s.engine.stop(container, 1)
        for _ in range(5):
            await asyncio.sleep(5)
            assert await s.state(container) is RUNNING
            assert s.coolify.running() == [container.ref]
        await s.coolify.idle()
        await asyncio.sleep(20)
        assert await s.state(container) is EXITED


@virtual
async def test_below_4_3_3_a_status_that_stays_does_not_hold_a_slot_for_ever() -> None:
    async with site(version="4.3.2", stop_seconds=2) as s:
        container, _ = await s.started()
        await s.engine.observe(container)
        before = len(s.coolify.requests)
        await s.engine.stop(container, 1)
        await s.coolify.idle()
        began = s.coolify.now
        while await s.state(container) is not EXITED:
            await asyncio.sleep(1)
        assert s.made(container).running is False
        assert (await s.api.applications())[0].state == "running"
        assert 5 <= s.coolify.now - began < 20
        assert s.asked(before).count("GET/applications/logs") == 2
        # Who compares meets the same old status, and need not ask. But it is not believed for ever.
        await asyncio.sleep(60)
        assert await s.state(container) is EXITED
        assert s.asked(before).count("GET/applications/logs") == 2
        await asyncio.sleep(600)
        assert await s.state(container) is EXITED
        assert s.asked(before).count("GET/applications/logs") == 3


@virtual
async def test_below_4_3_3_a_status_that_changed_since_the_proof_is_looked_into() -> None:
    async with site(version="4.3.2", stop_seconds=2) as s:
        container, _ = await s.started()
        await s.engine.observe(container)
        await s.engine.stop(container, 1)
        await s.coolify.idle()
        while await s.state(container) is not EXITED:
            await asyncio.sleep(1)
        s.made(container).history.append((s.coolify.now, "running:healthy"))
        await asyncio.sleep(60)
        with patch.object(s.api, "logs", AsyncMock(return_value=["runs"])):
            assert await s.state(container) is RUNNING


@virtual
async def test_one_weak_no_of_the_logs_is_not_enough() -> None:
    async with site(version="4.3.2", stop_seconds=1000) as s:
        container, _ = await s.started()
        await s.engine.observe(container)
        await s.engine.stop(container, 1)
        found = []
        answers = iter([None, ["runs"], None, ["runs"], None])
        with patch.object(s.api, "logs", AsyncMock(side_effect=lambda *_: next(answers))):
            for _ in range(5):
                found.append(await s.state(container))
                await asyncio.sleep(100)
        assert {*found} == {RUNNING}


@virtual
async def test_a_container_that_restarts_is_not_taken_for_stopped_while_docker_waits() -> None:
    async with site(version="4.3.2", stop_seconds=1000) as s:
        container, _ = await s.started()
        await s.engine.stop(container, 1)
        with patch.object(s.api, "logs", AsyncMock(return_value=None)):
            began = s.coolify.now
            while True:
                s.made(container).history.append((s.coolify.now, "restarting:unknown"))
                await asyncio.sleep(2)
                if await s.state(container) is EXITED:
                    break
        assert s.coolify.now - began > 60


@virtual
async def test_stops_that_are_in_vain_come_less_and_less_often() -> None:
    async with site(stop_seconds=10_000) as s:
        container, _ = await s.started()
        while s.coolify.now < 1000:
            await s.engine.stop(container, 1)
            await asyncio.sleep(10)
        assert s.asked().count("POST/applications/stop") == 5


@virtual
async def test_what_was_read_before_a_start_or_stop_is_not_told_after_it() -> None:
    async with site() as s:
        container = await s.created()
        assert await s.state(container) is CREATED
        deployment = await s.engine.start(container, {})
        await s.coolify.idle()
        await s.engine.observe(container, deployment)
        await asyncio.sleep(6)
        s.made(container).history.append((s.coolify.now, "degraded:unhealthy"))
        await asyncio.sleep(1)
        assert await s.state(container, deployment) is FAILED
        await s.engine.stop(container, 1)
        await s.coolify.idle()
        assert await s.state(container) is EXITED


@virtual
async def test_what_is_removed_is_gone_and_forgotten_and_its_image_stays() -> None:
    async with site(delete_seconds=5) as s:
        container, _ = await s.started()
        await s.engine.stop(container, 1)
        await s.coolify.idle()
        await s.engine.remove(container)
        assert not s.engine._stops
        assert not s.engine._over_since
        assert not s.engine._view._changed
        await s.coolify.idle()
        await asyncio.sleep(3)
        assert await s.state(container) is MISSING
        await s.engine.remove(container)
        assert s.coolify.servers["a"].images == {IMAGE}
