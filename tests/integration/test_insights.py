"""Insights: what happened in a time, by hand and as told."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from botpool.errors import InvalidRequest
from botpool.models.insights import InsightsRange
from botpool.states import BotStatus, FailureCause, Platform
from botpool.store import insights
from tests.integration.test_bots_api import opened
from tests.integration.test_launches import join
from tests.support.works import working

if TYPE_CHECKING:
    from datetime import datetime

    from botpool.models.insights import Insights
    from botpool.store import Database
    from tests.support.scene import Scene

pytestmark = pytest.mark.older_postgres

MINUTE = 60


async def midnight(scene: Scene) -> datetime:
    """Let the next day begin, so that no test spans two of them by chance."""
    now = await scene.store.installation.now()
    next_day = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    await scene.pass_time(seconds=(next_day - now).total_seconds())
    return await scene.store.installation.now()


async def read(scene: Scene, since: datetime, *, price: float | None = None, **of: Any) -> Insights:
    until = await scene.store.installation.now() + timedelta(seconds=1)
    wanted = InsightsRange.of(since, until, **{"step_seconds": MINUTE, **of})
    return await scene.store.insights.read(wanted, price)


async def test_launch_times_are_told_by_phase_and_step(database: Database) -> None:
    async with working(database) as works:
        since = await midnight(works)
        for claims in (1, 2, 3):
            await join(works, await works.launched(), claims=claims, knocks=0, let_in=0)
        await works.pass_time(minutes=2)
        await join(works, await works.launched(), claims=30, knocks=1, let_in=2)
        await works.launched()  # not in its call yet
        found = await read(works, since)
        assert [(times.at, times.count) for times in found.launches] == [
            (since, 3),
            (since + timedelta(minutes=2), 1),
        ]
        first, second = found.launches
        assert (first.phases["claimed"].p50, first.phases["claimed"].p99) == (2000, 2980)
        assert second.phases["total"].p50 == 33_000
        assert (second.phases["joined"].p95, second.phases["in_call"].p95) == (1000, 2000)
        assert found.launch_totals.count == 4


async def test_of_many_launches_all_are_counted_and_some_tell_how_long_they_took(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database) as works:
        since = await midnight(works)
        for claims in (1, 2, 9, 4):
            await join(works, await works.launched(), claims=claims, knocks=0, let_in=0)
        until = await works.store.installation.now() + timedelta(seconds=1)
        wanted = InsightsRange.of(since, until, step_seconds=MINUTE)
        monkeypatch.setattr(insights, "_MOST_SORTED", 2)
        found = await works.store.insights.read(wanted)
        ((first,), total) = found.launches, found.launch_totals
        assert (first.count, total.count) == (4, 4)
        # One of the first three tells, and one of the next: by chance, the first and the last.
        assert total.phases["claimed"].p50 == 2500


async def test_a_phase_that_was_skipped_counts_for_nothing(database: Database) -> None:
    async with working(database) as works:
        since = await midnight(works)
        await works.warm()
        await join(works, await works.launched(), claims=1, knocks=0, let_in=0)
        (times,) = (await read(works, since)).launches
        assert times.phases["created"].p50 is None
        assert times.phases["started"].p50 == 0


async def test_running_and_waiting_bots_are_told_at_their_most_in_every_step(scene: Scene) -> None:
    since = await midnight(scene)
    bots = [(await scene.create()).bot for _ in range(5)]  # 3 run, 2 wait
    await scene.pass_time(seconds=90)
    slot = await scene.slot_of(bots[0].id)
    await scene.end(slot)
    await scene.pool.slots.make_idle(slot.id, slot.lease)  # and the first one gets it
    await scene.pool.assignments.stop_bot(bots[4].id)
    await scene.pass_time(seconds=150)
    load = (await read(scene, since)).load
    assert [(each.running, each.waiting) for each in load] == [
        (3, 2),
        (3, 2),
        (3, 0),
        (3, 0),
        (3, 0),
    ]
    later = await read(scene, since + timedelta(minutes=2))
    assert [(each.running, each.waiting) for each in later.load] == [(3, 0)] * 3


async def test_outcomes_and_failures_are_counted(scene: Scene) -> None:
    since = await midnight(scene)
    done, failed, *_ = [(await scene.create()).bot for _ in range(3)]
    await scene.end(await scene.slot_of(done.id))
    slot = await scene.slot_of(failed.id)
    await scene.pool.assignments.advance(slot.id, slot.lease, BotStatus.FATAL, "no")
    waits = (await scene.create(queue_timeout_ms=1000)).bot
    await scene.pass_time(seconds=2)
    await scene.pool.queue.expire()
    await scene.pool.assignments.stop_bot((await scene.create()).bot.id)
    found = await read(scene, since)
    outcomes = found.outcomes
    assert (outcomes.created, outcomes.done, outcomes.failed) == (5, 1, 2)
    assert (outcomes.cancelled, outcomes.live) == (1, 1)
    assert found.failures == {FailureCause.BOT_FAILED: 1, FailureCause.QUEUE_TIMEOUT: 1}
    assert waits.id


async def test_waits_that_were_told_stand_beside_those_that_were_had(scene: Scene) -> None:
    since = await midnight(scene)
    bots = [(await scene.create()).bot for _ in range(3)]
    await scene.pass_time(seconds=30)
    first = await scene.slot_of(bots[0].id)
    await scene.end(first)
    await scene.pool.slots.make_idle(first.id, first.lease)  # occupied for 30 s: 10 s a place
    await scene.create()
    waiting = await scene.create()
    assert waiting.estimated_wait_ms == 10_000
    await scene.pass_time(seconds=25)
    second = await scene.slot_of(bots[1].id)
    await scene.end(second)
    await scene.pool.slots.make_idle(second.id, second.lease)
    total = (await read(scene, since)).wait_totals
    assert (total.count, total.told.p50, total.had.p50) == (1, 10_000, 25_000)
    assert total.kept_share == 0


async def test_slot_hours_their_use_and_their_cost_are_told_by_day(scene: Scene) -> None:
    since = await midnight(scene)
    _, slot = await scene.running()
    await scene.pass_time(hours=20)
    await scene.end(slot)
    await scene.pool.slots.make_idle(slot.id, slot.lease)
    await scene.pass_time(hours=10)
    await scene.pool.slots.remove(slot.id)
    await scene.pass_time(hours=2)
    found = await read(scene, since, price=0.5, step_seconds=3600)
    told = [(use.day, use.slot_hours, use.used_hours, use.cost) for use in found.usage]
    assert told == [
        (since.date(), 24, 20, 12),
        (since.date() + timedelta(days=1), 6, 0, 3),
    ]
    (project,) = found.projects
    assert (project.name, project.bots, project.in_call_hours) == ("default", 1, 20)
    assert (project.used_hours, project.cost) == (20, 10)


async def test_a_slot_that_is_there_counts_until_now_and_not_before_its_time(scene: Scene) -> None:
    since = await midnight(scene)
    await scene.pass_time(hours=1)
    await scene.create(Platform.ZOOM)
    await scene.pass_time(hours=2)
    found = await read(scene, since, step_seconds=3600)
    (use,), (project,) = found.usage, found.projects
    assert project.in_call_hours == 0
    assert (use.platform, use.slot_hours, use.used_hours) == (Platform.ZOOM, 2, 2)
    assert use.cost is None


async def test_a_platform_or_a_project_alone_is_told(database: Database) -> None:
    async with opened(database, slot_hour_price=1.0) as api:
        await midnight(api)
        await api.ask()
        await api.ask(api.bob, meetingUrl="https://zoom.us/j/1234567890")
        await api.pass_time(hours=1)

        async def told(client: Any, **asked: Any) -> Any:
            answer = await client.get("/api/v1/insights", params=asked)
            assert answer.status_code == 200, answer.text
            return answer.json()

        everything = await told(api.admin)
        assert [use["platform"] for use in everything["usage"]] == ["google-meet", "zoom"]
        assert [project["name"] for project in everything["projects"]] == ["a", "b"]
        zoom = await told(api.admin, platform="zoom")
        assert [use["slotHours"] for use in zoom["usage"]] == [1]
        own = await told(api.alice)
        assert own["outcomes"]["created"] == 1
        (use,) = own["usage"]
        assert (use["slotHours"], use["usedHours"], use["cost"]) == (None, 1, 1)
        other = everything["projects"][1]["projectId"]
        assert (await told(api.admin, projectId=other))["outcomes"]["created"] == 1
        refused = await api.alice.get("/api/v1/insights", params={"projectId": other})
        assert refused.status_code == 403


async def test_the_same_numbers_come_as_csv(database: Database) -> None:
    async with opened(database) as api:
        await api.running()
        await api.pass_time(minutes=1)
        by_name = await api.admin.get("/api/v1/insights", params={"format": "csv"})
        by_type = await api.admin.get("/api/v1/insights", headers={"Accept": "text/csv"})
        assert by_name.headers["Content-Type"].startswith("text/csv")
        assert by_type.text == by_name.text
        rows = [*csv.DictReader(io.StringIO(by_name.text))]
        values = {(row["section"], row["name"]): row["value"] for row in rows}
        assert values["outcomes", "created"] == "1"
        assert values["launchTotals", "total.p50"] == "0.0"
        assert float(values["usage", "usedHours"]) == pytest.approx(1 / 60)
        usual = await api.admin.get("/api/v1/insights", headers={"Accept": "*/*"})
        assert usual.json()["outcomes"]["created"] == 1


@pytest.mark.parametrize(
    ("seconds", "step", "chosen"),
    [(3600, None, 60), (86_400, None, 900), (30 * 86_400, None, 6 * 3600), (3600, 7, 7)],
)
async def test_steps_are_as_short_as_makes_a_chart(
    scene: Scene, seconds: int, step: int | None, chosen: int
) -> None:
    now = await scene.store.installation.now()
    wanted = InsightsRange.of(now - timedelta(seconds=seconds), now, step_seconds=step)
    assert wanted.step_seconds == chosen


async def test_a_range_that_can_not_be_told_is_refused(scene: Scene) -> None:
    now = await scene.store.installation.now()
    for since, step in (
        (now, None),
        (now - timedelta(days=400), None),
        (now - timedelta(days=1), 1),
    ):
        with pytest.raises(InvalidRequest):
            InsightsRange.of(since, now, step_seconds=step)
