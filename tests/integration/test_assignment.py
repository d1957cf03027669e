"""What is written on behalf of an assignment: under its lease, once, and with a record of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from botpool.errors import (
    ConstraintViolated,
    InvalidRequest,
    SlotNotFound,
    StaleLease,
)
from botpool.models.assignments import Ending, FailedLaunch, Progress
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.states import (
    BOT_MAY_SAY,
    BOT_RELAUNCHABLE,
    BotStatus,
    FailureCause,
    SlotStatus,
)
from botpool.store.queries import named_queries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from botpool.models.slots import Slot
    from tests.support.scene import Scene

pytestmark = pytest.mark.older_postgres


def silent(slot: Slot, since: datetime) -> Ending:
    """The end of a bot that was not heard since then."""
    return Ending(
        slot_id=slot.id,
        lease=slot.lease,
        bot_status=BotStatus.FATAL,
        failure_cause=FailureCause.HEARTBEAT_LOST,
        reason="no heartbeat",
        unless_heard_since=since,
    )


WRITES: dict[str, Callable[[Pool, Slot], Awaitable[object]]] = {
    "advance": lambda pool, slot: pool.assignments.advance(
        slot.id, slot.lease, BotStatus.IN_CALL, "admitted"
    ),
    "advance to an end": lambda pool, slot: pool.assignments.advance(
        slot.id, slot.lease, BotStatus.DONE, "the call is over"
    ),
    "heartbeat": lambda pool, slot: pool.assignments.heartbeat(slot.id, slot.lease),
    "release": lambda pool, slot: pool.assignments.end_assignment(
        Ending(slot_id=slot.id, lease=slot.lease, bot_status=BotStatus.DONE, reason="done")
    ),
    "release of a silent bot": lambda pool, slot: pool.assignments.end_assignment(
        silent(slot, slot.read_at)
    ),
    "mark_error": lambda pool, slot: pool.relaunch.fail_launch(
        FailedLaunch(slot_id=slot.id, lease=slot.lease, cause=FailureCause.ENGINE, reason="broken")
    ),
    "record_container": lambda pool, slot: pool.slots.record_container(
        slot.id, slot.lease, "late", host=None, attempt=1
    ),
    "record_deployment": lambda pool, slot: pool.assignments.record_deployment(
        slot, "late", "finished"
    ),
    "free": lambda pool, slot: pool.slots.make_idle(slot.id, slot.lease),
    "recover": lambda pool, slot: pool.slots.make_idle(slot.id, slot.lease, SlotStatus.ERROR),
    "delete_slot": lambda pool, slot: pool.slots.delete(slot.id, slot.lease, "given up"),
}


async def everything(scene: Scene) -> list[object]:
    """Every row that a write could have touched."""
    tables = ("bots", "bot_pool_slots", "bot_pool_queue", "transitions")
    return [await scene.database.fetch(f"SELECT * FROM {table} ORDER BY id") for table in tables]


@pytest.mark.parametrize("status", sorted(set(SlotStatus) - {SlotStatus.IDLE}))
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
async def test_a_stale_lease_changes_nothing_and_says_so(
    scene: Scene, write: Callable[[Pool, Slot], Awaitable[object]], status: SlotStatus
) -> None:
    old = await scene.idle()
    slot = await scene.slot_of((await scene.create()).bot.id)
    assert (slot.id, slot.lease) == (old.id, old.lease + 1)
    if status is not SlotStatus.DEPLOYING:
        await scene.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
    if status is SlotStatus.RELEASING:
        await scene.end(slot)
    elif status is SlotStatus.ERROR:
        await scene.pool.relaunch.fail_launch(
            FailedLaunch(
                slot_id=slot.id, lease=slot.lease, cause=FailureCause.ENGINE, reason="broken"
            )
        )
    before = await everything(scene)
    said = r"Lease 1 of pool-google-meet-001 is over: the current one is 2\."
    with pytest.raises(StaleLease, match=said):
        await write(scene.pool, old)
    assert await everything(scene) == before


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
async def test_a_slot_that_does_not_exist_is_named(
    scene: Scene, write: Callable[[Pool, Slot], Awaitable[object]]
) -> None:
    slot = replace(await scene.idle(), id=4711)
    with pytest.raises(SlotNotFound, match="There is no slot 4711"):
        await write(scene.pool, slot)


@pytest.mark.parametrize("write", ["release", "advance to an end", "mark_error"])
async def test_ending_an_assignment_twice_changes_nothing_the_second_time(
    scene: Scene, write: str
) -> None:
    _, slot = await scene.running()
    assert await WRITES[write](scene.pool, slot)
    before = await everything(scene)
    assert await WRITES[write](scene.pool, slot) == []
    assert await everything(scene) == before


async def test_of_two_that_end_an_assignment_at_once_the_first_one_counts(scene: Scene) -> None:
    bot, slot = await scene.running()
    ending = Ending(slot_id=slot.id, lease=slot.lease, bot_status=BotStatus.DONE, reason="done")
    failure = replace(
        ending, bot_status=BotStatus.FATAL, failure_cause=FailureCause.CRASHED, reason="crashed"
    )
    first, second = await asyncio.gather(
        scene.pool.assignments.end_assignment(ending),
        scene.pool.assignments.end_assignment(failure),
    )
    assert ([t.to_status for t in first], second) == (["releasing", "DONE"], [])
    assert (await scene.store.bots.get(bot.id)).failure_cause is None


async def test_of_many_pools_that_end_an_assignment_at_once_one_does(scene: Scene) -> None:
    _, slot = await scene.running()
    pools = [Pool(scene.store, Settings()) for _ in range(8)]
    ended = await asyncio.gather(*(WRITES["release"](pool, slot) for pool in pools))
    assert sorted(bool(written) for written in ended) == [False] * 7 + [True]


async def test_a_release_that_waits_for_a_step_of_its_bot_tells_that_step(scene: Scene) -> None:
    """The record says from where the bot really went, not where it was when the wait began."""
    slot = await scene.slot_of((await scene.create()).bot.id)
    async with scene.database.transaction() as connection:
        await connection.fetch(
            named_queries("bots")["advance"],
            Progress(
                slot_id=slot.id, lease=slot.lease, status=BotStatus.IN_CALL, reason="admitted"
            ),
            [BotStatus.DEPLOYING],
            0,
        )
        release = asyncio.create_task(scene.end(slot))
        await scene.until_blocked(release)
    of_slot, of_bot = await release
    assert (of_slot.from_status, of_bot.from_status) == ("busy", "IN_CALL")


async def test_an_assignment_that_is_over_takes_no_word_from_its_bot(scene: Scene) -> None:
    """The lease is still the slot's last one, but nobody has it any more."""
    _, slot = await scene.running()
    await scene.end(slot)
    for write in ("advance", "heartbeat", "record_deployment"):
        with pytest.raises(StaleLease, match="is over: the slot is releasing"):
            await WRITES[write](scene.pool, slot)


