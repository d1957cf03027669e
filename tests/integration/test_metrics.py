"""`/metrics`: who may read it, that it says what is so, and that each event is counted once."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from botpool.access.keys import FRESH_SECONDS, Keys
from botpool.api import create_app, create_worker_app
from botpool.engines.base import Traits
from botpool.engines.measured import MeasuredEngine
from botpool.engines.simulated import Faults
from botpool.errors import DatabaseUnreachable, EngineRefused
from botpool.metrics import MEASURES, Metrics
from botpool.models.assignments import Ending, FailedLaunch
from botpool.models.replicas import ReplicaRole
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.states import BotStatus, FailureCause, Platform, Role
from botpool.telemetry import Telemetry
from tests.support.receiver import new_post
from tests.support.waiting import a_moment
from tests.support.works import new_reconciler, working
from tests.unit.test_limits import Clock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import FastAPI

    from botpool.models.gauges import PoolGauges
    from botpool.store import Database, Store
    from tests.support.scene import Scene
    from tests.support.works import Works

MEET = "google-meet"
PHASES = {"queued", "created", "pulled", "started", "claimed", "joined", "total"}

NAMED = {
    "botpool_slots": {"platform", "engine", "host", "status"},
    "botpool_queue_bots": {"platform"},
    "botpool_queue_oldest_seconds": {"platform"},
    "botpool_launch_seconds": {"platform", "engine", "phase"},
    "botpool_bots_ended_total": {"platform", "status", "cause"},
    "botpool_pulls_total": {"engine", "host", "outcome"},
    "botpool_pull_seconds": set(),
    "botpool_recoveries_total": {"outcome"},
    "botpool_engine_call_seconds": {"engine", "call", "outcome"},
    "botpool_webhook_backlog": set(),
    "botpool_replicas": {"role"},
    "botpool_event_loop_lag_seconds": set(),
}
"""What people have in their queries, with its labels: none may go, nor be named otherwise."""

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def counted(metrics: Metrics, name: str, **labels: str) -> float | None:
    """What a replica has counted so far."""
    content, _ = metrics.exposition(None, None)
    return samples(content.decode()).get((name, frozenset(labels.items())))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(scene: Scene, clock: Clock) -> Keys:
    return Keys(scene.store, Settings(), clock=clock)


def apps(scene: Scene, keys: Keys, metrics: Metrics, **settings: Any) -> list[FastAPI]:
    """Both apps that have metrics: that of an API, and that of a worker."""
    chosen = Settings(**settings)
    return [
        create_app(scene.store, scene.pool, chosen, keys, None, metrics),
        create_worker_app(scene.store, chosen, keys, metrics),
    ]


@asynccontextmanager
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://botpool"
    ) as http:
        yield http


async def scraped(store: Store, metrics: Metrics | None = None) -> Samples:
    content, _ = (metrics or Metrics()).exposition(await store.gauges.read(), None)
    return samples(content.decode())


def header(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# Who may read it


async def test_operators_read_it_on_an_api_and_on_a_worker_and_others_do_not(
    scene: Scene, keys: Keys
) -> None:
    made = {role: (await keys.create(role, role))[1] for role in Role}
    for app in apps(scene, keys, Metrics()):
        async with client(app) as http:
            found = {
                role: (await http.get("/metrics", headers=header(key))).status_code
                for role, key in made.items()
            }
            assert found == {Role.ADMIN: 200, Role.VIEWER: 200, Role.CLIENT: 403}
            assert (await http.get("/metrics")).status_code == 401
            assert (await http.get("/metrics", headers=header("wrong" * 9))).status_code == 401


async def test_anybody_reads_it_if_that_is_set(scene: Scene, keys: Keys) -> None:
    for app in apps(scene, keys, Metrics(), metrics_open=True):
        async with client(app) as http:
            answer = await http.get("/metrics")
            assert answer.status_code == 200
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["content-type"].startswith("text/plain; version=")
            wants = {"Accept": "application/openmetrics-text; version=1.0.0"}
            answer = await http.get("/metrics", headers=wants)
            assert answer.headers["content-type"].startswith("application/openmetrics-text")
            assert answer.text.endswith("# EOF\n")


# What it says


async def test_it_has_the_names_and_labels_that_queries_are_made_with(
    scene: Scene, keys: Keys
) -> None:
    known = {measure.name: set(measure.labels) for measure in MEASURES}
    assert NAMED.items() <= known.items()
    assert "botpool_build_info" in known
    await scene.running()
    metrics = Metrics()
    metrics.expect_launches("process")
    metrics.watch_event_loop(lambda: 0.25)
    metrics.ended(MEET, "FATAL", "crashed")
    metrics.called("process", "start", "ok", 0.5)
    (app, _) = apps(scene, keys, metrics, metrics_open=True)
    async with client(app) as http:
        text = (await http.get("/metrics")).text
    assert "_created" not in text
    found: dict[str, set[str]] = {}
    kinds: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name
            if family.type == "histogram":
                name = name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
            found.setdefault(name, set()).update(sample.labels.keys() - {"le"})
            kinds[name] = family.type
    ours = {name: labels for name, labels in found.items() if name.startswith("botpool_")}
    # A pull of a host shows once there was one.
    assert ours == {name: known[name] for name in ours}
    assert known.keys() - ours.keys() == {"botpool_pulls_total"}
    assert all(kinds[measure.name] == measure.kind for measure in MEASURES if measure.name in kinds)
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} <= found.keys()


async def test_every_phase_is_there_before_the_first_launch() -> None:
    metrics = Metrics()
    metrics.expect_launches("docker")
    for platform in Platform:
        for phase in PHASES:
            labels = {"platform": platform.value, "engine": "docker", "phase": phase}
            assert counted(metrics, "botpool_launch_seconds_count", **labels) == 0


async def test_slots_are_counted_by_place_and_status_and_no_status_is_left_out(
    scene: Scene,
) -> None:
    await scene.running()
    await scene.running()
    await scene.idle(Platform.ZOOM)
    found = await scraped(scene.store)

    def slots(platform: str, status: str) -> float:
        labels = {"platform": platform, "engine": "process", "host": "here", "status": status}
        return found["botpool_slots", frozenset(labels.items())]

    assert (slots(MEET, "busy"), slots(MEET, "idle"), slots(MEET, "error")) == (2, 0, 0)
    assert (slots("zoom", "busy"), slots("zoom", "idle")) == (0, 1)
    assert found["botpool_pool_max_slots", frozenset({("platform", MEET)})] == 3


async def test_the_queue_tells_how_many_wait_and_for_how_long_at_most(scene: Scene) -> None:
    for _ in range(4):
        await scene.create()
    await scene.pass_time(seconds=30)
    await scene.create()
    await scene.pass_time(seconds=12)
    found = await scraped(scene.store)

    def queue(name: str, platform: str) -> float:
        return found[f"botpool_queue_{name}", frozenset({("platform", platform)})]

    assert (queue("bots", MEET), queue("oldest_seconds", MEET)) == (2, 42)
    assert (queue("bots", "zoom"), queue("oldest_seconds", "zoom")) == (0, 0)


async def test_hosts_are_healthy_or_not(database: Database) -> None:
    async with working(database, hosts=("a", "b"), host_failures=1) as works:
        failure = {"engine": "simulated", "host": "a", "what": "x", "image": "", "reason": "away"}
        await works.database.fetch("SELECT note_failure($1::jsonb, 1, 120000, 60000)", failure)
        found = await scraped(works.store)
        healthy = {
            dict(labels)["host"]: value
            for (name, labels), value in found.items()
            if name == "botpool_host_healthy"
        }
        assert healthy == {"a": 0, "b": 1}


async def test_the_backlog_is_what_is_to_be_delivered_but_for_paused_endpoints(
    database: Database,
) -> None:
    async with new_post(database) as post:

        async def backlog() -> float:
            return (await scraped(post.store))["botpool_webhook_backlog", frozenset()]

        bot = await post.told("/hook")
        await post.advance(bot, BotStatus.JOINING_CALL, BotStatus.IN_CALL)
        assert await backlog() == 3  # those that wait for their turn count, too
        await post.webhooks.run_once()
        assert await backlog() == 0
        await post.database.execute(
            "INSERT INTO webhook_endpoints (project_id, url, description, event_types, created_at)"
            " VALUES (1, 'http://hooks.example.com/', '', '{bot.status_changed}', now())"
        )
        await post.create()
        assert await backlog() == 1
        await post.database.execute("SELECT pause_endpoint(id, 'away') FROM webhook_endpoints")
        assert await backlog() == 0


async def test_a_replica_of_both_roles_counts_in_both(scene: Scene) -> None:
    await scene.store.replicas.seen("one", ReplicaRole.ALL, "1", "m")
    await scene.store.replicas.seen("two", ReplicaRole.API, "1", "m")
    found = await scraped(scene.store)
    assert found["botpool_replicas", frozenset({("role", "api")})] == 2
    assert found["botpool_replicas", frozenset({("role", "worker")})] == 1


async def test_scrapes_that_overlap_read_the_database_once(
    scene: Scene, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked, go_on = scene.store.gauges.read, 0, asyncio.Event()

    async def slow() -> PoolGauges:
        nonlocal asked
        asked += 1
        await go_on.wait()
        return await read()

    monkeypatch.setattr(scene.store.gauges, "read", slow)
    (app, _) = apps(scene, keys, Metrics(), metrics_open=True)
    async with client(app) as http:
        scrapes = [asyncio.create_task(http.get("/metrics")) for _ in range(5)]
        while not asked:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        go_on.set()
        answers = await asyncio.gather(*scrapes)
    assert {answer.status_code for answer in answers} == {200}
    assert asked == 1


async def test_while_the_database_is_away_a_replica_tells_what_it_knows_itself(
    scene: Scene, keys: Keys, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a key that it has seen; whether another one is valid, nobody can say."""
    _, viewer = await keys.create("prometheus", Role.VIEWER)
    _, other = await keys.create("other", Role.VIEWER)
    _, foreign = await keys.create("foreign", Role.CLIENT)
    for app in apps(scene, keys, Metrics()):
        async with client(app) as http:
            before = samples((await http.get("/metrics", headers=header(viewer))).text)
            assert (await http.get("/metrics", headers=header(foreign))).status_code == 403
            with monkeypatch.context() as away:

                async def unreachable(*_: object) -> Any:
                    raise DatabaseUnreachable

                away.setattr(scene.store.keys, "find", unreachable)
                away.setattr(scene.store.gauges._queries, "rows", unreachable)
                clock.now += FRESH_SECONDS + 1
                answer = await http.get("/metrics", headers=header(viewer))
                assert (await http.get("/metrics", headers=header(other))).status_code == 503
                assert (await http.get("/metrics", headers=header(foreign))).status_code == 403
                assert (await http.get("/metrics")).status_code == 401
        assert answer.status_code == 200
        after = samples(answer.text)
        up = ("botpool_database_up", frozenset[tuple[str, str]]())
        assert (before[up], after[up]) == (1, 0)
        gone = {name for name, _ in before} - {name for name, _ in after}
        assert gone == {measure.name for measure in MEASURES if measure.of_database} - {
            "botpool_slots"  # there is none
        }


