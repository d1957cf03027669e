"""The reconciler and its engines against what the engines can do at all."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg
import uvicorn

from bench.report import Measure, Part
from botpool.access.keys import Keys
from botpool.api import create_app
from botpool.engines.base import STOPPED
from botpool.engines.docker.engine import DockerEngine
from botpool.engines.simulated import SimulatedEngine
from botpool.models.assignments import Ending
from botpool.models.bots import NewBot
from botpool.models.hosts import HostReport
from botpool.pool import Pool
from botpool.reconciler import Reconciler
from botpool.settings import Settings
from botpool.states import BotStatus, Platform, SlotStatus
from botpool.store import Store, connect, migrate
from botpool.store.postgres.embedded import embedded_postgres
from testbed.docker import busybox_image, docker_daemon, load, push, registry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from starlette.types import Receive, Scope, Send

    from botpool.engines.base import Container, Engine
    from botpool.models.slots import Slot
    from botpool.store import Database
    from testbed.docker import Daemon

WARM_ROUNDS = 10
COLD_ROUNDS = 3
COLD_BOTS = 20
AT_A_TIME = 4
IMAGE_BYTES = 100_000_000
GIVEN_ON = 50
SIMULATED_SLOTS = 1_000
SIMULATED_HOSTS = 50
SIMULATED_BOTS = 10_000
POLL_MS = 1_000
PLATFORM = Platform.ZOOM

TEXT = f"""Docker is a real one on this machine, with the network of the host; the image is a static
busybox whose only act is to claim its bot over HTTP, so that nothing hides what we add. API, pool
and reconciler run in one process, as by default.

- Warm: from the call of `create_bot` on an idle slot to the arrival of the container's claim. Its
  limit is the same container, created by hand, from Docker's start call to the arrival of its
  claim. {WARM_ROUNDS} rounds.