async def test_a_release_tells_the_final_status_and_how_long_the_slot_was_held(
    scene: Scene,
) -> None:
    bot, slot = await scene.running()
    await scene.pass_time(seconds=90)
    of_slot, of_bot = await scene.end(slot)
    assert (of_slot.from_status, of_slot.to_status, of_slot.bot_id) == ("busy", "releasing", bot.id)
    assert of_slot.details["heldMs"] == 90_000
    assert of_slot.details["botStatus"] == "DONE"
    assert datetime.fromisoformat(of_slot.details["lastHeartbeat"]) == bot.last_heartbeat
    assert (of_bot.from_status, of_bot.to_status) == ("IN_CALL", "DONE")
    after = await scene.store.slots.get(slot.id)
    assert (after.status, after.last_released_at) == (SlotStatus.RELEASING, of_slot.at)
    assert (await scene.store.bots.get(bot.id)).ended_at == of_slot.at


async def test_a_slot_is_idle_only_after_its_container_is_proved_stopped(scene: Scene) -> None:
    _, slot = await scene.running()
    await scene.end(slot)
    assert (await scene.create()).bot.slot_name == "pool-google-meet-002"
    await scene.pool.slots.make_idle(slot.id, slot.lease)
    assert (await scene.create()).bot.slot_name == "pool-google-meet-001"


