"""Webhook endpoints and deliveries over the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from standardwebhooks import Webhook

from botpool.feed.webhooks import Webhooks
from botpool.settings import Settings
from botpool.states import BotStatus
from tests.integration.test_bots_api import opened, problem
from tests.support.receiver import loopback, running_receiver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.store import Database
    from tests.integration.test_bots_api import Api
    from tests.support.receiver import Receiver

HOOKS = "/api/v1/webhooks"
MEET = "https://meet.google.com/abc-defg-hij"


@pytest.fixture
async def api(database: Database) -> AsyncIterator[Api]:
    async with opened(database) as api:
        yield api


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with running_receiver() as receiver:
        yield receiver


async def deliver(api: Api) -> None:
    settings = Settings(allow_private_callbacks=True)
    await Webhooks(api.store, settings, resolve=loopback, seed=0).run_once()


async def made(api: Api, receiver: Receiver, path: str = "/a", **body: Any) -> dict[str, Any]:
    url = f"http://hooks.example.com:{receiver.port}{path}"
    response = await api.alice.post(HOOKS, json={"url": url, **body})
    assert response.status_code == 201, response.text
    assert response.headers["Cache-Control"] == "no-store"
    answer: dict[str, Any] = response.json()
    return answer


async def test_a_project_has_its_events_posted_and_lists_what_became_of_them(
    api: Api, receiver: Receiver
) -> None:
    answer = await made(api, receiver, description="crm", eventTypes=["bot.status_changed"])
    webhook = answer["webhook"]
    assert (webhook["projectId"], webhook["description"]) == (2, "crm")
    assert (webhook["pausedAt"], webhook["failingSince"]) == (None, None)
    path = f"{HOOKS}/{webhook['id']}"
    assert (await api.alice.get(path)).json() == webhook
    assert (await api.alice.get(HOOKS)).json() == {"webhooks": [webhook]}
    assert (await api.admin.get(f"{HOOKS}?projectId=3")).json() == {"webhooks": []}
    bots = [(await api.ask()).json()["bot"]["id"] for _ in range(3)]
    await deliver(api)
    for receipt in receiver.receipts:
        assert Webhook(answer["secret"]).verify(receipt.body, receipt.headers)
    first = (await api.alice.get(f"{HOOKS}/deliveries?limit=2")).json()
    second = (await api.alice.get(f"{HOOKS}/deliveries?cursor={first['nextCursor']}")).json()
    assert second["nextCursor"] is None
    found = [*first["deliveries"], *second["deliveries"]]
    assert [each["botId"] for each in found] == bots[::-1]
    assert {each["status"] for each in found} == {"delivered"}
    assert {each["messageId"] for each in found} == {each.id for each in receiver.receipts}
    one = (await api.alice.get(f"{HOOKS}/deliveries/{found[0]['id']}")).json()
    assert one["delivery"] == found[0]
    assert one["payload"]["data"]["botId"] == bots[-1]
    assert [(each["number"], each["status"]) for each in one["attempts"]] == [(1, 204)]
    for query, count in (
        (f"botId={bots[0]}", 1),
        ("status=open", 0),
        ("type=bot.event", 0),
        (f"webhookId={webhook['id']}", 3),
        ("projectId=3", 0),
    ):
        listed = (await api.alice.get(f"{HOOKS}/deliveries?{query}")).json()["deliveries"]
        assert len(listed) == count, query


async def test_an_endpoint_is_changed_paused_resumed_and_deleted(
    api: Api, receiver: Receiver
) -> None:
    webhook = (await made(api, receiver))["webhook"]
    path = f"{HOOKS}/{webhook['id']}"
    changed = await api.alice.patch(path, json={"eventTypes": ["bot.event"], "description": "x"})
    assert (changed.json()["eventTypes"], changed.json()["url"]) == (["bot.event"], webhook["url"])
    paused = (await api.alice.patch(path, json={"paused": True})).json()
    assert paused["pausedAt"] is not None
    assert paused["pauseReason"] == "paused on request"
    resumed = (await api.alice.patch(path, json={"paused": False})).json()
    assert (resumed["pausedAt"], resumed["pauseReason"]) == (None, None)
    assert (await api.alice.delete(path)).status_code == 204
    problem(await api.alice.get(path), 404, "webhook_not_found")


async def test_a_secret_is_rotated_and_shown_once(api: Api, receiver: Receiver) -> None:
    answer = await made(api, receiver)
    webhook, old = answer["webhook"], answer["secret"]
    rotated = await api.alice.post(f"{HOOKS}/{webhook['id']}/rotate-secret")
    assert (rotated.status_code, rotated.headers["Cache-Control"]) == (201, "no-store")
    new = rotated.json()["secret"]
    await api.ask()
    await deliver(api)
    (receipt,) = receiver.receipts
    for secret in (old, new):
        assert Webhook(secret).verify(receipt.body, receipt.headers)
    again = await api.alice.post(f"{HOOKS}/{webhook['id']}/rotate-secret", json={"overlapMs": 0})
    rows = await api.database.fetch(
        "SELECT secret FROM webhook_secrets WHERE endpoint_id = $1"
        " AND (expires_at IS NULL OR expires_at > botpool_now())",
        webhook["id"],
    )
    assert [row["secret"] for row in rows] == [again.json()["secret"]]


async def test_a_projects_secret_is_rotated_by_its_own_keys(api: Api) -> None:
    rotated = await api.alice.post("/api/v1/projects/2/rotate-secret")
    assert rotated.status_code == 201
    assert rotated.json()["secret"].startswith("whsec_")
    problem(await api.alice.post("/api/v1/projects/3/rotate-secret"), 404, "project_not_found")


async def test_deliveries_are_resent_by_id_and_since_a_time(api: Api, receiver: Receiver) -> None:
    webhook = (await made(api, receiver))["webhook"]
    bot = (await api.ask()).json()["bot"]
    await deliver(api)
    (delivery,) = (await api.alice.get(f"{HOOKS}/deliveries")).json()["deliveries"]
    resent = await api.alice.post(f"{HOOKS}/deliveries/{delivery['id']}/resend")
    assert (resent.status_code, resent.json()["status"]) == (202, "open")
    await deliver(api)
    ask = {"since": bot["createdAt"], "status": "delivered", "webhookId": webhook["id"]}
    bulk = await api.alice.post(f"{HOOKS}/deliveries/resend", json=ask)
    assert (bulk.status_code, bulk.json()) == (202, {"resent": 1})
    await deliver(api)
    assert len({each.id for each in receiver.receipts}) == 1
    assert len(receiver.receipts) == 3
    ask["since"] = "2999-01-01T00:00:00Z"
    bulk = await api.alice.post(f"{HOOKS}/deliveries/resend", json=ask)
    assert bulk.json() == {"resent": 0}
    await api.alice.patch(f"{HOOKS}/{webhook['id']}", json={"paused": True})
    refused = await api.alice.post(f"{HOOKS}/deliveries/{delivery['id']}/resend")
    problem(refused, 409, "webhook_paused")
    problem(await api.alice.post(f"{HOOKS}/deliveries/99/resend"), 404, "delivery_not_found")


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({"url": "ftp://example.com"}, "callback_address_invalid", "#/url"),
        ({"url": "http://127.0.0.1/"}, "callback_address_private", "#/url"),
        ({"url": "https://example.com", "eventTypes": []}, "invalid_request", "#/eventTypes"),
        (
            {"url": "https://example.com", "eventTypes": ["slot.status_changed"]},
            "invalid_request",
            "#/eventTypes/0",
        ),
        ({}, "invalid_request", "#/url"),
    ],
)
async def test_what_cannot_be_is_refused(
    api: Api, body: dict[str, Any], code: str, pointer: str
) -> None:
    found = problem(await api.alice.post(HOOKS, json=body), 422, code)
    assert [error["pointer"] for error in found["errors"]] == [pointer]


async def test_a_webhook_tells_of_what_a_bot_reports(api: Api, receiver: Receiver) -> None:
    await made(api, receiver, eventTypes=["bot.event"])
    bot = (await api.ask()).json()["bot"]
    slot = await api.store.slots.of_bot(bot["id"])
    assert slot is not None
    await api.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
    await api.pool.assignments.add_events(slot.id, slot.lease, [("joined", {"who": "a guest"})])
    await deliver(api)
    (delivery,) = (await api.alice.get(f"{HOOKS}/deliveries?type=bot.event")).json()["deliveries"]
    assert (delivery["botId"], delivery["status"]) == (bot["id"], "delivered")