- Empty: {COLD_BOTS} bots at once on a host that lacks the image ({IMAGE_BYTES // 1_000_000} MB in a
  local registry), until the last one has claimed. Its limit is a bare pull and then
  {COLD_BOTS // AT_A_TIME} rounds of {AT_A_TIME} bare containers, created, started, and claiming.
  {COLD_ROUNDS} rounds, each on Dockers of their own.
- Given on: from the end of a bot to the start call for the bot that waits for its slot, on an
  engine whose calls take no time, as a share of the poll interval. {GIVEN_ON} times.
- Simulated: {SIMULATED_SLOTS:,} slots on {SIMULATED_HOSTS} hosts through {SIMULATED_BOTS:,} bots.
  The reconciler's own thread, per bot, from its assignment to its slot being clean again; beside
  it what the same bots cost the thread that creates them and speaks for them."""


class Arrivals:
    """The runtime calls of containers, and when each token's claim arrived."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._at: dict[str, asyncio.Future[float]] = {}
        self.count = 0
        self.more = asyncio.Condition()

    def claim_of(self, token: str) -> asyncio.Future[float]:
        return self._at.setdefault(token, asyncio.get_running_loop().create_future())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].endswith("/claim"):
            arrived = self.claim_of(dict(scope["headers"])[b"authorization"].decode()[7:])
            if not arrived.done():
                arrived.set_result(time.perf_counter())
                async with self.more:
                    self.count += 1
                    self.more.notify_all()
        await self._app(scope, receive, send)

    async def until(self, count: int) -> float:
        async with self.more:
            await self.more.wait_for(lambda: self.count >= count)
        return time.perf_counter()


@dataclass
class Site:
    """A pool that is served and worked on in this process."""

    store: Store
    pool: Pool
    arrivals: Arrivals
    url: str

    async def create(self) -> Slot:
        created = await self.pool.creation.create_bot(new_bot())
        slot = await self.store.slots.of_bot(created.bot.id)
        if slot is None:
            raise RuntimeError("there was no slot")
        return slot

    async def free_again(self, slot: Slot) -> None:
        """End the bot of a slot, and wait until the slot is idle."""
        await self.pool.assignments.end_assignment(done(slot))
        while (await self.store.slots.get(slot.id)).status is not SlotStatus.IDLE:
            await asyncio.sleep(0.005)


def new_bot() -> NewBot:
    return NewBot(
        platform=PLATFORM,
        meeting_url="https://meet.google.com/abc-defg-hij",
        bot_display_name="Notes",
        queue_timeout_ms=600_000,
    )


def done(slot: Slot) -> Ending:
    return Ending(slot_id=slot.id, lease=slot.lease, bot_status=BotStatus.DONE, reason="done")


@asynccontextmanager
async def pool_at_work(
    database: Database, store: Store, engine: Engine, settings: Settings
) -> AsyncIterator[Pool]:
    """A pool whose slots are worked on."""
    pool = Pool(store, settings)
    await pool.queue.configure()
    reconciler = Reconciler(
        store, pool, {engine.name: engine}, settings, installation=await store.installation.name()
    )
    await reconciler.report_hosts()
    running = asyncio.create_task(reconciler.run(database))
    try:
        yield pool
    finally:
        reconciler.stop()
        await running


@asynccontextmanager
async def served_site(
    database: Database, engine: Engine, settings: Settings, listening: socket.socket
) -> AsyncIterator[Site]:
    """A site on this engine, whose containers reach it at the socket; they end with it."""
    store = Store(database)
    async with pool_at_work(database, store, engine, settings) as pool:
        arrivals = Arrivals(create_app(store, pool, settings, Keys(store, settings)))
        config = uvicorn.Config(arrivals, interface="asgi3", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield Site(store, pool, arrivals, settings.runtime_url)
        finally:
            server.should_exit = True
            await task
    for found in await engine.list("a"):
        await engine.stop(found.container, 0)
        while (await engine.observe(found.container)).state not in STOPPED:
            await asyncio.sleep(0.05)
        await engine.remove(found.container)
    await engine.close()


@asynccontextmanager
async def docker_site(database: Database, daemon: Daemon, image: str) -> AsyncIterator[Site]:
    listening = socket.create_server(("127.0.0.1", 0))
    settings = Settings(
        engine="docker",
        docker_network="host",
        image_zoom=image,
        public_url=f"http://127.0.0.1:{listening.getsockname()[1]}",
        stop_grace_ms=1000,
        max_pool_size=100,
    )
    engine = DockerEngine(
        {"a": daemon.address},
        installation=await Store(database).installation.name(),
        options=settings.docker_options,
    )
    async with served_site(database, engine, settings, listening) as site:
        yield site


class Bare:
    """Containers that are started by hand, in no pool."""

    def __init__(self, daemon: Daemon, site: Site, image: str) -> None:
        self._daemon = daemon
        self._site = site
        self._image = image
        self._number = 0

    async def create(self, client: Any) -> tuple[Any, asyncio.Future[float]]:
        self._number += 1
        token = f"bare-{id(self)}-{self._number}"
        container = await client.containers.create(
            {
                "Image": self._image,
                "Env": [f"BOTPOOL_URL={self._site.url}", f"BOTPOOL_SLOT_TOKEN={token}"],
                "HostConfig": {"NetworkMode": "host", "Init": True},
            },
            name=token,
        )
        return container, self._site.arrivals.claim_of(token)

    async def start(self) -> float:
        """The milliseconds from the start call to the claim of a container that is there."""
        async with self._daemon.client() as client:
            container, arrived = await self.create(client)
            started = time.perf_counter()
            await container.start()
            took = await arrived - started
            await container.delete(force=True)
        return took * 1000

    async def rounds(self, rounds: int) -> float:
        """The milliseconds for so many rounds of containers, created and started together."""

        async def one(client: Any) -> Any:
            container, arrived = await self.create(client)
            await container.start()
            await arrived
            return container

        async with self._daemon.client() as client:
            await client.version()
            started = time.perf_counter()
            made = [
                container
                for _ in range(rounds)
                for container in await asyncio.gather(*(one(client) for _ in range(AT_A_TIME)))
            ]
            took = time.perf_counter() - started
            for container in made:
                await container.delete(force=True)
        return took * 1000

    async def pull(self) -> float:
        async with self._daemon.client() as client:
            started = time.perf_counter()
            await client.images.pull(self._image)
            return (time.perf_counter() - started) * 1000


async def warm(database: Database, folder: Path) -> Measure:
    image = "botpool-bench/bot:1"
    ours, limit = [], []
    async with docker_daemon(folder / "warm") as daemon:
        await load(daemon, busybox_image(folder / "warm.tar", image))
        async with docker_site(database, daemon, image) as site:
            bare = Bare(daemon, site, image)
            slot = await site.create()
            await site.arrivals.until(1)
            await site.free_again(slot)
            for _ in range(WARM_ROUNDS):
                limit.append(await bare.start())
                seen = site.arrivals.count
                started = time.perf_counter()
                slot = await site.create()
                ours.append((await site.arrivals.until(seen + 1) - started) * 1000)
                await site.free_again(slot)
    name = "warm: create → first claim ÷ bare start → first claim"
    return Measure(name, "ms", ours, limit, at_most=1.3)


async def cold(new: Callable[[], Awaitable[Database]], folder: Path) -> Measure:
    ours, limit = [], []
    async with registry(folder / "registry") as store, docker_daemon(folder / "maker") as maker:
        local, image = "botpool-bench/cold:1", f"{store.address}/cold:1"
        await load(maker, busybox_image(folder / "cold.tar", local, padding=IMAGE_BYTES))
        await push(maker, local, image)
        for number in range(COLD_ROUNDS):
            places = folder / f"ours{number}", folder / f"bare{number}"
            async with (
                docker_daemon(places[0]) as daemon,
                docker_daemon(places[1]) as other,
                docker_site(await new(), daemon, image) as site,
            ):
                bare = Bare(other, site, image)
                limit.append(await bare.pull() + await bare.rounds(COLD_BOTS // AT_A_TIME))
                seen = site.arrivals.count
                started = time.perf_counter()
                await asyncio.gather(*(site.create() for _ in range(COLD_BOTS)))
                ended = await site.arrivals.until(seen + COLD_BOTS)
                ours.append((ended - started) * 1000)
    name = f"empty: {COLD_BOTS} bots ÷ pull and {COLD_BOTS // AT_A_TIME} rounds of bare starts"
    return Measure(name, "ms", ours, limit, at_most=1.25)


async def given_on(database: Database) -> Measure:
    started: asyncio.Queue[float] = asyncio.Queue()

    def note(_: Container, __: Mapping[str, str]) -> None:
        started.put_nowait(time.perf_counter())

    engine = SimulatedEngine(started=note)
    settings = Settings(engine="simulated", max_pool_size=1, poll_interval_ms=POLL_MS)
    store = Store(database)
    times = []
    async with pool_at_work(database, store, engine, settings) as pool:
        await pool.creation.create_bot(new_bot())
        await started.get()
        for _ in range(GIVEN_ON):
            await pool.creation.create_bot(new_bot())
            (slot,) = await store.slots.all()
            while slot.status is not SlotStatus.BUSY:
                (slot,) = await store.slots.all()
            await pool.assignments.end_assignment(done(slot))
            ended = time.perf_counter()
            times.append((await started.get() - ended) * 1000)
    name = "given on: end of a bot → start of the next ÷ poll interval"
    return Measure(name, "ms", times, [POLL_MS] * len(times), at_most=0.05)


class SimulatedBots:
    """Bots of a simulated engine: each claims, is in its call, and is done."""

    def __init__(self, store: Store, pool: Pool) -> None:
        self._store = store
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._lives: set[asyncio.Task[None]] = set()
        self.ended = asyncio.Semaphore(0)
        self.engine = SimulatedEngine(
            [f"host-{number}" for number in range(SIMULATED_HOSTS)], started=self._started
        )

    def _started(self, container: Container, environment: Mapping[str, str]) -> None:
        token = environment["BOTPOOL_SLOT_TOKEN"]
        self._loop.call_soon_threadsafe(self._begin, container, token)

    def _begin(self, container: Container, token: str) -> None:
        task = self._loop.create_task(self._live(container, token))
        self._lives.add(task)
        task.add_done_callback(self._lives.discard)

    async def _live(self, container: Container, token: str) -> None:
        slot = await self._store.slots.of_token(token)
        if slot is None:
            raise RuntimeError("an unknown token")
        await self._pool.assignments.claim(slot)
        await self._pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
        await self._pool.assignments.advance(
            slot.id, slot.lease, BotStatus.DONE, "the call is over"
        )
        self.engine.exit(container)
        self.ended.release()

    async def run(self) -> None:
        """Keep every slot busy until all bots have ended."""
        for _ in range(SIMULATED_SLOTS):
            await self._pool.creation.create_bot(new_bot())
        for number in range(SIMULATED_BOTS):
            await self.ended.acquire()
            if number < SIMULATED_BOTS - SIMULATED_SLOTS:
                await self._pool.creation.create_bot(new_bot())
        while any(row.total > row.idle for row in await self._store.pools.numbers()):
            await asyncio.sleep(0.05)


async def simulated(dsn: str, database: Database) -> Measure:
    """The reconciler in a thread of its own, so that its time can be told from that of the bots."""
    settings = Settings(engine="simulated", max_pool_size=SIMULATED_SLOTS)
    store = Store(database)
    pool = Pool(store, settings)
    await pool.queue.configure()
    bots = SimulatedBots(store, pool)
    # All slots are wanted, so the hosts must be known before the first bot is.
    hosts = [HostReport(host=host, capacity=None, open=True) for host in bots.engine.hosts()]
    await pool.hosts.report("simulated", hosts)
    over = threading.Event()
    spent: list[float] = []

    async def reconcile() -> None:
        async with (
            connect(dsn) as own,
            pool_at_work(own, Store(own), bots.engine, settings),
        ):
            while not over.is_set():
                await asyncio.sleep(0.1)
        spent.append(time.thread_time())

    thread = threading.Thread(target=lambda: asyncio.run(reconcile()))
    thread.start()
    before = time.thread_time()
    await bots.run()
    own = time.thread_time() - before
    over.set()
    await asyncio.to_thread(thread.join)
    name = f"simulated: reconciler's CPU a bot ÷ the bots' own, {SIMULATED_BOTS:,} bots"
    return Measure(name, "ms", [spent[0] * 1000 / SIMULATED_BOTS], [own * 1000 / SIMULATED_BOTS])


async def run(folder: Path, say: Callable[[str], None]) -> Part:
    """Measure everything of this part."""
    async with AsyncExitStack() as stack:
        dsn = await stack.enter_async_context(embedded_postgres(folder / "engines"))
        connection = await asyncpg.connect(dsn)
        names: list[str] = []

        async def new() -> Database:
            names.append(f"bench_{len(names)}")
            await connection.execute(f"CREATE DATABASE {names[-1]}")
            own = dsn.replace("/botpool?", f"/{names[-1]}?")
            database = await stack.enter_async_context(connect(own))
            await migrate(database)
            return database

        measures = []
        say("warm starts on Docker")
        measures.append(await warm(await new(), folder))
        say("an empty Docker host")
        measures.append(await cold(new, folder))
        say("slots given on")
        measures.append(await given_on(await new()))
        say(f"{SIMULATED_BOTS:,} simulated bots")
        database = await new()
        measures.append(await simulated(dsn.replace("/botpool?", f"/{names[-1]}?"), database))
        await connection.close()
    return Part("Engines and reconciler", TEXT, measures)
