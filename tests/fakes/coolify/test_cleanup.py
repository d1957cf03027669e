"""The imitation's nightly clean-up takes the images that Coolify's does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.coolify.scene import imitated

THREE = ("x/bot:1", "x/bot:2", "x/bot:3")


@pytest.mark.parametrize(
    ("images", "changes", "kept"),
    [
        (THREE, {}, {"x/bot:2", "x/bot:3"}),
        (THREE, {"docker_images_to_keep": 3}, {*THREE}),
        (THREE, {"docker_images_to_keep": 0}, set()),
        (("x/bot:1", "x/bot-teams:1", "x/bot-zoom:1"), {}, {"x/bot-teams:1", "x/bot-zoom:1"}),
        (("x/bot:1", "x/bot:2", "x/bot/more:1"), {}, {"x/bot:1", "x/bot:2", "x/bot/more:1"}),
        (("x/bot:1", "x/bot:pr-2"), {}, {"x/bot:1"}),
        (("x/bot:1", "x/bot:2-build"), {}, {"x/bot:1"}),
        (("x/bot:1", "x/bot:1-build"), {}, {"x/bot:1", "x/bot:1-build"}),
        (("x/bot:sha256:0",), {}, set()),
    ],
)
async def test_an_idle_night_leaves_the_images_built_last_of_all_that_begin_with_a_name(
    images: tuple[str, ...], changes: dict[str, Any], kept: set[str]
) -> None:
    async with imitated() as scene:
        for image in images:
            name, _, tag = image.partition(":")
            place = {"docker_registry_image_name": name, "docker_registry_image_tag": tag}
            await scene.stop(await scene.started(**place, **changes), docker_cleanup="0")
            await scene.coolify.idle()
        server = scene.coolify.servers["server-a"]
        assert len(server.images) == len(images)
        await scene.coolify.clean_up_nightly("server-a")
        assert server.images == kept


async def test_an_image_in_use_stays_and_counts_only_where_its_container_is_found() -> None:
    for consistent, kept in ((False, {"1", "3"}), (True, {"1", "2", "3"})):
        async with imitated() as scene:
            name = {"is_consistent_container_name_enabled": consistent}
            await scene.started(**name)
            for tag in "23":
                body = {"docker_registry_image_tag": tag, "docker_images_to_keep": 9, **name}
                await scene.stop(await scene.started(**body), docker_cleanup="0")
                await scene.coolify.idle()
            scene.coolify.built["ghcr.io/x/bot:1"] = 9.0
            await scene.coolify.clean_up_nightly("server-a")
            images = scene.coolify.servers["server-a"].images
            assert {image[-1] for image in images} == kept


async def test_without_retention_every_idle_image_goes() -> None:
    for rules in (
        {"server_settings": {"disable_application_image_retention": True}},
        {"version": "4.0.0-beta.452"},
    ):
        async with imitated(**rules) as scene:
            used = await scene.started()
            await scene.started(docker_registry_image_tag="2")
            other = await scene.application(docker_registry_image_tag="3")
            scene.coolify.servers["server-a"].images.add(other.image)
            await scene.coolify.clean_up_nightly("server-a")
            images = scene.coolify.servers["server-a"].images
            assert images == {used.image, "ghcr.io/x/bot:2"}


async def test_a_server_tells_its_schedule() -> None:
    async with imitated() as scene:
        assert await scene.call("GET", "/servers/server-a/docker-cleanup") == {
            "docker_cleanup_frequency": "0 0 * * *",
            "docker_cleanup_threshold": 80,
            "force_docker_cleanup": True,
            "delete_unused_volumes": False,
            "delete_unused_networks": False,
            "disable_application_image_retention": False,
        }
        await scene.call("GET", "/servers/none/docker-cleanup", 404)
    async with imitated(version="4.1.9") as scene:
        await scene.call("GET", "/servers/server-a/docker-cleanup", 404)
