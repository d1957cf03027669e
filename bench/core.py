"""The pool against what PostgreSQL can do at all."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import asyncpg

from bench.report import Measure, Part
from botpool.models.assignments import Ending
from botpool.models.bots import NewBot
from botpool.models.hosts import HostReport
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.states import BotStatus, Platform
from botpool.store import Store, connect, migrate
from botpool.store.postgres.embedded import embedded_postgres, postgres_programs
from testbed.crowd import crowd

if TYPE_CHECKING:
    from collections.abc import Callable

RAW_CYCLE = Path(__file__).with_name("raw_cycle.sql")
SLOTS = 100
MANY_SLOTS = 100_000
MANY_BOTS = 1_000_000

ROUNDS = 5
SECONDS = 3.0
CREATIONS = 300

TEXT = f"""A cycle is a bot's life in the pool: created on an idle slot, ended, its slot free again;
three transactions, five transitions, five log lines. Its limit is the same rows written by the same
number of statements in [raw_cycle.sql](raw_cycle.sql) through `pgbench -M prepared`, with no lock,
no queue and no look at the lease, on the same database. {ROUNDS} rounds of {SECONDS:.0f} s each.
The pool runs in one process: with 16 clients, what arrives together is written together.

A creation is `create_bot` on an idle slot, the median of {CREATIONS} a round."""


class Bench:
    """A pool on a database of its own, and the leases of its slots."""

    def __init__(self, dsn: str, store: Store, pool: Pool) -> None:
        self.dsn = dsn
        self.store = store
        self.pool = pool
        self._slots: dict[str, tuple[int, int]] = {}

    async def refresh(self) -> None:
        """Look up the leases: others have used the slots."""
        self._slots = {
            slot.slot_name: (slot.id, slot.lease) for slot in await self.store.slots.all()
        }

    async def create(self) -> tuple[int, int]:
        """Create a bot, and return the slot and the lease that it got."""
        created = await self.pool.creation.create_bot(
            NewBot(
                platform=Platform.GOOGLE_MEET,
                meeting_url="https://meet.google.com/abc-defg-hij",
                bot_display_name="Bench",
                queue_timeout_ms=300_000,
            )
        )
        name = created.bot.slot_name or ""
        slot_id, lease = self._slots[name]
        self._slots[name] = slot_id, lease + 1
        return slot_id, lease + 1

    async def finish(self, slot_id: int, lease: int) -> None:
        """End the bot and free its slot."""
        await self.pool.assignments.end_assignment(
            Ending(
                slot_id=slot_id, lease=lease, bot_status=BotStatus.DONE, reason="the bot is done"
            )
        )
        await self.pool.slots.make_idle(slot_id, lease)

    async def cycles(self, clients: int) -> float:
        """Cycles a second through the pool."""
        await self.refresh()
        started = time.perf_counter()
        counts = await asyncio.gather(*(self._client(started + SECONDS) for _ in range(clients)))
        return sum(counts) / (time.perf_counter() - started)

    async def _client(self, until: float) -> int:
        count = 0
        while time.perf_counter() < until:
            await self.finish(*await self.create())
            count += 1
        return count

    async def raw_cycles(self, clients: int) -> float:
        """Cycles a second through pgbench."""
        process = await asyncio.create_subprocess_exec(
            *(str(postgres_programs() / "pgbench"), "-n", "-M", "prepared"),
            *("-c", str(clients), "-j", str(min(clients, 2)), "-T", f"{SECONDS:.0f}"),
            *("-f", str(RAW_CYCLE), self.dsn),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        found = re.search(r"^tps = ([\d.]+)", output.decode(), re.MULTILINE)
        if found is None:
            raise RuntimeError(output.decode())
        return float(found[1])

    async def creation(self) -> float:
        """The median time of a creation, in microseconds."""
        await self.refresh()
        times = []
        for _ in range(CREATIONS):
            started = time.perf_counter()
            slot_id, lease = await self.create()
            times.append(time.perf_counter() - started)
            await self.finish(slot_id, lease)
        return median(times) * 1e6


async def run(folder: Path, say: Callable[[str], None]) -> Part:
    """Measure everything of this part."""
    async with AsyncExitStack() as stack:
        dsn = await stack.enter_async_context(embedded_postgres(folder))
        connection = await asyncpg.connect(dsn)
        say("filling the databases")
        few, many_slots, many_bots = [
            await _bench(stack, connection, dsn, name, slots, bots)
            for name, slots, bots in (
                ("few", SLOTS, 0),
                ("many_slots", MANY_SLOTS, 0),
                ("many_bots", SLOTS, MANY_BOTS),
            )
        ]
        await connection.close()

        measures = []
        for clients in (1, 16):
            say(f"cycles with {clients} client(s)")
            ours, limit = [], []
            for _ in range(ROUNDS):
                ours.append(await few.cycles(clients))
                limit.append(await few.raw_cycles(clients))
            name = f"cycles through the pool ÷ raw SQL, {clients} client{'s' * (clients > 1)}"
            measures.append(Measure(name, "cycles/s", ours, limit, at_least=0.5))
        for name, crowded in (
            (f"creation with {MANY_SLOTS:,} slots ÷ with {SLOTS}", many_slots),
            (f"creation with {MANY_BOTS:,} ended bots ÷ with none", many_bots),
        ):
            say(name)
            ours, limit = [], []
            for _ in range(ROUNDS):
                ours.append(await crowded.creation())
                limit.append(await few.creation())
            measures.append(Measure(name, "µs", ours, limit, at_most=1.5))
    return Part("The core", TEXT, measures)


async def _bench(
    stack: AsyncExitStack,
    connection: asyncpg.Connection[asyncpg.Record],
    dsn: str,
    name: str,
    slots: int,
    bots: int,
) -> Bench:
    await connection.execute(f"CREATE DATABASE {name}")
    own = dsn.replace("/botpool?", f"/{name}?")
    database = await stack.enter_async_context(connect(own))
    await migrate(database)
    store = Store(database)
    pool = Pool(store, Settings(max_pool_size=slots))
    await pool.queue.configure()
    await pool.hosts.report("process", [HostReport(host="here", capacity=None, open=True)])
    await crowd(database, Platform.GOOGLE_MEET, slots=slots, bots=bots)
    return Bench(own, store, pool)
