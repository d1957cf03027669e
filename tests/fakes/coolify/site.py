"""A whole botpool on an imitated Coolify, in virtual time: only PostgreSQL is real."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from botpool.access.keys import Keys
from botpool.api import create_app
from botpool.engines.coolify.settings import coolify_engine
from botpool.pool import Pool
from botpool.reconciler import Reconciler
from botpool.settings import Settings
from botpool.simulation.virtual_time import ClockedDatabase
from botpool.states import BOT_ENDED, BotStatus, SlotStatus
from botpool.store import Store
from botpool.store.invariants import broken_invariants
from tests.fakes.coolify import Coolify, Rules, TaskContainers
from tests.fakes.coolify.bots import Bots
from tests.support.scene import Scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.engines.coolify.engine import CoolifyEngine
    from botpool.models.bots import Bot
    from tests.fakes.coolify import Faults

IMAGE = "registry.example/meet-bot:7"


@dataclass(frozen=True)
class CoolifySite(Scene):
    """A pool, its Coolify, its reconcilers, and the bots in its containers."""

    settings: Settings
    coolify: Coolify
    engine: CoolifyEngine
    bots: Bots
    found: list[str] = field(default_factory=list)
    """What was found to be wrong meanwhile."""

    async def watch(self) -> None:
        """See to it that nothing runs in a slot that is idle."""
        while True:
            slots = await self.store.slots.all()
            idle = {s.container_ref: s for s in slots if s.status is SlotStatus.IDLE}
            for running in idle.keys() & {*self.coolify.running()}:
                self.found.append(f"{idle[running].slot_name} is idle, and {running} runs")
            await asyncio.sleep(3)

    def check(self) -> None:
        """What must hold whatever happened, once every bot has ended."""
        assert self.found == []
        names = [application.name for application in self.coolify.applications.values()]
        assert len(names) == len({*names}), "an application was made twice"
        assert self.coolify.killed == [], "a deployment under way was cancelled"

    async def ask_for(self, count: int, stay: float = 60, **changes: Any) -> list[int]:
        """Ask for so many bots at once."""
        config = {"stay": stay}
        created = [self.create(config=config, **changes) for _ in range(count)]
        return [made.bot.id for made in await asyncio.gather(*created)]

    async def until_ended(self, ids: list[int], within: float) -> list[Bot]:
        """The bots once they have all ended, which they must in so many seconds."""
        async with asyncio.timeout(within):
            while True:
                if await self._statuses(ids) <= BOT_ENDED:
                    return [await self.store.bots.get(bot_id) for bot_id in ids]
                await asyncio.sleep(3)

    async def until_status(self, ids: list[int], *statuses: BotStatus, within: float) -> None:
        async with asyncio.timeout(within):
            while True:
                if await self._statuses(ids) <= {*statuses}:
                    return
                await asyncio.sleep(3)

    async def _statuses(self, ids: list[int]) -> set[BotStatus]:
        sql = "SELECT DISTINCT status FROM bots WHERE id = ANY ($1)"
        return {BotStatus(row["status"]) for row in await self.database.fetch(sql, ids)}

    async def until_idle(self, within: float) -> None:
        """Wait until every slot is idle."""
        async with asyncio.timeout(within):
            while any(s.status is not SlotStatus.IDLE for s in await self.store.slots.all()):
                await asyncio.sleep(3)


@asynccontextmanager
async def coolify_site(
    url: str,
    rules: Rules | None = None,
    *,
    faults: Faults | None = None,
    replicas: int = 1,
    seed: int = 0,
    before: CoolifySite | None = None,
    **settings: Any,
) -> AsyncIterator[CoolifySite]:
    """A site whose reconcilers work until the end of the block. Then everything is checked.

    With the Coolify of a site `before`, whose block is around this one, if it has changed settings.
    """
    bots = before.bots if before else Bots()
    if before is not None:
        coolify = before.coolify
    else:
        coolify = Coolify(rules, containers=TaskContainers(bots.play), faults=faults, seed=seed)
    chosen = Settings(
        **{
            "engine": "coolify",
            "image_google_meet": IMAGE,
            "public_url": "http://botpool.test",
            "poll_interval_ms": 5000,
            "coolify_api_url": "http://coolify.test",
            "coolify_api_token": coolify.token,
            "coolify_project_uuid": coolify.project_uuid,
            "coolify_server_uuid": ",".join(coolify.rules.servers),
            "coolify_destination_uuid": ",".join(
                coolify.destinations[server] for server in coolify.rules.servers
            ),
            **settings,
        }
    )
    async with ClockedDatabase.opened(url) as database:
        store = Store(database)
        pool = Pool(store, chosen)
        await pool.queue.configure()
        if before is None:
            app = create_app(store, pool, chosen, Keys(store, chosen))
            bots.transport = httpx.ASGITransport(app=app)
        installation = await store.installation.name()
        engines = [
            coolify_engine(chosen, installation, httpx.ASGITransport(app=coolify.app))
            for _ in range(max(1, replicas))
        ]
        reconcilers = [
            Reconciler(
                *(store, pool, {"coolify": engine}, chosen),
                installation=installation,
                seed=seed + number,
            )
            for number, engine in enumerate(engines[:replicas])
        ]
        site = CoolifySite(database, store, pool, chosen, coolify, engines[0], bots)
        running = [asyncio.create_task(each.run(database)) for each in reconcilers]
        watching = asyncio.create_task(site.watch())
        try:
            yield site
            assert await broken_invariants(database) == []
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            for reconciler in reconcilers:
                reconciler.stop()
            await asyncio.gather(*running)
            for engine in engines:
                await engine.close()
            if before is None:
                await coolify.close()
                await bots.close()
