"""Every change of a bot's status reaches its callback address: signed, in order, at least once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

from botpool.models.assignments import Ending, FailedLaunch, Progress
from botpool.states import BotStatus, FailureCause, SlotStatus
from botpool.store import Store
from botpool.store.installation import WEBHOOKS
from botpool.store.queries import named_queries
from botpool.store.webhooks import Webhooks
from tests.support.receiver import new_post, running_webhooks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from botpool.models.slots import Slot
    from botpool.store import Database
    from tests.support.receiver import Post

pytestmark = pytest.mark.older_postgres

SECRET = "whsec_" + "c2VjcmV0" * 4


@pytest.fixture
async def post(database: Database) -> AsyncIterator[Post]:
    async with new_post(database) as post:
        yield post


# What is written


async def test_every_change_of_status_is_written_with_what_it_was(post: Post) -> None:
    bot = await post.told("/a", metadata={"order": 7})
    await post.advance(bot, BotStatus.IN_CALL)
    slot = await post.slot_of(bot.id)
    at = await post.pass_time(seconds=3)
    await post.pool.assignments.end_assignment(
        Ending(
            slot_id=slot.id,
            lease=slot.lease,
            bot_status=BotStatus.FATAL,
            failure_cause=FailureCause.CRASHED,
            reason="exit code 1",
        )
    )
    *_, last = payloads = [d.payload for d in await post.store.webhooks.deliveries(bot.id)]
    assert [(p["data"]["previousStatus"], p["data"]["status"]) for p in payloads] == [
        (None, "DEPLOYING"),
        ("DEPLOYING", "IN_CALL"),
        ("IN_CALL", "FATAL"),
    ]
    occurred = f"{at:%Y-%m-%dT%H:%M:%S.%f}Z"
    step = (await post.store.transitions.timeline(bot.id))[-1]
    assert last == {
        "id": f"evt_{step.id}",
        "type": "bot.status_changed",
        "timestamp": occurred,
        "data": {
            "botId": bot.id,
            "status": "FATAL",
            "previousStatus": "IN_CALL",
            "platform": "google-meet",
            "meetingUrl": bot.meeting_url,
            "botDisplayName": "Notes",
            "correlationId": bot.correlation_id,
            "slotName": slot.slot_name,
            "containerRef": None,
            "lease": slot.lease,
            "reason": "exit code 1",
            "failureCause": "crashed",
            "failureReason": "exit code 1",
            "metadata": {"order": 7},
            "slotId": slot.id,
            "details": {},
        },
    }


async def test_whatever_changes_a_bot_is_told_and_nothing_else(database: Database) -> None:
    async with new_post(database, max_pool_size=1) as post:
        first = await post.told()
        slot = await post.slot_of(first.id)
        await post.pass_time(seconds=1)
        await post.pool.slots.record_container(
            slot.id, slot.lease, "container", host="a", attempt=1
        )
        waiting = [await post.told(queue_timeout_ms=ms) for ms in (60_000, 60_000, 1_000)]
        await post.pool.relaunch.fail_launch(
            FailedLaunch(
                slot_id=slot.id, lease=slot.lease, cause=FailureCause.ENGINE, reason="broken"
            )
        )
        await post.pool.assignments.stop_bot(waiting[1].id)
        await post.pass_time(seconds=2)
        await post.pool.queue.expire()
        await post.pool.slots.make_idle(slot.id, slot.lease, SlotStatus.ERROR)
        slot = await post.slot_of(first.id)
        await post.end(slot)
        await post.pool.slots.make_idle(slot.id, slot.lease)
        slot = await post.slot_of(waiting[0].id)
        await post.pool.assignments.stop_bot(waiting[0].id)
        for bot in (first, *waiting):
            changes = [
                t for t in await post.store.transitions.timeline(bot.id) if t.machine == "bot"
            ]
            told = [d.payload["data"] for d in await post.store.webhooks.deliveries(bot.id)]
            assert [(t.from_status, t.to_status, t.slot_name) for t in changes] == [
                (each["previousStatus"], each["status"], each["slotName"]) for each in told
            ]
            assert told[-1]["status"] in {"DONE", "FATAL", "CANCELLED"}


async def test_a_change_that_is_undone_is_not_told(post: Post) -> None:
    bot = await post.told()
    written = await post.store.webhooks.deliveries(bot.id)
    slot = await post.slot_of(bot.id)
    with pytest.raises(ZeroDivisionError):
        await undone(post.database, slot)
    assert await post.store.webhooks.deliveries(bot.id) == written


async def undone(database: Database, slot: Slot) -> None:
    async with database.transaction() as connection:
        await connection.fetch(named_queries("bots")["advance"], *in_call(slot))
        assert len(await connection.fetch("SELECT FROM webhook_deliveries")) == 2
        raise ZeroDivisionError


def in_call(slot: Slot) -> tuple[Any, ...]:
    """The arguments of the query that moves a slot's bot on into its call."""
    progress = Progress(
        slot_id=slot.id, lease=slot.lease, status=BotStatus.IN_CALL, reason="admitted"
    )
    return progress, [BotStatus.DEPLOYING], 0