async def test_a_busy_slot_whose_bot_has_ended_is_released_and_the_bot_stays_as_it_was(
    scene: Scene,
) -> None:
    bot, slot = await scene.running()
    await scene.database.execute(
        "UPDATE bots SET status = 'DONE', ended_at = botpool_now() WHERE id = $1", bot.id
    )
    await scene.database.execute(
        "INSERT INTO transitions (at, machine, platform, from_status, to_status, bot_id, reason)"
        " VALUES (botpool_now(), 'bot', 'google-meet', 'IN_CALL', 'DONE', $1, 'by hand')",
        bot.id,
    )
    (released,) = await scene.end(slot, BotStatus.CANCELLED)
    assert (released.machine, released.details["botStatus"]) == ("slot", "DONE")


async def test_a_bot_only_goes_forward_by_its_own_word(scene: Scene) -> None:
    bot = (await scene.create()).bot
    slot = await scene.slot_of(bot.id)
    told = [
        await scene.pool.assignments.advance(slot.id, slot.lease, status, "said so")
        for status in (
            BotStatus.IN_WAITING_ROOM,
            BotStatus.JOINING_CALL,
            BotStatus.IN_WAITING_ROOM,
            BotStatus.IN_CALL,
        )
    ]
    assert [[(t.machine, t.from_status, t.to_status) for t in written] for written in told] == [
        [("slot", "deploying", "busy"), ("bot", "DEPLOYING", "IN_WAITING_ROOM")],
        [],
        [],
        [("bot", "IN_WAITING_ROOM", "IN_CALL")],
    ]
    after = await scene.store.bots.get(bot.id)
    assert after.started_at == told[0][0].at


@pytest.mark.parametrize("status", sorted(set(BotStatus) - BOT_MAY_SAY))
async def test_what_is_not_a_bots_to_say_is_refused(scene: Scene, status: BotStatus) -> None:
    _, slot = await scene.running()
    with pytest.raises(InvalidRequest, match=f"A bot can't report the status {status}"):
        await scene.pool.assignments.advance(slot.id, slot.lease, status, "said so")


async def test_of_endings_that_arrive_together_only_the_wrong_one_fails(scene: Scene) -> None:
    """The first waits alone; the others are one batch, and one of them breaks a constraint."""
    slots = [(await scene.running())[1] for _ in range(3)]
    wrong = Ending(
        slot_id=slots[1].id, lease=slots[1].lease, bot_status=BotStatus.FATAL, reason="no cause"
    )
    ended = await asyncio.gather(
        scene.end(slots[0]),
        scene.pool.assignments.end_assignment(wrong),
        scene.end(slots[2]),
        return_exceptions=True,
    )
    assert [type(result) for result in ended] == [list, ConstraintViolated, list]
    assert (await scene.store.slots.get(slots[1].id)).status is SlotStatus.BUSY


async def test_a_stale_lease_is_told_so_beside_the_current_one(scene: Scene) -> None:
    old = await scene.idle()
    _, slot = await scene.running()
    ended = await asyncio.gather(
        scene.end(slot), scene.end(old), scene.end(slot), return_exceptions=True
    )
    assert [type(result) for result in ended] == [list, StaleLease, list]
    freed = await asyncio.gather(
        *(scene.pool.slots.make_idle(one.id, one.lease) for one in (old, slot)),
        return_exceptions=True,
    )
    assert isinstance(freed[0], StaleLease)
    assert [t.to_status for t in freed[1]] == ["idle"]  # type: ignore[union-attr]


