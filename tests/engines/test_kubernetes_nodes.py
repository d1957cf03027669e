"""Nodes of a real cluster: what each fetches, and what comes of bots on one that is cut off."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from botpool.states import BotStatus, FailureCause, Platform, SlotStatus
from testbed.docker import BOT, busybox_image
from tests.support import kubernetes_ground
from tests.support.kubernetes_engine import RULES
from tests.support.kubernetes_ground import processes
from tests.support.kubernetes_site import ground

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from botpool.models.slots import Slot
    from testbed.kubernetes import Cluster
    from tests.support.kubernetes_ground import Ground

BOTS = 20
EACH = 2
PARTS = 3
"""What a node fetches of the image: its configuration and two layers."""


async def test_an_image_is_fetched_once_a_node_however_many_bots_need_it(
    database_url: str, tmp_path: Path, cluster: Cluster
) -> None:
    # A layer that another image has, too, may be on a node.
    script = f"{BOT}# fresh\n"
    made = busybox_image(tmp_path / "fresh.tar", "fresh:1", script=script, padding=2**22)
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


async def test_bots_run_in_all_clusters_that_are_named(
    database_url: str, tmp_path: Path, cluster: Cluster
) -> None:
    async with cluster.namespace() as one, cluster.namespace() as other:
        config = {name: await cluster.kubeconfig_of(name, RULES) for name in (one, other)}
        async with kubernetes_ground.ground(
            *(cluster, tmp_path, database_url),
            kubernetes_clusters=f"a={config[one]},b={config[other]}#/{other}",
            max_slots_per_host=str(EACH),
        ) as here:
            bots = [await here.ask() for _ in range(2 * EACH)]
            await here.in_meeting(*bots)
            slots = [await here.slot_of(bot) for bot in bots]
            assert Counter(slot.host for slot in slots) == {"a": EACH, "b": EACH}
            here.meeting.over.set()
            for bot in bots:
                assert (await here.ended(bot)).status is BotStatus.DONE
            for slot in slots:
                await here.until_slot(slot.id, _idle)


def _idle(slot: Slot | None) -> bool:
    return slot is not None and slot.status is SlotStatus.IDLE


@asynccontextmanager
async def cut_off(here: Ground, *bots: int) -> AsyncIterator[list[Slot]]:
    """These bots are in the meeting, on the node n2, and that is cut off. Their slots."""
    await here.in_meeting(*bots)
    slots = [await here.slot_of(bot) for bot in bots]
    for slot in slots:
        while (await here.store.slots.get(slot.id)).node != "n2":
            await asyncio.sleep(0.1)
    await here.cluster.cut("n2")
    try:
        yield slots
    finally:
        await here.cluster.mend("n2")
        if (await here.cluster.api.get("/api/v1/nodes/n2")).is_error:
            await here.cluster.restart_kubelet("n2")
        await here.cluster.ready("n2")


async def hold_on(here: Ground, slots: list[Slot]) -> None:
    """Nothing has proved that the containers of these slots have ended, and all is left so."""
    pods = await here.objects()
    for slot in slots:
        found = await here.store.slots.get(slot.id)
        assert found.status is not SlotStatus.IDLE
        assert found.container_ref == slot.container_ref
        assert pods[slot.container_ref or ""]["metadata"]["finalizers"] == ["botpool/proof"]


async def leave_by_themselves(slots: list[Slot]) -> None:
    while processes(*(slot.container_ref or "" for slot in slots)):
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("deleted", [False, True])
async def test_bots_of_a_node_that_is_cut_off_go_and_nothing_takes_their_place_before(
    database_url: str, tmp_path: Path, whole_cluster: Cluster, *, deleted: bool
) -> None:
    async with kubernetes_ground.ground(
        whole_cluster, tmp_path, database_url, max_pool_size="4", max_silence_ms="9000"
    ) as here:
        async with whole_cluster.closed("n1"):
            again = await here.ask(relaunchInCall=True)
            lost = await here.ask()
            forced = await here.ask()
            await here.in_meeting(again, lost, forced)
        async with cut_off(here, again, lost, forced) as slots:
            pods = await here.objects()
            path = here.path("pods", slots[2].container_ref or "")
            await whole_cluster.api.delete(path, params={"gracePeriodSeconds": 0})
            if deleted:
                await whole_cluster.api.delete("/api/v1/nodes/n2")
            for bot in (lost, forced):
                found = await here.ended(bot)
                assert found.failure_cause is FailureCause.HEARTBEAT_LOST
                assert (found.failure_reason or "").startswith("no heartbeat for")
            await here.meeting.until(lambda: here.meeting.joined[again] == 2)
            # It is on the other node now. There is no slot for one more.
            assert (await here.slot_of(again)).id not in {slot.id for slot in slots}
            waiting = await here.ask()
            await leave_by_themselves(slots)
            await hold_on(here, slots)
            assert (await here.store.bots.get(waiting)).status is BotStatus.QUEUED
            uids = {pod["metadata"]["uid"] for pod in (await here.objects()).values()}
            assert uids > {pod["metadata"]["uid"] for pod in pods.values()}
        await here.in_meeting(waiting)
        here.meeting.over.set()
        assert (await here.ended(again)).status is BotStatus.DONE
        assert (await here.ended(waiting)).status is BotStatus.DONE
        assert here.meeting.joined == {again: 2, lost: 1, forced: 1, waiting: 1}
        await here.at_rest()
        assert len(await here.store.slots.all()) == 4


async def test_a_slot_whose_node_is_deleted_and_does_not_return_in_time_is_given_up(
    database_url: str, tmp_path: Path, whole_cluster: Cluster
) -> None:
    async with kubernetes_ground.ground(
        *(whole_cluster, tmp_path, database_url),
        max_pool_size="1",
        max_silence_ms="9000",
        lost_after_ms="15000",
    ) as here:
        async with whole_cluster.closed("n1"):
            lost = await here.ask()
            await here.in_meeting(lost)
        async with cut_off(here, lost) as slots:
            (slot,) = slots
            token = await here.token(slot)
            await whole_cluster.api.delete("/api/v1/nodes/n2")
            assert (await here.ended(lost)).failure_cause is FailureCause.HEARTBEAT_LOST
            waiting = await here.ask()
            await leave_by_themselves(slots)
            await hold_on(here, slots)
            # The pool doesn't wait for ever, and what it gives up is not trusted again.
            await here.in_meeting(waiting)
            assert await here.store.slots.find(slot.id) is None
            given_up = "given up, not proved stopped: its container on the node n2 should have been"
            assert given_up in await here.why_deleted(slot.id)
            answer = await here.serve.client.post(
                "/api/v1/runtime/heartbeat",
                json={"lease": slot.lease},
                headers={"Authorization": f"Bearer {token}"},
            )
            assert answer.status_code == 401
            assert slot.container_ref in await here.objects()
        here.meeting.over.set()
        assert (await here.ended(waiting)).status is BotStatus.DONE
        await here.at_rest()
        assert here.meeting.joined == {lost: 1, waiting: 1}
