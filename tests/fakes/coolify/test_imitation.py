"""The imitation answers, refuses and fails as Coolify does."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.fakes.coolify import (
    Coolify,
    Faults,
    ProcessContainers,
    ReplyLost,
    RunningContainer,
    Version,
)
from tests.fakes.coolify.scene import imitated, served
from tests.support.virtual_time import virtual
from tests.support.waiting import a_moment

IMAGE = ("server-a", "ghcr.io/x/bot:1")
EXITED = "exited:unhealthy"


def test_a_beta_comes_before_its_release() -> None:
    ordered = ["4.0.0-beta.452", "4.0.0-beta.1000", "4.0.0", "4.2.0", "4.10.1"]
    assert sorted(ordered, key=Version.parse) == ordered


# Access


async def test_health_needs_no_token_and_version_does() -> None:
    async with imitated(version="4.1.2") as scene:
        assert (await scene.client.get("/version")).text == "4.1.2"
        del scene.client.headers["authorization"]
        assert (await scene.client.get("/health")).text == "OK"
        assert await scene.call("GET", "/version", 401) == {"message": "Unauthenticated."}


async def test_a_token_that_is_wrong_or_expired_opens_nothing() -> None:
    async with imitated() as scene:
        refused = {"message": "Unauthenticated."}
        bare = scene.coolify.token.partition("|")[2]
        wrong = {"Authorization": f"Bearer {bare}"}
        assert await scene.call("GET", "/servers", 401, headers=wrong) == refused
        scene.coolify.token_expired = True
        assert await scene.call("GET", "/servers", 401) == refused


async def test_a_client_that_does_not_accept_json_gets_pages() -> None:
    async with imitated(requests_per_minute=1) as scene:
        scene.client.headers["accept"] = "*/*"
        answer = await scene.client.get("/servers", headers={"Authorization": ""})
        assert (answer.status_code, answer.headers["location"]) == (302, "/login")
        await scene.call("GET", "/servers")
        answer = await scene.client.get("/servers")
        assert answer.status_code == 429
        assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("ability", "method", "path"),
    [
        ("read", "GET", "/applications"),
        ("write", "POST", "/applications/dockerimage"),
        ("write", "DELETE", "/applications/none"),
        ("deploy", "POST", "/applications/none/start"),
        ("deploy", "POST", "/deployments/none/cancel"),
    ],
)
async def test_a_token_needs_the_ability(ability: str, method: str, path: str) -> None:
    others = {"read", "write", "deploy"} - {ability}
    async with imitated(abilities=others) as scene:
        answer = await scene.call(method, path, 403)
        assert answer == {"message": f"Missing required permissions: {ability}"}


async def test_an_api_that_is_off_says_success() -> None:
    async with imitated(api_enabled=False) as scene:
        answer = await scene.call("GET", "/applications", 403)
        assert answer == {"success": True, "message": "API is disabled."}


@virtual
async def test_the_rate_limit_is_a_window_from_the_first_request_on() -> None:
    async with imitated(requests_per_minute=2) as scene:
        await asyncio.sleep(7)
        left = []
        for _ in range(2):
            answer = await scene.client.get("/servers")
            left.append(answer.headers["x-ratelimit-remaining"])
            await asyncio.sleep(10)
        assert left == ["1", "0"]
        answer = await scene.client.get("/servers")
        assert answer.json() == {"message": "Too Many Attempts."}
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "40")
        await asyncio.sleep(40)
        answer = await scene.client.get("/servers")
        assert (answer.status_code, answer.headers["x-ratelimit-remaining"]) == (200, "1")


async def test_the_rate_limit_is_of_a_user_and_told_with_every_answer() -> None:
    async with imitated(requests_per_minute=3) as scene:
        coolify, told = scene.coolify, []
        for token in (coolify.token, coolify.new_token(1), coolify.new_token(2)):
            for path in ("/version", "/applications/none"):
                headers = {"Authorization": f"Bearer {token}"}
                answer = await scene.client.get(path, headers=headers)
                limits = [answer.headers[f"x-ratelimit-{name}"] for name in ("limit", "remaining")]
                told.append((answer.status_code, *limits))
        assert told == [
            *[(200, "3", "2"), (404, "3", "1")],
            *[(200, "3", "0"), (429, "3", "0")],
            *[(200, "3", "2"), (404, "3", "1")],
        ]


async def test_a_member_who_is_no_admin_may_do_nothing() -> None:
    async with imitated(admin=False, abilities=("root",)) as scene:
        for method, path, ability in (
            ("GET", "/version", "read"),
            ("PATCH", "/applications/none", "write"),
            ("POST", "/applications/none/stop", "deploy"),
        ):
            answer = await scene.call(method, path, 403)
            assert answer == {"message": f"Missing required permissions: {ability}"}


@virtual
async def test_a_list_takes_longer_with_every_application_and_is_as_old_as_its_beginning() -> None:
    async with imitated(list_seconds=0.5, ssh_seconds=2, latency_seconds=1) as scene:
        application = await scene.started()
        await scene.application()
        began = scene.coolify.now
        listing = asyncio.create_task(scene.call("GET", "/applications"))
        await asyncio.sleep(1.5)
        await scene.stop(application)
        assert [one["status"] for one in await listing] == ["running:unknown", EXITED]
        assert scene.coolify.now == began + 2.5
        await scene.call("GET", f"/applications/{application.uuid}/logs", 400)
        assert scene.coolify.now == began + 2.5 + 7


# Applications


async def test_an_application_is_created_exited_and_with_a_domain_unless_told() -> None:
    async with imitated() as scene:
        first = await scene.application(description="a line", limits_cpus="2")
        second = await scene.application(autogenerate_domain=False)
        shown = await scene.shown(first)
        assert (shown["status"], shown["description"]) == (EXITED, "a line")
        assert first.limits == {"limits_cpus": "2"}
        assert shown["limits_cpus"] == "2"
        assert "id" not in shown
        assert shown["destination"]["server"]["uuid"] == "server-a"
        assert shown["fqdn"].startswith(f"http://{first.uuid}.")
        assert (await scene.shown(second))["fqdn"] is None
        assert [one["uuid"] for one in await scene.call("GET", "/applications")] == [
            first.uuid,
            second.uuid,
        ]


@pytest.mark.parametrize(
    ("version", "changes", "status", "field"),
    [
        ("4.3.11", {"restart_policy": "no"}, 422, "restart_policy"),
        ("4.3.11", {"docker_registry_image_name": None}, 422, "docker_registry_image_name"),
        ("4.2.9", {"ports_exposes": None}, 422, "ports_exposes"),
        ("4.0.0-beta.453", {"autogenerate_domain": False}, 422, "autogenerate_domain"),
        ("4.1.9", {"tags": ["bots"]}, 422, "tags"),
        ("4.1.9", {"docker_images_to_keep": 9}, 422, "docker_images_to_keep"),
        ("4.1.9", {"stop_grace_period": 9}, 422, "stop_grace_period"),
        ("4.3.11", {"stop_grace_period": 0}, 422, "stop_grace_period"),
        (
            "4.2.9",
            {"is_consistent_container_name_enabled": True},
            422,
            "is_consistent_container_name_enabled",
        ),
        ("4.3.11", {"name": 7}, 422, "name"),
        ("4.3.11", {"environment_name": None}, 422, None),
        ("4.3.11", {"environment_name": "staging"}, 404, None),
        ("4.3.11", {"project_uuid": "none"}, 404, None),
        ("4.3.11", {"server_uuid": "none"}, 404, None),
        ("4.3.11", {"description": "x" * 256}, 500, None),
    ],
)
async def test_an_application_is_refused(
    version: str, changes: dict[str, Any], status: int, field: str | None
) -> None:
    async with imitated(version=version) as scene:
        body = scene.body(**changes)
        answer = await scene.call("POST", "/applications/dockerimage", status, json=body)
        assert [*answer.get("errors", {})] == ([field] if field else [])
        assert scene.coolify.applications == {}


async def test_a_wrong_destination_is_ignored_on_a_server_with_one() -> None:
    async with imitated(servers=("server-a", "server-b")) as scene:
        for wrong in ("none", scene.coolify.destinations["server-b"]):
            made = await scene.application(destination_uuid=wrong)
            assert made.server_uuid == "server-a"
            shown = (await scene.shown(made))["destination"]
            assert shown["uuid"] == scene.coolify.destinations["server-a"]


async def test_what_is_new_is_taken_where_it_is_known() -> None:
    async with imitated() as scene:
        application = await scene.application(
            ports_exposes=None,
            docker_images_to_keep=9,
            stop_grace_period=60,
            is_consistent_container_name_enabled=True,
        )
        path = f"/applications/{application.uuid}"
        await scene.call("PATCH", path, json={"docker_images_to_keep": 7})
        assert (await scene.shown(application))["settings"] == {
            "docker_images_to_keep": 7,
            "is_auto_deploy_enabled": True,
            "is_consistent_container_name_enabled": True,
            "stop_grace_period": 60,
        }


async def test_a_change_keeps_an_application_where_it_is() -> None:
    async with imitated() as scene:
        application = await scene.application()
        path = f"/applications/{application.uuid}"
        await scene.call("PATCH", path, 422, json={"server_uuid": "server-a"})
        await scene.call("PATCH", path, 500, json={"description": "x" * 256})
        await scene.call("PATCH", path, 400, json={})
        await scene.call("PATCH", path, json={"docker_registry_image_tag": "2"})
        assert application.image == "ghcr.io/x/bot:2"


async def test_a_start_is_posted_since_4_2_0() -> None:
    async with imitated(version="4.2.0") as scene:
        uuid = (await scene.application()).uuid
        answer = await scene.client.get(f"/applications/{uuid}/start")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        scene.coolify.rules = replace(scene.coolify.rules, version="4.1.9")
        await scene.call("GET", f"/applications/{uuid}/start")
        assert len(scene.coolify.deployments) == 1


# Variables


async def test_variables_are_set_one_by_one_and_without_a_word_on_others() -> None:
    async with imitated() as scene:
        application = await scene.application()
        literal = {"key": "A", "value": "1", "is_literal": True, "nonsense": 1}
        await scene.set_variables(application, literal)
        assert [one.is_literal for one in application.variables] == [True, True]
        answer = await scene.set_variables(
            application, {"key": "A", "value": "2"}, {"value": "3"}, {"key": "B"}, status=422
        )
        assert answer["errors"] == {"key": ["The key field is required."]}
        assert application.environment == {"A": "2"}
        assert not application.variables[0].is_literal


async def test_values_are_shown_to_a_token_that_may_see_them_and_twice() -> None:
    async with imitated() as scene:
        application = await scene.application()
        await scene.set_variables(application, {"key": "A", "value": "1"})
        path = f"/applications/{application.uuid}/envs"
        assert "value" not in (await scene.call("GET", path))[0]
        abilities = ("read", "read:sensitive")
        scene.coolify.rules = replace(scene.coolify.rules, abilities=abilities)
        shown = await scene.call("GET", path)
        assert [(one["value"], one["is_preview"]) for one in shown] == [("1", False), ("1", True)]


async def test_a_container_has_the_variables_of_its_deployment() -> None:
    async with imitated() as scene:
        application = await scene.application()
        await scene.set_variables(
            application,
            {"key": "A", "value": "one"},
            {"key": "B", "value": "$A ${A} $NONE.", "is_literal": False},
            {"key": "C", "value": "$A", "is_literal": True},
            {"key": "D", "value": "x", "is_runtime": False},
        )
        await scene.start(application)
        await scene.coolify.idle()
        await scene.set_variables(application, {"key": "A", "value": "two"})
        (container,) = application.containers
        set_here = {key: container.environment[key] for key in "ABC"}
        assert set_here == {"A": "one", "B": "one one .", "C": "$A"}
        assert "D" not in container.environment
        await scene.start(application)
        await scene.coolify.idle()
        assert application.containers[0].environment["A"] == "two"


async def test_coolify_adds_variables_of_its_own() -> None:
    async with imitated() as scene:
        application = await scene.application(ports_exposes="80,443")
        await scene.set_variables(application, {"key": "HOST", "value": "mine"})
        await scene.start(application)
        await scene.coolify.idle()
        (container,) = application.containers
        domain = str(application.fields["domains"])
        assert container.environment == {
            "COOLIFY_BRANCH": "main",
            "COOLIFY_CONTAINER_NAME": container.name,
            "COOLIFY_FQDN": domain.removeprefix("http://"),
            "COOLIFY_RESOURCE_UUID": application.uuid,
            "COOLIFY_URL": domain,
            "HOST": "mine",
            "PORT": "80",
            "SOURCE_COMMIT": "HEAD",
        }
        without = await scene.started(ports_exposes=None, autogenerate_domain=False)
        assert "PORT" not in without.containers[0].environment
        assert without.containers[0].environment["HOST"] == "0.0.0.0"  # noqa: S104


async def test_a_quote_in_a_literal_value_breaks_the_deployment() -> None:
    async with imitated() as scene:
        application = await scene.application()
        await scene.set_variables(application, {"key": "A", "value": "it's", "is_literal": True})
        deployment = await scene.start(application)
        await scene.coolify.idle()
        assert await scene.status_of(deployment) == "failed"
        assert not application.running


async def test_a_flag_that_is_too_new_is_dropped() -> None:
    async with imitated(version="4.0.0-beta.428") as scene:
        application = await scene.application()
        await scene.set_variables(application, {"key": "A", "value": "1", "is_runtime": False})
        assert application.variables[0].is_runtime


# Faults


async def test_an_outage_is_of_every_call() -> None:
    async with imitated() as scene:
        scene.coolify.outage = 503
        for path in ("/health", "/version", "/applications"):
            await scene.call("GET", path, 503)
        scene.coolify.outage = None
        assert await scene.call("GET", "/applications") == []
        assert [one.status for one in scene.coolify.requests] == [503, 503, 503, 200]


@pytest.mark.parametrize(("fault", "status"), [("too_many", 429), ("error", 500)])
async def test_a_call_that_fails_did_nothing(fault: str, status: int) -> None:
    async with imitated(faults=Faults(**{fault: 1.0})) as scene:
        assert (await scene.client.get("/version")).status_code == 200
        answer = await scene.client.post("/applications/dockerimage", json=scene.body())
        assert answer.status_code == status
        assert ("retry-after" in answer.headers) == (status == 429)
        assert scene.coolify.applications == {}


@virtual
async def test_a_call_that_is_not_answered_did_nothing() -> None:
    async with imitated(faults=Faults(times_out=1.0)) as scene:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await scene.client.post("/applications/dockerimage", json=scene.body())
        assert scene.coolify.applications == {}
        assert scene.coolify.requests[0].status is None


async def test_a_call_whose_answer_is_lost_was_done() -> None:
    async with imitated(faults=Faults(reply_lost=1.0)) as scene:
        with pytest.raises(ReplyLost):
            await scene.client.post("/applications/dockerimage", json=scene.body())
        assert len(scene.coolify.applications) == 1


async def test_a_seed_means_the_same_faults() -> None:
    runs = []
    for _ in range(2):
        async with imitated(faults=Faults(error=0.5)) as scene:
            answers = [await scene.client.get("/servers") for _ in range(20)]
            runs.append([answer.status_code for answer in answers])
    assert runs[0] == runs[1]
    assert set(runs[0]) == {200, 500}


async def test_what_fails_by_itself_is_told_at_the_end() -> None:
    class Broken:
        async def run(self, container: RunningContainer) -> int:
            raise ZeroDivisionError

    coolify = Coolify(containers=Broken())
    fields = {"docker_registry_image_name": "bot"}
    application = coolify.create_application("server-a", fields, fields)
    coolify.queue_deployment(application)
    await coolify.idle()
    with pytest.raises(ExceptionGroup) as raised:
        await coolify.close()
    assert [type(error) for error in raised.value.exceptions] == [ZeroDivisionError]


# Real processes

_SAYS_AND_STAYS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


async def test_a_process_is_a_container() -> None:
    code = "import os, sys; sys.stderr.write(os.environ['A']); raise SystemExit(3)"
    containers = ProcessContainers([sys.executable, "-c", code])
    async with imitated(containers, requests_per_minute=1_000_000) as scene:
        application = await scene.application()
        await scene.set_variables(application, {"key": "A", "value": "said"})
        await scene.start(application)
        await scene.coolify.idle()
        (container,) = application.containers
        while (await scene.shown(application))["restart_count"] < 1:
            await a_moment()
        assert container.output[0][1] == "said"
        assert container.exit_codes[0] == 3


async def test_a_process_that_ignores_sigterm_is_killed() -> None:
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {_SAYS_AND_STAYS}"
    containers = ProcessContainers([sys.executable, "-c", code])
    plenty = 1_000_000
    async with imitated(containers, stop_grace_seconds=0, requests_per_minute=plenty) as scene:
        application = await scene.started()
        (container,) = application.containers
        while not (await scene.logs(application)):
            await a_moment()
        await scene.stop(application)
        await scene.coolify.idle()
        assert container.exit_codes == [137]


async def test_it_runs_on_a_port_and_leaves_nothing() -> None:
    command = shlex.join([sys.executable, "-c", _SAYS_AND_STAYS])
    async with served("--command", command, "--requests-per-minute", "100000") as (said, client):
        body = {
            "project_uuid": said["COOLIFY_PROJECT_UUID"],
            "environment_name": said["COOLIFY_ENVIRONMENT_NAME"],
            "server_uuid": said["COOLIFY_SERVER_UUID"],
            "destination_uuid": said["COOLIFY_DESTINATION_UUID"],
            "docker_registry_image_name": "bot",
        }
        uuid = (await client.post("/applications/dockerimage", json=body)).json()["uuid"]
        await client.post(f"/applications/{uuid}/start")
        while not (answer := await client.get(f"/applications/{uuid}/logs")).json().get("logs"):
            await a_moment()
        pid = int(answer.json()["logs"])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_it_tells_from_outside_what_it_was_asked_and_when() -> None:
    async with served("--light") as (said, client):
        await client.patch("/applications/none", json={"description": "[IDLE]"})
        await client.get("/version")
        address = f"{said['COOLIFY_API_URL']}/imitation"
        told = (await client.get(address)).json()
        asked = [(one["method"], one["path"], one["status"]) for one in told["requests"]]
        assert asked == [("PATCH", "/applications/none", 404), ("GET", "/version", 200)]
        assert told["requests"][0]["description"] == "[IDLE]"
        assert abs(told["requests"][0]["at"] - time.time()) < 60
        assert told["claims"] == {}
        assert len((await client.get(f"{address}?1")).json()["requests"]) == 1


async def test_a_connection_breaks_on_a_port() -> None:
    async with served("--reply-lost", "1") as (_, client):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/servers")
