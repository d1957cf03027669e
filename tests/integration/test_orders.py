"""A bot that waits for an order learns it at once, and costs little while it waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from botpool.access.keys import Keys
from botpool.api import create_app
from botpool.feed.orders import Orders
from botpool.feed.stream import Feed
from botpool.models.keys import token_digest
from botpool.settings import Settings
from botpool.states import BotStatus
from tests.support.follower import following_feed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.models.slots import Slot
    from tests.support.scene import Scene

TOKEN = "a-token-of-one-slot"  # noqa: S105
WAIT = "/api/v1/runtime/wait"
SETTINGS = Settings()


@pytest.fixture
def orders(scene: Scene) -> Orders:
    orders = Orders(scene.store, SETTINGS)
    orders.patience_seconds = 3600
    return orders


@pytest.fixture
async def http(scene: Scene, orders: Orders) -> AsyncIterator[httpx.AsyncClient]:
    keys = Keys(scene.store, SETTINGS)
    feed = Feed(scene.store, orders)
    app = create_app(scene.store, scene.pool, SETTINGS, keys, feed)
    async with (
        following_feed(scene.database, feed),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://botpool",
            headers={"Authorization": f"Bearer {TOKEN}"},
        ) as client,
    ):
        yield client


async def with_token(scene: Scene, slot: Slot) -> Slot:
    await scene.database.execute(
        "UPDATE bot_pool_slots SET token_hash = $2 WHERE id = $1", slot.id, token_digest(TOKEN)
    )
    return slot


async def until_waiting(orders: Orders, count: int = 1) -> None:
    while orders.waiting < count:
        await asyncio.sleep(0)


async def test_a_bot_that_waits_is_told_to_leave_at_once(
    scene: Scene, orders: Orders, http: httpx.AsyncClient
) -> None:
    bot, slot = await scene.running()
    await with_token(scene, slot)
    waiting = asyncio.create_task(http.post(WAIT, json={"lease": slot.lease}))
    await until_waiting(orders)
    # What happens to others concerns it not.
    await scene.create()
    await scene.pool.assignments.stop_bot(bot.id)
    answer = await waiting
    assert (answer.status_code, answer.json()["action"]) == (200, "leave")
    assert orders.waiting == 0
    # Whoever asks afterwards is told without a wait.
    assert (await http.post(WAIT, json={"lease": slot.lease})).json()["action"] == "leave"


async def test_an_order_that_comes_while_a_wait_begins_is_not_missed(
    scene: Scene, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    bot, slot = await scene.running()
    await with_token(scene, slot)
    assignments = scene.pool.assignments
    heartbeat = assignments.heartbeat

    async def overtaken(*args: Any) -> Any:
        found = await heartbeat(*args)
        if found.bot_status is not BotStatus.LEAVING:
            await assignments.stop_bot(bot.id)
        return found

    monkeypatch.setattr(assignments, "heartbeat", overtaken)
    assert (await http.post(WAIT, json={"lease": slot.lease})).json()["action"] == "leave"


async def test_without_an_order_a_wait_ends_after_a_while(
    scene: Scene, orders: Orders, http: httpx.AsyncClient
) -> None:
    orders.patience_seconds = 0
    bot, slot = await scene.running()
    await with_token(scene, slot)
    at = await scene.pass_time(seconds=5)
    assert (await http.post(WAIT, json={"lease": slot.lease})).json()["action"] == "continue"
    assert (await scene.store.bots.get(bot.id)).last_heartbeat == at
    await scene.end(slot)
    answer = await http.post(WAIT, json={"lease": slot.lease})
    assert (answer.status_code, answer.json()["code"]) == (410, "assignment_ended")


async def test_a_botpool_that_stops_lets_nobody_wait(
    scene: Scene, orders: Orders, http: httpx.AsyncClient
) -> None:
    _, slot = await scene.running()
    await with_token(scene, slot)
    waiting = asyncio.create_task(http.post(WAIT, json={"lease": slot.lease}))
    await until_waiting(orders)
    orders.stop()
    assert (await waiting).json()["action"] == "continue"
    assert (await http.post(WAIT, json={"lease": slot.lease})).json()["action"] == "continue"


async def test_thousands_wait_and_one_query_finds_who_is_told(
    scene: Scene, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    bot, slot = await scene.running()
    asked = 0
    leaving = scene.store.bots.leaving

    async def counted(within_ms: int) -> Any:
        nonlocal asked
        asked += 1
        return await leaving(within_ms)

    monkeypatch.setattr(scene.store.bots, "leaving", counted)

    async def wait(lease: tuple[int, int]) -> tuple[int, int]:
        with orders.expected(lease) as expected:
            await expected.wait()
        return lease

    ours = (slot.id, slot.lease)
    waits = [asyncio.create_task(wait((10_000 + n, 1))) for n in range(5000)]
    one = asyncio.create_task(wait(ours))
    await until_waiting(orders, 5001)
    await scene.pool.assignments.stop_bot(bot.id)
    for _ in range(50):
        orders.changed()
    assert await one == ours
    assert asked == 1
    assert orders.waiting == 5000
    orders.stop()
    await asyncio.gather(*waits)
