"""Endpoints of projects: what they get, how it is signed, and what happens when they fail."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

from botpool.access.projects import Projects
from botpool.errors import (
    DeliveryNotFound,
    InvalidRequest,
    ProjectNotFound,
    WebhookNotFound,
    WebhookPaused,
)
from botpool.feed.endpoints import MOST_ENDPOINTS, Endpoints
from botpool.feed.webhooks import PAUSE_AFTER
from botpool.models.webhooks import ENDPOINT_EVENTS, DeliveryPage, DeliveryStatus
from botpool.settings import Settings
from botpool.states import BotStatus
from botpool.store.queries import named_queries
from tests.support.clients import TOOLS, needs_clients
from tests.support.receiver import new_post, running_webhooks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.models.bots import Bot
    from botpool.models.webhooks import Endpoint
    from botpool.store import Database
    from tests.support.receiver import Post, Receipt

pytestmark = pytest.mark.older_postgres

GIVEN = "whsec_" + "c2VjcmV0" * 4

_NODE_VERIFY = """
const { Webhook } = require("standardwebhooks");
const { secrets, body, headers } = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(secrets.map((secret) => {
  try { return new Webhook(secret).verify(body, headers).id; } catch (error) { return null; }
})));
"""


@pytest.fixture
async def post(database: Database) -> AsyncIterator[Post]:
    async with new_post(database) as post:
        yield post


@pytest.fixture
def endpoints(post: Post) -> Endpoints:
    return Endpoints(post.store, post.settings)


async def add(post: Post, path: str = "/e", *types: str, project: int = 1) -> tuple[Endpoint, str]:
    """An endpoint for these types of events, or all."""
    return await Endpoints(post.store, post.settings).create(
        project, post.url(path), event_types=types or ENDPOINT_EVENTS
    )


async def report(post: Post, bot: Bot, *types: str) -> None:
    slot = await post.slot_of(bot.id)
    told: list[tuple[str, Any]] = [(kind, {"n": n}) for n, kind in enumerate(types)]
    await post.pool.assignments.add_events(slot.id, slot.lease, told)


def received(post: Post, path: str) -> list[str]:
    """What an endpoint got, in order."""
    found = [json.loads(each.body) for each in post.receiver.receipts if each.path == path]
    return [
        each["data"]["event"]["type"] if each["type"] == "bot.event" else each["data"]["status"]
        for each in found
    ]


# What they get


async def test_an_endpoint_gets_the_types_of_events_that_it_wants(post: Post) -> None:
    await add(post, "/all")
    await add(post, "/statuses", "bot.status_changed")
    await add(post, "/events", "bot.event")
    bot = await post.told("/callback")
    await report(post, bot, "joined", "said")
    await post.advance(bot, BotStatus.IN_CALL)
    await post.webhooks.run_once()
    assert received(post, "/all") == ["DEPLOYING", "joined", "said", "IN_CALL"]
    assert received(post, "/events") == ["joined", "said"]
    assert received(post, "/statuses") == received(post, "/callback") == ["DEPLOYING", "IN_CALL"]


async def test_what_a_bot_reports_is_told_as_the_timeline_tells_it(post: Post) -> None:
    await add(post, "/e", "bot.event")
    bot = (await post.create(metadata={"order": 7})).bot
    await report(post, bot, "joined")
    await post.webhooks.run_once()
    (receipt,) = post.receiver.receipts
    page = await post.store.events.of_bot(bot.id, 0, 100, 10**6)
    (event,) = [event for event in page.events if event.type == "bot.event"]
    assert json.loads(receipt.body) == {
        "id": event.id,
        "type": "bot.event",
        "timestamp": event.timestamp,
        "data": event.data,
    }
    assert event.data["event"] == {"type": "joined", "data": {"n": 0}}
    assert event.data["metadata"] == {"order": 7}


async def test_a_report_wakes_the_replica_that_delivers(database: Database) -> None:
    async with (
        new_post(database, poll_interval_ms=3_600_000) as post,
        running_webhooks(post.webhooks, database),
    ):
        await add(post, "/e", "bot.event")
        bot = (await post.create()).bot
        await report(post, bot, "joined")
        await post.receiver.until(1, "/e")


async def test_of_what_a_bot_reports_the_newest_are_kept(post: Post) -> None:
    """Whether they were delivered or wait; and those that are left go on in order."""
    await add(post, "/e", "bot.event")
    bot = (await post.create()).bot
    await report(post, bot, *(str(n) for n in range(3)))
    post.receiver.answers["/e"] = [web.Response(), web.Response(status=500)]
    await post.webhooks.run_once()
    for start in range(3, 5003, 100):
        await report(post, bot, *(str(n) for n in range(start, start + 100)))
    deliveries = await post.store.webhooks.deliveries(bot.id)
    names = [each.payload["data"]["event"]["type"] for each in deliveries]
    # The second one is about to be sent again.
    assert names == ["1", *(str(n) for n in range(3, 5003))]


async def test_one_place_that_fails_delays_no_other(post: Post) -> None:
    await add(post, "/a")
    await add(post, "/b")
    post.receiver.answers["/a"] = [web.Response(status=500)]
    bot = await post.told("/callback")
    await post.advance(bot, BotStatus.IN_CALL)
    await post.webhooks.run_once()
    assert received(post, "/a") == ["DEPLOYING"]
    assert received(post, "/b") == received(post, "/callback") == ["DEPLOYING", "IN_CALL"]
    await post.attempts(bot)
    assert received(post, "/a") == ["DEPLOYING", "DEPLOYING", "IN_CALL"]


async def test_one_written_while_the_one_before_is_closed_is_not_forgotten(post: Post) -> None:
    await add(post, "/e", "bot.event")
    bot = (await post.create()).bot
    await report(post, bot, "first")
    slot = await post.slot_of(bot.id)
    async with post.database.transaction() as connection:
        await connection.fetch(
            named_queries("bots")["add_events"], slot.id, slot.lease, ["second"], [{}], 10
        )
        delivering = asyncio.create_task(post.webhooks.run_once())
        await post.until_blocked(delivering)
    assert await delivering == 2
    assert received(post, "/e") == ["first", "second"]


# Made and changed


@pytest.mark.parametrize("url", ["ftp://example.com", "http://127.0.0.1/", "http://10.0.0.1:99/x"])
async def test_an_address_that_botpool_may_not_post_to_is_refused(post: Post, url: str) -> None:
    strict = Endpoints(post.store, Settings())
    with pytest.raises(InvalidRequest):
        await strict.create(1, url)
    made, _ = await strict.create(1, "https://hooks.example.com")
    with pytest.raises(InvalidRequest):
        await strict.change(made.id, {"url": url})


async def test_a_project_has_a_bounded_number_of_endpoints(post: Post) -> None:
    for _ in range(MOST_ENDPOINTS):
        await add(post)
    with pytest.raises(InvalidRequest, match="may have 20 webhooks"):
        await add(post)


async def test_what_waits_goes_where_the_endpoint_is_now(post: Post, endpoints: Endpoints) -> None:
    made, _ = await add(post, "/old")
    await post.create()
    changed = await endpoints.change(
        made.id, {"url": post.url("/new"), "event_types": ["bot.event"], "description": "d"}
    )
    assert (changed.url, changed.description) == (post.url("/new"), "d")
    await post.create()
    await post.webhooks.run_once()
    assert [each.path for each in post.receiver.receipts] == ["/new"]


async def test_an_endpoint_that_is_deleted_gets_nothing(post: Post, endpoints: Endpoints) -> None:
    made, _ = await add(post)
    await post.create()
    await endpoints.delete(made.id)
    await post.create()
    assert await post.webhooks.run_once() == 0
    for call in (
        endpoints.delete(made.id),
        endpoints.change(made.id, {}),
        endpoints.rotate_secret(made.id),
    ):
        with pytest.raises(WebhookNotFound, match=f"no webhook {made.id}"):
            await call
    for other in (endpoints.create(99, post.url()), endpoints.rotate_project_secret(99)):
        with pytest.raises(ProjectNotFound):
            await other


# Secrets


def verifies(receipt: Receipt, secret: str) -> bool:
    try:
        Webhook(secret).verify(receipt.body, receipt.headers)
    except WebhookVerificationError:
        return False
    return True


async def node_verifies(receipt: Receipt, *secrets: str) -> list[bool]:
    """Which of these secrets verify a message, by the library for Node."""
    process = await asyncio.create_subprocess_exec(
        *("node", "-e", _NODE_VERIFY),
        env={**os.environ, "NODE_PATH": str(TOOLS / "node_modules")},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    asked = {"secrets": secrets, "body": receipt.body.decode(), "headers": receipt.headers}
    output, _ = await process.communicate(json.dumps(asked).encode())
    told = json.loads(receipt.body)["id"]
    return [found == told for found in json.loads(output)]


async def last_receipt(post: Post) -> Receipt:
    """What an endpoint or a callback gets now."""
    post.receiver.receipts.clear()
    await post.webhooks.run_once()
    (receipt,) = post.receiver.receipts
    return receipt


async def test_each_endpoint_and_project_signs_with_a_secret_of_its_own(post: Post) -> None:
    project, of_project = await Projects(post.store).create("a")
    _, of_endpoint = await add(post, "/e", project=project.id)
    await post.told("/callback", project_id=project.id)
    await post.told("/default")
    await post.webhooks.run_once()
    secrets = [of_project, of_endpoint, await post.store.webhooks.installation_secret()]
    found = {
        each.path: [verifies(each, secret) for secret in secrets] for each in post.receiver.receipts
    }
    assert found == {
        "/callback": [True, False, False],
        "/e": [False, True, False],
        "/default": [False, False, True],
    }


@needs_clients
async def test_both_secrets_sign_while_one_is_rotated(post: Post, endpoints: Endpoints) -> None:
    """By the word of public libraries of two languages; and then only the new one."""
    made, old = await add(post)
    new = await endpoints.rotate_secret(made.id)
    await post.create()
    receipt = await last_receipt(post)
    assert len(receipt.headers["webhook-signature"].split(" ")) == 2
    assert [verifies(receipt, each) for each in (old, new, GIVEN)] == [True, True, False]
    assert await node_verifies(receipt, old, new, GIVEN) == [True, True, False]


async def test_an_old_secret_signs_until_its_overlap_is_over(
    post: Post, endpoints: Endpoints
) -> None:
    made, first = await add(post)
    second = await endpoints.rotate_secret(made.id)

    async def signers(*secrets: str) -> list[bool]:
        await post.create()
        receipt = await last_receipt(post)
        at = await post.store.installation.now()
        signed = receipt.headers["webhook-signature"].split(" ")
        return [
            Webhook(each).sign(receipt.id, at, receipt.body.decode()) in signed for each in secrets
        ]

    await post.pass_time(hours=23)
    assert await signers(first, second) == [True, True]
    await post.pass_time(hours=1)
    assert await signers(first, second) == [False, True]
    # Of three, the first ends with the next rotation: two at most are valid.
    third = await endpoints.rotate_secret(made.id)
    fourth = await endpoints.rotate_secret(made.id)
    assert await signers(second, third, fourth) == [False, True, True]


@pytest.mark.parametrize("given", [None, GIVEN])
async def test_a_project_from_before_goes_on_with_the_installations_secret_until_it_is_rotated(
    database: Database, given: str | None
) -> None:
    """Whether that is the setting, or one that botpool made."""
    async with new_post(database, webhook_secret=given) as post:
        old = given or await post.store.webhooks.installation_secret()
        await post.told()
        assert verifies(await last_receipt(post), old)
        new = await Endpoints(post.store, post.settings).rotate_project_secret(1)
        await post.told()
        receipt = await last_receipt(post)
        assert [verifies(receipt, each) for each in (old, new)] == [True, True]
        await post.pass_time(hours=24)
        rows = await post.database.fetch(
            "SELECT secret FROM webhook_secrets WHERE project_id = 1"
            " AND (expires_at IS NULL OR expires_at > botpool_now())"
        )
        assert [row["secret"] for row in rows] == [new]


async def test_no_secret_is_shown_with_what_it_signs(post: Post) -> None:
    made, secret = await add(post)
    await post.create()
    (due,) = await post.store.webhooks.reserve("me", 1000, 10, [], 10)
    assert due.secrets == [secret]
    assert secret not in f"{due} {made}"
    assert post.url("/e") not in f"{due} {made}"


# Endpoints that fail


async def failing(post: Post, path: str = "/e") -> tuple[Endpoint, Bot]:
    """An endpoint that has failed for as long as it may, but for one attempt."""
    made, _ = await add(post, path)
    post.receiver.answers[path] = [web.Response(status=500) for _ in range(100)]
    bot = (await post.create()).bot
    await post.webhooks.run_once()
    assert (await post.store.webhooks.endpoint(made.id)).failing_since is not None
    now = await post.store.installation.now()
    while now < made.created_at + PAUSE_AFTER:
        assert (await post.store.webhooks.endpoint(made.id)).paused_at is None
        now = await post.pass_time(hours=8)
        await post.create()
        await post.webhooks.run_once()
    return await post.store.webhooks.endpoint(made.id), bot


async def test_an_endpoint_that_fails_for_days_is_paused_and_says_so(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    async with new_post(database, max_pool_size=40) as post:
        other, _ = await add(post, "/other")
        endpoint, _ = await failing(post)
        assert endpoint.paused_at == await post.store.installation.now()
        assert endpoint.pause_reason is not None
        assert endpoint.pause_reason.startswith("nothing was delivered since 2")
        assert endpoint.pause_reason.endswith("the last attempt: the answer was 500")
        assert "a webhook endpoint is paused" in capsys.readouterr().out
        post.receiver.receipts.clear()
        await post.create()
        await post.pass_time(days=1)
        await post.webhooks.run_once()
        assert {each.path for each in post.receiver.receipts} == {"/other"}
        assert (await post.store.webhooks.endpoint(other.id)).paused_at is None


async def test_what_waits_is_kept_and_sent_in_order_when_the_endpoint_is_resumed(
    database: Database,
) -> None:
    async with new_post(database, max_pool_size=40) as post:
        endpoint, bot = await failing(post)
        await post.advance(bot, BotStatus.JOINING_CALL, BotStatus.IN_CALL)
        later = (await post.create()).bot
        waiting = await post.store.webhooks.page(
            DeliveryPage(endpoint_id=endpoint.id, status=DeliveryStatus.OPEN)
        )
        assert {each.next_attempt_at for each in waiting} == {None}
        post.receiver.answers.clear()
        post.receiver.receipts.clear()
        resumed = await Endpoints(post.store, post.settings).change(endpoint.id, {}, paused=False)
        assert (resumed.paused_at, resumed.pause_reason, resumed.failing_since) == (None,) * 3
        await post.webhooks.run_once()
        told = post.receiver.statuses("/e")
        assert [each for each in told if each.startswith(f"{bot.id} ")][-2:] == [
            f"{bot.id} JOINING_CALL",
            f"{bot.id} IN_CALL",
        ]
        assert f"{later.id} DEPLOYING" in told
        assert len(told) == len(waiting)


async def test_one_success_begins_the_count_anew(post: Post) -> None:
    made, _ = await add(post)
    post.receiver.answers["/e"] = [web.Response(status=500), web.Response()]
    await post.create()
    await post.webhooks.run_once()
    await post.pass_time(seconds=10)
    await post.webhooks.run_once()
    assert (await post.store.webhooks.endpoint(made.id)).failing_since is None
    await post.pass_time(days=4)
    post.receiver.answers["/e"] = [web.Response(status=500)]
    await post.create()
    await post.webhooks.run_once()
    assert (await post.store.webhooks.endpoint(made.id)).paused_at is None


async def test_one_that_is_written_while_its_endpoint_is_resumed_is_not_forgotten(
    post: Post, endpoints: Endpoints
) -> None:
    made, _ = await add(post)
    paused = await endpoints.change(made.id, {}, paused=True)
    assert paused.pause_reason == "paused on request"
    async with post.database.transaction() as connection:
        await connection.fetch("SELECT resume_endpoint($1)", made.id)
        creating = asyncio.create_task(post.create())
        await post.until_blocked(creating)
    await creating
    assert await post.webhooks.run_once() == 1


async def test_nor_is_one_that_was_written_just_before(post: Post, endpoints: Endpoints) -> None:
    made, _ = await add(post)
    bot = (await post.create()).bot
    await post.webhooks.run_once()
    slot = await post.slot_of(bot.id)
    await endpoints.change(made.id, {}, paused=True)
    async with post.database.transaction() as connection:
        await connection.fetch(
            named_queries("bots")["add_events"], slot.id, slot.lease, ["said"], [{}], 10
        )
        resuming = asyncio.create_task(endpoints.change(made.id, {}, paused=False))
        await post.until_blocked(resuming)
    await resuming
    assert await post.webhooks.run_once() == 1


# Sent again


async def test_a_delivery_is_sent_again_with_the_same_id_and_waits_for_no_other(
    post: Post, endpoints: Endpoints
) -> None:
    await add(post)
    post.receiver.answers["/e"] = [web.Response(status=410), web.Response(status=500)]
    bot = (await post.create()).bot
    await post.advance(bot, BotStatus.IN_CALL)
    await post.webhooks.run_once()
    first, second = await post.store.webhooks.deliveries(bot.id)
    assert (first.status, second.status) == (DeliveryStatus.GIVEN_UP, DeliveryStatus.OPEN)
    assert (first.last_status, second.last_status) == (410, 500)
    resent = await endpoints.resend(first.id)
    assert (resent.status, resent.resent_at) == (
        DeliveryStatus.OPEN,
        await post.store.installation.now(),
    )
    assert (await endpoints.resend(second.id)).resent_at is None
    await post.webhooks.run_once()
    one, _, again = post.receiver.receipts
    assert (one.id, one.body) == (again.id, again.body)
    # The other one is tried again when it is time, and not because this one is closed.
    due = (await post.store.webhooks.get(second.id)).next_attempt_at
    assert due == second.next_attempt_at
    assert [each.number for each in await post.store.webhooks.attempts(first.id)] == [1, 2]
    with pytest.raises(DeliveryNotFound):
        await endpoints.resend(99)


async def test_a_delivery_that_is_sent_again_has_as_many_attempts_as_before(
    post: Post, endpoints: Endpoints
) -> None:
    await add(post)
    post.receiver.answers["/e"] = [web.Response(status=500) for _ in range(22)]
    bot = (await post.create()).bot
    assert len(await post.attempts(bot)) == 11
    (delivery,) = await post.store.webhooks.deliveries(bot.id)
    await endpoints.resend(delivery.id)
    assert len(await post.attempts(bot)) == 22


async def test_what_was_given_up_since_a_time_is_sent_again_in_bulk(
    post: Post, endpoints: Endpoints
) -> None:
    made, _ = await add(post)
    other, _ = await Projects(post.store).create("other")
    post.receiver.answers["/e"] = [web.Response(status=410) for _ in range(4)]
    bots = []
    for project in (1, 1, 1, other.id):
        await post.pass_time(minutes=1)
        bots.append((await post.create(project_id=project)).bot)
        await post.webhooks.run_once()
    post.receiver.answers.clear()
    await post.create()
    await post.webhooks.run_once()
    post.receiver.receipts.clear()
    page = DeliveryPage(
        project_id=1, since=bots[1].created_at, status=DeliveryStatus.GIVEN_UP, bot_id=None
    )
    assert await endpoints.resend_many(page) == 2
    await post.webhooks.run_once()
    assert sorted(post.receiver.statuses()) == [f"{bot.id} DEPLOYING" for bot in bots[1:3]]
    await endpoints.change(made.id, {}, paused=True)
    assert await endpoints.resend_many(DeliveryPage(project_id=1)) == 0
    (delivery,) = await post.store.webhooks.deliveries(bots[0].id)
    with pytest.raises(WebhookPaused, match="resume it first"):
        await endpoints.resend(delivery.id)


async def test_lists_of_deliveries_are_read_by_their_indexes(post: Post) -> None:
    """Of a project, an endpoint, or a bot."""
    for by in ("project_id", "endpoint_id", "bot_id"):
        rows = await post.database.fetch(
            f"EXPLAIN SELECT * FROM webhook_deliveries WHERE id < 9 AND {by} = 1"
            " ORDER BY id DESC LIMIT 5"
        )
        plan = "\n".join(row[0] for row in rows)
        assert f"webhook_deliveries_{by.removesuffix('_id')}" in plan
