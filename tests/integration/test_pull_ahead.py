"""Images are on a host before a bot asks for them, and never at the cost of one that does."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import pytest

from botpool.engines.base import ContainerState, Traits
from botpool.engines.simulated import Faults
from botpool.errors import EngineRefused, EngineUnavailable, StaleLease
from botpool.models.hosts import HostReport
from botpool.models.pulls import PullKey
from botpool.pool import Pool
from botpool.states import BotStatus, Platform, SlotStatus
from tests.support.waiting import a_moment
from tests.support.works import IMAGE, container, new_reconciler, working

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from botpool.engines.base import Container, PullProgress
    from botpool.models.slots import Slot
    from botpool.store import Database
    from tests.support.works import Works

pytestmark = pytest.mark.older_postgres

LIKE_COOLIFY = Traits(reusable=True, pulls_at_start=True)
SLOW = Faults(pull=(60, 60), start=(1, 1))


async def bring(works: Works) -> None:
    """Look after the images of every host once, and finish what that begins."""
    for host in works.engine.hosts():
        await works.reconciler.bring_images("simulated", host)
    await works.reconciler.run_once()


async def images(works: Works) -> dict[tuple[str, str], str]:
    return {(pull.host, pull.image): pull.status for pull in await works.store.pulls.all()}


async def story(works: Works, slot: Slot) -> list[str]:
    """What was told of a slot, the newest first."""
    page = await works.store.events.of_slot(slot.id, 2**62, 50, 2**20)
    return [event.data["reason"] for event in page.events]


async def test_every_host_has_every_image_before_a_bot_asks(database: Database) -> None:
    async with working(database, hosts=("a", "b"), image_zoom="zoom:1") as works:
        for _ in range(3):
            await bring(works)
            await works.reconciler.pulls_finished()
        wanted = {(host, image) for host in ("a", "b") for image in (IMAGE, "zoom:1")}
        assert await images(works) == dict.fromkeys(wanted, "present")
        assert works.engine.counts["pull"] == 4
        await works.launched()
        assert works.engine.counts["pull"] == 4


async def test_one_image_at_a_time_is_brought_to_a_host(database: Database) -> None:
    async with working(database, image_zoom="zoom:1") as works:
        another = await works.replica()
        go, pull = asyncio.Event(), works.engine.pull

        async def slow(*arguments: Any) -> bool:
            await go.wait()
            return await pull(*arguments)

        works.engine.pull = slow  # type: ignore[method-assign, assignment]
        await works.reconciler.bring_images("simulated", "a")
        await another.bring_images("simulated", "a")
        assert [pull.status for pull in await works.store.pulls.all()] == ["pulling"]
        go.set()
        await works.reconciler.pulls_finished()


async def test_nothing_is_brought_if_that_is_turned_off(database: Database) -> None:
    async with working(database, pull_ahead=False) as works:
        await bring(works)
        assert await images(works) == {}


@pytest.mark.parametrize("trouble", ["away", "drained", "unhealthy"])
async def test_nothing_is_brought_to_a_host_that_gets_no_new_work(
    database: Database, trouble: str
) -> None:
    async with working(database) as works:
        if trouble == "away":
            report = HostReport(host="a", capacity=None, open=False)
            await works.pool.hosts.report("simulated", [report])
        elif trouble == "drained":
            await works.pool.hosts.drain("simulated", "a")
        else:
            await database.execute(
                "UPDATE hosts SET unhealthy_since = botpool_now(), probe_at = 'infinity'"
            )
        await bring(works)
        assert await images(works) == {}


async def test_an_image_that_somebody_has_removed_is_brought_again(database: Database) -> None:
    async with working(database) as works:
        await bring(works)
        await works.reconciler.pulls_finished()
        works.engine.lose_image("a", IMAGE)
        await bring(works)
        assert works.engine.counts["pull"] == 1  # looked at a moment ago
        await works.pass_time(seconds=61)
        await bring(works)
        await works.reconciler.pulls_finished()
        assert works.engine.counts["pull"] == 2


async def test_an_image_that_cannot_be_had_is_tried_later_and_later(database: Database) -> None:
    async with working(database) as works:
        asked: list[float] = []

        async def refuse(*_: object) -> bool:
            asked.append(works.clock.seconds)
            raise EngineRefused("no such image")

        works.engine.pull = refuse  # type: ignore[method-assign, assignment]
        for _ in range(60 * 10):
            await bring(works)
            await works.reconciler.pulls_finished()
            await works.pass_time(seconds=5)
        assert asked == [0, 60, 180, 420, 900, 1860]
        (pull,) = await works.store.pulls.all()
        assert (pull.status, pull.error, pull.attempts) == ("failed", "no such image", 6)


async def test_a_bot_does_not_wait_for_the_next_try_of_an_image(database: Database) -> None:
    async with working(database) as works:
        pull = works.engine.pull

        async def refuse(*_: object) -> bool:
            raise EngineRefused("no such image")

        works.engine.pull = refuse  # type: ignore[method-assign, assignment]
        await bring(works)
        await works.reconciler.pulls_finished()
        works.engine.pull = pull  # type: ignore[method-assign]
        assert (await works.launched()).status is BotStatus.JOINING_CALL


async def test_a_pull_that_no_bot_waits_for_gives_way_to_one_that_a_bot_waits_for(
    database: Database,
) -> None:
    async with working(database, image_zoom="zoom:1", reservation_ttl_ms=30) as works:
        pull = works.engine.pull
        begun: asyncio.Queue[str] = asyncio.Queue()
        go = asyncio.Event()

        async def slow(host: str, image: str, note: Callable[[PullProgress], None]) -> bool:
            begun.put_nowait(image)
            if image == IMAGE:
                await asyncio.Event().wait()
            await go.wait()
            return await pull(host, image, note)

        works.engine.pull = slow  # type: ignore[method-assign, assignment]
        await works.reconciler.bring_images("simulated", "a")
        assert await begun.get() == IMAGE
        bot = (await works.create(Platform.ZOOM)).bot
        working_on = asyncio.create_task(works.reconciler.run_once())
        assert await begun.get() == "zoom:1"
        while ("a", IMAGE) in await images(works):
            assert not working_on.done()
            await a_moment()
        go.set()
        await working_on
        assert (await works.store.bots.get(bot.id)).status is BotStatus.JOINING_CALL


# Where only a start brings an image


async def test_a_slot_is_started_without_a_bot_where_only_a_start_brings_the_image(
    database: Database,
) -> None:
    told: list[Mapping[str, str]] = []

    def started(_: Container, environment: Mapping[str, str]) -> None:
        told.append(environment)

    async with working(database, faults=SLOW, traits=LIKE_COOLIFY) as works:
        works.engine.started = started
        await bring(works)
        (slot,) = await works.store.slots.all()
        assert (slot.status, slot.assigned_bot_id) == (SlotStatus.RELEASING, None)
        assert works.engine.state(container(slot)) is ContainerState.STARTING
        assert base64.urlsafe_b64decode(told[0]["BOT_DATA"]) == b"{}"
        assert await images(works) == {("a", IMAGE): "pulling"}
        # Its claim finds no bot.
        own = await works.store.slots.of_token(told[0]["BOTPOOL_SLOT_TOKEN"])
        assert own is not None
        with pytest.raises(StaleLease):
            await works.pool.assignments.claim(own)
        await works.go(seconds=62)
        await works.go(seconds=31)
        await works.go(seconds=15)
        (slot,) = await works.store.slots.all()
        assert slot.status is SlotStatus.IDLE
        assert works.engine.running() == []
        assert await images(works) == {("a", IMAGE): "present"}
        assert f"its start brought {IMAGE}" in await story(works, slot)
        bot = await works.launched()
        assert (await works.slot_of(bot.id)).id == slot.id
        assert works.engine.counts[f"pull a {IMAGE}"] == 1


async def test_an_idle_slot_gets_a_new_lease_for_its_start_without_a_bot(
    database: Database,
) -> None:
    async with working(database, traits=LIKE_COOLIFY) as works:
        slot = await works.warm()
        await works.store.pulls.forget((await works.store.pulls.all())[0].key)
        works.engine.lose_image("a", IMAGE)
        await bring(works)
        now = await works.store.slots.get(slot.id)
        assert (now.lease, now.last_bot_id) == (slot.lease + 1, None)
        assert works.engine.counts["start"] == 2
        # The wait of bots is estimated from their stays alone.
        (_, idle) = await works.database.fetch(
            "SELECT details FROM transitions WHERE to_status = 'idle' ORDER BY id"
        )
        assert idle["details"] == {}


async def test_bots_wait_for_the_image_that_a_start_without_a_bot_brings(
    database: Database,
) -> None:
    async with working(database, faults=SLOW, traits=LIKE_COOLIFY) as works:
        await bring(works)
        bots = [(await works.create()).bot for _ in range(3)]
        await works.go(seconds=30)
        assert works.engine.counts["start"] == 1
        await works.go(seconds=40)
        await works.go(seconds=20)
        await works.go(seconds=20)
        statuses = {(await works.store.bots.get(bot.id)).status for bot in bots}
        assert statuses == {BotStatus.JOINING_CALL}
        assert works.engine.counts[f"pull a {IMAGE}"] == 1


async def test_a_start_that_fails_is_told_and_its_slot_is_idle_again(database: Database) -> None:
    async with working(database, faults=SLOW, traits=LIKE_COOLIFY) as works:
        await bring(works)
        (started,) = works.engine.running()
        works.engine.fail(started)
        await works.go(seconds=30)
        await works.go(seconds=30)
        (slot,) = await works.store.slots.all()
        assert slot.status is SlotStatus.IDLE
        (pull,) = await works.store.pulls.all()
        assert (pull.status, pull.error) == ("failed", "it broke")
        assert f"its start did not bring {IMAGE}: it broke" in await story(works, slot)


async def test_nothing_is_started_while_a_bot_is_launched(database: Database) -> None:
    async with working(database, faults=SLOW, traits=LIKE_COOLIFY, image_zoom="zoom:1") as works:
        await works.launched()
        await bring(works)
        assert works.engine.counts["start"] == 1


async def test_another_replica_goes_on_with_a_start_without_a_bot(database: Database) -> None:
    async with working(database, faults=SLOW, traits=LIKE_COOLIFY) as works:
        await bring(works)
        another = await works.replica()
        await works.pass_time(seconds=62)
        await another.run_once()
        assert await images(works) == {("a", IMAGE): "present"}
        assert works.engine.counts["start"] == 1


async def test_nothing_is_started_if_that_leaves_nothing_for_a_bot(database: Database) -> None:
    async with working(database, faults=SLOW, traits=LIKE_COOLIFY, max_pool_size=1) as works:
        await bring(works)
        assert await works.store.slots.all() == []
        bot = (await works.create()).bot
        assert bot.status is BotStatus.DEPLOYING


async def test_a_new_image_is_brought_to_a_pool_at_its_maximum(database: Database) -> None:
    async with working(database, traits=LIKE_COOLIFY, max_pool_size=2) as works:
        bots = [(await works.create()).bot for _ in range(2)]
        await works.go(seconds=1)
        for bot in bots:
            await works.end(await works.slot_of(bot.id))
        await works.go(seconds=1)
        newer = works.settings.model_copy(update={"image_google_meet": "bot:2"})
        pool = Pool(works.store, newer)
        await pool.queue.configure()
        reconciler = await new_reconciler(works.store, pool, works.engine, newer)
        await reconciler.bring_images("simulated", "a")
        await reconciler.run_once()
        assert (await images(works))["a", "bot:2"] == "present"
        assert [slot.status for slot in await works.store.slots.all()] == [SlotStatus.IDLE] * 2


async def test_an_image_that_can_not_be_started_yet_holds_up_no_other(database: Database) -> None:
    async with working(
        database, traits=LIKE_COOLIFY, image_zoom="zoom:1", max_slots_per_host=3
    ) as works:
        for _ in range(2):
            slot = await works.warm(Platform.ZOOM)
            await works.create(Platform.ZOOM)
        await works.reconciler.run_once()
        for each in await works.store.slots.all():
            if each.assigned_bot_id is not None:
                await works.end(each)
        await works.go(seconds=1)
        await works.store.pulls.forget(PullKey("simulated", "a", "zoom:1"))
        works.engine.lose_image("a", "zoom:1")
        assert slot.host == "a"
        await works.launched()  # takes the rest of the room, and brings its own image
        await works.store.pulls.forget(PullKey("simulated", "a", IMAGE))
        await bring(works)
        assert (await images(works))["a", "zoom:1"] == "present"


async def test_no_image_is_begun_while_a_bot_waits_for_another_that_fails(
    database: Database,
) -> None:
    async with working(database, image_zoom="zoom:1") as works:

        async def fail(*_: object) -> bool:
            raise EngineUnavailable("the registry doesn't answer")

        works.engine.pull = fail  # type: ignore[method-assign, assignment]
        await works.create(Platform.ZOOM)
        await works.reconciler.run_once()
        await bring(works)
        assert await images(works) == {("a", "zoom:1"): "failed"}


async def test_an_image_that_failed_thousands_of_times_is_still_tried(database: Database) -> None:
    async with working(database) as works:
        await bring(works)
        await works.reconciler.pulls_finished()
        await database.execute(
            "UPDATE image_pulls SET status = 'failed', error = 'no', retry_at = botpool_now(),"
            " attempts = 5000"
        )
        await works.pass_time(hours=2)
        await bring(works)
        await works.reconciler.pulls_finished()
        assert await images(works) == {("a", IMAGE): "present"}


async def test_a_comparison_by_hand_begins_no_pull(database: Database) -> None:
    async with working(database) as works:
        await works.reconciler.compare_once()
        assert await images(works) == {}


async def test_a_replica_that_shuts_down_leaves_no_pull_that_nobody_waits_for(
    database: Database,
) -> None:
    async with working(database) as works:
        another = await works.replica()
        running = asyncio.create_task(another.run(database))
        begun = asyncio.Event()

        async def slow(*_: object) -> bool:
            begun.set()
            await asyncio.Event().wait()
            return True

        works.engine.pull = slow  # type: ignore[method-assign, assignment]
        await begun.wait()
        another.stop()
        await running
        assert await images(works) == {}
