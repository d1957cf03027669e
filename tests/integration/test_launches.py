"""The phases of a launch: when each began and ended, and how long it usually takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from botpool.models.launches import Phase
from botpool.states import BotStatus
from tests.integration.test_bots_api import opened
from tests.support.works import container, working

if TYPE_CHECKING:
    from botpool.models.bots import Bot
    from botpool.store import Database
    from tests.support.works import Works

pytestmark = pytest.mark.older_postgres


async def join(works: Works, bot: Bot, *, claims: int, knocks: int, let_in: int) -> None:
    """Let a launched bot claim, come into the waiting room and into its call, so much later."""
    slot = await works.slot_of(bot.id)
    await works.pass_time(seconds=claims)
    await works.pool.assignments.claim(slot)
    await works.pass_time(seconds=knocks)
    await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_WAITING_ROOM, "knocks")
    await works.pass_time(seconds=let_in)
    await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")


async def durations(works: Works, bot: Bot) -> dict[Phase, float | None]:
    launch = await works.store.launches.of_bot(bot.id)
    assert launch is not None
    return {phase.name: phase.duration_ms for phase in launch.phases}


async def test_each_phase_of_a_launch_has_its_time(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched()
        await join(works, bot, claims=2, knocks=3, let_in=4)
        assert await durations(works, bot) == {
            Phase.QUEUED: 0,
            Phase.PULLED: 0,
            Phase.CREATED: 0,
            Phase.STARTED: 0,
            Phase.CLAIMED: 2000,
            Phase.JOINED: 3000,
            Phase.IN_CALL: 4000,
        }
        launch = await works.store.launches.of_bot(bot.id)
        assert launch is not None
        assert (launch.total_ms, launch.attempt) == (9000, 1)
        assert (await works.store.bots.get(bot.id)).joined_at == launch.phases[-1].ended_at


async def test_a_container_that_was_there_is_a_phase_that_was_skipped(database: Database) -> None:
    async with working(database) as works:
        await works.warm()
        bot = await works.launched()
        launch = await works.store.launches.of_bot(bot.id)
        assert launch is not None
        phases = {phase.name: (phase.began_at, phase.ended_at) for phase in launch.phases}
        assert phases[Phase.CREATED] == (None, None)
        assert phases[Phase.STARTED][1] is not None
        began_at, ended_at = phases[Phase.CLAIMED]
        assert (began_at is None, ended_at) == (False, None)
        assert phases[Phase.JOINED] == (None, None)


async def test_a_wait_in_the_queue_is_a_phase_and_ends_with_the_slot(database: Database) -> None:
    async with working(database, max_pool_size=1) as works:
        first = await works.launched()
        waiting = (await works.create()).bot
        await works.pass_time(seconds=30)
        launch = await works.store.launches.of_bot(waiting.id)
        assert launch is not None
        assert (launch.phases[0].began_at, launch.phases[0].ended_at) == (waiting.created_at, None)
        await works.end(await works.slot_of(first.id))
        await works.reconciler.run_once()
        assert (await durations(works, waiting))[Phase.QUEUED] == 30_000


async def test_a_relaunch_is_a_launch_of_its_own(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched()
        await works.pass_time(seconds=20)
        slot = await works.slot_of(bot.id)
        await works.pool.assignments.claim(slot)
        works.engine.exit(container(slot), 1)
        await works.reconciler.compare_once()
        await works.reconciler.run_once()
        launch = await works.store.launches.of_bot(bot.id)
        assert launch is not None
        assert (launch.attempt, launch.began_at > bot.created_at) == (2, True)
        claimed = launch.phases[4]
        assert (claimed.name, claimed.ended_at) == (Phase.CLAIMED, None)


async def test_what_is_usual_is_told_from_the_last_launches_of_the_platform(
    database: Database,
) -> None:
    async with working(database) as works:
        for seconds in (1, 2, 3):
            await join(works, await works.launched(), claims=seconds, knocks=0, let_in=seconds)
        bot = await works.launched()
        launch = await works.store.launches.of_bot(bot.id)
        assert launch is not None
        assert (launch.usual_of, launch.usual_total.p50) == (3, 4000)
        usual = {phase.name: phase.usual.p50 for phase in launch.phases}
        assert (usual[Phase.CLAIMED], usual[Phase.IN_CALL]) == (2000, 2000)


async def test_a_launch_is_told_over_http_to_those_who_see_the_bot(database: Database) -> None:
    async with opened(database) as api:
        bot = (await api.ask()).json()["bot"]
        answer = await api.alice.get(f"/api/v1/bots/{bot['id']}/launch")
        assert answer.status_code == 200
        body = answer.json()
        assert [phase["name"] for phase in body["phases"]] == list(Phase)
        assert body["phases"][0]["durationMs"] == 0
        assert body["usualTotal"] == {"p5": None, "p50": None, "p95": None}
        assert (await api.bob.get(f"/api/v1/bots/{bot['id']}/launch")).status_code == 404
