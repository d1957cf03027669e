"""The queue: what it costs to join it, however long it is."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from statistics import median
from typing import TYPE_CHECKING

import asyncpg

from bench.report import Measure, Part
from botpool.models.bots import NewBot
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.states import Platform
from botpool.store import Store, connect, migrate
from botpool.store.postgres.embedded import embedded_postgres
from testbed.crowd import crowd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FEW = 10
MANY = 100_000
ROUNDS = 7
CREATIONS = 300
BURST = 1_000

TEXT = f"""A creation is `create_bot` on a pool without room, so that the bot joins the queue and
is told its exact place; the median of {CREATIONS} a round, each taken out of the queue again. A
look is the place of a bot in the middle of the queue, as `GET /bots/{{id}}` tells it. A burst is
{BURST:,} calls of `create_bot` at once. {ROUNDS} rounds."""


class Bench:
    """A pool without room on a database of its own, and how many bots wait there."""

    def __init__(self, store: Store, pool: Pool, waiting: int) -> None:
        self.store = store
        self.pool = pool
        self.waiting = waiting

    async def create(self, position: int | None = None) -> int:
        """Let a bot join the queue, and return its id."""
        created = await self.pool.creation.create_bot(
            NewBot(
                platform=Platform.GOOGLE_MEET,
                meeting_url="https://meet.google.com/abc-defg-hij",
                bot_display_name="Bench",
                queue_timeout_ms=600_000,
            )
        )
        if position is not None and created.queue_position != position:
            raise RuntimeError(f"its place is {created.queue_position}, not {position}")
        return created.bot.id

    async def leave(self, bot_id: int) -> None:
        await self.pool.assignments.stop_bot(bot_id)

    async def creation(self) -> float:
        """The median time of a creation, in microseconds."""
        times = []
        for _ in range(CREATIONS):
            started = time.perf_counter()
            bot_id = await self.create(self.waiting + 1)
            times.append(time.perf_counter() - started)
            await self.leave(bot_id)
        return median(times) * 1e6

    async def look(self) -> float:
        """The median time of a look at the place of a bot in the middle, in microseconds."""
        times = []
        for _ in range(CREATIONS):
            started = time.perf_counter()
            place = await self.store.queue.place(self.waiting // 2)
            times.append(time.perf_counter() - started)
            if place is None or place.position != self.waiting // 2:
                raise RuntimeError(f"its place is {place}")
        return median(times) * 1e6

    async def burst(self) -> float:
        """Creations a second, so many at once."""
        started = time.perf_counter()
        made = await asyncio.gather(*(self.create() for _ in range(BURST)))
        seconds = time.perf_counter() - started
        for bot_id in made:
            await self.leave(bot_id)
        return BURST / seconds


async def run(folder: Path, say: Callable[[str], None]) -> Part:
    """Measure everything of this part."""
    async with AsyncExitStack() as stack:
        dsn = await stack.enter_async_context(embedded_postgres(folder / "queue"))
        connection = await asyncpg.connect(dsn)
        say("filling the queues")
        few, many = [
            await _bench(stack, connection, dsn, name, waiting)
            for name, waiting in (("few", FEW), ("many", MANY))
        ]
        await connection.close()
        measures = []
        for name, unit, what, at_most in (
            ("creation", "µs", Bench.creation, 1.2),
            ("a look at a place", "µs", Bench.look, None),
            (f"a burst of {BURST:,} creations", "bots/s", Bench.burst, None),
        ):
            say(name)
            ours, limit = [], []
            for _ in range(ROUNDS):
                ours.append(await what(many))
                limit.append(await what(few))
            title = f"{name} with {MANY:,} waiting ÷ with {FEW}"
            measures.append(Measure(title, unit, ours, limit, at_most=at_most))
    return Part("The queue", TEXT, measures)


async def _bench(
    stack: AsyncExitStack,
    connection: asyncpg.Connection[asyncpg.Record],
    dsn: str,
    name: str,
    waiting: int,
) -> Bench:
    await connection.execute(f"CREATE DATABASE {name}")
    database = await stack.enter_async_context(connect(dsn.replace("/botpool?", f"/{name}?")))
    await migrate(database)
    store = Store(database)
    pool = Pool(store, Settings(max_pool_size=0))
    await pool.queue.configure()
    await crowd(database, Platform.GOOGLE_MEET, waiting=waiting)
    return Bench(store, pool, waiting)
