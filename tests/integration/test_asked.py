"""What operators ask for at engines: recorded by the request, done by a worker, then told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from botpool.engines.base import Traits
from botpool.engines.simulated import Faults
from botpool.errors import HostNotFound, SlotHasBot, SlotNotFound
from botpool.models.pulls import PullKey
from botpool.states import BotStatus, FailureCause, Platform, SlotStatus
from tests.integration.test_bots_api import opened
from tests.integration.test_pulls import Gate
from tests.support.works import IMAGE, container, working

if TYPE_CHECKING:
    from botpool.store import Database
    from tests.support.works import Works

pytestmark = pytest.mark.older_postgres


async def told(works: Works, machine: str) -> list[Any]:
    """What was written of slots or hosts, in order."""
    return await works.database.fetch(
        "SELECT reason, details FROM transitions WHERE machine = $1 ORDER BY id", machine
    )


# Deleted


async def test_a_slot_without_a_bot_is_deleted_at_once_and_its_container_removed(
    database: Database,
) -> None:
    async with working(database) as works:
        slot = await works.warm()
        await works.pool.slots.remove(slot.id)
        assert await works.store.slots.find(slot.id) is None
        await works.reconciler.compare_once()
        assert await works.engine.list("a") == []


async def test_a_slot_with_a_bot_is_not_deleted(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        with pytest.raises(SlotHasBot) as refused:
            await works.pool.slots.remove(slot.id)
        assert refused.value.bot_id == bot.id
        kept = await works.store.slots.get(slot.id)
        assert (kept.status, kept.draining) == (SlotStatus.BUSY, False)


async def test_a_slot_in_error_is_deleted_even_if_its_engine_is_away(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        await works.end(slot)
        await works.pool.slots.fail(slot.id, slot.lease, "stuck")
        works.engine.take_away("a")
        await works.pool.slots.remove(slot.id)
        assert await works.store.slots.find(slot.id) is None
        works.engine.bring_back("a")
        await works.reconciler.compare_once()
        assert await works.engine.list("a") == []


async def test_a_slot_that_is_releasing_is_deleted_when_it_is_proved_stopped(
    database: Database,
) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        await works.end(slot)
        await works.pool.slots.remove(slot.id)
        assert (await works.store.slots.get(slot.id)).draining
        await works.reconciler.run_once()
        assert await works.store.slots.find(slot.id) is None
        assert await works.engine.list("a") == []


# Compared


async def test_a_comparison_on_request_says_what_the_engine_says(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        await works.pool.slots.ask_comparison(slot.id)
        assert (await works.store.slots.get(slot.id)).compare_asked_at is not None
        await works.reconciler.do_asked_once()
        found = await works.store.slots.get(slot.id)
        assert (found.compare_asked_at, found.compared_state) == (None, "running")
        assert (found.compared_said or "").endswith("is running, as it should be")
        *_, note = await works.store.transitions.timeline(bot.id)
        assert note.reason == f"compared on request: {found.compared_said}"


async def test_a_comparison_on_request_sets_right_what_differs(database: Database) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        await works.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
        works.engine.exit(container(slot), 3)
        await works.pool.slots.ask_comparison(slot.id)
        await works.reconciler.do_asked_once()
        assert (await works.store.bots.get(bot.id)).failure_cause is FailureCause.CRASHED
        said = (await works.store.slots.get(slot.id)).compared_said or ""
        assert "exited with code 3" in said
        assert said.endswith("so its bot is not there any more")


async def test_an_engine_that_does_not_answer_is_an_answer_that_changes_nothing(
    database: Database,
) -> None:
    async with working(database) as works:
        bot = await works.launched()
        slot = await works.slot_of(bot.id)
        works.engine.take_away("a")
        await works.pool.slots.ask_comparison(slot.id)
        await works.reconciler.do_asked_once()
        found = await works.store.slots.get(slot.id)
        assert (found.status, found.compared_state) == (SlotStatus.BUSY, "unknown")


async def test_two_replicas_tell_one_comparison_once(database: Database) -> None:
    async with working(database) as works:
        slot = await works.warm()
        await works.pool.slots.ask_comparison(slot.id)
        await works.reconciler.do_asked_once()
        await (await works.replica()).do_asked_once()
        assert await works.pool.slots.record_comparison(slot.id, "running", "too late") == []
        notes = [row for row in await told(works, "slot") if "on request" in row["reason"]]
        assert len(notes) == 1


# Pulled


async def pull(works: Works, image: str = IMAGE) -> str | None:
    pulls = {each.key: each for each in await works.store.pulls.all()}
    found = pulls.get(PullKey("simulated", "a", image))
    return None if found is None else found.status


async def test_an_image_that_was_asked_for_is_pulled_and_told(database: Database) -> None:
    async with working(database) as works:
        await works.pool.hosts.ask_pull("simulated", "a", "other:2", by="ops")
        assert await pull(works, "other:2") == "asked"
        await works.reconciler.do_asked_once()
        assert await pull(works, "other:2") == "present"
        (note,) = await told(works, "host")
        assert note["reason"] == "other:2 is on a"
        assert (note["details"]["outcome"], note["details"]["by"]) == ("present", "ops")
        await works.reconciler.do_asked_once()
        assert len(await told(works, "host")) == 1


async def test_without_an_image_those_of_all_platforms_are_pulled(database: Database) -> None:
    async with working(database, image_zoom="zoom:1") as works:
        await works.pool.hosts.ask_pull("simulated", "a", None, by="ops")
        await works.reconciler.do_asked_once()
        assert {each.image for each in await works.store.pulls.all()} >= {IMAGE, "zoom:1"}


async def test_a_pull_that_fails_is_told_in_the_engines_words(database: Database) -> None:
    async with working(database, faults=Faults(pull_fails=1)) as works:
        await works.pool.hosts.ask_pull("simulated", "a", IMAGE, by="ops")
        await works.reconciler.do_asked_once()
        (note,) = await told(works, "host")
        assert note["reason"] == f"{IMAGE} could not be brought to a: {IMAGE} can't be pulled."
        assert await pull(works) == "failed"


async def test_an_image_that_is_there_is_not_fetched_again(database: Database) -> None:
    async with working(database) as works:
        await works.warm()
        await works.pool.hosts.ask_pull("simulated", "a", IMAGE, by="ops")
        await works.reconciler.do_asked_once()
        assert works.engine.counts["pull"] == 1
        assert [note["details"]["outcome"] for note in await told(works, "host")] == ["present"]


async def test_an_image_that_was_removed_from_its_host_is_fetched_when_asked_for(
    database: Database,
) -> None:
    async with working(database) as works:
        await works.warm()
        works.engine.lose_image("a", IMAGE)
        await works.pool.hosts.ask_pull("simulated", "a", IMAGE, by="ops")
        await works.reconciler.do_asked_once()
        assert works.engine.counts["pull"] == 2
        assert await pull(works) == "present"


async def test_replicas_pull_what_was_asked_for_once(database: Database) -> None:
    async with working(database) as works:
        gate = Gate(works)
        await works.pool.hosts.ask_pull("simulated", "a", IMAGE, by="ops")
        work = asyncio.create_task(works.reconciler.do_asked_once())
        _, _, verdict = await gate.begun.get()
        await (await works.replica()).do_asked_once()
        assert gate.begun.empty()
        verdict.set_result(None)
        await work
        assert works.engine.counts["pull"] == 1
        assert len(await told(works, "host")) == 1


async def test_a_bot_gets_the_image_that_was_asked_for_before_it_came(database: Database) -> None:
    async with working(database) as works:
        await works.pool.hosts.ask_pull("simulated", "a", IMAGE, by="ops")
        bot = await works.launched()
        assert bot.status is BotStatus.JOINING_CALL
        assert works.engine.counts["pull"] == 1
        assert [note["details"]["outcome"] for note in await told(works, "host")] == ["present"]


async def test_where_only_a_start_brings_an_image_a_slot_is_started_for_it(
    database: Database,
) -> None:
    async with working(database, traits=Traits(pulls_at_start=True), pull_ahead=False) as works:
        await works.pool.hosts.ask_pull("simulated", "a", None, by="ops")
        await works.reconciler.do_asked_once()
        await works.reconciler.run_once()
        await works.go(seconds=10)
        assert await pull(works) == "present"
        assert [note["details"]["outcome"] for note in await told(works, "host")] == ["present"]
        await works.pool.hosts.ask_pull("simulated", "a", "other:2", by="ops")
        await works.reconciler.do_asked_once()
        *_, note = await told(works, "host")
        assert "no platform has this image" in note["reason"]


async def test_a_pull_of_a_replica_that_shuts_down_is_asked_for_again(database: Database) -> None:
    async with working(database) as works:
        await works.pool.hosts.ask_pull("simulated", "a", IMAGE, by="ops")
        key = PullKey("simulated", "a", IMAGE)
        assert await works.store.pulls.take(key, "me", 60_000) is not None
        await works.store.pulls.give_up(key, "me")
        assert await pull(works) == "asked"
        await works.reconciler.do_asked_once()
        assert await pull(works) == "present"


async def test_what_is_not_there_can_not_be_asked_for(database: Database) -> None:
    async with working(database, image_google_meet=None) as works:
        with pytest.raises(HostNotFound):
            await works.pool.hosts.ask_pull("simulated", "nowhere", IMAGE, by="ops")
        with pytest.raises(SlotNotFound):
            await works.pool.slots.ask_comparison(7)
        with pytest.raises(SlotNotFound):
            await works.pool.slots.remove(7)


# Over HTTP


async def test_operators_ask_over_http_and_get_202(database: Database) -> None:
    async with opened(database) as api:
        slot = await api.idle()
        asked = await api.admin.post(f"/api/v1/slots/{slot.id}/compare")
        assert (asked.status_code, asked.json()["compareAskedAt"] is None) == (202, False)
        pulled = await api.admin.post("/api/v1/hosts/process/here/pull", json={"image": "bot:2"})
        assert pulled.status_code == 202
        (image,) = pulled.json()["images"]
        assert (image["image"], image["status"]) == ("bot:2", "asked")
        assert image["askedAt"] is not None
        nothing = await api.admin.post("/api/v1/hosts/process/here/pull")
        assert (nothing.status_code, nothing.json()["code"]) == (422, "invalid_request")
        deleted = await api.admin.delete(f"/api/v1/slots/{slot.id}")
        assert (deleted.status_code, deleted.json()["draining"]) == (202, True)
        assert (await api.admin.delete(f"/api/v1/slots/{slot.id}")).status_code == 404


async def test_deleting_a_slot_with_a_bot_is_409_and_names_the_bot(database: Database) -> None:
    async with opened(database) as api:
        bot, slot = await api.running(Platform.ZOOM)
        answer = await api.admin.delete(f"/api/v1/slots/{slot.id}")
        assert (answer.status_code, answer.json()["code"]) == (409, "slot_has_bot")
        assert answer.json()["botId"] == bot.id
        assert (await api.alice.delete(f"/api/v1/slots/{slot.id}")).status_code == 403