async def test_a_heartbeat_that_waits_for_a_relaunch_is_stale(scene: Scene) -> None:
    bot = (await scene.create()).bot
    slot = await scene.slot_of(bot.id)
    async with scene.database.transaction() as connection:
        await connection.fetch(
            named_queries("slots")["relaunch"],
            FailedLaunch(
                slot_id=slot.id,
                lease=slot.lease,
                cause=FailureCause.ENGINE,
                reason="it did not start",
            ),
            list(BOT_RELAUNCHABLE),
            2,
        )
        heartbeat = asyncio.create_task(scene.pool.assignments.heartbeat(slot.id, slot.lease))
        await scene.until_blocked(heartbeat)
    with pytest.raises(StaleLease):
        await heartbeat
    assert (await scene.store.bots.get(bot.id)).last_heartbeat is None


async def test_pools_that_free_the_same_slots_at_once_do_not_lock_each_other(scene: Scene) -> None:
    pools = [Pool(scene.store, Settings()) for _ in range(4)]
    for _ in range(15):
        slots = [await scene.slot_of((await scene.create()).bot.id) for _ in range(3)]
        for slot in slots:
            await scene.end(slot)
        orders = (slots, slots[::-1], slots, slots[::-1])
        await asyncio.gather(
            *(
                pool.slots.make_idle(slot.id, slot.lease)
                for pool, order in zip(pools, orders, strict=True)
                for slot in order
            )
        )


async def test_a_heartbeat_proves_that_the_container_runs(scene: Scene) -> None:
    bot = (await scene.create()).bot
    slot = await scene.slot_of(bot.id)
    now = await scene.pass_time(seconds=5)
    await scene.pool.assignments.heartbeat(slot.id, slot.lease)
    after = await scene.store.bots.get(bot.id)
    assert (after.status, after.last_heartbeat) == (BotStatus.JOINING_CALL, now)
    assert (await scene.store.slots.get(slot.id)).status is SlotStatus.BUSY


async def test_heartbeats_that_arrive_together_are_each_answered(scene: Scene) -> None:
    _, first = await scene.running()
    _, second = await scene.running()
    stale = replace(second, lease=second.lease + 1)
    answers = await asyncio.gather(
        *(
            scene.pool.assignments.heartbeat(slot.id, slot.lease)
            for slot in (first, stale, second, first)
        ),
        return_exceptions=True,
    )
    assert isinstance(answers[1], StaleLease)
    assert [getattr(answer, "slot_id", None) for answer in answers] == [
        first.id,
        None,
        second.id,
        first.id,
    ]


async def test_a_lost_heartbeat_tells_the_last_one(scene: Scene) -> None:
    bot, slot = await scene.running()
    heard = await scene.pass_time(seconds=10)
    await scene.pool.assignments.heartbeat(slot.id, slot.lease)
    assert await scene.pool.assignments.end_assignment(silent(slot, heard)) == []
    released, ended = await scene.pool.assignments.end_assignment(
        silent(slot, heard + timedelta(milliseconds=1))
    )
    assert datetime.fromisoformat(released.details["lastHeartbeat"]) == heard
    assert (ended.to_status, ended.reason) == ("FATAL", "no heartbeat")
    assert (await scene.store.bots.get(bot.id)).failure_cause is FailureCause.HEARTBEAT_LOST


async def test_a_bot_that_has_just_spoken_is_not_silent(scene: Scene) -> None:
    """A deployment may take long: the silence counts from when the bot came up."""
    slot = await scene.slot_of((await scene.create()).bot.id)
    await scene.pass_time(minutes=20)
    await scene.pool.assignments.advance(slot.id, slot.lease, BotStatus.JOINING_CALL, "it runs")
    now = await scene.pass_time(seconds=1)
    assert (
        await scene.pool.assignments.end_assignment(silent(slot, now - timedelta(minutes=5))) == []
    )


