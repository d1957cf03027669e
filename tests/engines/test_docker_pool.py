"""The pool on real Docker hosts and a real registry, worked on by reconcilers in processes."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from botpool.engines.base import ContainerState
from botpool.states import BotStatus, Platform, SlotStatus
from testbed.docker import busybox_image, docker_daemon, load, push, registry
from tests.support.site import opened
from tests.support.waiting import a_moment
from tests.support.works import container

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from botpool.models.bots import Bot
    from testbed.docker import Daemon, Registry
    from tests.support.site import Site

MEGABYTE = 1_000_000


@asynccontextmanager
async def docker_site(
    url: str, folder: Path, hosts: int = 1, **settings: Any
) -> AsyncIterator[Site]:
    """A site on so many Docker hosts of its own, which have no image yet."""
    async with AsyncExitStack() as stack:
        daemons = [
            await stack.enter_async_context(docker_daemon(folder / str(number)))
            for number in range(hosts)
        ]
        addresses = ",".join(
            f"{name}={daemon.address}" for name, daemon in zip("abc", daemons, strict=False)
        )
        yield await stack.enter_async_context(
            opened(
                url,
                serve=True,
                engine="docker",
                data_dir=folder,
                docker_hosts=addresses,
                docker_network="host",
                **{"reservation_ttl_ms": 900, "poll_interval_ms": 100, **settings},
            )
        )


async def image_in(
    store: Registry, docker: Daemon, folder: Path, name: str = "bot:1", size: int = MEGABYTE
) -> str:
    """An image of about this size in a registry, and nowhere else."""
    local = f"botpool-test/{name}"
    await load(docker, busybox_image(folder / "image.tar", local, padding=size))
    await push(docker, local, f"{store.address}/{name}")
    return f"{store.address}/{name}"


async def fetched(store: Registry, name: str = "bot") -> Counter[str]:
    """How often each part of an image was fetched."""
    return Counter(
        request.path
        for request in await store.requests()
        if request.method == "GET"
        and request.status == 200
        and request.path.startswith(f"/v2/{name}/blobs/")
    )


async def all_run(site: Site, bots: list[Bot]) -> None:
    for bot in bots:
        await site.until_bot(bot.id, BotStatus.JOINING_CALL)


@pytest.mark.parametrize("workers", [1, 2])
async def test_bots_that_come_together_on_an_empty_host_cause_one_pull(
    database_url: str, folder: Path, docker: Daemon, store: Registry, workers: int
) -> None:
    image = await image_in(store, docker, folder)
    async with (
        docker_site(database_url, folder, image_zoom=image) as site,
        AsyncExitStack() as stack,
    ):
        for _ in range(workers):
            await stack.enter_async_context(site.worker())
        bots = [(await site.create(Platform.ZOOM)).bot for _ in range(8)]
        await all_run(site, bots)
        assert set((await fetched(store)).values()) == {1}
        (pull,) = await site.store.pulls.all()
        assert (pull.status, pull.attempts) == ("present", 1)
        # The first one waited for the pull, and so did all the others.
        for bot in bots:
            slot = await site.slot_of(bot.id)
            assert pull.finished_at is not None
            assert slot.deployment_started_at is not None
            assert slot.deployment_started_at >= pull.finished_at


async def test_the_same_image_is_pulled_once_on_each_of_two_hosts(
    database_url: str, folder: Path, docker: Daemon, store: Registry
) -> None:
    image = await image_in(store, docker, folder)
    async with (
        docker_site(database_url, folder, hosts=2, image_zoom=image) as site,
        site.worker(),
    ):
        bots = [(await site.create(Platform.ZOOM)).bot for _ in range(6)]
        await all_run(site, bots)
        assert set((await fetched(store)).values()) == {2}
        hosts = Counter(slot.host for slot in await site.store.slots.all())
        assert hosts == {"a": 3, "b": 3}


async def test_two_images_are_pulled_at_the_same_time(
    database_url: str, folder: Path, docker: Daemon, store: Registry
) -> None:
    one = await image_in(store, docker, folder, "one:1", 30 * MEGABYTE)
    two = await image_in(store, docker, folder, "two:1", 30 * MEGABYTE)
    async with (
        docker_site(database_url, folder, image_zoom=one, image_google_meet=two) as site,
        site.worker(),
    ):
        bots = [
            (await site.create(platform)).bot for platform in (Platform.ZOOM, Platform.GOOGLE_MEET)
        ]
        await all_run(site, bots)
        first, second = sorted(await site.store.pulls.all(), key=lambda pull: pull.started_at)
        assert first.finished_at is not None
        assert second.started_at < first.finished_at
        assert min(first.total_bytes, second.total_bytes) > 25 * MEGABYTE


async def test_a_pull_that_failed_is_taken_over_by_exactly_one_of_those_who_wait(
    database_url: str, folder: Path, docker: Daemon
) -> None:
    async with registry(folder / "registry") as store:
        image = await image_in(store, docker, folder)
        port = int(store.address.rpartition(":")[2])
    async with docker_site(database_url, folder, image_zoom=image) as site, site.worker():
        bots = [(await site.create(Platform.ZOOM)).bot for _ in range(5)]
        while not (pulls := await site.store.pulls.all()) or pulls[0].status != "failed":
            await a_moment()
        async with registry(folder / "registry", port) as store:
            await all_run(site, bots)
            assert set((await fetched(store)).values()) == {1}
            (pull,) = await site.store.pulls.all()
            assert pull.attempts >= 2


async def test_a_pull_survives_a_kill_of_the_process_that_did_it(
    database_url: str, folder: Path, docker: Daemon, store: Registry
) -> None:
    image = await image_in(store, docker, folder, size=60 * MEGABYTE)
    async with docker_site(database_url, folder, image_zoom=image) as site:
        async with site.worker() as doomed:
            bots = [(await site.create(Platform.ZOOM)).bot for _ in range(3)]
            while not await site.store.pulls.all():
                await a_moment()
            doomed.kill()
            await doomed.wait()
            (pull,) = await site.store.pulls.all()
            assert pull.status == "pulling"
        async with site.worker(), site.worker():
            await all_run(site, bots)
        (pull,) = await site.store.pulls.all()
        assert (pull.status, pull.reserved_by, pull.attempts) == ("present", None, 2)
        assert {slot.reserved_by for slot in await site.store.slots.all()} <= {None}


async def test_a_warm_pool_starts_twenty_bots_four_at_a_time_and_without_a_pull(
    database_url: str, folder: Path, docker: Daemon, store: Registry
) -> None:
    image = await image_in(store, docker, folder)
    async with docker_site(database_url, folder, image_zoom=image) as site, site.worker():
        await all_run(site, bots := [(await site.create(Platform.ZOOM)).bot for _ in range(20)])
        for bot in bots:
            await site.end(await site.slot_of(bot.id))
        for slot in await site.store.slots.all():
            await site.until_slot(slot.id, SlotStatus.IDLE)
        # A slot that asked for the image now would wait for ever.
        await site.database.execute(
            "UPDATE image_pulls SET status = 'pulling', finished_at = NULL,"
            " reserved_by = 'a replica', reserved_until = 'infinity'"
        )
        bots = [(await site.create(Platform.ZOOM)).bot for _ in range(20)]
        await all_run(site, bots)
        spans = [await deployment(site, bot) for bot in bots]
        assert max(sum(a <= start < b for a, b in spans) for start, _ in spans) <= 4
        assert set((await fetched(store)).values()) == {1}


async def deployment(site: Site, bot: Bot) -> tuple[Any, Any]:
    """When a bot was let onto its host, and when its container ran."""
    slot = await site.slot_of(bot.id)
    (ran,) = [
        step.at
        for step in await site.store.transitions.timeline(bot.id)
        if step.machine == "slot" and step.to_status == "busy"
    ]
    return slot.deployment_started_at, ran


async def test_a_container_that_will_not_end_keeps_its_slot_until_it_is_gone(
    database_url: str, folder: Path, docker: Daemon, store: Registry
) -> None:
    script = "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n"
    local = "botpool-test/deaf:1"
    await load(docker, busybox_image(folder / "image.tar", local, script=script))
    await push(docker, local, f"{store.address}/deaf:1")
    async with (
        docker_site(
            database_url,
            folder,
            image_zoom=f"{store.address}/deaf:1",
            max_pool_size=1,
            stop_grace_ms=2000,
        ) as site,
        site.worker(),
    ):
        first = (await site.create(Platform.ZOOM)).bot
        await site.until_bot(first.id, BotStatus.JOINING_CALL)
        slot = await site.slot_of(first.id)
        second = (await site.create(Platform.ZOOM)).bot
        await site.end(slot)
        engine = site.engines["docker"]
        seen: set[ContainerState] = set()
        while (await site.store.bots.get(second.id)).status is BotStatus.QUEUED:
            # For a moment there is none: it is made anew.
            seen.update(found.observation.state for found in await engine.list("a"))
        assert ContainerState.RUNNING in seen
        await site.until_bot(second.id, BotStatus.JOINING_CALL)
        steps = [
            (step.from_status, step.to_status, step.lease)
            for bot in (first, second)
            for step in await site.store.transitions.timeline(bot.id)
            if step.machine == "slot" and step.from_status != step.to_status
        ]
        assert steps == [
            (None, "deploying", 1),
            ("deploying", "busy", 1),
            ("busy", "releasing", 1),
            ("releasing", "idle", 1),
            ("idle", "deploying", 2),
            ("deploying", "busy", 2),
        ]


async def test_a_bot_in_a_container_claims_itself_and_nothing_of_it_reaches_the_next(
    database_url: str, folder: Path, docker: Daemon, store: Registry
) -> None:
    script = r"""#!/bin/sh
    env; cat /left-behind; echo left-behind > /left-behind
    wget -q -O - --header "Authorization: Bearer $BOTPOOL_SLOT_TOKEN" \
      --header 'Content-Type: application/json' --post-data '{}' \
      "$BOTPOOL_URL/api/v1/runtime/claim"
    echo; echo claimed
    trap 'exit 0' TERM
    while :; do sleep 3600 & wait $!; done
    """
    local = "botpool-test/claims:1"
    await load(docker, busybox_image(folder / "image.tar", local, script=script))
    await push(docker, local, f"{store.address}/claims:1")
    image = f"{store.address}/claims:1"
    async with (
        docker_site(database_url, folder, image_zoom=image, max_pool_size=1) as site,
        site.worker(),
    ):
        tokens = []
        engine = site.engines["docker"]
        for number in range(2):
            bot = (await site.create(Platform.ZOOM, config={"number": number})).bot
            await site.until_bot(bot.id, BotStatus.JOINING_CALL)
            slot = await site.slot_of(bot.id)
            while "claimed" not in await engine.logs(container(slot), 100):
                await a_moment()
            await site.end(slot)
            await site.until_slot(slot.id, SlotStatus.IDLE)
            lines = await site.store.bots.container_logs(bot.id)
            # Docker copies both outputs, and may put them in another order.
            claimed = json.loads(next(line for line in lines if line.startswith("{")))
            assert (claimed["botId"], claimed["config"]) == (bot.id, {"number": number})
            assert "left-behind" not in lines
            tokens += [line for line in lines if line.startswith("BOTPOOL_SLOT_TOKEN=")]
        assert len(set(tokens)) == 2


async def test_a_docker_that_is_away_costs_no_bot_and_work_goes_on_when_it_is_back(
    database_url: str, folder: Path, docker: Daemon, store: Registry
) -> None:
    image = await image_in(store, docker, folder)
    async with (
        AsyncExitStack() as stack,
        opened(
            database_url,
            engine="docker",
            data_dir=folder,
            docker_hosts=f"a=unix://{folder}/late/docker.sock",
            docker_network="host",
            image_zoom=image,
            poll_interval_ms=100,
        ) as site,
        site.worker(),
    ):
        bot = (await site.create(Platform.ZOOM)).bot
        while not await site.store.pulls.all():
            await a_moment()
        assert (await site.store.bots.get(bot.id)).status is BotStatus.DEPLOYING
        await stack.enter_async_context(docker_daemon(folder / "late"))
        await site.until_bot(bot.id, BotStatus.JOINING_CALL)
