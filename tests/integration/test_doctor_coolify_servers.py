"""What `botpool doctor` finds of projects, servers and applications on an imitated Coolify."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import httpx
import pytest

from botpool.doctor import Result
from botpool.doctor.coolify import examine_coolify
from botpool.doctor.database import Known
from botpool.doctor.findings import Report
from tests.fakes.coolify import Rules
from tests.integration.test_doctor import of
from tests.integration.test_doctor_coolify import (
    NO_SLOTS,
    bad,
    examine,
    imitated,
    settings_for,
    the,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Receive, Scope, Send

    from tests.fakes.coolify import Coolify
    from tests.support.scene import Scene

# Places


async def test_a_project_that_is_not_there_is_a_problem_that_names_those_there_are() -> None:
    async with imitated() as coolify:
        for wrong in ("nowhere", None):
            findings = await examine(coolify, coolify_project_uuid=wrong)
            found = the(findings, "project")
            assert found.result is Result.PROBLEM
            assert f"{coolify.project_uuid} (bots)" in found.found
            assert of(findings, "environment", "coolify") == []


async def test_an_environment_that_is_not_there_is_a_problem_that_names_those_there_are() -> None:
    async with imitated() as coolify:
        findings = await examine(coolify, coolify_environment_name="staging")
    assert bad(findings) == {"environment": Result.PROBLEM}
    assert "Environments: production" in the(findings, "environment").found


async def test_a_server_that_is_not_there_is_a_problem_that_names_those_there_are() -> None:
    async with imitated() as coolify:
        findings = await examine(coolify, coolify_server_uuid="a,c")
    assert bad(findings) == {"server": Result.PROBLEM}
    (_, found) = of(findings, "server", "coolify")
    assert "no server c. Servers: a (a), b (b)" in found.found


@pytest.mark.parametrize(
    ("servers", "destinations", "word"),
    [(None, None, "must be set"), ("a,a", None, "twice"), ("a,b", "x", "one destination for each")],
)
async def test_servers_that_make_no_sense_are_a_problem_and_those_there_are_are_told(
    servers: str | None, destinations: str | None, word: str
) -> None:
    async with imitated() as coolify:
        findings = await examine(
            coolify, coolify_server_uuid=servers, coolify_destination_uuid=destinations
        )
    first, second = of(findings, "server", "coolify")
    assert (first.result, second.result) == (Result.PROBLEM, Result.NOT_CHECKED)
    assert word in first.found
    assert "a (a), b (b)" in second.found


async def test_a_server_that_coolify_cannot_reach_is_a_problem() -> None:
    async with imitated() as coolify:
        await coolify.set_reachable("b", False)
        findings = await examine(coolify)
    assert bad(findings) == {"server": Result.PROBLEM}
    assert [each.result for each in of(findings, "server", "coolify")] == [
        Result.OK,
        Result.PROBLEM,
    ]


def on(coolify: Coolify, server: str, name: str) -> str:
    """Add an application, and return its uuid."""
    fields = {"name": name, "docker_registry_image_name": "meet-bot"}
    return coolify.create_application(server, {}, fields).uuid


async def test_destinations_are_checked_as_far_as_applications_show_them() -> None:
    async with imitated() as coolify:
        a, b = (coolify.destinations[server] for server in ("a", "b"))
        none_shown = await examine(coolify, coolify_destination_uuid=f"{a},{b}")
        on(coolify, "a", "website")
        one_shown = await examine(coolify, coolify_destination_uuid=f"{a},{b}")
        on(coolify, "b", "website")
        crossed = await examine(coolify, coolify_destination_uuid=f"{b},{a}")
    results = [
        [each.result for each in of(findings, "destination", "coolify")]
        for findings in (none_shown, one_shown, crossed)
    ]
    assert results == [
        [Result.NOT_CHECKED] * 2,
        [Result.OK, Result.NOT_CHECKED],
        [Result.PROBLEM] * 2,
    ]


class ListsDestinations:
    """What a newer Coolify does: it tells the destinations of a server."""

    def __init__(self, coolify: Coolify, more: Sequence[str] = ()) -> None:
        self._coolify = coolify
        self._more = more

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, _, _, *path = scope["path"].split("/")
        if path[0] != "servers" or path[-1] != "destinations":
            await self._coolify.app(scope, receive, send)
            return
        uuids = [self._coolify.destinations[path[1]], *self._more]
        answer = httpx.Response(200, json=[{"uuid": uuid, "network": "x"} for uuid in uuids])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": answer.content})


@pytest.mark.parametrize(
    ("destination", "more", "result"),
    [
        ("{own}", (), Result.OK),
        ("{own}", ("other",), Result.OK),
        ("wrong", (), Result.PROBLEM),
        (None, (), Result.OK),
        (None, ("other",), Result.PROBLEM),
    ],
)
async def test_destinations_are_checked_where_coolify_lists_them(
    destination: str | None, more: Sequence[str], result: Result
) -> None:
    async with imitated(Rules(servers=("a",))) as coolify:
        own = coolify.destinations["a"]
        wanted = destination and destination.format(own=own)
        report = Report("coolify")
        transport = httpx.ASGITransport(app=ListsDestinations(coolify, more))
        settings = settings_for(coolify, coolify_destination_uuid=wanted)
        await examine_coolify(report, settings, None, transport)
    found = the(report.findings, "destination")
    assert found.result is result
    if result is Result.PROBLEM:
        assert own in found.found
        assert "BOTPOOL_COOLIFY_DESTINATION_UUID" in found.mend


# How servers are set up


@pytest.mark.parametrize(
    ("version", "server_settings", "words"),
    [
        ("4.3.11", {}, None),
        ("4.3.11", {"force_docker_cleanup": False, "docker_cleanup_threshold": 1}, None),
        (
            "4.3.11",
            {"disable_application_image_retention": True},
            "the image on schedule (0 0 * * *), when the disk is 80 % full",
        ),
        (
            "4.3.11",
            {"disable_application_image_retention": True, "force_docker_cleanup": False},
            "the image when the disk is 80 % full",
        ),
        (
            "4.0.0-beta.460",
            {"disable_application_image_retention": True},
            "the image with every stop, on schedule",
        ),
        ("4.0.0-beta.460", {}, None),
        (
            "4.0.0-beta.452",
            {"force_docker_cleanup": False},
            "the image with every stop, when the disk",
        ),
    ],
)
async def test_settings_that_throw_the_image_away_are_a_warning(
    version: str, server_settings: dict[str, object], words: str | None
) -> None:
    rules = Rules(servers=("a",), version=version, server_settings=server_settings)
    async with imitated(rules) as coolify:
        found = the(await examine(coolify), "image clean-up")
    assert found.result is (Result.WARNING if words else Result.OK)
    assert (words or "keeps the images") in found.found


async def test_fewer_deployments_at_a_time_than_ours_are_a_warning() -> None:
    async with imitated(Rules(servers=("a",), concurrent_builds=2)) as coolify:
        findings = await examine(coolify)
        assert bad(findings) == {"deployments at a time": Result.WARNING}
        mend = the(findings, "deployments at a time").mend
        assert "BOTPOOL_MAX_CONCURRENT_DEPLOYMENTS=2" in mend
        assert "HORIZON_MAX_PROCESSES" in mend
        assert bad(await examine(coolify, max_concurrent_deployments=2)) == {}


@pytest.mark.parametrize(
    ("servers", "builds", "at_once"), [("a", 3, 3), ("a", 4, 4), ("ab", 2, 4), ("ab", 100, 16)]
)
async def test_as_many_deployments_as_workers_may_leave_none_for_stops(
    servers: str, builds: int, at_once: int
) -> None:
    async with imitated(Rules(servers=(*servers,), concurrent_builds=builds)) as coolify:
        found = the(await examine(coolify), "workers")
    assert found.found.startswith(f"{at_once} deployments at a time")
    assert found.result is (Result.OK if at_once < 4 else Result.NOT_CHECKED)
    assert (f"HORIZON_MAX_PROCESSES={at_once + 2}" in found.mend) == (at_once >= 4)


async def test_a_server_in_a_swarm_is_a_problem_and_nothing_else_of_it_is_checked() -> None:
    rules = Rules(servers=("a",), server_settings={"is_swarm_worker": True})
    async with imitated(rules) as coolify:
        findings = await examine(coolify)
    assert bad(findings) == {"server": Result.PROBLEM}
    assert "Swarm" in the(findings, "server").found
    assert of(findings, "image clean-up", "coolify") == []


THREE = {
    "image_google_meet": "registry.example/bot:7",
    "image_microsoft_teams": "registry.example/bot-teams:7",
    "image_zoom": "registry.example/bot-zoom:7",
}


@pytest.mark.parametrize(
    ("version", "images", "lost"),
    [
        ("4.1.9", THREE, True),
        ("4.1.9", {**THREE, "image_zoom": "registry.example/zoom:7"}, False),
        ("4.1.9", {**THREE, "image_zoom": "registry.example/bot/zoom:7"}, False),
        ("4.1.9", dict.fromkeys(THREE, "registry.example/bot:7"), False),
        ("4.2.0", THREE, False),
    ],
)
async def test_more_images_of_one_beginning_than_are_kept_are_a_warning_before_4_2_0(
    version: str, images: dict[str, str], lost: bool
) -> None:
    rules = Rules(servers=("a",), version=version, concurrent_builds=4)
    async with imitated(rules) as coolify:
        found = the(await examine(coolify, NO_SLOTS, **images), "image clean-up")
    assert found.result is (Result.WARNING if lost else Result.OK)
    assert ("keeps 2 of registry.example/bot-teams:7, " in found.found) == lost
    assert ("4.2.0" in found.mend) == lost


async def test_an_application_that_is_not_ours_may_have_our_images_deleted() -> None:
    async with imitated(Rules(servers=("a", "b"), concurrent_builds=4)) as coolify:
        for server, name, tag in (("a", "website", "1"), ("b", "pool-zoom-009", "2")):
            fields = {"docker_registry_image_name": "registry.example/bot"}
            fields |= {"name": name, "docker_registry_image_tag": tag}
            coolify.create_application(server, {}, fields)
        findings = await examine(coolify, None, **THREE)
    first, second = of(findings, "image clean-up", "coolify")
    assert (first.result, second.result) == (Result.WARNING, Result.OK)
    assert "registry.example/bot:1" in first.found
    assert "website keep 4" in first.mend


@pytest.mark.parametrize(
    ("tag", "bad_one"), [("pr-7", True), ("7-build", True), ("7", False), ("build-7", False)]
)
async def test_a_tag_that_every_clean_up_deletes_is_a_warning(tag: str, bad_one: bool) -> None:
    async with imitated() as coolify:
        image = f"registry.example/bot:{tag}"
        findings = of(await examine(coolify, image_zoom=image), "image clean-up", "coolify")
    warned = [each for each in findings if each.result is Result.WARNING]
    assert [image in each.found and "BOTPOOL_IMAGE_ZOOM" in each.mend for each in warned] == (
        [True] if bad_one else []
    )


async def test_a_queue_shorter_than_what_we_start_is_a_warning() -> None:
    rules = Rules(servers=("a",), concurrent_builds=4, deployment_queue_limit=3)
    async with imitated(rules) as coolify:
        assert bad(await examine(coolify)) == {"deployment queue": Result.WARNING}


# Applications


async def test_applications_that_are_named_like_slots_and_known_are_ok(scene: Scene) -> None:
    await scene.create()
    async with imitated() as coolify:
        uuid = on(coolify, "a", "pool-google-meet-001")
        making = Known(slots=await scene.store.slots.all(), used=frozenset())
        await scene.database.execute(
            "UPDATE bot_pool_slots SET engine = 'coolify', host = 'a', container_ref = $1", uuid
        )
        made = Known(slots=await scene.store.slots.all(), used=frozenset())
        for known in (making, made):
            findings = await examine(coolify, known)
            assert bad(findings) == {}
            assert the(findings, "applications").found.startswith("1 named like slots")


async def test_applications_with_one_name_and_unknown_ones_are_warnings() -> None:
    async with imitated(Rules(servers=("a", "b", "c"), concurrent_builds=4)) as coolify:
        first = on(coolify, "a", "pool-zoom-001")
        second = on(coolify, "b", "prod-pool-zoom-001")
        on(coolify, "c", "pool-zoom-001")
        on(coolify, "a", "website")
        found = await examine(coolify, coolify_server_uuid="a,b")
        found_without = await examine(coolify, None, coolify_server_uuid="a,b")
    findings = of(found, "applications", "coolify")
    unread = of(found_without, "applications", "coolify")
    twice, strange = findings
    assert {each.result for each in findings} == {Result.WARNING}
    assert f"pool-zoom-001 ({first}, {second})" in twice.found
    assert "slots import" in twice.mend
    assert strange.found.startswith("2 are named like slots but are not this botpool's")
    assert Counter(each.result for each in unread) == {Result.WARNING: 1, Result.NOT_CHECKED: 1}
