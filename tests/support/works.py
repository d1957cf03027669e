"""What the tests of the reconciler act with."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from botpool.engines.base import Container
from botpool.engines.simulated import Faults, SimulatedEngine
from botpool.pool import Pool
from botpool.reconciler import Reconciler
from botpool.settings import Settings
from botpool.states import Platform
from botpool.store import Store
from botpool.store.invariants import broken_invariants
from tests.support.scene import Scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from botpool.engines.base import Traits
    from botpool.models.bots import Bot
    from botpool.models.slots import Slot
    from botpool.store import Database

IMAGE = "bot:1"


@dataclass
class Clock:
    """The engine's time."""

    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds


@dataclass(frozen=True)
class Works(Scene):
    """A pool, a simulated engine and a reconciler, whose time a test sets."""

    settings: Settings
    engine: SimulatedEngine
    reconciler: Reconciler
    clock: Clock = field(default_factory=Clock)

    async def replica(self, **options: Any) -> Reconciler:
        """Another reconciler on the same database and engine."""
        return await new_reconciler(self.store, self.pool, self.engine, self.settings, **options)

    async def pass_time(self, **time: float) -> datetime:
        """Let so much time go by, for the database and the engine, in which bots can be heard."""
        now = await self.pass_unheard(**time)
        if (seconds := timedelta(**time).total_seconds()) > 0:
            await self.pool.listening.note("test", seconds)
        return now

    async def pass_unheard(self, **time: float) -> datetime:
        """Let so much time go by in which no bot can be heard."""
        self.clock.seconds += timedelta(**time).total_seconds()
        return await super().pass_time(**time)

    async def go(self, **time: float) -> None:
        """Let so much time go by, and do what is due then."""
        await self.pass_time(**time)
        await self.reconciler.run_once()

    async def launched(self, platform: Platform = Platform.GOOGLE_MEET, **changes: Any) -> Bot:
        """A bot for which everything was done that can be done at once."""
        bot = (await self.create(platform, **changes)).bot
        await self.reconciler.run_once()
        return await self.store.bots.get(bot.id)

    async def warm(self, platform: Platform = Platform.GOOGLE_MEET) -> Slot:
        """An idle slot whose container is there."""
        bot = await self.launched(platform)
        slot = await self.slot_of(bot.id)
        await self.end(slot)
        await self.reconciler.run_once()
        return await self.store.slots.get(slot.id)

    async def reasons(self, bot: Bot) -> list[str]:
        """What was written of a bot's slots, in order."""
        return [
            t.reason for t in await self.store.transitions.timeline(bot.id) if t.machine == "slot"
        ]


async def new_reconciler(
    store: Store, pool: Pool, engine: SimulatedEngine, settings: Settings, **options: Any
) -> Reconciler:
    return Reconciler(
        store,
        pool,
        {engine.name: engine},
        settings,
        installation=await store.installation.name(),
        seed=0,
        **options,
    )


@asynccontextmanager
async def working(
    database: Database,
    *,
    hosts: tuple[str, ...] = ("a",),
    faults: Faults | None = None,
    traits: Traits | None = None,
    **settings: Any,
) -> AsyncIterator[Works]:
    """Works with these settings. At the end every invariant is checked."""
    usual = {
        "engine": "simulated",
        "image_google_meet": IMAGE,
        "max_pool_size": 10,
        "relaunch_wait_ms": 0,
    }
    chosen = Settings(**{**usual, **settings})
    store = Store(database)
    await store.installation.use_virtual_clock()
    clock = Clock()
    engine = SimulatedEngine(hosts, faults=faults, traits=traits, now=clock.now)
    pool = Pool(store, chosen)
    reconciler = await new_reconciler(store, pool, engine, chosen)
    works = Works(database, store, pool, chosen, engine, reconciler, clock)
    await pool.queue.configure()
    await reconciler.report_hosts()
    yield works
    assert await broken_invariants(database) == []


def container(slot: Slot) -> Container:
    """The container that a slot has."""
    assert slot.host is not None
    assert slot.container_ref is not None
    return Container(slot.host, slot.container_ref)
