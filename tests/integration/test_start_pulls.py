"""One pull at a time on engines whose starts bring the image: the first deployment goes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from botpool.api.waiting import what_bots_wait_for
from botpool.engines.base import Traits
from botpool.engines.simulated import Faults
from botpool.models.replicas import ReplicaRole
from botpool.models.waiting import Wait
from botpool.states import BotStatus, SlotStatus
from tests.support.works import IMAGE, working

if TYPE_CHECKING:
    from botpool.engines.base import Container
    from botpool.models.bots import Bot
    from botpool.models.slots import Slot
    from botpool.store import Database
    from tests.support.works import Works

LIKE_COOLIFY = Traits(reusable=True, pulls_at_start=True)
SLOW = Faults(pull=(60, 60), start=(1, 1))


async def statuses(works: Works, bots: list[Bot]) -> list[BotStatus]:
    return [(await works.store.bots.get(bot.id)).status for bot in bots]


async def test_the_others_wait_until_the_first_one_runs(database: Database) -> None:
    async with working(database, faults=SLOW, traits=LIKE_COOLIFY) as works:
        bots = [(await works.create()).bot for _ in range(5)]
        await works.reconciler.run_once()
        assert works.engine.counts["start"] == 1
        await works.go(seconds=59)
        assert works.engine.counts["start"] == 1
        await works.go(seconds=20)
        assert (await statuses(works, bots)).count(BotStatus.JOINING_CALL) == 1
        # Nobody waits any more, and nobody pulls again.
        await works.go(seconds=5)
        assert {*await statuses(works, bots)} == {BotStatus.JOINING_CALL}
        assert works.engine.counts[f"pull a {IMAGE}"] == 1
        assert works.engine.most_pulls["a", IMAGE] == 1


async def test_a_bot_that_claims_before_the_engine_tells_lets_the_others_go_on(
    database: Database,
) -> None:
    async with working(database, faults=SLOW, traits=LIKE_COOLIFY) as works:
        first = await works.launched()
        second = await works.launched()
        slot = await works.slot_of(first.id)
        await works.pool.assignments.heartbeat(slot.id, slot.lease)
        await works.reconciler.run_once()
        assert works.engine.counts["start"] == 2
        assert (await works.slot_of(second.id)).deployment_status == "starting"


async def one_of_three_starts(works: Works) -> tuple[list[Bot], Container, Slot]:
    """Three bots that need an image; the container whose start is to bring it, and its slot."""
    bots = [(await works.create()).bot for _ in range(3)]
    await works.reconciler.run_once()
    (started,) = works.engine.running()
    held = next(s for s in await works.store.slots.all() if s.container_ref == started.ref)
    return bots, started, held


@pytest.mark.parametrize("ends", ["cancelled", "failed"])
async def test_when_the_first_one_comes_to_nothing_exactly_one_tries_next(
    database: Database, ends: str
) -> None:
    async with working(database, faults=SLOW, traits=LIKE_COOLIFY, max_launch_attempts=1) as works:
        bots, started, held = await one_of_three_starts(works)
        if ends == "cancelled":
            await works.pool.assignments.stop_bot(held.assigned_bot_id or 0)
        else:
            works.engine.fail(started)
        works.engine.lose_image("a", IMAGE)
        await works.go(seconds=30)
        assert works.engine.counts["start"] == 2
        assert (await works.store.slots.get(held.id)).status is SlotStatus.IDLE
        left = [bot for bot in bots if bot.id != held.assigned_bot_id]
        await works.go(seconds=100)
        await works.go(seconds=30)
        assert {*await statuses(works, left)} == {BotStatus.JOINING_CALL}


async def test_those_who_wait_are_told_what_the_first_start_failed_with(
    database: Database,
) -> None:
    async with working(database, faults=SLOW, traits=LIKE_COOLIFY, max_launch_attempts=1) as works:
        bots, started, held = await one_of_three_starts(works)
        waiting = [bot for bot in bots if bot.id != held.assigned_bot_id]
        works.engine.fail(started)
        works.engine.lose_image("a", IMAGE)
        await works.go(seconds=30)
        (pull,) = await works.store.pulls.all()
        assert (pull.status, pull.attempts, pull.error) == ("pulling", 2, "it broke")
        for bot in waiting:
            told = [reason for reason in await works.reasons(bot) if reason.startswith("pull ")]
            assert told == [f"pull 1 of {IMAGE} failed: it broke"]
        # The one whose start brings the image now says so.
        await works.store.replicas.seen("one", ReplicaRole.WORKER, "1", "here")
        _, waits = await what_bots_wait_for(
            works.store, [await works.store.bots.get(bot.id) for bot in waiting]
        )
        assert [(wait.what, wait.error) for wait in waits.values() if wait] == [
            (Wait.IMAGE, "it broke")
        ] * 2
        assert {wait.detail for wait in waits.values() if wait} == {
            f"its own start brings {IMAGE} to a",
            f"{IMAGE} could not be pulled to a",
        }


async def test_the_pull_of_a_deployment_goes_on_with_another_replica(database: Database) -> None:
    async with working(database, faults=SLOW, traits=LIKE_COOLIFY) as works:
        bots = [(await works.create()).bot for _ in range(2)]
        await works.reconciler.run_once()
        other = await works.replica()
        await works.pass_time(seconds=70)
        await other.run_once()
        await works.pass_time(seconds=10)
        await other.run_once()
        assert {*await statuses(works, bots)} == {BotStatus.JOINING_CALL}
        assert works.engine.counts["start"] == 2
        assert works.engine.most_pulls["a", IMAGE] == 1


async def test_each_start_has_a_token_of_its_own(database: Database) -> None:
    tokens: list[str] = []
    async with working(database, traits=LIKE_COOLIFY) as works:
        works.engine.started = lambda _, env: tokens.append(env["BOTPOOL_SLOT_TOKEN"])
        slot = await works.warm()
        bot = await works.launched()
        assert (await works.slot_of(bot.id)).container_ref == slot.container_ref
        first, second = tokens
        assert await works.store.slots.of_token(first) is None
        found = await works.store.slots.of_token(second)
        assert found is not None
        assert found.assigned_bot_id == bot.id
