"""Nodes of a real cluster: what each fetches, and what comes of bots on one that is cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from botpool.states import BOT_ENDED, BotStatus, Platform, SlotStatus
from testbed.docker import busybox_image
from tests.support.kubernetes_site import ground

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.kubernetes import Cluster
    from tests.support.kubernetes_site import Ground

BOTS = 20
PARTS = 3
"""What a node fetches of the image: its configuration and two layers."""


async def test_an_image_is_fetched_once_a_node_however_many_bots_need_it(
    database_url: str, tmp_path: Path, cluster: Cluster
) -> None:
    made = busybox_image(tmp_path / "fresh.tar", "fresh:1", padding=2**22)
    image = await cluster.push(made, "fresh:1")
    fetched = []
    async with ground(
        database_url, tmp_path, cluster, max_pool_size=BOTS, image_zoom=image
    ) as here:
        site = here.site
        async with site.worker():
            for _ in range(2):
                bots = [(await site.create(Platform.ZOOM)).bot for _ in range(BOTS)]
                for bot in bots:
                    await site.until_bot(bot.id, BotStatus.JOINING_CALL)
                nodes = {pod["spec"]["nodeName"] for pod in await here.objects()}
                assert nodes == {"n1", "n2"}
                for bot in bots:
                    await site.end(await site.slot_of(bot.id))
                for slot in await site.store.slots.all():
                    await site.until_slot(slot.id, SlotStatus.IDLE)
                fetched.append(len(await cluster.fetches("fresh:1")))
    assert fetched == [2 * PARTS, 2 * PARTS]


async def go_on(here: Ground, **time: float) -> None:
    """Do what is due, after a time."""
    await here.site.pass_time(**time)
    reconciler = await here.reconciler()
    await reconciler.run_once()
    await reconciler.recover_once()
    await reconciler.compare_once()


@pytest.mark.parametrize(
    "meanwhile", ["nothing", "its pod is forced away", "its object is deleted"]
)
async def test_nothing_is_started_in_a_slot_whose_node_is_cut_off(
    meanwhile: str, database_url: str, tmp_path: Path, whole_cluster: Cluster
) -> None:
    cluster = whole_cluster
    environment = {"TEST_BEHAVIOUR": "run"}
    async with ground(
        database_url, tmp_path, cluster, env=environment, max_pool_size=1, max_launch_attempts=1
    ) as here:
        site = here.site
        await site.store.installation.use_virtual_clock()
        lost = (await site.create(Platform.ZOOM)).bot
        while (await site.store.bots.get(lost.id)).status is not BotStatus.JOINING_CALL:
            await go_on(here, seconds=1)
        slot = await site.slot_of(lost.id)
        (pod,) = await here.objects()
        node = pod["spec"]["nodeName"]
        await cluster.cut(node)
        try:
            await cluster.unready(node)
            if meanwhile == "its pod is forced away":
                path = here.path("pods", pod["metadata"]["name"])
                await cluster.api.delete(path, params={"gracePeriodSeconds": 0})
            elif meanwhile == "its object is deleted":
                await cluster.api.delete(f"/api/v1/nodes/{node}")
            while (await site.store.bots.get(lost.id)).status not in BOT_ENDED:
                await go_on(here, minutes=2)
            waiting = (await site.create(Platform.ZOOM)).bot
            for _ in range(5):
                await go_on(here, seconds=40)
            # Nothing has proved that the first one has stopped.
            assert (await site.store.slots.get(slot.id)).status is not SlotStatus.IDLE
            assert (await site.store.bots.get(waiting.id)).status is BotStatus.QUEUED
            (same,) = await here.objects()
            assert same["metadata"]["uid"] == pod["metadata"]["uid"]
        finally:
            await cluster.mend(node)
            if meanwhile == "its object is deleted":
                await cluster.restart_kubelet(node)
            await cluster.ready(node)
        while pod["metadata"]["uid"] in {each["metadata"]["uid"] for each in await here.objects()}:
            await go_on(here, seconds=20)
