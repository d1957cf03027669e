"""The pool on a real cluster, worked on by reconcilers in processes, some of which are killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from botpool.engines.base import ContainerState
from botpool.reconciler import Checkpoint
from botpool.states import BotStatus, Platform, SlotStatus
from tests.support.kubernetes_site import ground
from tests.support.waiting import a_moment

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.kubernetes import Cluster
    from tests.support.kubernetes_site import Ground

# No pull holds up a start here.
REACHED = [checkpoint for checkpoint in Checkpoint if not checkpoint.startswith("pull")]
DEPLOY = [checkpoint for checkpoint in REACHED if not checkpoint.startswith("release")]
RELEASE = [checkpoint for checkpoint in REACHED if checkpoint.startswith(("release", "create"))]


async def test_bots_claim_on_their_nodes_and_leave_nothing(
    database_url: str, tmp_path: Path, cluster: Cluster
) -> None:
    async with ground(database_url, tmp_path, cluster) as here:
        site = here.site
        async with site.worker():
            bots = [(await site.create(Platform.ZOOM)).bot for _ in range(4)]
            for bot in bots:
                await site.until_bot(bot.id, BotStatus.JOINING_CALL)
            for bot in bots:
                while (slot := await site.slot_of(bot.id)).node is None:
                    await a_moment()  # the comparison records it, if the bot was heard before
                assert slot.node in {"n1", "n2"}
                assert slot.host == "a"
            tokens = [
                (variable["name"], variable.get("value"))
                for pod in await here.objects()
                for container in pod["spec"]["containers"]
                for variable in container.get("env", ())
            ]
            assert tokens == []
            for bot in bots:
                await site.end(await site.slot_of(bot.id))
            for slot in await site.store.slots.all():
                await site.until_slot(slot.id, SlotStatus.IDLE)
        assert {slot.node for slot in await site.store.slots.all()} == {None}
        assert await here.objects() == []
        names = {secret["metadata"]["name"] for secret in await here.objects("secrets")}
        assert names == {slot.container_ref for slot in await site.store.slots.all()}


async def go_on(here: Ground, **time: float) -> None:
    """Do what is due, after a time, by a reconciler that is not killed."""
    await here.site.pass_time(**time)
    reconciler = await here.reconciler()
    await reconciler.run_once()
    # What was replaced, and not removed any more, is found by the comparison.
    await reconciler.compare_once()


async def until_bot_runs(here: Ground, bot_id: int) -> None:
    while (await here.site.store.bots.get(bot_id)).status is not BotStatus.JOINING_CALL:
        await go_on(here, seconds=1)


async def alone(here: Ground) -> None:
    """One pod with one Secret is there, and nothing else."""
    (pod,) = await here.objects()
    names = {secret["metadata"]["name"] for secret in await here.objects("secrets")}
    assert names == {pod["metadata"]["name"]}
    (found,) = await here.site.engines["kubernetes"].list("a")
    assert found.observation.state is ContainerState.RUNNING


@pytest.mark.parametrize("checkpoint", DEPLOY)
async def test_a_deployment_survives_the_death_of_who_did_it(
    database_url: str, tmp_path: Path, cluster: Cluster, checkpoint: Checkpoint
) -> None:
    environment = {"TEST_BEHAVIOUR": "run"}
    async with ground(database_url, tmp_path, cluster, env=environment, max_pool_size=1) as here:
        await here.site.store.installation.use_virtual_clock()
        bot = (await here.site.create(Platform.ZOOM)).bot
        await here.site.kill_at(checkpoint, tries=100)
        await go_on(here, seconds=20)
        await until_bot_runs(here, bot.id)
        assert (await here.site.store.bots.get(bot.id)).launch_attempts == 1
        await go_on(here, seconds=20)
        await alone(here)


@pytest.mark.parametrize("checkpoint", RELEASE)
async def test_a_release_survives_the_death_of_who_did_it(
    database_url: str, tmp_path: Path, cluster: Cluster, checkpoint: Checkpoint
) -> None:
    environment = {"TEST_BEHAVIOUR": "run"}
    async with ground(database_url, tmp_path, cluster, env=environment, max_pool_size=1) as here:
        site = here.site
        await site.store.installation.use_virtual_clock()
        first = (await site.create(Platform.ZOOM)).bot
        await until_bot_runs(here, first.id)
        slot = await site.slot_of(first.id)
        waiting = (await site.create(Platform.ZOOM)).bot
        await site.end(slot)
        await site.kill_at(checkpoint, tries=100)
        await go_on(here, seconds=20)
        await until_bot_runs(here, waiting.id)
        assert (await site.slot_of(waiting.id)).id == slot.id
        await go_on(here, seconds=20)
        await alone(here)
