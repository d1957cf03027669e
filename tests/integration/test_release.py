"""From a bot that has ended to a slot that the next one can have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from botpool.engines.base import ContainerState, Observation
from botpool.engines.simulated import Faults
from botpool.errors import EngineRefused, EngineUnavailable
from botpool.models.assignments import FailedLaunch
from botpool.models.bots import ContainerFacts
from botpool.states import (
    BotStatus,
    FailureCause,
    Platform,
    SlotStatus,
)
from tests.support.works import container, working

if TYPE_CHECKING:
    from botpool.engines.base import Container
    from botpool.store import Database
    from tests.support.works import Works

pytestmark = pytest.mark.older_postgres

SLOW_STOP = Faults(stop=(20.0, 20.0))


async def refuse(*_: object) -> None:
    raise EngineRefused("it will not")


async def test_a_released_slot_is_stopped_cleaned_and_idle(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        await works.end(slot)
        await works.reconciler.run_once()
        slot = await works.store.slots.get(slot.id)
        assert (slot.status, slot.due_at, slot.reserved_by) == (SlotStatus.IDLE, None, None)
        (found,) = await works.engine.list("a")
        assert found.container == container(slot)
        assert found.observation.state is ContainerState.CREATED


async def test_a_slot_is_free_only_when_its_container_is_proved_stopped(
    database: Database,
) -> None:
    async with working(database, faults=SLOW_STOP, max_pool_size=1, stop_grace_ms=30_000) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        waiting = (await works.create()).bot
        await works.end(slot)
        await works.reconciler.run_once()
        for _ in range(19):
            await works.go(seconds=1)
            assert (await works.store.slots.get(slot.id)).status is SlotStatus.RELEASING
            assert works.engine.counts["start"] == 1
        await works.go(seconds=3)
        assert (await works.slot_of(waiting.id)).id == slot.id
        assert (await works.store.bots.get(waiting.id)).status is BotStatus.JOINING_CALL
        assert works.engine.counts["start"] == 2


async def test_the_next_bot_has_the_slot_without_anybody_being_woken(database: Database) -> None:
    async with working(database, max_pool_size=1) as works:
        slot = await works.slot_of((await works.launched(Platform.ZOOM)).id)
        waiting = (await works.create(Platform.ZOOM)).bot
        await works.end(slot)
        await works.reconciler.run_once()
        assert works.reconciler.counts["taken"] == 2  # deployed; released, and given on
        assert (await works.store.bots.get(waiting.id)).status is BotStatus.JOINING_CALL


async def test_a_bot_cancelled_before_anything_was_made_leaves_an_idle_slot(
    database: Database,
) -> None:
    async with working(database) as works:
        bot = (await works.create()).bot
        slot = await works.slot_of(bot.id)
        await works.pool.assignments.stop_bot(bot.id)
        await works.reconciler.run_once()
        assert (await works.store.slots.get(slot.id)).status is SlotStatus.IDLE
        assert works.engine.counts["calls"] == 0


async def test_what_a_container_wrote_is_kept_for_its_bot(database: Database) -> None:
    async with working(database) as works:
        works.engine.started = lambda started, _: works.engine.say(started, "joined\x00the call")
        bot = await works.launched()
        await works.end(await works.slot_of(bot.id))
        await works.reconciler.run_once()
        assert await works.store.bots.container_logs(bot.id) == [
            "joined\N{REPLACEMENT CHARACTER}the call"
        ]
        assert await works.store.bots.container_logs(bot.id + 1) == []


async def test_the_logs_of_a_failed_launch_are_kept_too(database: Database) -> None:
    async with working(database, max_launch_attempts=1) as works:

        def crash(started: object, _: object) -> None:
            works.engine.say(started, "no browser")  # type: ignore[arg-type]
            works.engine.exit(started, 3)  # type: ignore[arg-type]

        works.engine.started = crash
        bot = await works.launched(Platform.ZOOM)
        assert bot.failure_cause is FailureCause.CRASHED
        assert bot.failure_reason == (
            "container exited with code 3, deployment deployment-1; its last lines:\nno browser"
        )
        assert await works.store.bots.container_logs(bot.id) == ["no browser"]
        assert (await works.store.bots.container_facts(bot, None)).exit_code == 3


async def test_how_a_container_ended_is_kept_for_its_bot_and_told_of_its_slot(
    database: Database,
) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        works.engine.exit(container(slot), 3)
        await works.end(slot)
        await works.reconciler.run_once()
        bot, slot = await works.store.bots.get(bot.id), await works.store.slots.get(slot.id)
        assert (await works.store.bots.container_facts(bot, None)).exit_code == 3
        assert (await works.store.bots.container_facts_of_slot(slot)).exit_code == 3
        # The next bot's container has done nothing yet.
        following = await works.launched()
        slot = await works.slot_of(following.id)
        assert await works.store.bots.container_facts_of_slot(slot) == ContainerFacts()
        assert await works.store.bots.container_facts(following, slot) == ContainerFacts()


async def test_a_container_that_is_gone_is_made_again_for_the_next_bot(
    database: Database,
) -> None:
    async with working(database) as works:
        slot = await works.slot_of((await works.launched()).id)
        works.engine.lose(container(slot))
        await works.end(slot)
        await works.reconciler.run_once()
        again = await works.store.slots.get(slot.id)
        assert again.status is SlotStatus.IDLE
        assert again.container_ref != slot.container_ref
        assert [found.container for found in await works.engine.list("a")] == [container(again)]


async def test_a_slot_whose_image_is_gone_is_free_without_a_container(database: Database) -> None:
    async with working(database) as works:
        slot = await works.slot_of((await works.launched()).id)
        works.engine.lose_image("a", slot.image or "")
        await works.end(slot)
        await works.reconciler.run_once()
        slot = await works.store.slots.get(slot.id)
        assert (slot.status, slot.container_ref) == (SlotStatus.IDLE, None)


async def test_a_slot_that_cannot_be_stopped_is_in_error_and_well_again_later(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database) as works:
        slot = await works.slot_of((await works.launched()).id)
        with monkeypatch.context() as patch:
            patch.setattr(works.engine, "stop", refuse)
            await works.end(slot)
            await works.reconciler.run_once()
            slot = await works.store.slots.get(slot.id)
            assert (slot.status, slot.error_message) == (SlotStatus.ERROR, "it will not")
            assert slot.recovery_attempts == 1
        await works.go(minutes=2)
        slot = await works.store.slots.get(slot.id)
        assert (slot.status, slot.recovery_attempts) == (SlotStatus.IDLE, 0)
        assert works.engine.running() == []


async def test_a_slot_that_cannot_be_made_well_is_deleted_after_three_attempts(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        monkeypatch.setattr(works.engine, "stop", refuse)
        await works.end(slot)
        await works.reconciler.run_once()
        waits = []
        while found := await works.store.slots.find(slot.id):
            assert found.due_at is not None
            waits.append((found.due_at - found.read_at).total_seconds())
            await works.go(seconds=waits[-1])
        assert len(waits) == 2
        assert waits[1] > waits[0] * 1.2
        # Each attempt is told, and that it was the last.
        told = (await works.store.events.of_slot(slot.id, 2**62, 50, 2**20)).events
        reasons = [event.data["reason"] for event in reversed(told)]
        assert [reason for reason in reasons if "recover" in reason] == [
            *(f"recovery {number} of 3 failed: it will not" for number in (1, 2, 3)),
            "given up after 3 failed recoveries: it will not",
        ]
        assert {event.data["botId"] for event in told[1:]} == {bot.id}
        assert (await works.create()).bot.slot_name == slot.slot_name


async def test_an_engine_that_does_not_answer_costs_no_slot(database: Database) -> None:
    async with working(database) as works:
        slot = await works.slot_of((await works.launched()).id)
        await works.pool.relaunch.fail_launch(
            FailedLaunch(
                slot_id=slot.id, lease=slot.lease, cause=FailureCause.ENGINE, reason="broken"
            )
        )
        works.engine.take_away("a")
        for _ in range(30):
            await works.go(minutes=1)
        found = await works.store.slots.get(slot.id)
        assert (found.status, found.recovery_attempts) == (SlotStatus.ERROR, 0)
        works.engine.bring_back("a")
        await works.go(minutes=2)
        assert (await works.store.slots.get(slot.id)).status is not SlotStatus.ERROR


async def test_a_container_that_will_not_stop_keeps_its_slot_from_the_next_bot(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database, max_pool_size=1) as works:
        slot = await works.slot_of((await works.launched()).id)
        waiting = (await works.create()).bot

        async def running(_: object) -> Observation:
            return Observation(state=ContainerState.RUNNING)

        monkeypatch.setattr(works.engine, "observe", running)
        await works.end(slot)
        await works.go(minutes=2)
        assert (await works.store.slots.get(slot.id)).status is SlotStatus.RELEASING
        assert (await works.store.bots.get(waiting.id)).status is BotStatus.QUEUED
        assert works.engine.counts["start"] == 1


async def test_the_engine_shows_what_each_slot_is_doing(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        assert described(works, slot.container_ref).startswith(f"[BUSY] Bot #{bot.id} - 20")
        await works.end(slot)
        await works.reconciler.run_once()
        shown = described(works, (await works.store.slots.get(slot.id)).container_ref)
        assert shown.startswith("[IDLE] Available - Last used: 20")
        assert shown.endswith("Z")


async def test_a_description_that_is_not_shown_is_no_reason_to_fail(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database) as works:
        monkeypatch.setattr(works.engine, "describe", refuse)
        assert (await works.launched()).status is BotStatus.JOINING_CALL


def described(works: Works, ref: str | None) -> str:
    return works.engine.description(
        next(found for found in works.engine.containers() if found.ref == ref)
    )


async def test_a_container_that_can_not_be_removed_does_not_hold_up_its_slot(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database) as works:
        slot = await works.slot_of((await works.launched()).id)
        old = container(slot)
        remove = works.engine.remove

        async def stuck(removed: Container) -> None:
            if removed == old:
                raise EngineUnavailable("device or resource busy")
            await remove(removed)

        with monkeypatch.context() as patch:
            patch.setattr(works.engine, "remove", stuck)
            await works.end(slot)
            await works.reconciler.run_once()
            assert (await works.store.slots.get(slot.id)).status is SlotStatus.RELEASING
            await works.go(seconds=2)
        again = await works.store.slots.get(slot.id)
        assert again.status is SlotStatus.IDLE
        assert {*works.engine.containers()} == {old, container(again)}
        # The comparison removes it once that can be done.
        await works.pass_time(seconds=10)
        await works.reconciler.compare_once()
        assert works.engine.containers() == [container(again)]