async def test_a_bot_without_a_callback_is_not_told_of(post: Post) -> None:
    bot = (await post.create()).bot
    assert await post.store.webhooks.deliveries(bot.id) == []
    assert await post.webhooks.run_once() == 0


# What is received


async def test_what_is_received_verifies_with_the_installations_secret(post: Post) -> None:
    bot = await post.told("/a?b=c")
    assert await post.webhooks.run_once() == 1
    (receipt,) = post.receiver.receipts
    secret = await post.store.webhooks.installation_secret()
    payload = Webhook(secret).verify(receipt.body, receipt.headers)
    (delivery,) = await post.store.webhooks.deliveries(bot.id)
    assert payload == delivery.payload
    assert receipt.headers["host"] == f"hooks.example.com:{post.receiver.port}"
    assert receipt.headers["content-type"] == "application/json"
    assert receipt.id == f"msg_{await post.store.installation.name()}_{delivery.id}"
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(receipt.body.replace(b"DEPLOYING", b"DONE"), receipt.headers)


async def test_what_is_received_verifies_with_the_secret_of_the_settings(
    database: Database,
) -> None:
    async with new_post(database, webhook_secret=SECRET) as post:
        await post.told()
        await post.webhooks.run_once()
        (receipt,) = post.receiver.receipts
        assert Webhook(SECRET).verify(receipt.body, receipt.headers)


async def test_the_attempt_is_recorded_and_its_delivery_closed(post: Post) -> None:
    bot = await post.told()
    now = await post.store.installation.now()
    await post.webhooks.run_once()
    (delivery,) = await post.store.webhooks.deliveries(bot.id)
    assert (delivery.delivered_at, delivery.given_up_at, delivery.attempts) == (now, None, 1)
    (attempt,) = await post.recorded(bot)
    assert (attempt.number, attempt.status, attempt.error) == (1, 204, None)
    assert attempt.at == now
    assert await post.webhooks.run_once() == 0


# Order, and which delivery waits for which


async def test_deliveries_of_a_bot_arrive_in_order_whatever_fails(post: Post) -> None:
    bot = await post.told("/a")
    await post.advance(bot, BotStatus.JOINING_CALL, BotStatus.IN_CALL, BotStatus.LEAVING)
    post.receiver.answers["/a"] = [
        web.Response(status=status) for status in (500, 204, 503, 410, 302, 200)
    ]
    await post.attempts(bot)
    assert post.receiver.statuses("/a") == [
        f"{bot.id} {status}"
        for status in (
            *("DEPLOYING", "DEPLOYING"),
            *("JOINING_CALL", "JOINING_CALL"),
            *("IN_CALL", "IN_CALL"),
            "LEAVING",
        )
    ]


async def test_one_written_while_the_one_before_is_closed_is_not_forgotten(post: Post) -> None:
    bot = await post.told()
    slot = await post.slot_of(bot.id)
    async with post.database.transaction() as connection:
        await connection.fetch(named_queries("bots")["advance"], *in_call(slot))
        delivering = asyncio.create_task(post.webhooks.run_once())
        await post.until_blocked(delivering)
    assert await delivering == 2
    assert post.receiver.statuses() == [f"{bot.id} DEPLOYING", f"{bot.id} IN_CALL"]


