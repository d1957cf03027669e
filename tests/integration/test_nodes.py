"""Hosts that are clusters: what fails on a node, and containers whose nodes are cut off."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from botpool.api.waiting import surroundings
from botpool.engines.base import ContainerSpec, ContainerState, Observation, Traits
from botpool.engines.simulated import SimulatedEngine
from botpool.models.replicas import ReplicaRole
from botpool.models.waiting import Wait, slot_waits_for
from botpool.reconciler import Reconciler
from botpool.states import BotStatus, FailureCause, Platform, SlotStatus
from tests.support.works import IMAGE, container, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.engines.base import Container
    from botpool.models.bots import Bot
    from botpool.store import Database
    from tests.support.works import Works

CLUSTER = Traits(environment_at_start=False, has_nodes=True)


@asynccontextmanager
async def nodes(
    database: Database, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncIterator[tuple[Works, dict[str, Any]]]:
    """A cluster whose containers are all on the node n1, and are seen as `seen` says."""
    async with working(database, traits=CLUSTER, **settings) as works:
        works.engine.add_image("a", IMAGE)  # a start would bring it
        seen: dict[str, Any] = {"node": "n1"}
        observe = works.engine.observe

        async def on_node(of: Container, deployment: str | None = None) -> Observation:
            found = await observe(of, deployment)
            started = found.state not in {ContainerState.CREATED, ContainerState.MISSING}
            return replace(found, **seen) if started else found

        monkeypatch.setattr(works.engine, "observe", on_node)
        yield works, seen


async def in_call(works: Works) -> Bot:
    bot = await works.launched()
    slot = await works.slot_of(bot.id)
    await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
    return await works.store.bots.get(bot.id)


async def why_deleted(works: Works) -> str:
    """The reason with which the last slot was deleted."""
    (row,) = await works.database.fetch(
        "SELECT reason FROM transitions WHERE machine = 'slot' AND to_status IS NULL"
        " ORDER BY id DESC LIMIT 1"
    )
    reason: str = row["reason"]
    return reason


async def test_a_slot_tells_its_node_until_its_container_is_proved_stopped(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(database, monkeypatch) as (works, _):
        bot = await in_call(works)
        slot = await works.slot_of(bot.id)
        assert slot.node == "n1"
        await works.end(slot)
        await works.reconciler.run_once()
        slot = await works.store.slots.get(slot.id)
        assert (slot.status, slot.node) == (SlotStatus.IDLE, None)


async def test_what_fails_on_a_node_says_nothing_of_the_cluster_and_is_avoided(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(database, monkeypatch, host_failures=1) as (works, seen):
        avoided: list[str | None] = []
        start = works.engine.start

        async def noted(*args: Any, avoid_node: str | None = None, **more: Any) -> str:
            avoided.append(avoid_node)
            return await start(*args, **more)

        monkeypatch.setattr(works.engine, "start", noted)
        seen |= {"state": ContainerState.FAILED, "detail": "its node has no disk left"}
        bot = await works.launched()
        assert avoided[:2] == [None, "n1"]
        assert (await works.store.bots.get(bot.id)).avoid_host is None
        (host,) = await works.store.hosts.all()
        assert host.healthy


async def test_an_image_that_a_start_cant_bring_is_told_as_such(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(database, monkeypatch) as (works, seen):
        seen |= {"state": ContainerState.FAILED, "image_failed": True, "detail": "not found"}
        bot = await works.launched()
        found = await works.store.bots.get(bot.id)
        assert (found.status, found.failure_cause) == (BotStatus.FATAL, FailureCause.IMAGE_PULL)


async def test_a_bot_whose_node_has_yet_to_pull_the_image_waits_for_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(database, monkeypatch) as (works, seen):
        seen |= {"state": ContainerState.STARTING, "image_failed": True, "detail": "no route to r"}
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        await works.store.replicas.seen("one", ReplicaRole.WORKER, "1", "here")
        waiting = slot_waits_for(slot, await surroundings(works.store, [slot]))
        assert waiting is not None
        assert (waiting.what, waiting.error) == (Wait.IMAGE, "no route to r")
        # Then it starts.
        seen |= {"image_failed": False, "detail": "ContainerCreating"}
        await works.go(seconds=20)
        slot = await works.slot_of(bot.id)
        assert (slot.waits_for, slot.deployment) == (None, "starting: ContainerCreating")


async def test_no_start_waits_for_a_pull_or_for_its_turn(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(database, monkeypatch, engine="simulated") as (works, _):
        await works.launched()
        assert await works.store.pulls.all() == []


async def test_a_bot_whose_container_is_gone_is_judged_by_its_heartbeats(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(database, monkeypatch) as (works, _):
        bot = await in_call(works)
        slot = await works.slot_of(bot.id)
        works.engine.lose(container(slot))
        await works.pass_time(seconds=60)
        await works.reconciler.compare_once()
        assert (await works.store.bots.get(bot.id)).status is BotStatus.IN_CALL
        await works.pass_time(minutes=6)
        await works.reconciler.recover_once()
        found = await works.store.bots.get(bot.id)
        assert (found.status, found.failure_cause) == (
            BotStatus.FATAL,
            FailureCause.HEARTBEAT_LOST,
        )
        await works.reconciler.run_once()
        assert await works.store.slots.find(slot.id) is None
        assert "not proved stopped" in await why_deleted(works)


async def test_a_launch_whose_container_is_gone_begins_no_second_one_in_its_slot(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(database, monkeypatch) as (works, seen):
        seen["state"] = ContainerState.STARTING
        bot = await works.launched()
        first = await works.slot_of(bot.id)
        works.engine.lose(container(first))
        del seen["state"]
        await works.go(seconds=20)
        second = await works.slot_of(bot.id)
        assert second.id != first.id
        assert await works.store.slots.find(first.id) is None
        assert (await works.store.bots.get(bot.id)).launch_attempts == 2


async def test_a_slot_whose_node_is_away_waits_and_is_then_given_up_never_idle(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(database, monkeypatch, lost_after_ms=600_000) as (works, seen):
        bot = await in_call(works)
        slot = await works.slot_of(bot.id)
        over_at = await works.store.installation.now() + timedelta(seconds=10)
        seen |= {"state": ContainerState.RUNNING, "over_at": over_at}
        await works.end(slot)
        await works.go()
        await works.go(minutes=9)
        assert (await works.store.slots.get(slot.id)).status is SlotStatus.RELEASING
        await works.go(minutes=2)
        assert await works.store.slots.find(slot.id) is None
        said = "not proved stopped: its container on the node n1 should have been over"
        assert said in await why_deleted(works)


async def test_a_container_without_a_slot_is_kept_for_its_node_to_tell_its_end_for_a_day(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(database, monkeypatch, lost_after_ms=1) as (works, seen):
        bot = await in_call(works)
        slot = await works.slot_of(bot.id)
        over_at = await works.store.installation.now()
        seen |= {"state": ContainerState.RUNNING, "over_at": over_at}
        await works.end(slot)
        await works.go(seconds=1)
        assert await works.store.slots.find(slot.id) is None
        await works.pass_time(hours=23)
        await works.reconciler.compare_once()
        assert container(slot) in works.engine.containers()
        await works.pass_time(hours=2)
        await works.reconciler.compare_once()
        assert container(slot) not in works.engine.containers()


@pytest.mark.parametrize("described", [True, False])
async def test_a_slot_on_an_engine_that_is_not_used_any_more_is_only_clean_if_that_is_proved(
    database: Database, monkeypatch: pytest.MonkeyPatch, *, described: bool
) -> None:
    async with nodes(database, monkeypatch) as (works, _):
        bot = await in_call(works)
        slot = await works.slot_of(bot.id)
        other = SimulatedEngine()
        monkeypatch.setattr(other, "name", "other")
        engines = {engine.name: engine for engine in [other, *([works.engine] * described)]}
        settings = works.settings.model_copy(update={"engine": "other"})
        moved = Reconciler(
            *(works.store, works.pool, engines, settings),
            installation=await works.store.installation.name(),
            seed=0,
        )
        await works.end(slot)
        await moved.run_once()
        assert await works.store.slots.find(slot.id) is None
        said = await why_deleted(works)
        assert said.startswith("new slots are on other, but this one is on simulated")
        assert ("not proved stopped" in said) is not described
        assert (container(slot) in works.engine.containers()) is not described


async def test_containers_without_a_slot_do_not_wait_for_each_other(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(database, monkeypatch) as (works, _):
        works.reconciler.step_seconds = 10  # so long only if they wait
        for slot_id in range(1001, 1021):
            spec = ContainerSpec(
                host="a",
                name=f"pool-zoom-{slot_id}-abcdef",
                slot_id=slot_id,
                slot_name=f"pool-zoom-{slot_id}",
                platform=Platform.ZOOM,
                image=IMAGE,
                environment={},
            )
            await works.engine.create(spec)
        stop, together = works.engine.stop, asyncio.Barrier(4)

        async def slow(of: Container, grace_seconds: float) -> None:
            await together.wait()
            await stop(of, grace_seconds)

        monkeypatch.setattr(works.engine, "stop", slow)
        assert (await works.reconciler.compare_once()).removed == 20


async def test_a_host_that_comes_later_is_looked_after_too(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(database, monkeypatch) as (works, _):
        assert ("simulated", "b") not in works.reconciler.reservations._hosts()
        monkeypatch.setattr(works.engine, "hosts", lambda: ("a", "b"))
        assert ("simulated", "b") in works.reconciler.reservations._hosts()
