"""The state machines themselves."""

from __future__ import annotations

from itertools import pairwise

from botpool.states import (
    BOT_ENDED,
    BOT_HOLDS_SLOT,
    BOT_RELAUNCHABLE,
    BOT_STEPS,
    SLOT_STEPS,
    BotStatus,
    SlotStatus,
    bot_sources,
)

ORDER = [status for status in BotStatus if status not in BOT_ENDED]


def test_every_status_has_its_steps() -> None:
    assert set(SLOT_STEPS) == {None, *SlotStatus}
    assert set(BOT_STEPS) == {None, *BotStatus}


def test_every_bot_can_end_from_wherever_it_is() -> None:
    for status in ORDER:
        assert BotStatus.FATAL in BOT_STEPS[status]


def test_an_ended_bot_goes_nowhere() -> None:
    for status in BOT_ENDED:
        assert BOT_STEPS[status] == {None}


def test_a_bot_may_skip_steps_forward() -> None:
    for index, source in enumerate(ORDER):
        ahead = {*ORDER[index + 1 :]}
        if source in {BotStatus.PENDING, BotStatus.QUEUED}:
            # Before it has a slot, no container can say that it joined.
            ahead &= {BotStatus.QUEUED, BotStatus.DEPLOYING}
        assert ahead <= BOT_STEPS[source]


def test_the_one_way_back_is_a_relaunch_of_a_bot_that_does_not_leave_yet() -> None:
    back = {
        (source, target)
        for source, targets in BOT_STEPS.items()
        for target in targets
        if source in ORDER and target in ORDER and ORDER.index(target) < ORDER.index(source)
    }
    assert {source for source, _ in back} == BOT_RELAUNCHABLE | {BotStatus.IN_CALL}
    assert {target for _, target in back} == {BotStatus.QUEUED, BotStatus.DEPLOYING}


def test_a_bot_is_only_cancelled_before_its_container_runs() -> None:
    assert bot_sources(BotStatus.CANCELLED) == {
        BotStatus.PENDING,
        BotStatus.QUEUED,
        BotStatus.DEPLOYING,
    }


def test_a_slot_serves_again_only_after_it_was_idle() -> None:
    assert [s for s, targets in SLOT_STEPS.items() if SlotStatus.DEPLOYING in targets] == [
        None,
        SlotStatus.IDLE,
    ]
    assert SlotStatus.IDLE not in SLOT_STEPS[SlotStatus.BUSY] | SLOT_STEPS[SlotStatus.DEPLOYING]


def test_a_bot_has_a_slot_from_its_deployment_to_its_end() -> None:
    assert [status for status in ORDER if status in BOT_HOLDS_SLOT] == ORDER[2:]
    assert all(later in BOT_STEPS[earlier] for earlier, later in pairwise(ORDER))
