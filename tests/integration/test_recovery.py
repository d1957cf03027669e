"""What is stuck is found, and comes to its end: every row of the table in `recovery.py`."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from botpool.engines.simulated import Faults
from botpool.errors import StaleLease
from botpool.models.assignments import FailedLaunch
from botpool.models.pulls import PullKey
from botpool.models.slots import WaitsFor
from botpool.reconciler import decisions, recovery
from botpool.reconciler.decisions import Outcome, counted
from botpool.reconciler.recovery import carry_out
from botpool.states import BotStatus, FailureCause, SlotStatus
from tests.support.works import container, working

if TYPE_CHECKING:
    from botpool.engines.base import Container
    from botpool.models.bots import Bot
    from botpool.models.slots import Slot
    from botpool.reconciler.decisions import Decision
    from botpool.store import Database
    from tests.support.works import Works

SLOW = Faults(start=(1e9, 1e9))


async def recovered(works: Works) -> dict[Outcome, int]:
    """What one round of recovery did."""
    return counted(await works.reconciler.recover_once())


def only(**counts: int) -> dict[Outcome, int]:
    return {**dict.fromkeys(Outcome, 0), **{Outcome(name): n for name, n in counts.items()}}


async def stuck(works: Works) -> Bot:
    """A bot whose container was started, and of which the engine says no more that it starts."""
    bot = await works.launched()
    slot = await works.slot_of(bot.id)
    works.engine.fail(container(slot))
    # Nobody looks at it any more: whoever did has it claimed, and is gone.
    await works.database.execute(
        "UPDATE bot_pool_slots SET due_at = botpool_now() + interval '1 h'"
    )
    return await works.store.bots.get(bot.id)


async def heard(works: Works, bot: Bot) -> None:
    """Let a heartbeat be recorded that did not make its slot busy."""
    await works.database.execute(
        "UPDATE bots SET last_heartbeat = botpool_now() WHERE id = $1", bot.id
    )


# The seeds' decision matrix, and their five scenarios


async def test_a_deployment_without_a_heartbeat_is_given_up_after_15_minutes(
    database: Database,
) -> None:
    async with working(database, faults=SLOW) as works:
        bot = await stuck(works)
        await works.pass_time(minutes=14, seconds=59)
        assert await recovered(works) == only()
        await works.pass_time(seconds=1)
        assert await recovered(works) == only(failed=1)
        bot = await works.store.bots.get(bot.id)
        assert (bot.status, bot.failure_cause) == (BotStatus.FATAL, FailureCause.START_TIMEOUT)
        assert "never heard; container failed (it broke)" in (bot.failure_reason or "")
        (slot,) = await works.store.slots.all()
        assert slot.status is SlotStatus.RELEASING
        await works.reconciler.run_once()
        assert (await works.store.slots.get(slot.id)).status is SlotStatus.IDLE


async def test_a_deployment_whose_heartbeat_is_old_is_given_up(database: Database) -> None:
    async with working(database, faults=SLOW) as works:
        bot = await stuck(works)
        await heard(works, bot)
        await works.pass_time(minutes=15)
        assert await recovered(works) == only(failed=1)
        assert (await works.store.bots.get(bot.id)).status is BotStatus.FATAL


async def test_a_deployment_that_is_heard_is_skipped_three_times_and_then_busy(
    database: Database,
) -> None:
    async with working(database, faults=SLOW) as works:
        bot = await stuck(works)
        for skipped in (1, 2, 3):
            await works.pass_time(minutes=15)
            await heard(works, bot)
            assert await recovered(works) == only(skipped=1)
            slot = await works.slot_of(bot.id)
            assert (slot.status, slot.recovery_attempts) == (SlotStatus.DEPLOYING, skipped)
            # Its time counts from now.
            assert await recovered(works) == only()
        await works.pass_time(minutes=15)
        await heard(works, bot)
        assert await recovered(works) == only(recovered=1)
        slot = await works.slot_of(bot.id)
        assert (slot.status, slot.recovery_attempts) == (SlotStatus.BUSY, 0)
        assert (await works.store.bots.get(bot.id)).status is BotStatus.JOINING_CALL
        reasons = await works.reasons(bot)
        assert reasons.count(f"skipped: its bot {bot.id} sends heartbeats") == 3


async def test_a_slow_but_healthy_deployment_is_left_alone(database: Database) -> None:
    async with working(database, faults=SLOW) as works:
        bot = await works.launched()
        for _ in range(24):
            await works.go(minutes=1)
            for decision in await works.reconciler.recover_once():
                assert decision.reason == "the engine says that its container is starting"
        assert (await works.store.bots.get(bot.id)).status is BotStatus.DEPLOYING
        await works.go(minutes=1)
        assert (await works.store.bots.get(bot.id)).launch_attempts == 2


async def test_what_waits_for_room_or_its_image_is_not_stuck(database: Database) -> None:
    async with working(database, faults=SLOW, max_concurrent_deployments=1) as works:
        await works.launched()
        waiting = await works.launched()
        await works.pass_time(minutes=20)
        decisions = {d.subject: d for d in await works.reconciler.recover_once()}
        assert decisions["pool-google-meet-002"].reason == "it waits for room on the host"
        assert (await works.store.bots.get(waiting.id)).status is BotStatus.DEPLOYING


async def test_an_engine_that_does_not_answer_fails_no_deployment(database: Database) -> None:
    async with working(database, faults=SLOW) as works:
        bot = await stuck(works)
        works.engine.take_away("a")
        await works.pass_time(minutes=15)
        assert await recovered(works) == only(skipped=1)
        assert (await works.store.bots.get(bot.id)).status is BotStatus.DEPLOYING


async def test_a_slot_in_error_is_tried_at_once_and_then_with_growing_waits(
    database: Database,
) -> None:
    async with working(database, max_launch_attempts=1) as works:
        works.engine.started = lambda started, _: works.engine.fail(started)
        await works.launched()
        (slot,) = await works.store.slots.all()
        assert slot.status is SlotStatus.IDLE  # it was made well at once


# The other rows


@pytest.mark.parametrize("status", [BotStatus.IN_CALL, BotStatus.LEAVING])
async def test_a_bot_in_its_call_that_is_silent_for_5_minutes_is_lost(
    database: Database, status: BotStatus
) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        await works.pool.assignments.advance(slot.id, slot.lease, status, "so it says")
        await works.pool.assignments.heartbeat(slot.id, slot.lease)
        works.engine.say(container(slot), "last words")
        await works.pass_time(minutes=5)
        assert await recovered(works) == only()
        await works.pass_time(seconds=1)
        assert await recovered(works) == only(failed=1)
        bot = await works.store.bots.get(bot.id)
        assert (bot.status, bot.failure_cause) == (BotStatus.FATAL, FailureCause.HEARTBEAT_LOST)
        assert bot.failure_reason == (
            f"no heartbeat for 301 s, more than 300 s; last status {status}; container running;"
            " its last lines:\nlast words"
        )
        (step,) = [
            step
            for step in await works.store.transitions.timeline(bot.id)
            if step.to_status == "releasing"
        ]
        assert step.details["thresholdMs"] == 300_000
        assert datetime.fromisoformat(step.details["lastHeartbeat"]) == bot.last_heartbeat
        await works.reconciler.run_once()
        assert (await works.store.slots.get(slot.id)).status is SlotStatus.IDLE


async def test_a_bot_that_is_lost_in_its_call_goes_back_there_if_that_was_asked_for(
    database: Database,
) -> None:
    async with working(database, hosts=("a", "b")) as works:
        bot = await works.launched(relaunch_in_call=True)
        first = await works.slot_of(bot.id)
        await works.pool.assignments.advance(first.id, first.lease, BotStatus.IN_CALL, "so it says")
        await works.pass_time(minutes=6)
        assert await recovered(works) == only(recovered=1)
        await works.reconciler.run_once()
        second = await works.slot_of(bot.id)
        assert first.host != second.host
        # Whoever leaves has been there, and is not sent back.
        await works.pool.assignments.advance(
            second.id, second.lease, BotStatus.LEAVING, "so it says"
        )
        await works.pass_time(minutes=6)
        assert await recovered(works) == only(failed=1)
        found = await works.store.bots.get(bot.id)
        assert (found.status, found.launch_attempts) == (BotStatus.FATAL, 2)


async def test_no_bot_is_silent_while_it_can_t_be_heard(database: Database) -> None:
    """In an outage of all APIs, or of the database."""
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "so it says")
        await works.pass_unheard(minutes=30)
        assert await recovered(works) == only()
        await works.pass_time(minutes=4)
        assert await recovered(works) == only()
        await works.pass_unheard(minutes=30)
        assert await recovered(works) == only()
        await works.pass_time(minutes=2)
        assert await recovered(works) == only(failed=1)


async def test_a_botpool_that_comes_and_goes_ends_no_call(database: Database) -> None:
    """However short each outage is: together they leave a bot too little time to be heard."""
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "so it says")
        for start in range(15):
            await works.pass_unheard(seconds=40)
            await works.pass_unheard(seconds=19)
            await works.pool.listening.note(f"start {start}", 19)
        assert await recovered(works) == only()
        await works.pass_time(seconds=16)
        assert await recovered(works) == only(failed=1)


async def test_two_replicas_that_listen_at_once_hear_no_longer_for_it(database: Database) -> None:
    async with working(database) as works:
        began = await works.store.installation.now()
        await works.pass_time(minutes=1)
        await works.pool.listening.note("other", 60)
        await works.pass_unheard(minutes=1)
        await works.pool.listening.note("other", 30)
        heard = await works.store.listening.heard_for(began)
        assert heard == timedelta(seconds=90)


async def test_a_deployment_has_its_time_while_its_bot_can_be_heard(database: Database) -> None:
    async with working(database, faults=Faults(start=(600, 600))) as works:
        bot = await works.launched()
        await works.pass_unheard(hours=1)
        assert await recovered(works) == only()
        await works.reconciler.run_once()
        assert (await works.store.bots.get(bot.id)).status is BotStatus.JOINING_CALL


async def test_a_verdict_on_a_deployment_is_void_once_its_bot_is_heard(
    database: Database,
) -> None:
    async with working(database, faults=SLOW) as works:
        bot = await stuck(works)
        slot = await works.slot_of(bot.id)
        await works.pass_time(minutes=15)
        (decision,) = await works.reconciler.recover_once(dry_run=True)
        assert decision.outcome is Outcome.FAILED
        await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
        assert (await carry_out(decision)).outcome is Outcome.SKIPPED
        assert (await works.store.bots.get(bot.id)).status is BotStatus.IN_CALL


async def test_one_slot_that_can_not_be_judged_holds_up_no_other(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database, max_launch_attempts=1) as works:
        first, second = [await works.slot_of((await works.launched()).id) for _ in range(2)]
        logs = works.engine.logs

        async def odd(asked: Container, lines: int) -> list[str]:
            if asked == container(first):
                raise ZeroDivisionError("what is this?")
            return await logs(asked, lines)

        monkeypatch.setattr(works.engine, "logs", odd)
        await works.pass_time(minutes=6)
        assert await recovered(works) == only(failed=1, skipped=1)
        assert (await works.store.bots.get(second.assigned_bot_id or 0)).status is BotStatus.FATAL


async def test_a_host_that_never_answered_is_the_evidence(database: Database) -> None:
    async with working(database, max_launch_attempts=1, stuck_after_ms=10**8) as works:
        await works.warm()
        works.engine.take_away("a")
        bot = (await works.create()).bot
        for _ in range(27):
            await works.go(minutes=1)
        found = await works.store.bots.get(bot.id)
        assert (found.status, found.failure_cause) == (BotStatus.FATAL, FailureCause.ENGINE)
        assert "last error: a doesn't answer" in (found.failure_reason or "")


async def test_a_bot_that_waits_in_vain_after_a_failed_launch_tells_of_both(
    database: Database,
) -> None:
    async with working(database, max_pool_size=1) as works:
        bot = (await works.create(queue_timeout_ms=60_000)).bot
        slot = await works.slot_of(bot.id)
        await works.pool.relaunch.fail_launch(
            FailedLaunch(
                slot_id=slot.id,
                lease=slot.lease,
                cause=FailureCause.ENGINE,
                reason="no such device",
            )
        )
        await works.pass_time(minutes=1)
        await works.pool.queue.expire()
        assert (await works.store.bots.get(bot.id)).failure_reason == (
            "no slot became free within 60 s; it was launched before: no such device"
        )


async def test_a_clock_that_goes_back_puts_nothing_off(database: Database) -> None:
    async with working(database) as works:
        assert await works.store.installation.take_duty("recovery", 60_000)
        await works.pass_time(hours=-1)
        assert await works.store.installation.take_duty("recovery", 60_000)
        assert not await works.store.installation.take_duty("recovery", 60_000)


async def test_hosts_that_hang_hold_up_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "_LOOK_SECONDS", 0.2)
    async with working(database, hosts=("a", "b"), faults=SLOW) as works:
        deploying = [await stuck(works) for _ in range(2)]
        silent = await stuck(works)
        slot = await works.slot_of(silent.id)
        await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "so it says")
        await works.pass_time(minutes=15)
        for host in works.engine.hosts():
            works.engine.hang(host)
        assert await recovered(works) == only(failed=1, skipped=2)
        found = await works.store.bots.get(silent.id)
        assert "the engine can't say: no answer within 0.2 s" in (found.failure_reason or "")
        for bot in deploying:
            assert (await works.store.bots.get(bot.id)).status is BotStatus.DEPLOYING


async def test_a_bot_that_is_silent_before_its_call_is_launched_again_on_another_host(
    database: Database,
) -> None:
    async with working(database, hosts=("a", "b")) as works:
        bot = await works.launched()
        first = await works.slot_of(bot.id)
        await works.pass_time(minutes=6)
        assert await recovered(works) == only(recovered=1)
        await works.reconciler.run_once()
        second = await works.slot_of(bot.id)
        assert first.host != second.host
        bot = await works.store.bots.get(bot.id)
        assert (bot.status, bot.launch_attempts) == (BotStatus.JOINING_CALL, 2)
        await works.pass_time(minutes=6)
        assert await recovered(works) == only(failed=1)
        assert (await works.store.bots.get(bot.id)).status is BotStatus.FATAL


async def test_a_heartbeat_that_comes_in_time_saves_its_bot(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "so it says")
        await works.pass_time(minutes=6)
        decisions = await works.reconciler.recover_once(dry_run=True)
        assert counted(decisions) == only(failed=1)
        await works.pool.assignments.heartbeat(slot.id, slot.lease)
        (decision,) = decisions
        assert decision.act is not None
        with pytest.raises(StaleLease):
            await decision.act()
        assert (await works.store.bots.get(bot.id)).status is BotStatus.IN_CALL


async def test_a_dry_run_changes_nothing(database: Database) -> None:
    async with working(database, faults=SLOW) as works:
        bot = await stuck(works)
        await works.pass_time(minutes=15)
        before = await works.store.slots.all()
        assert counted(await works.reconciler.recover_once(dry_run=True)) == only(failed=1)
        assert [s.status for s in await works.store.slots.all()] == [s.status for s in before]
        assert (await works.store.bots.get(bot.id)).status is BotStatus.DEPLOYING


async def test_a_bot_that_waits_past_its_deadline_is_found_here_too(database: Database) -> None:
    async with working(database, max_pool_size=1) as works:
        await works.launched()
        waiting = (await works.create(queue_timeout_ms=1000)).bot
        await works.pass_time(seconds=2)
        assert await recovered(works) == only(failed=1)
        bot = await works.store.bots.get(waiting.id)
        assert (bot.status, bot.failure_cause) == (BotStatus.FATAL, FailureCause.QUEUE_TIMEOUT)


async def test_reservations_and_pulls_of_the_dead_are_let_go(database: Database) -> None:
    async with working(database) as works:
        bot = (await works.create()).bot
        (slot,) = await works.store.reservations.reserve_due(
            "dead",
            ttl_ms=15_000,
            most=1,
            hosts=[],
            deployment_limit_ms=10**6,
            engine="simulated",
        )
        key = PullKey("simulated", "a", slot.image or "")
        await works.store.pulls.take(key, "dead", 15_000)
        await works.pass_time(seconds=20)
        steps = sorted(d.step for d in await works.reconciler.recover_once())
        assert steps == ["pull", "reservation"]
        assert [pull.status for pull in await works.store.pulls.all()] == ["failed"]
        await works.reconciler.run_once()
        assert (await works.store.bots.get(bot.id)).status is BotStatus.JOINING_CALL


async def test_several_who_recover_at_once_do_it_once(database: Database) -> None:
    async with working(database, faults=SLOW) as works:
        bot = await stuck(works)
        await works.pass_time(minutes=15)
        others = [await works.replica() for _ in range(3)]
        rounds: list[list[Decision]] = await asyncio.gather(
            *(each.recover_once() for each in (works.reconciler, *others))
        )
        outcomes = [d.outcome for decisions in rounds for d in decisions]
        assert outcomes.count(Outcome.FAILED) == 1
        ends = [
            t
            for t in await works.store.transitions.timeline(bot.id)
            if t.to_status == BotStatus.FATAL
        ]
        assert len(ends) == 1


async def test_a_bot_is_launched_as_often_as_it_asks_for(database: Database) -> None:
    async with working(database, max_pool_size=10) as works:
        works.engine.started = lambda started, _: works.engine.fail(started)
        bots = [await works.launched(max_launch_attempts=most) for most in (1, 3, None)]
        found = [await works.store.bots.get(bot.id) for bot in bots]
        assert [bot.launch_attempts for bot in found] == [1, 3, 2]
        assert {bot.status for bot in found} == {BotStatus.FATAL}


async def in_error(works: Works) -> Slot:
    """A slot in error whose repair is put off."""
    slot = await works.warm()
    bot = (await works.create()).bot
    await works.end(await works.slot_of(bot.id))
    await works.pool.slots.fail(slot.id, slot.lease + 1, "it did not stop")
    await works.database.execute("UPDATE bot_pool_slots SET due_at = botpool_now() + interval '1h'")
    return await works.store.slots.get(slot.id)


async def test_a_round_in_which_nothing_happens_counts_nothing(database: Database) -> None:
    async with working(database) as works:
        assert (await in_error(works)).status is SlotStatus.ERROR
        assert await works.reconciler.recover_once() == []


async def test_a_slot_in_error_is_repaired_by_hand_and_counted_by_what_came_of_it(
    database: Database,
) -> None:
    async with working(database, max_recovery_attempts=2) as works:
        slot = await in_error(works)
        works.engine.take_away("a")
        (skipped,) = await works.reconciler.recover_once(by_hand=True)
        assert skipped.outcome is Outcome.SKIPPED  # the host can't be asked
        works.engine.bring_back("a")
        (repaired,) = await works.reconciler.recover_once(by_hand=True)
        assert (repaired.subject, repaired.outcome) == (slot.slot_name, Outcome.RECOVERED)
        assert (await works.store.slots.get(slot.id)).status is SlotStatus.IDLE


async def test_a_drained_slot_in_error_is_deleted_by_hand_and_counted_so(
    database: Database,
) -> None:
    async with working(database) as works:
        slot = await in_error(works)
        await works.pool.slots.drain(slot.id)
        (deleted,) = await works.reconciler.recover_once(by_hand=True)
        assert deleted.outcome is Outcome.DELETED
        assert await works.store.slots.all() == []


async def test_a_repair_by_hand_that_hangs_holds_up_no_other(database: Database) -> None:
    async with working(database, hosts=("a", "b")) as works:
        slots = [await works.slot_of((await works.launched()).id) for _ in range(2)]
        for slot in slots:
            await works.end(slot)
            await works.pool.slots.fail(slot.id, slot.lease, "it did not stop")
        works.engine.hang("a")
        works.reconciler.step_seconds = 0.2
        hung, repaired = await works.reconciler.recover_once(by_hand=True)
        assert (hung.outcome, hung.reason) == (Outcome.SKIPPED, "no answer within 0.2 s")
        assert (repaired.subject, repaired.outcome) == (slots[1].slot_name, Outcome.RECOVERED)


async def test_what_fails_unexpectedly_is_told_and_holds_up_no_other(database: Database) -> None:
    async with working(database) as works:
        await in_error(works)

        async def repair(_: Slot) -> Outcome:
            raise KeyError("a mistake")

        context = works.reconciler._context
        (found,) = await recovery.in_error(context, repair)
        done = await carry_out(found)
        assert (done.outcome, done.reason) == (
            Outcome.SKIPPED,
            "it failed: KeyError('a mistake')",
        )


async def test_each_decision_names_the_bot_whose_story_it_is_part_of(database: Database) -> None:
    async with working(database, max_pool_size=2, faults=SLOW) as works:
        first = (await works.create()).bot
        slot = await works.slot_of(first.id)
        await works.store.reservations.reserve(slot.id, "dead", 15_000)
        key = PullKey("simulated", "a", slot.image or "")
        await works.store.pulls.take(key, "dead", 15_000)
        await works.pool.assignments.record_deployment(slot, None, waits_for=WaitsFor.IMAGE)
        second = (await works.create()).bot
        other = await works.slot_of(second.id)
        await works.end(other)
        await works.pool.slots.fail(other.id, other.lease, "it did not stop")
        third = (await works.create(queue_timeout_ms=1000)).bot
        await works.pass_time(seconds=20)
        with capture_logs() as lines:
            await works.reconciler.recover_once(by_hand=True)
        told = {line["found"]: line for line in lines if line["event"] == "recovery"}
        assert {found: line["bot_id"] for found, line in told.items()} == {
            "error": second.id,
            "queue": third.id,
            "reservation": first.id,
            "pull": first.id,
        }
        assert told["pull"]["correlation_id"] == first.correlation_id


async def test_a_slot_whose_bot_has_ended_is_released_in_the_bot_s_name(
    database: Database,
) -> None:
    async with working(database) as works:
        bot = await works.launched()
        await database.execute(
            "WITH ended AS ("
            " UPDATE bots SET status = 'DONE', ended_at = botpool_now() WHERE id = $1 RETURNING *"
            ") INSERT INTO transitions"
            " (at, machine, platform, from_status, to_status, bot_id, correlation_id, reason)"
            " SELECT ended_at, 'bot', platform, 'JOINING_CALL', status, id, correlation_id, 'done'"
            " FROM ended",
            bot.id,
        )
        (decision,) = await works.reconciler.recover_once()
        assert decision.step == "ended"
        assert decision.bot is not None
        assert decision.bot.id == bot.id


async def test_a_skip_is_told_once_until_its_reason_changes(database: Database) -> None:
    async with working(database, faults=SLOW) as works:
        bot = await stuck(works)
        await works.pass_time(minutes=15)
        works.engine.take_away("a")

        async def told() -> list[tuple[str, str, int]]:
            with capture_logs() as lines:
                await works.reconciler.recover_once()
            return [
                (line["outcome"], line["reason"], line["bot_id"])
                for line in lines
                if line["event"] == "recovery"
            ]

        assert await told() == [("skipped", "the engine can't say: a doesn't answer.", bot.id)]
        for _ in range(3):
            assert await told() == []
        works.engine.bring_back("a")
        ((outcome, _, _),) = await told()
        assert outcome == "failed"