async def test_a_receiver_that_hangs_delays_no_other(post: Post) -> None:
    """Neither other bots at its host, nor, when that has its share, other hosts."""
    post.receiver.hanging = {"/hangs"}
    post.webhooks.most_at_a_host = 3
    post.webhooks.most_at_a_time = 4
    for _ in range(2):
        await post.told("/hangs")
    same_host = await post.told("/answers")
    async with running_webhooks(post.webhooks, post.database):
        await post.receiver.until(1, "/answers")
        for _ in range(3):
            await post.told("/hangs")
        await post.receiver.until(3, "/hangs")
        others = [await post.told("/answers", host="other.example.com") for _ in range(3)]
        await post.receiver.until(4, "/answers")
        assert post.webhooks.busy >= 3
        assert post.receiver.held["/hangs"] == 3
        post.webhooks.shutdown_seconds = 0
    assert post.receiver.statuses("/answers") == [
        f"{bot.id} DEPLOYING" for bot in (same_host, *others)
    ]


async def test_a_host_has_no_more_than_its_share(post: Post) -> None:
    post.receiver.hanging = {"/hangs"}
    post.webhooks.most_at_a_host, post.webhooks.most_at_a_time = 3, 4
    for _ in range(5):
        await post.told("/hangs")
    await post.told("/answers", host="other.example.com")
    async with running_webhooks(post.webhooks, post.database):
        await post.receiver.until(1, "/answers")
        await post.receiver.until(3, "/hangs")
        post.webhooks.shutdown_seconds = 0
    assert post.receiver.held["/hangs"] == 3


async def test_a_host_that_has_its_share_is_passed_over_however_much_it_has(post: Post) -> None:
    bot = await post.told()
    await post.database.execute(
        "INSERT INTO webhook_deliveries (project_id, bot_id, type, url, payload, created_at,"
        " next_attempt_at) SELECT project_id, bot_id, type, more.url, payload, created_at,"
        " created_at - late"
        " FROM webhook_deliveries, (SELECT 'https://full.example.com/', interval '1 hour'"
        " FROM generate_series(1, 1001) UNION ALL SELECT 'http://Free.example.com:81?a', '0'"
        " UNION ALL SELECT 'http://[::1]:81/', '0') more (url, late) WHERE bot_id = $1",
        bot.id,
    )
    under_way = ["full.example.com"] * 10
    taken = await post.store.webhooks.reserve("me", 1000, 10, under_way, 10)
    assert {webhook.host for webhook in taken} == {"hooks.example.com", "free.example.com", "[::1]"}


async def test_no_replica_waits_for_one_that_is_taking_deliveries(post: Post) -> None:
    bots = [await post.told() for _ in range(3)]
    async with post.database.transaction() as connection:
        (other,) = await connection.fetch(
            named_queries("webhooks")["reserve"], "other", 1000, 1, [], 10
        )
        assert await post.webhooks.run_once() == 2
    assert await post.webhooks.run_once() == 0
    received = {f"{bot.id} DEPLOYING" for bot in bots if bot.id != other["bot_id"]}
    assert set(post.receiver.statuses()) == received


async def test_two_replicas_deliver_each_once(post: Post) -> None:
    bots = [await post.told() for _ in range(10)]
    for bot in bots:
        await post.advance(bot, BotStatus.IN_CALL)
    other = post.replica()
    post.webhooks.most_at_a_time = other.most_at_a_time = 3
    assert sum(await asyncio.gather(post.webhooks.run_once(), other.run_once())) == 20
    assert sorted(post.receiver.statuses()) == sorted(
        f"{bot.id} {status}" for bot in bots for status in ("DEPLOYING", "IN_CALL")
    )
    assert len({receipt.id for receipt in post.receiver.receipts}) == 20


# Replicas that are killed, or stopped