async def test_a_container_made_again_tells_both_references_and_the_attempt(scene: Scene) -> None:
    bot = (await scene.create()).bot
    slot = await scene.slot_of(bot.id)
    (first,) = await scene.pool.slots.record_container(
        slot.id, slot.lease, "one", host="alpha", attempt=1
    )
    assert (first.reason, first.from_status, first.to_status) == (
        "container created",
        "deploying",
        "deploying",
    )
    assert (
        await scene.pool.slots.record_container(slot.id, slot.lease, "one", host="alpha", attempt=1)
        == []
    )
    (again,) = await scene.pool.slots.record_container(
        slot.id, slot.lease, "two", host="beta", attempt=2
    )
    assert (again.reason, again.container_ref) == ("container created again", "two")
    assert again.details == {"oldContainerRef": "one", "newContainerRef": "two", "attempt": 2}
    assert (await scene.store.bots.get(bot.id)).container_ref == "two"
    after = await scene.store.slots.get(slot.id)
    assert (after.container_ref, after.host) == ("two", "beta")


async def test_a_deployment_tells_each_change_of_its_status(scene: Scene) -> None:
    slot = await scene.slot_of((await scene.create()).bot.id)
    told = [
        await scene.pool.assignments.record_deployment(slot, *news)
        for news in (("d1", "queued"), ("d1", "queued"), ("d1", "failed"), ("d2", "queued"))
    ]
    assert [[t.details for t in written] for written in told] == [
        [{"deployment": "d1", "oldStatus": None, "newStatus": "queued"}],
        [],
        [{"deployment": "d1", "oldStatus": "queued", "newStatus": "failed"}],
        [{"deployment": "d2", "oldStatus": None, "newStatus": "queued"}],
    ]
    await scene.end(slot)
    await scene.pool.slots.make_idle(slot.id, slot.lease)
    await scene.create()
    assert (await scene.store.slots.get(slot.id)).deployment_ref is None


async def test_a_bot_whose_slot_fails_before_its_call_is_tried_on_another_slot(
    scene: Scene,
) -> None:
    bot = (await scene.create()).bot
    slot = await scene.slot_of(bot.id)
    await scene.pool.relaunch.fail_launch(
        FailedLaunch(
            slot_id=slot.id, lease=slot.lease, cause=FailureCause.ENGINE, reason="it did not start"
        )
    )
    again = await scene.slot_of(bot.id)
    assert (again.slot_name, again.lease) == ("pool-google-meet-002", 1)
    failed = await scene.store.slots.get(slot.id)
    assert (failed.status, failed.error_message) == (SlotStatus.ERROR, "it did not start")
    await scene.pool.relaunch.fail_launch(
        FailedLaunch(
            slot_id=again.id,
            lease=again.lease,
            cause=FailureCause.ENGINE,
            reason="nor did this one",
        )
    )
    after = await scene.store.bots.get(bot.id)
    assert (after.status, after.failure_cause, after.failure_reason, after.launch_attempts) == (
        BotStatus.FATAL,
        FailureCause.ENGINE,
        "nor did this one",
        2,
    )


async def test_a_bot_that_goes_back_to_the_queue_keeps_its_place_in_it(scene: Scene) -> None:
    bots = []
    for _ in range(5):
        await scene.pass_time(seconds=1)
        bots.append((await scene.create()).bot.id)
    slot = await scene.slot_of(bots[1])
    await scene.pool.relaunch.fail_launch(
        FailedLaunch(
            slot_id=slot.id, lease=slot.lease, cause=FailureCause.ENGINE, reason="it did not start"
        )
    )
    order = await scene.queue()
    assert [entry.bot_id for entry in order] == [bots[1], bots[3], bots[4]]
    assert (
        order[0].timeout_at - await scene.store.installation.now()
        == order[2].timeout_at - order[2].queued_at
    )


async def test_a_bot_that_was_in_its_call_is_not_tried_again(scene: Scene) -> None:
    bot, slot = await scene.running()
    await scene.pool.relaunch.fail_launch(
        FailedLaunch(
            slot_id=slot.id, lease=slot.lease, cause=FailureCause.CRASHED, reason="exit code 137"
        )
    )
    assert (await scene.store.bots.get(bot.id)).status is BotStatus.FATAL


