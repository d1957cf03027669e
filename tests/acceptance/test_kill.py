"""A reconciler is killed with -9 between any two things that it does, and another one goes on."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from botpool.engines.base import ContainerState
from botpool.reconciler import Checkpoint, Reconciler
from botpool.states import BotStatus, Platform, SlotStatus
from tests.support.site import opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.site import Site

DEPLOY = [checkpoint for checkpoint in Checkpoint if not checkpoint.startswith("release")]
RELEASE = [checkpoint for checkpoint in Checkpoint if checkpoint.startswith(("release", "create"))]

# Writes a line for every time that it is started, and waits until it is asked to end.
BOT = """
echo "$POOL_SLOT_UUID" >> {starts}
trap 'exit 0' TERM
while :; do sleep 3600 & wait $!; done
"""


@asynccontextmanager
async def site_in(url: str, folder: Path) -> AsyncIterator[Site]:
    """One slot on the process engine, whose bots write down their starts. Time is set."""
    (folder / "bot").write_text(BOT.format(starts=folder / "starts"))
    async with opened(
        url,
        data_dir=folder,
        process_command=f"/bin/sh {folder / 'bot'}",
        image_zoom="bot:1",
        max_pool_size=1,
    ) as site:
        await site.store.installation.use_virtual_clock()
        yield site


async def go_on(site: Site, **time: float) -> None:
    """Do what is due, after a time, by a reconciler that is not killed."""
    await site.pass_time(**time)
    reconciler = Reconciler(
        site.store,
        site.pool,
        site.engines,
        site.settings,
        installation=await site.store.installation.name(),
    )
    await reconciler.run_once()
    # What was replaced, and not removed any more, is found by the comparison.
    await reconciler.compare_once()


async def states(site: Site) -> list[ContainerState]:
    engine = site.engines["process"]
    return [found.observation.state for found in await engine.list(engine.hosts()[0])]


async def starts(site: Site, folder: Path, least: int) -> int:
    """How often a bot was started. The last one may not have written it down yet."""
    path = folder / "starts"
    while not path.exists() or len(path.read_text().splitlines()) < least:
        assert await states(site) == [ContainerState.RUNNING]
    return len(path.read_text().splitlines())


@pytest.mark.parametrize("checkpoint", DEPLOY)
async def test_a_deployment_survives_the_death_of_who_did_it(
    database_url: str, tmp_path: Path, checkpoint: Checkpoint
) -> None:
    async with site_in(database_url, tmp_path) as site:
        bot = (await site.create(Platform.ZOOM)).bot
        await site.kill_at(checkpoint)
        await go_on(site, seconds=20)
        found = await site.store.bots.get(bot.id)
        assert (found.status, found.launch_attempts) == (BotStatus.JOINING_CALL, 1)
        slot = await site.slot_of(bot.id)
        assert slot.status is SlotStatus.BUSY
        assert slot.reserved_until is None or slot.reserved_until <= slot.read_at
        assert await states(site) == [ContainerState.RUNNING]
        assert await starts(site, tmp_path, 1) == 1
        (pull,) = await site.store.pulls.all()
        assert (pull.status, pull.reserved_by) == ("present", None)


@pytest.mark.parametrize("checkpoint", RELEASE)
async def test_a_release_survives_the_death_of_who_did_it(
    database_url: str, tmp_path: Path, checkpoint: Checkpoint
) -> None:
    async with site_in(database_url, tmp_path) as site:
        first = (await site.create(Platform.ZOOM)).bot
        await go_on(site)
        slot = await site.slot_of(first.id)
        waiting = (await site.create(Platform.ZOOM)).bot
        assert waiting.status is BotStatus.QUEUED
        await site.end(slot)
        await site.kill_at(checkpoint)
        await go_on(site, seconds=20)
        assert (await site.slot_of(waiting.id)).id == slot.id
        assert (await site.store.bots.get(waiting.id)).status is BotStatus.JOINING_CALL
        assert await states(site) == [ContainerState.RUNNING]
        assert await starts(site, tmp_path, 2) == 2
