"""What a bot waits for is told by what is known of it, its slot, and the rest."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from botpool.models.bots import Bot
from botpool.models.pools import PoolStanding
from botpool.models.pulls import ImagePull
from botpool.models.slots import Slot, WaitsFor
from botpool.models.waiting import Surroundings, Wait, WaitingFor, bot_waits_for, slot_waits_for
from botpool.states import SLOT_NEEDS_WORK, BotStatus, Platform, SlotStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BOT = Bot(
    id=7,
    platform=Platform.ZOOM,
    meeting_url="https://zoom.us/j/1234567890",
    bot_display_name="Notes",
    status=BotStatus.DEPLOYING,
    priority=100,
    queue_timeout_ms=1,
    correlation_id="c",
    metadata={},
    config={},
    launch_attempts=1,
    slot_name="pool-zoom-001",
    container_ref=None,
    lease=1,
    created_at=NOW,
)
_VALUES: dict[str, Any] = dict.fromkeys(Slot.__dataclass_fields__)
SLOT = Slot(
    **{
        **_VALUES,
        "id": 1,
        "platform": Platform.ZOOM,
        "slot_name": "pool-zoom-001",
        "engine": "docker",
        "host": "a",
        "image": "bot:1",
        "status": SlotStatus.DEPLOYING,
        "last_assigned_at": NOW,
        "failed_steps": 0,
    }
)
PULL = ImagePull(
    engine="docker",
    host="a",
    image="bot:1",
    status="pulling",
    reserved_by="me",
    reserved_until=NOW,
    attempts=2,
    current_bytes=62,
    total_bytes=100,
    error=None,
    started_at=NOW,
    finished_at=None,
    retry_at=None,
    slot_id=None,
    lease=None,
)
AROUND = Surroundings(
    workers=1, pools={Platform.ZOOM: PoolStanding(full=True)}, pulls={PULL.key: PULL}
)
PAUSED = {Platform.ZOOM: PoolStanding(full=True, paused_at=NOW, pause_reason="a bad image")}


def waits(bot: dict[str, Any], slot: dict[str, Any] | None, around: dict[str, Any]) -> WaitingFor:
    """What a bot waits for, with these changes to it, its slot and the rest."""
    waiting = bot_waits_for(
        replace(BOT, **bot),
        None if slot is None else replace(SLOT, **slot),
        replace(AROUND, **around),
    )
    assert waiting is not None
    return waiting


@pytest.mark.parametrize(
    ("bot", "slot", "around", "what"),
    [
        ({"status": BotStatus.QUEUED}, None, {}, Wait.SLOT),
        ({"status": BotStatus.QUEUED}, None, {"pools": {}}, Wait.ROOM),
        ({"status": BotStatus.QUEUED}, None, {"pools": PAUSED, "workers": 0}, Wait.PAUSED),
        ({"status": BotStatus.QUEUED}, None, {"workers": 0}, Wait.WORKER),
        ({}, {}, {"workers": 0}, Wait.WORKER),
        ({}, {"waits_for": WaitsFor.IMAGE}, {}, Wait.IMAGE),
        ({}, {"waits_for": WaitsFor.TURN}, {}, Wait.START),
        ({}, {"step_error": "no answer", "failed_steps": 3}, {}, Wait.ENGINE),
        ({}, {}, {}, Wait.START),
        ({"status": BotStatus.JOINING_CALL}, {"status": SlotStatus.BUSY}, {}, Wait.CLAIM),
    ],
)
def test_a_bot_says_what_it_waits_for(
    bot: dict[str, Any], slot: dict[str, Any] | None, around: dict[str, Any], what: Wait
) -> None:
    waiting = waits(bot, slot, around)
    assert (waiting.what, waiting.since) == (what, NOW)


@pytest.mark.parametrize(
    "bot",
    [
        {"status": BotStatus.JOINING_CALL, "last_heartbeat": NOW},
        {"status": BotStatus.IN_CALL, "last_heartbeat": NOW},
        {"status": BotStatus.DONE, "ended_at": NOW},
    ],
)
def test_a_bot_that_is_heard_or_over_waits_for_nothing(bot: dict[str, Any]) -> None:
    assert bot_waits_for(replace(BOT, **bot), replace(SLOT), AROUND) is None


@pytest.mark.parametrize("status", SlotStatus)
def test_a_slot_that_needs_work_waits_for_a_worker_if_there_is_none(status: SlotStatus) -> None:
    later = NOW + timedelta(minutes=1)
    slot = replace(SLOT, status=status, last_released_at=later)
    waiting = slot_waits_for(slot, replace(AROUND, workers=0))
    if status in SLOT_NEEDS_WORK:
        assert waiting is not None
        since = NOW if status is SlotStatus.DEPLOYING else later
        assert (waiting.what, waiting.since) == (Wait.WORKER, since)
    else:
        assert waiting is None


LATER = NOW + timedelta(minutes=10)


@pytest.mark.parametrize(
    ("bot", "slot", "around", "what"),
    [
        # After a long pull, its turn and its start count from when it came to them.
        ({"image_at": LATER}, {"waits_for": WaitsFor.TURN}, {}, Wait.START),
        ({"image_at": NOW}, {"deployment_started_at": LATER}, {}, Wait.START),
        (
            {"image_at": NOW},
            {"deployment_started_at": LATER, "step_error": "no answer"},
            {},
            Wait.ENGINE,
        ),
        # After a relaunch, its wait counts from that.
        ({"status": BotStatus.QUEUED, "relaunched_at": LATER}, None, {}, Wait.SLOT),
        ({"status": BotStatus.QUEUED, "relaunched_at": LATER}, None, {"pools": {}}, Wait.ROOM),
        # A worker that worked until then was not waited for.
        ({"status": BotStatus.QUEUED}, None, {"workers": 0, "worked_at": LATER}, Wait.WORKER),
        ({}, {}, {"workers": 0, "worked_at": LATER}, Wait.WORKER),
        (
            {"status": BotStatus.QUEUED, "relaunched_at": LATER},
            None,
            {"workers": 0, "worked_at": NOW},
            Wait.WORKER,
        ),
    ],
)
def test_a_wait_counts_from_when_it_began(
    bot: dict[str, Any], slot: dict[str, Any] | None, around: dict[str, Any], what: Wait
) -> None:
    waiting = waits(bot, slot, around)
    assert (waiting.what, waiting.since) == (what, LATER)


def test_a_slot_says_what_its_bot_does() -> None:
    bot = replace(BOT, status=BotStatus.JOINING_CALL, started_at=LATER)
    slot = replace(SLOT, status=SlotStatus.BUSY, assigned_bot_id=bot.id)
    waiting = slot_waits_for(slot, replace(AROUND, bots={bot.id: bot}))
    assert waiting == bot_waits_for(bot, slot, AROUND)
    assert waiting is not None
    assert (waiting.what, waiting.since) == (Wait.CLAIM, LATER)
    assert slot_waits_for(slot, AROUND) is None  # its bot is heard

    deploying = replace(SLOT, assigned_bot_id=bot.id, waits_for=WaitsFor.TURN)
    unheard = replace(BOT, image_at=LATER)
    waiting = slot_waits_for(deploying, replace(AROUND, bots={bot.id: unheard}))
    assert waiting == bot_waits_for(unheard, deploying, AROUND)


def test_a_bot_that_finds_no_room_says_why_no_host_gets_new_work() -> None:
    bot = replace(BOT, status=BotStatus.QUEUED)
    pool = PoolStanding(full=False, trouble="a is unhealthy: no space left")
    waiting = bot_waits_for(bot, None, replace(AROUND, pools={Platform.ZOOM: pool}))
    assert waiting is not None
    assert (waiting.what, waiting.error) == (Wait.ROOM, "a is unhealthy: no space left")


def test_a_bot_whose_own_start_brings_the_image_waits_for_that() -> None:
    slot = replace(SLOT, lease=3, deployment_started_at=LATER)
    pull = replace(PULL, slot_id=1, lease=3, error="the registry is away")
    waiting = slot_waits_for(slot, replace(AROUND, pulls={PULL.key: pull}))
    assert waiting is not None
    assert (waiting.what, waiting.since) == (Wait.IMAGE, LATER)
    assert (waiting.error, waiting.attempt) == ("the registry is away", 2)
    assert (waiting.current, waiting.total) == (None, None)  # nobody knows
    waiting = slot_waits_for(replace(slot, lease=4), replace(AROUND, pulls={PULL.key: pull}))
    assert waiting is not None
    assert waiting.what is Wait.START


def test_where_nodes_pull_by_themselves_the_engine_s_word_is_told() -> None:
    slot = replace(SLOT, waits_for=WaitsFor.IMAGE, deployment_status="its image can't be pulled")
    waiting = slot_waits_for(slot, replace(AROUND, pulls={}))
    assert waiting is not None
    assert (waiting.what, waiting.error) == (Wait.IMAGE, "its image can't be pulled")


def test_a_pull_tells_how_far_it_is_and_what_it_failed_with() -> None:
    slot = replace(SLOT, waits_for=WaitsFor.IMAGE)
    waiting = slot_waits_for(slot, AROUND)
    assert waiting is not None
    assert (waiting.current, waiting.total, waiting.attempt, waiting.error) == (62, 100, 2, None)
    failed = replace(PULL, status="failed", error="the registry is away")
    waiting = slot_waits_for(slot, replace(AROUND, pulls={PULL.key: failed}))
    assert waiting is not None
    assert waiting.error == "the registry is away"
    assert waiting.detail == "bot:1 could not be pulled to a"
