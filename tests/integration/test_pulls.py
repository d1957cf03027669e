"""One pull of an image on a host at a time, whoever wants it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from botpool.engines.base import PullProgress
from botpool.engines.simulated import Faults
from botpool.errors import EngineRefused, EngineUnavailable
from botpool.models.pulls import PullKey
from botpool.states import BotStatus, FailureCause, Platform
from tests.support.waiting import a_moment
from tests.support.works import IMAGE, working

if TYPE_CHECKING:
    from collections.abc import Callable

    from botpool.models.bots import Bot
    from botpool.store import Database
    from tests.support.works import Works

pytestmark = pytest.mark.older_postgres


class Gate:
    """Stands in an engine's pulls: lets a test see them begin, and say how they end."""

    def __init__(self, works: Works) -> None:
        self._pull = works.engine.pull
        works.engine.pull = self.pull  # type: ignore[method-assign]
        self.begun: asyncio.Queue[tuple[str, str, asyncio.Future[None]]] = asyncio.Queue()

    async def pull(self, host: str, image: str, progress: Callable[[PullProgress], None]) -> bool:
        verdict: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begun.put_nowait((host, image, verdict))
        await verdict
        return await self._pull(host, image, progress)


async def told(works: Works, bot: Bot) -> list[str]:
    """The errors of pulls that were told in a bot's timeline."""
    return [reason for reason in await works.reasons(bot) if reason.startswith("pull ")]


def take_registry_away(works: Works, error: str = "the registry is down") -> None:
    async def fail(*_: object) -> bool:
        raise EngineUnavailable(error)

    works.engine.pull = fail  # type: ignore[method-assign, assignment]


async def statuses(works: Works) -> list[BotStatus]:
    rows = await works.database.fetch("SELECT status FROM bots ORDER BY id")
    return [BotStatus(row["status"]) for row in rows]


async def test_bots_of_one_image_that_come_together_cause_one_pull(database: Database) -> None:
    async with working(database) as works:
        replicas = [works.reconciler, await works.replica()]
        for _ in range(8):
            await works.create()
        await asyncio.gather(*(replica.run_once() for replica in replicas))
        await works.reconciler.run_once()
        assert works.engine.counts["pull"] == 1
        assert await statuses(works) == [BotStatus.JOINING_CALL] * 8


async def test_an_image_that_is_brought_ahead_just_as_a_bot_comes_is_pulled_once(
    database: Database,
) -> None:
    async with working(database) as works:
        taken, begun, go = asyncio.Event(), asyncio.Event(), asyncio.Event()
        pulls, pull, counts = works.store.pulls, works.engine.pull, Counter[str]()
        take_ahead = pulls.take_ahead

        async def hear_late(*arguments: Any, **more: Any) -> Any:
            found = await take_ahead(*arguments, **more)
            taken.set()
            await begun.wait()
            return found

        async def slow(host: str, image: str, progress: Callable[[PullProgress], None]) -> bool:
            counts[image] += 1
            begun.set()
            await go.wait()
            return await pull(host, image, progress)

        pulls.take_ahead = hear_late  # type: ignore[method-assign]
        works.engine.pull = slow  # type: ignore[method-assign]
        ahead = asyncio.create_task(works.reconciler.bring_images("simulated", "a"))
        await taken.wait()
        await works.create()
        work = asyncio.create_task(works.reconciler.run_once())
        await ahead
        go.set()
        await work
        await works.reconciler.pulls_finished()
        assert counts == {IMAGE: 1}
        assert await statuses(works) == [BotStatus.JOINING_CALL]


async def test_an_image_is_pulled_once_on_each_host(database: Database) -> None:
    async with working(database, hosts=("a", "b")) as works:
        for _ in range(6):
            await works.create()
        await works.reconciler.run_once()
        assert works.engine.counts[f"pull a {IMAGE}"] == 1
        assert works.engine.counts[f"pull b {IMAGE}"] == 1


async def test_two_images_are_pulled_at_the_same_time(database: Database) -> None:
    async with working(database, image_zoom="zoom:1") as works:
        gate = Gate(works)
        for _ in range(6):
            await works.create()
        await works.create(Platform.ZOOM)
        work = asyncio.create_task(works.reconciler.run_once())
        begun = [await gate.begun.get(), await gate.begun.get()]
        assert {image for _, image, _ in begun} == {IMAGE, "zoom:1"}
        for *_, verdict in begun:
            verdict.set_result(None)
        await work
        assert set(await statuses(works)) == {BotStatus.JOINING_CALL}
        assert set(works.engine.most_pulls.values()) == {1}


async def test_who_waits_for_a_pull_holds_no_place_on_the_host(database: Database) -> None:
    async with working(database, max_concurrent_deployments=1) as works:
        gate = Gate(works)
        await works.create()
        await works.create()
        other = (await works.create(Platform.ZOOM)).bot  # needs no image
        work = asyncio.create_task(works.reconciler.run_once())
        _, _, verdict = await gate.begun.get()
        while (await works.store.bots.get(other.id)).status is not BotStatus.JOINING_CALL:
            assert not work.done()
            await a_moment()
        verdict.set_result(None)
        await work


