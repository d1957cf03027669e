"""Unhealthy hosts get no new work until a probe goes well; hosts in no settings, none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from botpool.errors import EngineRefused, EngineUnavailable, NoImage
from botpool.models.assignments import FailedLaunch
from botpool.models.hosts import HostFailure, HostReport
from botpool.states import (
    BotStatus,
    FailureCause,
    Platform,
    SlotStatus,
)
from tests.support.works import IMAGE, container, working

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from botpool.engines.base import Container, ContainerSpec
    from botpool.models.slots import Slot
    from botpool.store import Database
    from tests.support.works import Works

LIMITS = {"most": 5, "within_ms": 120_000, "probe_in_ms": 60_000}


async def unhealthy(works: Works) -> list[str]:
    return [host.host for host in await works.store.hosts.all() if host.unhealthy_since is not None]


async def fail_on(works: Works, host: str, times: int) -> None:
    """Let so many looks at slots of a host fail."""
    works.engine.take_away(host)
    for _ in range(times):
        await works.go(minutes=1)
        await works.reconciler.compare_once()


def _everywhere(hosts: Sequence[str]) -> Callable[[], Awaitable[Sequence[str]]]:
    async def open_hosts() -> Sequence[str]:
        return hosts

    return open_hosts


async def test_a_host_that_does_not_answer_stays_closed_whatever_other_workers_know_of_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database, hosts=("a", "b")) as works:
        # As Docker's: each host has its own API, and only asking it tells whether it answers.
        monkeypatch.setattr(works.engine, "open_hosts", _everywhere(works.engine.hosts()))
        works.engine.take_away("a")
        await works.reconciler.compare_once()
        await works.reconciler.report_hosts()
        closed = [host.host for host in await works.store.hosts.all() if not host.open]
        assert closed == ["a"]
        assert {(await works.slot_of((await works.create()).bot.id)).host for _ in "123"} == {"b"}
        works.engine.bring_back("a")
        await works.go(minutes=1)
        await works.reconciler.compare_once()
        assert all(host.open for host in await works.store.hosts.all())


async def test_a_host_that_fails_often_gets_no_new_work_until_a_probe_goes_well(
    database: Database,
) -> None:
    async with working(database, hosts=("a", "b"), host_failures=3) as works:
        slots = [await works.warm() for _ in range(1)]
        bots = [await works.launched() for _ in range(3)]
        for bot in bots:
            await works.end(await works.slot_of(bot.id))
        await works.reconciler.run_once()
        assert {slot.host for slot in await works.store.slots.all()} == {"a", "b"}
        victim = (await works.create()).bot
        host = (await works.slot_of(victim.id)).host or ""
        await fail_on(works, host, 3)
        assert await unhealthy(works) == [host]
        # Whoever was to start there goes elsewhere, and so does everybody new.
        await works.go(minutes=1)
        for bot in [victim, *[await works.launched() for _ in range(2)]]:
            assert (await works.slot_of(bot.id)).host != host
        works.engine.bring_back(host)
        answers = HostReport(host=host, capacity=None, open=True)
        await works.pool.hosts.report("simulated", [answers])
        for _ in range(10):
            await works.go(minutes=1)
            await works.reconciler.recover_once()
        assert await unhealthy(works) == []
        assert all(not slot.held for slot in await works.store.slots.all())
        assert slots


async def test_one_success_between_failures_keeps_a_host_well(database: Database) -> None:
    async with working(database, host_failures=3) as works:
        slot = await works.warm()
        for _ in range(3):
            await works.create()
            await fail_on(works, "a", 1)
            works.engine.bring_back("a")
            await works.go(minutes=2)
            await works.end(await works.store.slots.get(slot.id))
            await works.reconciler.run_once()
        assert await unhealthy(works) == []


async def make_unhealthy(works: Works, host: str) -> None:
    for number in range(5):
        failure = HostFailure(engine="simulated", host=host, what=f"{number}", reason="it is away")
        await works.store.hosts.note_failure(failure, **LIMITS)
    assert host in await unhealthy(works)


async def idle_slots(works: Works, count: int) -> list[Slot]:
    bots = [await works.launched() for _ in range(count)]
    for bot in bots:
        await works.end(await works.slot_of(bot.id))
    await works.reconciler.run_once()
    return [await works.store.slots.get(slot.id) for slot in await works.store.slots.all()]


async def test_a_host_that_is_healthy_and_fails_at_once_is_not_held_for_ever(
    database: Database, database_url: str
) -> None:
    async with working(database) as works:
        await works.warm()
        failure = HostFailure(engine="simulated", host="a", what="0", reason="it is away")
        await works.store.hosts.note_failure(failure, **LIMITS)
        other = await asyncpg.connect(database_url)
        async with other.transaction():
            await other.execute(
                "SELECT note_failure(jsonb_build_object('engine', 'simulated', 'host', 'a',"
                " 'what', n, 'image', '', 'reason', 'away'), 5, 120000, 60000)"
                " FROM generate_series(1, 5) n"
            )
            success = asyncio.create_task(works.pool.hosts.note_healthy("simulated", "a"))
            await works.until_blocked(success)
        await other.close()
        await success
        assert await unhealthy(works) == []
        assert not any(slot.held for slot in await works.store.slots.all())


async def test_one_container_that_fails_again_and_again_makes_no_host_unhealthy(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database, max_pool_size=2) as works:
        await idle_slots(works, 2)
        wedged = await works.slot_of((await works.launched()).id)
        stop = works.engine.stop

        async def refuse_one(stopped: Container, grace_seconds: float) -> None:
            if stopped == container(wedged):
                raise EngineUnavailable("it did not receive an exit event")
            await stop(stopped, grace_seconds)

        monkeypatch.setattr(works.engine, "stop", refuse_one)
        await works.end(wedged)
        for _ in range(60):
            await works.go(seconds=5)
        assert await unhealthy(works) == []
        assert (await works.launched()).status is BotStatus.JOINING_CALL
        # It is given up in the end, and its name is free.
        slot = await works.store.slots.get(wedged.id)
        assert slot.status is SlotStatus.ERROR
        assert slot.error_message == "it did not receive an exit event"
        for _ in range(200):
            await works.go(seconds=20)
        assert [slot.id for slot in await works.store.slots.all()] != [slot.id, wedged.id]
        assert wedged.id not in {slot.id for slot in await works.store.slots.all()}


async def test_a_slot_whose_host_is_silent_is_never_given_up(database: Database) -> None:
    async with working(database) as works:
        slot = await works.slot_of((await works.launched()).id)
        await works.end(slot)
        works.engine.take_away("a")
        for _ in range(60):
            await works.go(minutes=1)
        assert (await works.store.slots.get(slot.id)).status is SlotStatus.RELEASING
        works.engine.bring_back("a")
        await works.go(minutes=2)
        assert (await works.store.slots.get(slot.id)).status is SlotStatus.IDLE


async def test_a_platform_without_an_image_does_no_harm_to_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database, host_failures=2) as works:
        await works.warm()
        create = works.engine.create

        async def as_docker_does(spec: ContainerSpec) -> str:
            if not spec.image:
                raise NoImage(f"{spec.slot_name} has no image: set the image of its platform.")
            return await create(spec)

        monkeypatch.setattr(works.engine, "create", as_docker_does)
        lost = [await works.launched(Platform.ZOOM) for _ in range(5)]
        assert await unhealthy(works) == []
        assert (await works.launched()).status is BotStatus.JOINING_CALL
        found = await works.store.bots.get(lost[0].id)
        assert (found.status, found.failure_cause) == (BotStatus.FATAL, FailureCause.IMAGE_PULL)


async def test_an_image_that_never_starts_is_not_its_hosts_fault_while_others_do(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database, host_failures=2, image_zoom="bad:1") as works:
        await works.warm()
        start = works.engine.start

        async def refuse_bad(started: Container, environment: dict[str, str], **more: Any) -> str:
            if "zoom" in started.ref:
                raise EngineRefused("no such entrypoint")
            return await start(started, environment, **more)

        monkeypatch.setattr(works.engine, "start", refuse_bad)
        for _ in range(4):
            await works.launched(Platform.ZOOM)
        assert await unhealthy(works) == []
        assert (await works.launched()).status is BotStatus.JOINING_CALL

        async def refuse_all(*_: object, **__: object) -> str:
            raise EngineRefused("no space left on device")

        monkeypatch.setattr(works.engine, "start", refuse_all)
        await works.launched()
        await works.launched(Platform.ZOOM)
        assert await unhealthy(works) == ["a"]


async def test_an_image_that_runs_elsewhere_says_something_of_a_host(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database, hosts=("a", "b"), host_failures=2, image_zoom="zoom:1") as works:
        for platform in (Platform.ZOOM, Platform.ZOOM, Platform.GOOGLE_MEET, Platform.GOOGLE_MEET):
            await works.launched(platform)
        start = works.engine.start

        async def refuse_on_a(started: Container, environment: dict[str, str], **more: Any) -> str:
            if started.host == "a":
                raise EngineRefused("no space left on device")
            return await start(started, environment, **more)

        monkeypatch.setattr(works.engine, "start", refuse_on_a)
        for _ in range(4):
            await works.launched()
        assert await unhealthy(works) == ["a"]


async def test_failures_of_new_slots_count_as_well(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database, max_pool_size=20) as works:
        works.engine.add_image("a", IMAGE)

        async def refuse(_: ContainerSpec) -> str:
            raise EngineRefused("no space left on device")

        monkeypatch.setattr(works.engine, "create", refuse)
        for _ in range(3):
            await works.create()
        await works.reconciler.run_once()
        assert await unhealthy(works) == ["a"]


async def test_what_stops_does_not_make_a_host_well(database: Database) -> None:
    async with working(database, max_pool_size=2) as works:
        bots = [await works.launched() for _ in range(2)]
        await make_unhealthy(works, "a")
        for bot in bots:
            await works.end(await works.slot_of(bot.id))
        await works.reconciler.run_once()
        assert {slot.status for slot in await works.store.slots.all()} == {SlotStatus.IDLE}
        assert await unhealthy(works) == ["a"]


async def test_a_host_that_was_silent_is_well_as_soon_as_it_answers(database: Database) -> None:
    async with working(database) as works:
        await works.warm()
        works.engine.take_away("a")
        for _ in range(5):
            await works.pass_time(seconds=30)
            await works.reconciler.compare_once()
        assert await unhealthy(works) == ["a"]
        works.engine.bring_back("a")
        await works.pass_time(seconds=30)
        await works.reconciler.compare_once()
        assert await unhealthy(works) == []
        assert (await works.launched()).status is BotStatus.JOINING_CALL


async def test_a_host_that_answers_and_launches_nothing_stays_unhealthy(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database, host_failures=2) as works:
        await works.warm()

        async def fail(*_: object, **__: object) -> str:
            raise EngineUnavailable("no space left on device")

        monkeypatch.setattr(works.engine, "start", fail)
        for _ in range(2):
            await works.create()
        await works.reconciler.run_once()
        assert await unhealthy(works) == ["a"]
        await works.reconciler.compare_once()
        assert await unhealthy(works) == ["a"]


async def test_an_unhealthy_host_is_probed_by_one_slot_at_a_time_and_never_seldom(
    database: Database,
) -> None:
    async with working(database, max_pool_size=4) as works:
        await idle_slots(works, 4)
        await make_unhealthy(works, "a")
        for _ in range(60):
            await works.pass_time(minutes=1)
            await works.pool.hosts.probe()
        assert [slot.held for slot in await works.store.slots.all()].count(False) == 1
        await works.pass_time(days=2)
        await make_unhealthy(works, "a")  # the probe failed, and is held too
        await works.pool.hosts.probe()
        (host,) = await works.store.hosts.all()
        assert host.probe_at is not None
        assert (host.probe_at - await works.store.installation.now()).total_seconds() <= 600


async def test_an_unhealthy_host_that_has_no_slots_is_probed_when_the_pool_grows(
    database: Database,
) -> None:
    async with working(database, hosts=("a", "b")) as works:
        await make_unhealthy(works, "b")
        first = await works.slot_of((await works.launched()).id)
        await works.pass_time(minutes=10)
        second = await works.slot_of((await works.launched()).id)
        assert (first.host, second.host) == ("a", "b")
        assert await unhealthy(works) == []


async def test_no_launch_is_spent_on_leaving_one_unhealthy_host_for_another(
    database: Database,
) -> None:
    async with working(database, hosts=("a", "b")) as works:
        bot = (await works.create()).bot
        works.engine.take_away("a")
        works.engine.take_away("b")
        await works.reconciler.run_once()
        for host in ("a", "b"):
            await make_unhealthy(works, host)
        await works.go(minutes=1)
        found = await works.store.bots.get(bot.id)
        assert (found.status, found.launch_attempts) == (BotStatus.DEPLOYING, 1)
        assert {host.reason for host in await works.store.hosts.all()} == {"it is away"}


async def test_a_pool_that_may_grow_elsewhere_sends_no_bot_back_to_where_it_failed(
    database: Database,
) -> None:
    async with working(database, hosts=("a", "b"), max_pool_size=4) as works:
        slots = await idle_slots(works, 3)  # two on a, one on b
        assert sorted(slot.host or "" for slot in slots) == ["a", "a", "b"]
        busy = [await works.launched() for _ in range(2)]
        (failing,) = [slot for bot in busy if (slot := await works.slot_of(bot.id)).host == "a"]
        idle = [slot for slot in await works.store.slots.all() if slot.status is SlotStatus.IDLE]
        assert [slot.host for slot in idle] == ["a"]
        bot_id = failing.assigned_bot_id or 0
        await works.pool.relaunch.fail_launch(
            FailedLaunch(
                slot_id=failing.id, lease=failing.lease, cause=FailureCause.ENGINE, reason="broken"
            )
        )
        await works.reconciler.run_once()
        assert (await works.slot_of(bot_id)).host == "b"


# A host that was taken out of the settings


@pytest.mark.parametrize("status", [SlotStatus.IDLE, SlotStatus.BUSY])
async def test_slots_of_a_host_that_nobody_has_move(
    database: Database, monkeypatch: pytest.MonkeyPatch, status: SlotStatus
) -> None:
    async with working(database, hosts=("a", "b"), max_pool_size=2) as works:
        await idle_slots(works, 2)
        bots = [await works.launched() for _ in range(2 if status is SlotStatus.BUSY else 0)]
        await works.reconciler.compare_once()
        monkeypatch.setattr(works.engine, "hosts", lambda: ("a",))
        monkeypatch.setattr(works.engine, "open_hosts", _only_a)
        left = await works.replica()
        for _ in range(12):
            await works.pass_time(minutes=1)
            await left.compare_once()
        for bot in bots:
            await works.end(await works.slot_of(bot.id))
        await left.run_once()
        for _ in range(2):
            await works.create()
        await left.run_once()
        slots = await works.store.slots.all()
        assert [(slot.host, slot.status) for slot in slots] == [("a", SlotStatus.BUSY)] * 2


async def _only_a() -> tuple[str, ...]:
    return ("a",)


async def test_a_host_that_somebody_else_has_is_left_to_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database, hosts=("a", "b"), max_pool_size=2) as works:
        slots = await idle_slots(works, 2)
        for _ in range(2):
            await works.create()
        with monkeypatch.context() as patch:
            patch.setattr(works.engine, "hosts", lambda: ("a",))
            other = await works.replica()
            await works.reconciler.compare_once()
            await other.run_once()
            assert {slot.host for slot in await works.store.slots.all()} == {"a", "b"}
        await works.reconciler.run_once()
        assert {slot.container_ref for slot in await works.store.slots.all()} == {
            slot.container_ref for slot in slots
        }


async def test_a_claim_is_a_success_of_its_host(database: Database) -> None:
    """Five failures among launches that go well, as their bots tell, are not five in a row."""
    async with working(database, max_pool_size=30) as works:
        for number in range(5):
            failure = HostFailure(engine="simulated", host="a", what=f"{number}", reason="broken")
            await works.store.hosts.note_failure(failure, **LIMITS)
            bot = (await works.create()).bot
            slot = await works.slot_of(bot.id)
            await works.pool.assignments.claim(slot)
        assert await unhealthy(works) == []


async def test_an_unhealthy_host_on_which_a_bot_claims_is_healthy(database: Database) -> None:
    async with working(database) as works:
        bot = (await works.create()).bot
        await make_unhealthy(works, "a")
        await works.pool.assignments.claim(await works.slot_of(bot.id))
        assert await unhealthy(works) == []


async def test_a_host_that_refused_connections_is_healthy_when_it_answers(
    database: Database,
) -> None:
    async with working(database, max_pool_size=10) as works:
        await works.launched()
        for _ in range(5):
            await works.create()
        works.engine.take_away("a")
        await works.reconciler.run_once()
        await works.reconciler.compare_once()
        assert await unhealthy(works) == ["a"]
        works.engine.bring_back("a")
        await works.pass_time(seconds=10)
        await works.reconciler.compare_once()
        assert await unhealthy(works) == []
