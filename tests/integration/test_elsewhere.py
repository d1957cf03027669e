"""A bot does not stay on a host that can't serve it beside another host that could."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from botpool.errors import EngineUnavailable
from botpool.reconciler.pulls import TRIES_IN_VAIN
from botpool.states import BotStatus, Platform
from tests.support.works import IMAGE, working

if TYPE_CHECKING:
    from botpool.engines.base import ContainerSpec
    from botpool.models.bots import Bot
    from botpool.store import Database
    from tests.support.works import Works

pytestmark = pytest.mark.older_postgres

FULL = "write /var/lib: no space left on device"


def pulls_fail_on(works: Works, *hosts: str) -> None:
    pull = works.engine.pull

    async def fail(host: str, *more: object) -> bool:
        if host in hosts:
            raise EngineUnavailable(FULL)
        return await pull(host, *more)  # type: ignore[arg-type]

    works.engine.pull = fail  # type: ignore[method-assign, assignment]


def creations_fail_on(works: Works, *hosts: str) -> None:
    create = works.engine.create

    async def fail(spec: ContainerSpec) -> str:
        if spec.host in hosts:
            raise EngineUnavailable(FULL)
        return await create(spec)

    works.engine.create = fail  # type: ignore[method-assign]


async def host_of(works: Works, bot: Bot) -> str | None:
    return (await works.slot_of(bot.id)).host


async def tried(works: Works) -> None:
    """Let as much time pass as all tries take that are made in vain."""
    for _ in range(TRIES_IN_VAIN + 1):
        await works.go(seconds=10)


@pytest.mark.parametrize("fail", [pulls_fail_on, creations_fail_on])
async def test_a_bot_leaves_a_host_on_which_what_it_needs_fails_again_and_again(
    database: Database, fail: object
) -> None:
    async with working(database, hosts=("a", "b")) as works:
        assert callable(fail)
        fail(works, "a")
        bots = [await works.launched() for _ in range(2)]
        assert await host_of(works, bots[0]) == "a"
        await tried(works)
        for bot in bots:
            found = await works.store.bots.get(bot.id)
            assert (found.status, found.launch_attempts) == (BotStatus.JOINING_CALL, 1)
            assert await host_of(works, bot) == "b"
        assert any(f"on a: {FULL}" in reason for reason in await works.reasons(bots[0]))
        # The slot that it left is not in the way.
        assert [slot.host for slot in await works.store.slots.all()] == ["b", "b"]


async def test_a_few_tries_in_vain_move_nobody(database: Database) -> None:
    async with working(database, hosts=("a", "b")) as works:
        pulls_fail_on(works, "a")
        bot = await works.launched()
        for _ in range(TRIES_IN_VAIN - 2):
            await works.go(seconds=10)
        assert await host_of(works, bot) == "a"


@pytest.mark.parametrize(
    ("hosts", "failing"),
    [(("a",), ("a",)), (("a", "b"), ("a", "b"))],
    ids=["no other host", "the registry is down"],
)
async def test_a_bot_that_no_other_host_could_serve_goes_on_waiting(
    database: Database, hosts: tuple[str, ...], failing: tuple[str, ...]
) -> None:
    async with working(database, hosts=hosts) as works:
        pulls_fail_on(works, *failing)
        bots = [await works.launched() for _ in hosts]
        before = [await host_of(works, bot) for bot in bots]
        for _ in range(3):
            await tried(works)
        assert [await host_of(works, bot) for bot in bots] == before
        found = await works.store.bots.get(bots[0].id)
        assert (found.status, found.launch_attempts) == (BotStatus.DEPLOYING, 1)


async def test_a_bot_does_not_leave_for_a_host_without_room_or_while_it_would_not_be_launched(
    database: Database,
) -> None:
    async with working(database, hosts=("a", "b"), max_slots_per_host=1) as works:
        pulls_fail_on(works, "a")
        waiting, other = [await works.launched() for _ in range(2)]
        await tried(works)
        assert await host_of(works, waiting) == "a"
        await works.pool.queue.pause(Platform.GOOGLE_MEET, by="me", reason=None)
        await works.end(await works.slot_of(other.id))
        await tried(works)
        assert await host_of(works, waiting) == "a"
        await works.pool.queue.resume(Platform.GOOGLE_MEET, by="me")
        await tried(works)
        assert await host_of(works, waiting) == "b"


async def test_a_bot_whose_pull_fails_before_it_is_seen_to_wait_leaves_at_once(
    database: Database,
) -> None:
    async with working(database, hosts=("a", "b")) as works:
        pulls_fail_on(works, "a")
        await works.launched()
        await tried(works)
        woken = asyncio.Event()
        pulls, assignments = works.store.pulls, works.pool.assignments
        wake, record = pulls.wake, assignments.record_deployment

        async def wake_early(*arguments: Any) -> None:
            await wake(*arguments)
            woken.set()

        async def record_late(*arguments: Any, **more: Any) -> None:
            await woken.wait()
            await record(*arguments, **more)

        pulls.wake = wake_early  # type: ignore[method-assign, assignment]
        assignments.record_deployment = record_late  # type: ignore[method-assign, assignment]
        later = await works.launched()
        assert later.status is BotStatus.JOINING_CALL
        assert await host_of(works, later) == "b"


async def test_a_bot_that_comes_later_leaves_at_once(database: Database) -> None:
    async with working(database, hosts=("a", "b")) as works:
        pulls_fail_on(works, "a")
        await works.launched()
        await tried(works)
        later = await works.launched()
        assert later.status is BotStatus.JOINING_CALL
        (pull,) = [pull for pull in await works.store.pulls.all() if pull.host == "a"]
        assert (pull.image, pull.error) == (IMAGE, FULL)


async def test_who_leaves_again_and_again_uses_up_its_launches(database: Database) -> None:
    async with working(database, hosts=("a", "b"), max_launch_attempts=2) as works:
        creations_fail_on(works, "a", "b")
        bot = await works.launched()
        hosts = []
        for _ in range(6):
            await tried(works)
            found = await works.store.bots.get(bot.id)
            hosts.append((await host_of(works, bot), found.launch_attempts))
        assert hosts[-1] == hosts[-2] == ("a", 2)
        assert found.status is BotStatus.DEPLOYING