async def test_an_image_that_cannot_be_had_fails_who_asked_and_exactly_one_tries_next(
    database: Database,
) -> None:
    async with working(database, max_launch_attempts=1) as works:
        gate = Gate(works)
        for _ in range(5):
            await works.create()
        work = asyncio.create_task(works.reconciler.run_once())
        _, _, verdict = await gate.begun.get()
        verdict.set_exception(EngineRefused("no such image\x00"))  # whatever it says
        _, _, verdict = await gate.begun.get()
        assert gate.begun.empty()
        ended = [bot for bot in await statuses(works) if bot is BotStatus.FATAL]
        assert len(ended) == 1
        verdict.set_result(None)
        await work
        assert sorted(await statuses(works)) == sorted(
            [BotStatus.FATAL] + [BotStatus.JOINING_CALL] * 4
        )
        (failed,) = await database.fetch("SELECT * FROM bots WHERE status = 'FATAL'")
        assert failed["failure_cause"] == FailureCause.IMAGE_PULL
        assert (
            failed["failure_reason"]
            == "the image can't be pulled: no such image\N{REPLACEMENT CHARACTER}"
        )


async def test_an_image_that_nobody_can_have_fails_them_one_after_the_other(
    database: Database,
) -> None:
    async with working(database, faults=Faults(pull_fails=1.0)) as works:
        for _ in range(3):
            await works.create()
        await works.reconciler.run_once()
        assert await statuses(works) == [BotStatus.FATAL] * 3
        assert works.engine.counts["pull"] == 3  # there is no other host
        assert works.engine.most_pulls["a", IMAGE] == 1


async def test_a_pull_that_the_engine_does_not_answer_is_tried_again_after_a_while(
    database: Database,
) -> None:
    async with working(database) as works:
        gate = Gate(works)
        for _ in range(3):
            await works.create()
        work = asyncio.create_task(works.reconciler.run_once())
        _, _, verdict = await gate.begun.get()
        verdict.set_exception(EngineUnavailable("the registry is down"))
        await work
        assert await statuses(works) == [BotStatus.DEPLOYING] * 3
        assert gate.begun.empty()
        (pull,) = await works.store.pulls.all()
        assert (pull.status, pull.error) == ("failed", "the registry is down")

        later = asyncio.create_task(works.go(seconds=2))
        _, _, verdict = await gate.begun.get()
        verdict.set_result(None)
        await later
        assert await statuses(works) == [BotStatus.JOINING_CALL] * 3


async def test_the_pull_of_a_dead_replica_is_taken_over_by_exactly_one(database: Database) -> None:
    async with working(database) as works:
        gate = Gate(works)
        await works.create()
        await works.create()
        await works.store.pulls.take(PullKey("simulated", "a", IMAGE), "dead", 15_000)
        await works.reconciler.run_once()
        await works.go(seconds=14)
        assert gate.begun.empty()
        work = asyncio.create_task(works.go(seconds=5))
        _, _, verdict = await gate.begun.get()
        assert gate.begun.empty()
        verdict.set_result(None)
        await work
        assert await statuses(works) == [BotStatus.JOINING_CALL] * 2


async def test_a_pull_that_was_taken_over_is_given_up(database: Database) -> None:
    async with working(database, reservation_ttl_ms=30) as works:
        gate = Gate(works)
        await works.create()
        work = asyncio.create_task(works.reconciler.run_once())
        _, _, verdict = await gate.begun.get()
        await database.execute("UPDATE image_pulls SET reserved_by = 'other'")
        with pytest.raises(asyncio.CancelledError):
            await verdict
        await work
        (pull,) = await works.store.pulls.all()
        assert (pull.status, pull.reserved_by) == ("pulling", "other")


async def test_progress_is_recorded_while_it_is_pulled(database: Database) -> None:
    async with working(database, reservation_ttl_ms=30) as works:
        gate = Gate(works)
        await works.create()
        seen: list[Any] = []
        pull = works.engine.pull

        async def slow(host: str, image: str, progress: Callable[[PullProgress], None]) -> bool:
            progress(PullProgress(current=3, total=7))
            return await pull(host, image, progress)

        works.engine.pull = slow  # type: ignore[method-assign]
        work = asyncio.create_task(works.reconciler.run_once())
        _, _, verdict = await gate.begun.get()
        while not seen:
            seen = [row for row in await works.store.pulls.all() if row.current_bytes]
        verdict.set_result(None)
        await work
        assert (seen[0].current_bytes, seen[0].total_bytes) == (3, 7)


async def test_a_replica_that_shuts_down_hands_its_pull_over_at_once(database: Database) -> None:
    async with working(database) as works:
        gate = Gate(works)
        await works.create()
        other = await works.replica()
        running = asyncio.create_task(other.run(database))
        await gate.begun.get()
        other.stop()
        await running
        work = asyncio.create_task(works.reconciler.run_once())
        _, _, verdict = await gate.begun.get()
        verdict.set_result(None)
        await work
        assert await statuses(works) == [BotStatus.JOINING_CALL]


