"""From a created bot to a container that runs."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from botpool.engines.base import ContainerState, Observation, Traits
from botpool.engines.simulated import Faults
from botpool.errors import EngineUnavailable, StaleLease
from botpool.models.slots import WaitsFor
from botpool.settings import Settings
from botpool.states import (
    BotStatus,
    FailureCause,
    Platform,
    SlotStatus,
)
from tests.support.works import (
    IMAGE,
    container,
    new_reconciler,
    working,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from botpool.engines.base import Container
    from botpool.models.slots import Slot
    from botpool.store import Database
    from tests.support.works import Works

pytestmark = pytest.mark.older_postgres

SLOW_START = Faults(start=(60.0, 60.0))


async def test_a_created_bot_gets_a_container_that_runs(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        assert (bot.status, slot.status) == (BotStatus.JOINING_CALL, SlotStatus.BUSY)
        assert works.engine.running() == [container(slot)]
        assert bot.container_ref == slot.container_ref
        assert (slot.due_at, slot.reserved_by) == (None, None)
        assert await works.reasons(bot) == [
            "assigned to a new slot",
            "deployment waits for the image",
            "container created",
            "container runs",
        ]


async def test_a_container_is_told_where_botpool_is_and_what_its_bot_is(
    database: Database,
) -> None:
    told: list[dict[str, str]] = []
    async with working(database, public_url="http://botpool:8000") as works:
        works.engine.started = lambda _, environment: told.append(dict(environment))
        bot = await works.launched(config={"language": "de"})
        slot = await works.slot_of(bot.id)
        (environment,) = told
        assert environment["BOTPOOL_URL"] == "http://botpool:8000"
        assert environment["POOL_SLOT_UUID"] == slot.container_ref
        assert await works.store.slots.of_token(environment["BOTPOOL_SLOT_TOKEN"]) == slot
        assert '"config":{"language":"de"}' in b64decode(environment["BOT_DATA"], b"-_").decode()


async def test_a_token_is_of_one_container_and_not_of_the_next(database: Database) -> None:
    tokens: list[str] = []
    async with working(database) as works:
        works.engine.started = lambda _, told: tokens.append(told["BOTPOOL_SLOT_TOKEN"])
        await works.warm()
        await works.launched()
        old, new = tokens
        assert await works.store.slots.of_token(old) is None
        assert await works.store.slots.of_token(new) is not None


async def test_a_warm_slot_needs_no_pull_no_creation_and_no_lock(database: Database) -> None:
    async with working(database) as works:
        slot = await works.warm()
        before = works.engine.counts.copy()
        # Somebody pulls the image again: a warm slot doesn't look.
        await database.execute(
            "UPDATE image_pulls SET status = 'pulling', finished_at = NULL,"
            " reserved_by = 'other', reserved_until = 'infinity'"
        )
        other = await works.replica()
        bot = (await works.create()).bot
        await other.run_once()
        assert (await works.slot_of(bot.id)).id == slot.id
        assert (await works.slot_of(bot.id)).status is SlotStatus.BUSY
        done = works.engine.counts - before
        assert (done["start"], done["create"], done["pull"]) == (1, 0, 0)


async def test_at_most_four_deployments_run_on_a_host_and_the_next_follow_at_once(
    database: Database,
) -> None:
    async with working(database, faults=SLOW_START) as works:
        bots = [(await works.create()).bot for _ in range(10)]
        await works.reconciler.run_once()
        for expected in (4, 8, 10):
            assert len(works.engine.running()) == expected
            await works.go(seconds=61)
        assert {(await works.store.bots.get(bot.id)).status for bot in bots} == {
            BotStatus.JOINING_CALL
        }


async def test_deployments_are_let_onto_a_host_in_the_order_of_their_assignment(
    database: Database,
) -> None:
    async with working(database, faults=SLOW_START, max_concurrent_deployments=1) as works:
        bots = []
        for _ in range(3):
            bots.append((await works.create()).bot)
            await works.go(seconds=1)
        for expected in range(1, 4):
            started = [
                bot.id
                for bot in bots
                if (await works.slot_of(bot.id)).deployment_started_at is not None
            ]
            assert started == [bot.id for bot in bots[:expected]]
            await works.go(seconds=61)


async def test_slots_are_spread_over_the_hosts_and_each_has_its_own_limit(
    database: Database,
) -> None:
    async with working(database, hosts=("a", "b"), faults=SLOW_START) as works:
        for _ in range(10):
            await works.create()
        await works.reconciler.run_once()
        assert (
            sorted(slot.host or "" for slot in await works.store.slots.all())
            == ["a"] * 5 + ["b"] * 5
        )
        assert sorted(running.host for running in works.engine.running()) == ["a"] * 4 + ["b"] * 4


async def test_the_word_of_a_bot_counts_before_the_status_of_the_engine(
    database: Database,
) -> None:
    async with working(database, faults=Faults(lag=3600.0)) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        assert slot.status is SlotStatus.DEPLOYING
        assert (await works.pool.assignments.claim(slot)).id == bot.id
        assert (await works.slot_of(bot.id)).status is SlotStatus.BUSY
        await works.go(seconds=30)
        assert (await works.slot_of(bot.id)).status is SlotStatus.BUSY
        assert works.engine.counts["start"] == 1


async def test_a_deployment_that_fails_is_tried_once_more_on_another_slot(
    database: Database,
) -> None:
    async with working(database, faults=Faults(start_fails=1.0)) as works:
        bot = await works.launched()
        assert bot.status is BotStatus.FATAL
        assert bot.failure_cause in {FailureCause.ENGINE, FailureCause.CRASHED}
        assert bot.failure_reason is not None
        assert "it was to fail" in bot.failure_reason
        assert bot.launch_attempts == 2
        steps = await works.store.transitions.timeline(bot.id)
        assert len({step.slot_id for step in steps if step.slot_id}) == 2
        assert works.engine.counts["start"] == 2
        # Both slots are well again.
        assert {slot.status for slot in await works.store.slots.all()} == {SlotStatus.IDLE}


async def test_a_bot_rests_before_it_is_launched_again_where_it_has_failed(
    database: Database,
) -> None:
    fails = Faults(start_fails=1.0)
    async with working(
        database, faults=fails, max_launch_attempts=3, relaunch_wait_ms=5000
    ) as works:
        starts = works.engine.counts
        bot = await works.launched()
        assert (await works.slot_of(bot.id)).waits_for is WaitsFor.PAUSE
        await works.go(seconds=4.9)
        assert starts["start"] == 1
        await works.go(seconds=0.2)
        assert starts["start"] == 2
        works.engine.faults = Faults()
        await works.go(seconds=9.8)
        assert starts["start"] == 2
        await works.go(seconds=0.3)
        bot = await works.store.bots.get(bot.id)
        assert (bot.status, bot.launch_attempts) == (BotStatus.JOINING_CALL, 3)
        assert (await works.slot_of(bot.id)).deployment_status is None


async def test_a_bot_is_launched_again_at_once_on_another_host(database: Database) -> None:
    async with working(
        database, hosts=("a", "b"), faults=Faults(start_fails=1.0), relaunch_wait_ms=5000
    ) as works:
        bot = await works.launched()
        assert (bot.status, works.engine.counts["start"]) == (BotStatus.FATAL, 2)


@pytest.mark.parametrize("lags", [True, False])
async def test_an_exit_counts_after_the_grace_where_it_may_be_of_before_the_start(
    database: Database, monkeypatch: pytest.MonkeyPatch, lags: bool
) -> None:
    async with working(database, max_launch_attempts=1) as works:
        monkeypatch.setattr(type(works.engine), "traits", Traits(lags=lags))
        works.engine.started = lambda started, _: works.engine.exit(started, 7)
        bot = await works.launched()
        if lags:
            assert bot.status is BotStatus.DEPLOYING
            await works.go(minutes=2, seconds=50)
            assert (await works.store.bots.get(bot.id)).status is BotStatus.DEPLOYING
            await works.go(seconds=20)
        bot = await works.store.bots.get(bot.id)
        assert (bot.status, bot.failure_cause) == (BotStatus.FATAL, FailureCause.CRASHED)
        assert "with code 7" in (bot.failure_reason or "")


async def test_a_broken_container_fails_within_the_grace_too(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database, max_launch_attempts=1) as works:
        monkeypatch.setattr(type(works.engine), "traits", Traits(lags=True))

        seen = iter([ContainerState.CREATED])

        async def observe(*_: object) -> Observation:
            state = next(seen, ContainerState.FAILED)
            return Observation(state=state, detail="degraded:unhealthy")

        monkeypatch.setattr(works.engine, "observe", observe)
        bot = await works.launched(Platform.ZOOM)
        await works.go(seconds=1)
        bot = await works.store.bots.get(bot.id)
        assert (bot.status, bot.failure_reason) == (BotStatus.FATAL, "degraded:unhealthy")


async def test_a_deployment_that_takes_25_minutes_has_failed(database: Database) -> None:
    faults = Faults(start=(1e9, 1e9))
    async with working(database, faults=faults, max_launch_attempts=1) as works:
        bot = await works.launched()
        await works.go(minutes=24, seconds=59)
        assert (await works.store.bots.get(bot.id)).status is BotStatus.DEPLOYING
        await works.go(seconds=20)
        bot = await works.store.bots.get(bot.id)
        assert (bot.status, bot.failure_cause) == (BotStatus.FATAL, FailureCause.START_TIMEOUT)
        assert "last status: starting" in (bot.failure_reason or "")
        assert works.engine.running() == []


async def test_a_deployment_is_looked_at_often_and_then_every_15_seconds(
    database: Database,
) -> None:
    async with working(database, faults=Faults(start=(1e9, 1e9))) as works:
        bot = await works.launched()
        waits = []
        for _ in range(40):
            slot = await works.slot_of(bot.id)
            assert slot.due_at is not None
            waits.append((slot.due_at - slot.read_at).total_seconds())
            await works.go(seconds=waits[-1])
        assert waits[0] < 0.2
        assert all(12 <= wait <= 18 for wait in waits[-10:])
        assert len(set(waits[-10:])) == 10  # no two the same: they are spread


async def test_a_container_that_the_engine_has_lost_is_created_again(database: Database) -> None:
    async with working(database) as works:
        slot = await works.warm()
        works.engine.lose(container(slot))
        bot = await works.launched()
        await works.go(seconds=1)
        bot = await works.store.bots.get(bot.id)
        assert bot.status is BotStatus.JOINING_CALL
        (step,) = [
            step
            for step in await works.store.transitions.timeline(bot.id)
            if step.reason == "container created again"
        ]
        assert step.details["oldContainerRef"] == slot.container_ref
        assert step.details["newContainerRef"] == bot.container_ref != slot.container_ref
        assert step.details["attempt"] == 3  # each bot has a container of its own


async def test_an_image_that_the_host_has_lost_is_pulled_again(database: Database) -> None:
    async with working(database) as works:
        slot = await works.warm()
        works.engine.lose(container(slot))
        works.engine.lose_image("a", IMAGE)
        bot = await works.launched()
        await works.go(seconds=1)
        await works.go(seconds=1)
        assert (await works.store.bots.get(bot.id)).status is BotStatus.JOINING_CALL
        assert works.engine.counts["pull"] == 2


@pytest.mark.parametrize(
    "change", ["engine = 'gone', host = 'x', container_ref = 'y'", "engine = 'gone', image = NULL"]
)
async def test_slots_of_an_engine_that_is_not_used_any_more_make_way_for_others(
    database: Database, change: str
) -> None:
    async with working(database) as works:
        old = await works.warm()
        await works.database.execute(f"UPDATE bot_pool_slots SET {change}")
        bot = await works.launched()
        assert (bot.status, bot.launch_attempts) == (BotStatus.JOINING_CALL, 1)
        (slot,) = await works.store.slots.all()
        assert slot.id != old.id
        assert (slot.engine, slot.host, slot.image) == ("simulated", "a", IMAGE)
        assert container(slot) in works.engine.running()


async def test_a_container_that_would_call_where_we_are_not_any_more_is_made_anew(
    database: Database,
) -> None:
    told: list[str] = []
    async with working(database) as works:
        works.engine.started = lambda _, environment: told.append(environment["BOTPOOL_URL"])
        old = await works.warm()
        moved = works.settings.model_copy(update={"public_url": "http://moved.test"})
        await works.create()
        await (await new_reconciler(works.store, works.pool, works.engine, moved)).run_once()
        assert told == [works.settings.runtime_url, "http://moved.test"]
        assert container(old) not in works.engine.containers()


async def test_a_container_is_made_anew_when_anything_that_it_is_made_with_has_changed(
    database: Database, tmp_path: Path
) -> None:
    file = tmp_path / "containers.toml"
    told: list[str | None] = []

    async def next_bot(works: Works, text: str) -> Slot:
        """The slot after another bot, launched by a replica that reads this file."""
        file.write_text(text)
        settings = Settings(**works.settings.model_dump() | {"container_file": file})
        other = await replace(works, settings=settings).replica()
        bot = (await works.create()).bot
        await other.run_once()
        slot = await works.slot_of(bot.id)
        assert slot.status is SlotStatus.BUSY
        await works.end(slot)
        await other.run_once()
        return await works.store.slots.get(slot.id)

    async with working(database) as works:
        works.engine.started = lambda _, environment: told.append(environment.get("SECRET"))
        first = await works.warm()
        assert first.spec_digest is not None
        same = await next_bot(works, '[zoom.env]\nSECRET = "other"\n')
        assert same.spec_digest == first.spec_digest
        assert same.creations == first.creations + 1  # for the bot after it
        digests = {first.spec_digest}
        for text in (
            '[all.env]\nSECRET = "one"\n',
            '[google-meet.env]\nSECRET = "two"\n',
            '[all.env]\nSECRET = "two"\n[all.docker]\nmemory = "1GiB"\n',
        ):
            before = await works.store.slots.get(first.id)
            slot = await next_bot(works, text)
            assert slot.creations == before.creations + 2  # the one that it had was not used
            assert slot.spec_digest is not None
            digests.add(slot.spec_digest)
        assert told == [None, None, "one", "two", "two"]
        assert len(digests) == 4
        assert len(works.engine.containers()) == 1


async def test_a_container_from_before_is_made_anew_and_one_of_another_pool_is_kept(
    database: Database,
) -> None:
    async with working(database, traits=Traits(reusable=True)) as works:
        slot = await works.warm()
        await works.database.execute("UPDATE bot_pool_slots SET spec_digest = NULL")
        again = await works.warm()
        assert again.container_ref != slot.container_ref
        assert again.spec_digest == slot.spec_digest
        await works.database.execute("UPDATE bot_pool_slots SET spec_digest = NULL, creations = 0")
        assert (await works.warm()).container_ref == again.container_ref


@pytest.mark.parametrize(
    ("traits", "told"),
    [
        (Traits(), "container removed: its image is bot:2 now"),
        (Traits(reusable=True, adaptable=True), "container changed: its image is bot:2 now"),
    ],
    ids=["made anew", "changed"],
)
async def test_slots_are_made_of_the_image_that_the_settings_name_now(
    database: Database, traits: Traits, told: str
) -> None:
    async with working(database, traits=traits) as works:
        if traits.adaptable:
            works.engine.add_image("a", "bot:2")
        slot = await works.warm()
        newer = works.settings.model_copy(update={"image_google_meet": "bot:2"})
        other = await replace(works, settings=newer).replica()
        bot = (await works.create()).bot
        await other.run_once()
        slot = await works.store.slots.get(slot.id)
        assert (slot.assigned_bot_id, slot.status) == (bot.id, SlotStatus.BUSY)
        assert slot.image == "bot:2"
        assert works.engine.counts["pull a bot:2"] == (not traits.adaptable)
        assert told in await works.reasons(bot)


@pytest.mark.parametrize("call", ["create", "start"])
async def test_a_call_whose_answer_was_lost_is_not_made_twice(
    database: Database, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    async with working(database) as works:
        asked = getattr(works.engine, call)

        async def lost(*args: object, **more: object) -> None:
            monkeypatch.setattr(works.engine, call, asked)
            await asked(*args, **more)
            raise EngineUnavailable("the answer was lost")

        monkeypatch.setattr(works.engine, call, lost)
        bot = await works.launched(Platform.ZOOM)
        slot = await works.slot_of(bot.id)
        assert (slot.status, slot.failed_steps) == (SlotStatus.DEPLOYING, 1)
        await works.go(seconds=1)
        bot = await works.store.bots.get(bot.id)
        assert (bot.status, bot.launch_attempts) == (BotStatus.JOINING_CALL, 1)
        assert works.engine.counts["start"] == 1
        assert len(await works.engine.list("a")) == 1


async def test_an_engine_that_does_not_answer_fails_no_bot(database: Database) -> None:
    async with working(database) as works:
        works.engine.take_away("a")
        bot = await works.launched()
        for _ in range(20):
            await works.go(minutes=1)
        assert (await works.store.bots.get(bot.id)).status is BotStatus.DEPLOYING
        works.engine.bring_back("a")
        await works.go(minutes=2)
        assert (await works.store.bots.get(bot.id)).status is BotStatus.JOINING_CALL


async def test_a_bot_stopped_while_its_container_starts_leaves_nothing_running(
    database: Database,
) -> None:
    async with working(database) as works:
        bot = (await works.create()).bot
        started = works.engine.start

        async def start(container: Container, environment: Mapping[str, str], **more: Any) -> str:
            ref = await started(container, environment, **more)
            await works.pool.assignments.stop_bot(bot.id)
            return ref

        works.engine.start = start  # type: ignore[method-assign]
        await works.reconciler.run_once()
        assert (await works.store.bots.get(bot.id)).status is BotStatus.CANCELLED
        (slot,) = await works.store.slots.all()
        assert slot.status is SlotStatus.IDLE
        assert works.engine.running() == []


async def test_a_claim_of_a_slot_without_a_bot_is_stale(database: Database) -> None:
    async with working(database) as works:
        slot = await works.warm()
        with pytest.raises(StaleLease, match="has no bot"):
            await works.pool.assignments.claim(slot)


async def test_platforms_without_an_image_need_no_pull(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched(Platform.ZOOM)
        assert bot.status is BotStatus.JOINING_CALL
        assert works.engine.counts["pull"] == 0


async def test_a_failure_that_is_older_than_the_bots_own_word_is_none(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database, faults=Faults(start=(60, 60))) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)

        async def late(*_: object) -> Observation:
            await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
            return Observation(state=ContainerState.FAILED, detail="the deployment has failed")

        monkeypatch.setattr(works.engine, "observe", late)
        await works.go(seconds=30)
        assert (await works.store.bots.get(bot.id)).status is BotStatus.IN_CALL
        assert (await works.store.slots.get(slot.id)).status is SlotStatus.BUSY
