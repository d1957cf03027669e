"""Events: one shape for webhooks, the stream and timelines, in pages that are bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from botpool.api.events import Timeline
from botpool.models.assignments import Ending
from botpool.models.events import EventType
from botpool.states import BotStatus, FailureCause
from botpool.store import Store, connect, migrate
from botpool.store.schema.migrate import migrations
from tests.integration.test_migrations import apply
from tests.support.follower import ALL, following_feed, next_events
from tests.support.receiver import new_post

if TYPE_CHECKING:
    from botpool.models.events import EventPage
    from botpool.store import Database
    from tests.support.scene import Scene

pytestmark = pytest.mark.older_postgres

PLENTY = 2**20


async def test_a_happening_is_told_alike_by_webhook_stream_and_timeline(database: Database) -> None:
    async with new_post(database) as post, following_feed(database) as feed:
        live = await feed.subscribe(None, ALL)
        bot = await post.told("/a", metadata={"team": "sales"})
        slot = await post.slot_of(bot.id)
        await post.pool.slots.record_container(slot.id, slot.lease, "c", host="here", attempt=1)
        await post.advance(bot, BotStatus.IN_CALL)
        await post.pool.assignments.add_events(slot.id, slot.lease, [("chat", {"text": "hello"})])
        await post.pool.assignments.end_assignment(
            Ending(
                slot_id=slot.id,
                lease=slot.lease,
                bot_status=BotStatus.FATAL,
                failure_cause=FailureCause.CRASHED,
                reason="exit code 1",
            )
        )
        while await post.still_open(bot):
            await post.webhooks.run_once()
        posted = [orjson.loads(receipt.body) for receipt in post.receiver.receipts]
        page = Timeline.of(await post.store.events.of_bot(bot.id, 0, 100, PLENTY))
        timeline = page.model_dump(mode="json", by_alias=True)["events"]
        events = await next_events(live, len(timeline))
        streamed = [orjson.loads(event.text.partition(b"data: ")[2]) for event in events]
        assert streamed == timeline
        assert posted == [each for each in timeline if each["type"] == "bot.status_changed"]
        of_bots = {each for each in EventType if each.startswith(("bot.", "slot."))}
        assert {event["type"] for event in timeline} == of_bots - {EventType.BOT_NOTED}
        last = posted[-1]["data"]
        assert (last["failureCause"], last["metadata"]) == ("crashed", {"team": "sales"})


async def test_a_timeline_comes_in_pages_and_each_event_once(scene: Scene) -> None:
    bot, slot = await scene.running()
    for n in range(5):
        await scene.pool.assignments.add_events(slot.id, slot.lease, [("said", {"n": n})])
    await scene.pool.assignments.advance(slot.id, slot.lease, BotStatus.LEAVING, "over")
    whole = await scene.store.events.of_bot(bot.id, 0, 100, PLENTY)
    assert (len(whole.events), whole.last) == (10, None)
    assert [event.data["event"]["data"]["n"] for event in whole.events[4:9]] == [*range(5)]
    for most, pages in ((3, 4), (5, 2), (10, 1)):
        found = await pages_of(scene, bot.id, most, PLENTY)
        assert [event for page in found for event in page.events] == whole.events
        assert len(found) == pages
    of_slot = await scene.store.events.of_slot(slot.id, 2**63 - 1, 1, PLENTY)
    assert [event.data["status"] for event in of_slot.events] == ["busy"]
    assert of_slot.last is not None
    rest = await scene.store.events.of_slot(slot.id, of_slot.last, 1, PLENTY)
    assert [event.data["status"] for event in rest.events] == ["deploying"]


async def test_a_page_of_a_timeline_is_bounded_by_bytes(scene: Scene) -> None:
    bot, slot = await scene.running()
    large = {"text": "x" * 10_000}
    await scene.pool.assignments.add_events(slot.id, slot.lease, [("said", large)] * 10)
    found = await pages_of(scene, bot.id, 100, 25_000)
    # A page ends with the event that makes it full, so each has at least one.
    assert [len(page.events) for page in found] == [7, 3, 3, 1]
    assert [len(page.events) for page in await pages_of(scene, bot.id, 100, 1)] == [1] * 14


async def pages_of(scene: Scene, bot_id: int, most: int, most_bytes: int) -> list[EventPage]:
    pages = [await scene.store.events.of_bot(bot_id, 0, most, most_bytes)]
    while (last := pages[-1].last) is not None:
        pages.append(await scene.store.events.of_bot(bot_id, last, most, most_bytes))
    return pages


async def test_events_and_deliveries_from_before_are_kept(empty_database_url: str) -> None:
    """Their ids are new, no reader of the stream gets them, and what waits is told in new words."""
    older = [step for step in migrations() if step.name < "0012"]
    async with connect(empty_database_url) as database:
        await apply(database, older)
        await database.execute(
            """
            INSERT INTO bots (platform, meeting_url, bot_display_name, status, priority,
                queue_timeout_ms, correlation_id, metadata, config, created_at, ended_at)
            VALUES ('zoom', 'u', 'n', 'DONE', 1, 0, 'c', '{}', '{}', now(), now());
            INSERT INTO transitions (at, machine, platform, to_status, bot_id, reason)
            SELECT now(), 'bot', 'zoom', 'QUEUED', 1, 'r' FROM generate_series(1, 3);
            INSERT INTO bot_events (bot_id, at, type, data)
            SELECT 1, now(), 'said', jsonb_build_object('n', n) FROM generate_series(1, 9) n;
            INSERT INTO webhook_deliveries (bot_id, transition_id, callback_url, payload,
                created_at, next_attempt_at)
            VALUES (1, 2, 'https://example.com', '{"type": "bot.status_changed", "timestamp": "t",
                "data": {"status": "DONE", "occurredAt": "t"}}', now(), now());
            """
        )
        await migrate(database)
        store = Store(database)
        page = await store.events.of_bot(1, 0, 100, PLENTY)
        told: list[Any] = [event.data["event"]["data"]["n"] for event in page.events[3:]]
        assert told == [*range(1, 10)]
        assert len({event.id for event in page.events}) == 12
        assert len((await store.events.read(0, 0, 100)).rows) == 3
        (delivery,) = await store.webhooks.deliveries(1)
        assert delivery.payload == {
            "id": "evt_2",
            "type": "bot.status_changed",
            "timestamp": "t",
            "data": {"status": "DONE"},
        }
