"""A receiver of webhooks on loopback, and a pool that posts to it."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from botpool.feed.webhooks import Webhooks
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.store import Store
from botpool.store.invariants import broken_invariants
from tests.support.scene import Scene, add_host

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from botpool.models.bots import Bot
    from botpool.models.webhooks import WebhookAttempt
    from botpool.states import BotStatus
    from botpool.store import Database


@dataclass(frozen=True)
class Receipt:
    """A request as it was received."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def status(self) -> str:
        data = orjson.loads(self.body)["data"]
        return f"{data['botId']} {data['status']}"


@dataclass
class Receiver:
    """Answers with 204, or as it is told to for a path; a path that hangs gets no answer."""

    port: int = 0
    receipts: list[Receipt] = field(default_factory=list)
    answers: dict[str, list[web.Response]] = field(default_factory=dict)
    hanging: set[str] = field(default_factory=set)
    held: Counter[str] = field(default_factory=Counter)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def receive(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        receipt = Receipt(request.path, headers, await request.read())
        async with self._changed:
            self.receipts.append(receipt)
            self._changed.notify_all()
        if request.path in self.hanging:
            self.held[request.path] += 1
            await self.closing.wait()
        answers = self.answers.get(request.path)
        return answers.pop(0) if answers else web.Response(status=204)

    async def until(self, count: int, path: str | None = None) -> None:
        """Wait for so many requests, in all or to one path."""

        def enough() -> bool:
            return len([r for r in self.receipts if path in {None, r.path}]) >= count

        async with self._changed:
            await self._changed.wait_for(enough)

    def statuses(self, path: str | None = None) -> list[str]:
        return [receipt.status for receipt in self.receipts if path in {None, receipt.path}]


@dataclass(frozen=True)
class Post(Scene):
    """A pool, a receiver, and a replica that delivers to it. Every name leads to loopback."""

    settings: Settings
    receiver: Receiver
    webhooks: Webhooks

    def replica(self, store: Store | None = None, **options: Any) -> Webhooks:
        """Another replica that delivers."""
        return Webhooks(store or self.store, self.settings, resolve=loopback, seed=0, **options)

    def url(self, path: str = "/", host: str = "hooks.example.com") -> str:
        return f"http://{host}:{self.receiver.port}{path}"

    async def told(self, path: str = "/", host: str = "hooks.example.com", **changes: Any) -> Bot:
        """A bot whose changes are told."""
        return (await self.create(callback_url=self.url(path, host), **changes)).bot

    async def advance(self, bot: Bot, *statuses: BotStatus) -> None:
        slot = await self.slot_of(bot.id)
        for status in statuses:
            await self.pool.assignments.advance(slot.id, slot.lease, status, "the bot says so")

    async def still_open(self, bot: Bot) -> list[int]:
        return [
            delivery.id
            for delivery in await self.store.webhooks.deliveries(bot.id)
            if delivery.delivered_at is None and delivery.given_up_at is None
        ]

    async def attempts(self, bot: Bot) -> list[WebhookAttempt]:
        """Try until there is nothing left to try, as time goes by, and return what was tried."""
        while await self.still_open(bot):
            await self.webhooks.run_once()
            ((due,),) = await self.database.fetch(
                "SELECT min(next_attempt_at) FROM webhook_deliveries"
            )
            if due is not None:
                await self.store.installation.set_virtual_time(due)
        return await self.recorded(bot)

    async def recorded(self, bot: Bot) -> list[WebhookAttempt]:
        """Every attempt to tell of a bot, in the order of what is told."""
        return [
            attempt
            for delivery in await self.store.webhooks.deliveries(bot.id)
            for attempt in await self.store.webhooks.attempts(delivery.id)
        ]


async def loopback(name: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


@asynccontextmanager
async def running_receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.receive)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    ((_, receiver.port),) = runner.addresses
    try:
        yield receiver
    finally:
        receiver.closing.set()
        await runner.cleanup()


@asynccontextmanager
async def new_post(
    database: Database, *, checked: bool = True, **settings: Any
) -> AsyncIterator[Post]:
    """A pool whose bots are told of. At the end every invariant is checked, unless told not to."""
    chosen = Settings(**{"allow_private_callbacks": True, "max_pool_size": 10, **settings})
    store = Store(database)
    await store.installation.use_virtual_clock()
    pool = Pool(store, chosen)
    await pool.queue.configure()
    await add_host(pool)
    async with running_receiver() as receiver:
        webhooks = Webhooks(store, chosen, resolve=loopback, seed=0)
        yield Post(database, store, pool, chosen, receiver, webhooks)
    assert not checked or await broken_invariants(database) == []


@asynccontextmanager
async def running_webhooks(webhooks: Webhooks, database: Database) -> AsyncIterator[None]:
    """A replica that delivers until the end of the block."""
    task = asyncio.create_task(webhooks.run(database))
    try:
        yield
    finally:
        webhooks.stop()
        await task
