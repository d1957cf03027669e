"""What needs a person: told in a sentence, with what mends it, and only while it is so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from botpool.engines.simulated import Faults
from botpool.models.attention import NeedKind, Severity
from botpool.models.hosts import HostFailure, HostReport
from botpool.models.replicas import ReplicaRole
from botpool.states import BotStatus, FailureCause, Platform
from tests.integration.test_bots_api import opened
from tests.support.works import IMAGE, working

if TYPE_CHECKING:
    from botpool.models.attention import Need
    from botpool.store import Database
    from tests.support.scene import Scene

pytestmark = pytest.mark.older_postgres

MEET = Platform.GOOGLE_MEET


async def needs(scene: Scene) -> dict[NeedKind, Need]:
    """What needs a person, beside a worker."""
    await scene.store.replicas.seen("worker", ReplicaRole.WORKER, "1", "here")
    return {need.kind: need for need in await scene.store.attention.needs()}


async def test_where_all_is_well_nothing_needs_a_person(scene: Scene) -> None:
    await scene.running()
    await scene.idle()
    assert await needs(scene) == {}


async def test_without_a_worker_one_has_to_be_started(scene: Scene) -> None:
    (need,) = await scene.store.attention.needs()
    assert (need.kind, need.severity) == (NeedKind.NO_WORKER, Severity.URGENT)
    assert need.action is not None
    assert need.action.command == "botpool serve --role worker"


async def test_slots_in_error_are_told_with_the_last_words(scene: Scene) -> None:
    bots = [(await scene.create()).bot for _ in range(2)]
    for bot in bots:
        slot = await scene.slot_of(bot.id)
        await scene.end(slot)
        await scene.pool.slots.fail(slot.id, slot.lease, "it does not stop")
    need = (await needs(scene))[NeedKind.SLOT_ERROR]
    assert need.sentence == (
        "2 slots of google-meet are in error. pool-google-meet-001: it does not stop"
    )
    assert need.action is not None
    assert need.action.path == f"/api/v1/slots/{need.slot_id}/recover"


async def test_a_host_that_gets_no_work_is_told_with_why(scene: Scene) -> None:
    for number in range(2):
        failure = HostFailure(engine="process", host="here", what=f"{number}", reason="disk full")
        await scene.store.hosts.note_failure(failure, most=2, within_ms=1000, probe_in_ms=1000)
    need = (await needs(scene))[NeedKind.HOST_UNHEALTHY]
    assert need.sentence == "here gets no new bots: disk full"
    assert need.action is not None
    assert need.action.path == "/api/v1/hosts/process/here/drain"
    await scene.pool.hosts.drain("process", "here")
    found = await needs(scene)
    assert NeedKind.HOST_DRAINED in found
    assert found[NeedKind.HOST_UNHEALTHY].action is None
    await scene.pool.hosts.report("process", [HostReport(host="b", capacity=None, open=False)])
    assert (await needs(scene))[NeedKind.HOST_CLOSED].host == "b"


async def test_a_pull_that_fails_is_told_in_the_engines_words_until_it_succeeds(
    database: Database,
) -> None:
    async with working(database, faults=Faults(pull_fails=1)) as works:
        await works.pool.hosts.ask_pull("simulated", "a", IMAGE, by="ops")
        await works.reconciler.do_asked_once()
        need = (await needs(works))[NeedKind.PULL_FAILING]
        assert need.sentence == f"{IMAGE} can't be brought to a: {IMAGE} can't be pulled."
        assert need.severity is Severity.SOON
        assert need.action is not None
        assert (need.action.path, need.action.body) == (
            "/api/v1/hosts/simulated/a/pull",
            {"image": IMAGE},
        )


async def test_a_full_pool_and_who_waits_too_long_are_told(scene: Scene) -> None:
    bots = [(await scene.create()).bot for _ in range(3)]
    assert NeedKind.POOL_FULL not in await needs(scene)
    await scene.pass_time(seconds=30)
    slot = await scene.slot_of(bots[0].id)
    await scene.end(slot)
    await scene.pool.slots.make_idle(slot.id, slot.lease)
    await scene.create()
    waiting = await scene.create(queue_timeout_ms=90_000)
    told = await needs(scene)
    assert told[NeedKind.POOL_FULL].sentence == (
        "All 3 slots of google-meet are taken. 1 bot waits."
    )
    assert {*told} == {NeedKind.POOL_FULL}
    await scene.pass_time(seconds=11)  # it was told 10 s
    told = await needs(scene)
    assert told[NeedKind.WAIT_OVER_ESTIMATE].bot_id == waiting.bot.id
    assert NeedKind.WAIT_NEAR_DEADLINE not in told
    await scene.pass_time(seconds=30)
    near = (await needs(scene))[NeedKind.WAIT_NEAR_DEADLINE]
    assert near.sentence.endswith("gives up in 49 s.")
    assert near.severity is Severity.URGENT


async def test_bots_that_failed_lately_are_told_by_cause_and_forgotten(scene: Scene) -> None:
    for number in range(3):
        bot = (await scene.create()).bot
        slot = await scene.slot_of(bot.id)
        await scene.pool.assignments.advance(
            slot.id,
            slot.lease,
            BotStatus.FATAL,
            f"no {number}",
            cause=FailureCause.NOT_ADMITTED,
        )
    need = (await needs(scene))[NeedKind.BOTS_FAILING]
    assert (need.cause, need.count, need.severity) == (
        FailureCause.NOT_ADMITTED,
        3,
        Severity.URGENT,
    )
    assert need.sentence.endswith("(not_admitted): no 2")
    await scene.pass_time(minutes=16)
    assert NeedKind.BOTS_FAILING not in await needs(scene)


async def test_a_paused_pool_is_a_note_and_urgent_once_a_bot_waits(scene: Scene) -> None:
    await scene.pool.queue.pause(MEET, by="ops", reason="a bad image")
    need = (await needs(scene))[NeedKind.POOL_PAUSED]
    assert need.severity is Severity.NOTE
    assert need.sentence == ("ops paused the launches of google-meet (a bad image). No bot waits.")
    await scene.create()
    need = (await needs(scene))[NeedKind.POOL_PAUSED]
    assert (need.severity, need.count) == (Severity.URGENT, 1)
    assert need.action is not None
    assert need.action.path == "/api/v1/pools/google-meet/resume"


async def test_a_webhook_that_is_paused_is_told_without_its_address(scene: Scene) -> None:
    endpoint = await scene.store.webhooks.add_endpoint(
        {
            "project_id": 1,
            "url": "https://example.com/secret",
            "description": "chat",
            "event_types": ["bot.status_changed"],
        },
        "whsec_" + "a" * 32,
        10,
    )
    assert endpoint is not None
    assert await needs(scene) == {}
    await scene.store.webhooks.pause_endpoint(endpoint.id, "it failed for a day")
    need = (await needs(scene))[NeedKind.WEBHOOK_PAUSED]
    assert need.sentence == (
        f"The webhook {endpoint.id} (chat) is paused, and gets nothing: it failed for a day"
    )
    assert "secret" not in str(need)


async def test_an_operator_reads_it_over_http_the_most_urgent_first(database: Database) -> None:
    async with opened(database) as api:
        await api.pool.hosts.drain("process", "here")
        answer = await api.admin.get("/api/v1/attention")
        assert answer.status_code == 200
        kinds = [need["kind"] for need in answer.json()["needs"]]
        assert kinds == ["no_worker", "host_drained"]
        assert answer.json()["needs"][1]["action"]["method"] == "POST"
        assert (await api.alice.get("/api/v1/attention")).status_code == 403