class StalledWebhooks(Webhooks):
    """Records no attempt until it goes on."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.going_on = asyncio.Event()

    async def record_attempt(self, *args: Any, **options: Any) -> str:
        await self.going_on.wait()
        return await super().record_attempt(*args, **options)


def stalled_store(database: Database) -> tuple[Store, asyncio.Event]:
    """A store that stops between a post and its record, and what lets it go on."""
    store = Store(database)
    store.webhooks = webhooks = StalledWebhooks(database)
    return store, webhooks.going_on


async def test_one_killed_between_post_and_record_is_posted_again_by_another(post: Post) -> None:
    bot = await post.told()
    store, going_on = stalled_store(post.database)
    killed = post.replica(store)
    killing = asyncio.create_task(killed.run_once())
    await post.receiver.until(1)
    assert await post.webhooks.run_once() == 0, "it is still the other's"
    await post.pass_time(milliseconds=15_000 + post.settings.reservation_ttl_ms)
    assert await post.webhooks.run_once() == 1
    first, second = post.receiver.receipts
    assert (first.id, first.body) == (second.id, second.body)
    # And when it comes back from the dead, it records nothing.
    going_on.set()
    await killing
    assert killed.counts == {"lost": 1}
    assert [attempt.number for attempt in await post.recorded(bot)] == [1]


async def test_a_replica_that_is_stopped_hands_over_at_once(post: Post) -> None:
    post.receiver.hanging = {"/a"}
    bot = await post.told("/a")
    post.webhooks.shutdown_seconds = 0
    async with running_webhooks(post.webhooks, post.database):
        await post.receiver.until(1)
    assert post.webhooks.busy == 0
    assert await post.recorded(bot) == []
    post.receiver.hanging = set()
    assert await post.replica().run_once() == 1
    assert len({receipt.id for receipt in post.receiver.receipts}) == 1


async def test_a_replica_that_is_stopped_finishes_what_is_nearly_done(post: Post) -> None:
    store, going_on = stalled_store(post.database)
    webhooks = post.replica(store)
    bot = await post.told()
    async with running_webhooks(webhooks, post.database):
        await post.receiver.until(1)
        webhooks.stop()
        going_on.set()
    assert [attempt.status for attempt in await post.recorded(bot)] == [204]


async def test_a_change_wakes_the_replica_that_delivers(database: Database) -> None:
    hour = 3_600_000
    async with (
        new_post(database, poll_interval_ms=hour) as post,
        running_webhooks(post.webhooks, database),
    ):
        bot = await post.told()
        await post.receiver.until(1)
        await post.advance(bot, BotStatus.IN_CALL)
        await post.receiver.until(2)
        assert post.receiver.statuses() == [f"{bot.id} DEPLOYING", f"{bot.id} IN_CALL"]


async def test_a_lost_announcement_is_made_up_for_by_a_look(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    async def lose(channels: Sequence[str]) -> None:
        lost.extend(channels)

    async with new_post(database, poll_interval_ms=10) as post:
        monkeypatch.setattr(post.store.installation, "announce", lose)
        async with running_webhooks(post.webhooks, database):
            bot = await post.told()
            await post.receiver.until(1)
            assert post.receiver.statuses() == [f"{bot.id} DEPLOYING"]
            assert WEBHOOKS in lost


# And the rest


async def test_deliveries_are_forgotten_with_their_bot(database: Database) -> None:
    async with new_post(database, checked=False) as post:
        bot = await post.told()
        await post.webhooks.run_once()
        slot = await post.slot_of(bot.id)
        await post.end(slot)
        await post.pool.slots.make_idle(slot.id, slot.lease)
        await post.pass_time(days=post.settings.retention_days, seconds=1)
        await post.pool.retention.prune()
        for table in ("webhook_deliveries", "webhook_attempts"):
            assert await database.fetch(f"SELECT FROM {table}") == []


async def test_what_is_due_is_found_by_the_index_made_for_it(post: Post) -> None:
    rows = await post.database.fetch(
        f"EXPLAIN {named_queries('webhooks')['reserve']}", "me", 1000, 10, ["a"], 10
    )
    assert "Index Scan on webhook_deliveries_due" in "\n".join(row[0] for row in rows)
