"""Nodes of a real cluster: what each fetches for the bots on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botpool.states import BotStatus, Platform, SlotStatus
from testbed.docker import busybox_image
from tests.support.kubernetes_site import ground

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.kubernetes import Cluster

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