async def test_a_replica_that_shuts_down_hands_its_pulls_over_once_nothing_can_begin_another(
    database: Database,
) -> None:
    async with working(database) as works:
        ended: list[str] = []
        began = [asyncio.Event(), asyncio.Event()]

        async def compare(*_: object) -> Any:
            began[0].set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("round")

        async def pull(*_: object) -> Any:
            began[1].set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("pull")

        works.engine.list = compare  # type: ignore[method-assign, assignment]
        works.engine.pull = pull  # type: ignore[method-assign, assignment]
        await works.create()
        other = await works.replica()
        running = asyncio.create_task(other.run(database))
        for event in began:
            await event.wait()
        other.stop()
        await running
        assert ended == ["round", "pull"]


@pytest.mark.parametrize(("hosts", "launches"), [(("a",), 1), (("a", "b"), 2)])
async def test_a_bot_whose_image_is_refused_ends_at_once_unless_another_host_may_have_it(
    database: Database, hosts: tuple[str, ...], launches: int
) -> None:
    async with working(database, hosts=hosts) as works:

        async def refuse(*_: object) -> bool:
            raise EngineRefused("no basic auth credentials")

        works.engine.pull = refuse  # type: ignore[method-assign, assignment]
        bot = await works.launched()
        assert (bot.status, bot.launch_attempts) == (BotStatus.FATAL, launches)
        assert bot.failure_cause is FailureCause.IMAGE_PULL
        assert bot.failure_reason == "the image can't be pulled: no basic auth credentials"


async def test_why_a_pull_fails_is_told_to_those_who_wait_once_until_it_changes(
    database: Database,
) -> None:
    async with working(database) as works:
        why = "no route, after 1 s"

        async def fail(*_: object) -> bool:
            raise EngineUnavailable(why)

        works.engine.pull = fail  # type: ignore[method-assign, assignment]
        bots = [(await works.create()).bot for _ in range(2)]
        await works.reconciler.run_once()
        for seconds in range(2, 6):
            why = f"no route, after {seconds} s"
            await works.go(seconds=100)
        why = "a full disk"
        await works.go(seconds=100)
        for bot in bots:
            first, second = await told(works, bot)
            assert first.endswith(f"of {IMAGE} failed: no route, after 1 s")
            assert second.endswith(f"of {IMAGE} failed: a full disk")
        (pull,) = await works.store.pulls.all()
        assert pull.error == "a full disk"


async def test_an_error_that_nobody_was_told_of_is_news_to_the_first_bot_that_waits(
    database: Database,
) -> None:
    async with working(database) as works:
        take_registry_away(works)
        await works.reconciler.bring_images("simulated", "a")
        await works.reconciler.pulls_finished()
        bot = await works.launched()
        (only,) = await told(works, bot)
        assert only.endswith(f"of {IMAGE} failed: the registry is down")


async def test_a_bot_that_comes_to_wait_just_as_a_pull_fails_is_told_why(
    database: Database,
) -> None:
    async with working(database) as works:
        take_registry_away(works)
        failed, looked_again = asyncio.Event(), asyncio.Event()
        pulls, assignments = works.store.pulls, works.pool.assignments
        finish, take, record = pulls.finish, pulls.take, assignments.record_deployment

        async def finish_late(*arguments: Any) -> None:
            failed.set()
            await looked_again.wait()
            await finish(*arguments)

        async def record_late(*arguments: Any, **more: Any) -> None:
            await failed.wait()
            await record(*arguments, **more)

        async def look(*arguments: Any) -> Any:
            pull = await take(*arguments)
            if failed.is_set():
                looked_again.set()
            return pull

        pulls.finish = finish_late  # type: ignore[method-assign, assignment]
        assignments.record_deployment = record_late  # type: ignore[method-assign, assignment]
        pulls.take = look  # type: ignore[method-assign, assignment]
        bot = await works.launched()
        assert await told(works, bot) == [f"pull 1 of {IMAGE} failed: the registry is down"]


async def test_a_bot_that_comes_while_a_pull_waits_for_its_next_try_is_told_why(
    database: Database,
) -> None:
    async with working(database) as works:
        take_registry_away(works)
        await works.launched()
        later = await works.launched()
        assert await told(works, later) == [f"pull 1 of {IMAGE} failed: the registry is down"]
        for _ in range(3):
            await works.go(seconds=100)
        assert len(await told(works, later)) == 1


async def test_of_two_who_tell_a_bot_the_same_error_at_once_one_is_heard(
    database: Database,
) -> None:
    async with working(database) as works:
        bot = (await works.create()).bot
        slot = await works.slot_of(bot.id)
        async with database.transaction() as connection:
            first = await connection.fetch(
                "SELECT * FROM tell_error(ARRAY[$1::bigint], ARRAY[$2::bigint], $3, $3, 1)",
                slot.id,
                slot.lease,
                "away",
            )
            second = asyncio.create_task(works.pool.slots.tell_error(slot, "away", 2))
            await works.until_blocked(second)
        assert (len(first), await second) == (1, [])