async def test_a_slot_that_does_not_stop_is_in_error_and_can_recover_or_go(scene: Scene) -> None:
    bot, slot = await scene.running()
    await scene.end(slot)
    (failed,) = await scene.pool.slots.fail(slot.id, slot.lease, "stuck")
    assert (failed.from_status, failed.to_status, failed.bot_id) == ("releasing", "error", bot.id)
    (well,) = await scene.pool.slots.make_idle(slot.id, slot.lease, SlotStatus.ERROR)
    assert (well.from_status, well.to_status, well.reason) == ("error", "idle", "recovered")
    assert (await scene.store.slots.get(slot.id)).error_message is None
    assert await scene.pool.slots.delete(slot.id, slot.lease, "given up") == []


async def test_the_bot_of_a_container_is_found_by_assignment_and_then_by_history(
    scene: Scene,
) -> None:
    assert await scene.store.bots.of_container("ref") is None
    served = []
    for _ in range(2):
        bot = (await scene.create()).bot
        slot = await scene.slot_of(bot.id)
        await scene.pool.slots.record_container(slot.id, slot.lease, "ref", host=None, attempt=1)
        now = await scene.store.bots.of_container("ref")
        await scene.end(slot)
        await scene.pool.slots.make_idle(slot.id, slot.lease)
        after = await scene.store.bots.of_container("ref")
        assert now is not None
        assert after is not None
        served.append((now.id == bot.id, after.id == bot.id, after.status))
        assert await scene.store.slots.of_bot(bot.id) is None
    assert served == [(True, True, BotStatus.DONE)] * 2


async def test_a_container_served_last_whom_it_served_last_not_who_was_created_last(
    scene: Scene,
) -> None:
    running = [await scene.running() for _ in range(3)]
    late, urgent = await scene.create(priority=100), await scene.create(priority=1)
    _, slot = running[0]
    await scene.pool.slots.record_container(slot.id, slot.lease, "ref", host=None, attempt=1)
    for expected in (urgent, late):
        await scene.end(slot)
        await scene.pool.slots.make_idle(slot.id, slot.lease)
        slot = await scene.store.slots.get(slot.id)
        assert slot.assigned_bot_id == expected.bot.id
    await scene.end(slot)
    served = await scene.store.bots.of_container("ref")
    assert served is not None
    assert served.id == late.bot.id


async def test_a_transition_is_one_row_and_one_log_line_that_say_the_same(scene: Scene) -> None:
    with capture_logs() as lines:
        bot = (await scene.create(correlation_id="trace-1")).bot
        slot = await scene.slot_of(bot.id)
        await scene.pool.slots.record_container(slot.id, slot.lease, "ref", host=None, attempt=1)
        await scene.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
        await scene.end(slot)
    rows = await scene.store.transitions.timeline(bot.id)
    assert len(rows) == 7
    assert [line["id"] for line in lines] == [row.id for row in rows]
    for line, row in zip(lines, rows, strict=True):
        assert line["event"] == "transition"
        assert (line["from"], line["to"]) == (row.from_status, row.to_status)
        assert line["correlation_id"] == "trace-1"
        for key in (
            "slot_id",
            "slot_name",
            "container_ref",
            "lease",
            "bot_id",
            "reason",
            "machine",
        ):
            assert line[key] == getattr(row, key)
        assert line["details"] == row.details


async def test_a_change_that_is_rolled_back_leaves_no_transition(scene: Scene) -> None:
    slot = await scene.slot_of((await scene.create()).bot.id)
    before = await everything(scene)

    async def interrupted() -> None:
        async with scene.database.transaction() as connection:
            assert await connection.fetch(
                named_queries("bots")["stop"], slot.assigned_bot_id, "stop", 0, None
            )
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await interrupted()
    assert await everything(scene) == before