async def test_a_database_that_hangs_delays_a_scrape_by_seconds_only(
    scene: Scene, keys: Keys, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, viewer = await keys.create("prometheus", Role.VIEWER)
    monkeypatch.setattr("botpool.api.metrics._ANSWER_SECONDS", 0.05)
    (app, _) = apps(scene, keys, Metrics())
    async with client(app) as http:
        while (await http.get("/metrics", headers=header(viewer))).status_code != 200:
            await a_moment()  # a slow machine may need longer than that
        never = asyncio.Event()

        async def hang(*_: object) -> Any:
            await never.wait()

        monkeypatch.setattr(scene.store.keys, "find", hang)
        monkeypatch.setattr(scene.store.gauges._queries, "rows", hang)
        clock.now += FRESH_SECONDS + 1
        answer = await http.get("/metrics", headers=header(viewer))
        never.set()
    found = samples(answer.text)
    assert found["botpool_database_up", frozenset()] == 0


# What is counted


@asynccontextmanager
async def measured(scene: Scene) -> AsyncIterator[tuple[Pool, Metrics, Telemetry]]:
    """A replica on the scene's database that counts. What it has heard is measured at the end."""
    metrics = Metrics()
    telemetry = Telemetry(scene.store, metrics)
    yield Pool(scene.store, Settings(max_pool_size=3), telemetry), metrics, telemetry


def launches(metrics: Metrics, phase: str, engine: str = "process") -> tuple[float, float]:
    """How many were counted, and how long they took in all."""
    labels = {"platform": MEET, "engine": engine, "phase": phase}
    name = "botpool_launch_seconds"
    return (
        counted(metrics, f"{name}_count", **labels) or 0,
        counted(metrics, f"{name}_sum", **labels) or 0,
    )


def ended(metrics: Metrics, status: str, cause: str = "") -> float:
    name = "botpool_bots_ended_total"
    return counted(metrics, name, platform=MEET, status=status, cause=cause) or 0


async def test_a_launch_is_counted_once_by_the_replica_that_wrote_its_end(scene: Scene) -> None:
    async with measured(scene) as (pool, metrics, telemetry), measured(scene) as (_, other, idle):
        bot = (await scene.create()).bot
        await scene.pass_time(seconds=2)
        slot = await scene.slot_of(bot.id)
        for status in (BotStatus.JOINING_CALL, BotStatus.IN_WAITING_ROOM, BotStatus.IN_CALL):
            await pool.assignments.advance(slot.id, slot.lease, status, "says so")
            await pool.assignments.advance(slot.id, slot.lease, status, "says it again")
            await scene.pass_time(seconds=3)
        await telemetry.measure()
        await pool.assignments.advance(slot.id, slot.lease, BotStatus.DONE, "done")
        await telemetry.measure()
        await idle.measure()
        assert launches(metrics, "queued") == (1, 0)
        assert launches(metrics, "started") == (1, 2)
        assert launches(metrics, "claimed") == (1, 0)
        assert launches(metrics, "joined") == (1, 3)
        assert launches(metrics, "total") == (1, 8)
        assert launches(metrics, "created") == (0, 0)  # skipped
        assert ended(metrics, "DONE") == 1
        assert ended(other, "DONE") == 0
        assert launches(other, "total") == (0, 0)


async def test_a_launch_that_failed_counts_as_far_as_it_came_and_its_end_with_the_cause(
    scene: Scene,
) -> None:
    async with measured(scene) as (pool, metrics, telemetry):
        bot = (await scene.create()).bot
        await scene.pass_time(seconds=2)
        slot = await scene.slot_of(bot.id)
        await pool.assignments.advance(slot.id, slot.lease, BotStatus.JOINING_CALL, "says so")
        await pool.assignments.advance(
            slot.id, slot.lease, BotStatus.FATAL, "not let in", cause=FailureCause.NOT_ADMITTED
        )
        await telemetry.measure()
        assert launches(metrics, "claimed")[0] == 1
        assert launches(metrics, "joined")[0] == launches(metrics, "total")[0] == 0
        assert ended(metrics, "FATAL", "not_admitted") == 1


async def test_an_end_that_was_written_by_another_or_rolled_back_is_not_counted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, slot = await scene.running()
    ending = Ending(
        slot_id=slot.id, lease=slot.lease, bot_status=BotStatus.DONE, reason="the bot is done"
    )
    async with measured(scene) as (pool, metrics, telemetry):
        with monkeypatch.context() as away:

            async def lost(*_: object) -> Any:
                raise DatabaseUnreachable

            away.setattr(scene.store.slots, "end_assignments", lost)
            with pytest.raises(DatabaseUnreachable):
                await pool.assignments.end_assignment(ending)
        await scene.end(slot)
        await pool.assignments.end_assignment(ending)
        await telemetry.measure()
        assert ended(metrics, "DONE") == 0


async def test_bots_that_gave_up_waiting_or_were_cancelled_are_counted(scene: Scene) -> None:
    async with measured(scene) as (pool, metrics, telemetry):
        bots = [(await scene.create()).bot for _ in range(5)]
        await pool.assignments.stop_bot(bots[0].id)
        await pool.assignments.stop_bot(bots[3].id)
        await scene.pass_time(seconds=400)
        await pool.queue.expire()
        await telemetry.measure()
        assert ended(metrics, "CANCELLED") == 2
        assert ended(metrics, "FATAL", "queue_timeout") == 1


async def test_what_could_not_be_read_is_measured_with_the_next(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with measured(scene) as (pool, metrics, telemetry):
        bot = (await scene.create()).bot
        with monkeypatch.context() as away:

            async def unreachable(*_: object) -> Any:
                raise DatabaseUnreachable

            away.setattr(scene.store.launches, "outcomes", unreachable)
            await pool.assignments.stop_bot(bot.id)
            with pytest.raises(DatabaseUnreachable):
                await telemetry.measure()
        await telemetry.measure()
        await telemetry.measure()
        assert ended(metrics, "CANCELLED") == 1


async def test_a_relaunch_counts_its_last_phases_and_the_whole_since_the_creation(
    scene: Scene,
) -> None:
    async with measured(scene) as (pool, metrics, telemetry):
        bot = (await scene.create()).bot
        slot = await scene.slot_of(bot.id)
        await scene.pass_time(seconds=60)
        failed = FailedLaunch(
            slot_id=slot.id, lease=slot.lease, cause=FailureCause.ENGINE, reason="broken"
        )
        await pool.relaunch.fail_launch(failed)
        slot = await scene.slot_of(bot.id)
        await scene.pass_time(seconds=5)
        await pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
        await telemetry.measure()
        assert launches(metrics, "started") == (1, 5)
        assert launches(metrics, "total") == (1, 65)


async def test_a_bot_that_goes_back_into_its_call_is_wanted_since_it_left(scene: Scene) -> None:
    async with measured(scene) as (pool, metrics, telemetry):
        bot = (await scene.create(relaunch_in_call=True)).bot
        slot = await scene.slot_of(bot.id)
        await pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
        await telemetry.measure()
        await scene.pass_time(hours=1)
        failed = FailedLaunch(
            slot_id=slot.id, lease=slot.lease, cause=FailureCause.CRASHED, reason="crashed"
        )
        await pool.relaunch.fail_launch(failed)
        slot = await scene.slot_of(bot.id)
        await scene.pass_time(seconds=5)
        await pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
        await telemetry.measure()
        assert launches(metrics, "total") == (2, 5)


# At engines


async def with_metrics(works: Works, metrics: Metrics) -> Any:
    engine: Any = MeasuredEngine(works.engine, metrics.called)
    return await new_reconciler(works.store, works.pool, engine, works.settings, metrics=metrics)


def fails_once(works: Works, call: str) -> None:
    """Let the engine refuse the next call of this name."""
    usual = getattr(works.engine, call)

    async def refuse(*_: object, **__: object) -> Any:
        setattr(works.engine, call, usual)
        raise EngineRefused("no")

    setattr(works.engine, call, refuse)


def pulls(metrics: Metrics, outcome: str) -> float:
    labels = {"engine": "simulated", "host": "a", "outcome": outcome}
    return counted(metrics, "botpool_pulls_total", **labels) or 0


async def test_pulls_are_counted_by_their_outcome(database: Database) -> None:
    metrics = Metrics()
    async with working(database, max_launch_attempts=1) as works:
        reconciler = await with_metrics(works, metrics)
        fails_once(works, "pull")
        await works.create()
        await reconciler.run_once()
        assert (pulls(metrics, "failed"), pulls(metrics, "fetched")) == (1, 0)
        await works.pass_time(seconds=1)
        await works.create()
        await works.create()
        await reconciler.run_once()
        assert (pulls(metrics, "failed"), pulls(metrics, "fetched")) == (1, 1)
        assert counted(metrics, "botpool_pull_seconds_count") == 1
        await works.database.execute("DELETE FROM image_pulls")
        other = await with_metrics(works, metrics)
        await works.create()
        await other.run_once()
        assert (pulls(metrics, "fetched"), pulls(metrics, "present")) == (1, 1)
        assert counted(metrics, "botpool_pull_seconds_count") == 1


async def test_an_image_that_a_start_brought_counts_as_fetched(database: Database) -> None:
    metrics = Metrics()
    starts = Faults(start=(60, 60))
    async with working(database, traits=Traits(pulls_at_start=True), faults=starts) as works:
        telemetry = Telemetry(works.store, metrics)
        pool = Pool(works.store, works.settings, telemetry)
        bot = await works.launched()
        await works.pass_time(seconds=7)
        slot = await works.slot_of(bot.id)
        await pool.assignments.advance(slot.id, slot.lease, BotStatus.JOINING_CALL, "claimed")
        await telemetry.measure()
        assert (pulls(metrics, "fetched"), pulls(metrics, "failed")) == (1, 0)
        assert counted(metrics, "botpool_pull_seconds_sum") == pytest.approx(7, abs=1)


def recoveries(metrics: Metrics) -> dict[str, float]:
    outcomes = ("recovered", "failed", "deleted", "skipped")
    return {
        outcome: found
        for outcome in outcomes
        if (found := counted(metrics, "botpool_recoveries_total", outcome=outcome))
    }


async def test_a_repair_is_counted_by_its_outcome_also_by_hand(database: Database) -> None:
    metrics = Metrics()
    async with working(database, max_recovery_attempts=2) as works:
        reconciler = await with_metrics(works, metrics)
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        await works.end(slot)
        await works.pool.slots.fail(slot.id, slot.lease, "stuck")
        await reconciler.run_once()
        assert recoveries(metrics) == {"recovered": 1}
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        await works.end(slot)
        await works.pool.slots.fail(slot.id, slot.lease, "stuck")
        fails_once(works, "stop")
        await reconciler.recover_once(by_hand=True)
        assert recoveries(metrics) == {"recovered": 1, "failed": 1}
        fails_once(works, "stop")
        await works.pass_time(minutes=10)
        await reconciler.run_once()
        assert recoveries(metrics) == {"recovered": 1, "failed": 1, "deleted": 1}


async def test_what_recovery_does_is_counted_and_what_it_leaves_too(database: Database) -> None:
    metrics = Metrics()
    async with working(database) as works:
        reconciler = await with_metrics(works, metrics)
        await works.launched()
        await works.pass_time(minutes=16)
        done = await reconciler.recover_once()
        expected: dict[str, float] = {}
        for decision in done:
            expected[decision.outcome] = expected.get(decision.outcome, 0) + 1
        assert expected
        assert recoveries(metrics) == expected


async def test_calls_of_an_engine_are_measured_with_their_outcome(database: Database) -> None:
    metrics = Metrics()
    async with working(database) as works:
        reconciler = await with_metrics(works, metrics)
        fails_once(works, "create")
        await works.create()
        await reconciler.run_once()

        def calls(call: str, outcome: str) -> float | None:
            labels = {"engine": "simulated", "call": call, "outcome": outcome}
            return counted(metrics, "botpool_engine_call_seconds_count", **labels)

        assert calls("create", "refused") == 1
        assert (calls("pull", "ok"), calls("start", "ok")) == (1, 1)


async def test_time_goes_by_between_scrapes(scene: Scene) -> None:
    """The age of a wait is the database's, at the moment of the scrape."""
    for _ in range(4):
        await scene.create()
    key = ("botpool_queue_oldest_seconds", frozenset({("platform", MEET)}))
    first = (await scraped(scene.store))[key]
    await scene.pass_time(seconds=timedelta(minutes=1).total_seconds())
    assert (await scraped(scene.store))[key] == first + 60
