"""Open pages against open streams: what fifty people who look at the pool cost the server."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from bench.api import new_bot, served
from bench.report import Measure, Part
from botpool.dashboard import add_dashboard
from botpool.models.assignments import Ending
from botpool.settings import Settings
from botpool.states import BotStatus, Platform
from botpool.store import connect, migrate
from botpool.store.postgres.embedded import embedded_postgres
from testbed.crowd import crowd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.api import Server

READERS = 50
SLOTS = 500
BOTS = 5_000
CHANGES = 7
"""How many a bot's life makes."""
LIVES_A_SECOND = 50 / CHANGES
SECONDS = 10.0
ROUNDS = 3

TEXT = f"""A pool of {SLOTS} slots and {BOTS:,} bots, in which 50 things change a second for
{SECONDS:.0f} s. {READERS} readers, in another process, follow it by the stream alone; then as
an open Pool page does: by the stream, and by fetching the part of the page that can change as often
as its script would. Processor time is the server's, without what the changes cost when nobody
looks. The limit is what the streams cost."""

# As the page's script does: after an event it fetches the page's part, then pauses for as long as
# the server says, and for at least 0.4 s and four times as long as it took.
READER = """
import asyncio, sys, time
import aiohttp

async def main():
    url, key, readers, pages = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "pages"
    fetched = 0

    async def page(session, changed):
        nonlocal fetched
        while True:
            await changed.wait()
            changed.clear()
            began = time.perf_counter()
            async with session.get(url + "/", headers={"X-Botpool-Part": "1"}) as answer:
                assert answer.status == 200
                await answer.read()
                pause = float(answer.headers["X-Botpool-Pause"]) / 1000
            fetched += 1
            took = time.perf_counter() - began
            await asyncio.sleep(max(pause, min(2, max(0.4, took * 4))))

    async def reader(session, changed):
        async with session.get(url + "/api/v1/stream") as answer:
            assert answer.status == 200
            follows = asyncio.create_task(page(session, changed)) if pages else None
            opened.append(follows)
            async for _ in answer.content:
                changed.set()

    opened = []
    timeout = aiohttp.ClientTimeout(total=None)
    headers = {"Authorization": f"Bearer {key}"}
    connector = aiohttp.TCPConnector(limit=0)
    options = dict(headers=headers, timeout=timeout, connector=connector)
    async with aiohttp.ClientSession(**options) as session:
        tasks = [asyncio.create_task(reader(session, asyncio.Event())) for _ in range(readers)]
        while len(opened) < readers:
            await asyncio.sleep(0.05)
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(fetched, flush=True)
        for task in [*tasks, *filter(None, opened)]:
            task.cancel()

asyncio.run(main())
"""


async def live(server: Server) -> None:
    """One bot's life."""
    created = await server.pool.creation.create_bot(new_bot())
    slot = await server.store.slots.of_bot(created.bot.id)
    if slot is None:
        raise RuntimeError("there was no slot")
    await server.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
    ending = Ending(
        slot_id=slot.id, lease=slot.lease, bot_status=BotStatus.DONE, reason="it is over"
    )
    await server.pool.assignments.end_assignment(ending)
    await server.pool.slots.make_idle(slot.id, slot.lease)


async def cost(server: Server, kind: str, readers: int) -> tuple[float, int]:
    """Processor seconds of the server while so many look, and how often they fetched a page."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", READER, server.url, server.key, str(readers), kind),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    if process.stdout is None or process.stdin is None:
        raise RuntimeError("the readers have no pipes")
    await process.stdout.readline()
    began, lives = time.process_time(), []
    for _ in range(round(SECONDS * LIVES_A_SECOND)):
        lives.append(asyncio.create_task(live(server)))
        await asyncio.sleep(1 / LIVES_A_SECOND)
    await asyncio.gather(*lives)
    seconds = time.process_time() - began
    process.stdin.write(b"\n")
    fetched = int(await process.stdout.readline())
    await process.wait()
    return seconds, fetched


async def run(folder: Path, say: Callable[[str], None]) -> Part:
    """Measure everything of this part."""
    async with AsyncExitStack() as stack:
        dsn = await stack.enter_async_context(embedded_postgres(folder / "pages"))
        database = await stack.enter_async_context(connect(dsn, max_connections=20))
        await migrate(database)
        settings = Settings(max_pool_size=SLOTS, rate_limit_per_second=1_000_000)
        server = await stack.enter_async_context(served(database, settings, add_dashboard))
        await crowd(database, Platform.GOOGLE_MEET, slots=SLOTS, bots=BOTS)
        await database.execute("UPDATE bot_pool_slots SET host = 'here'")
        pages, streams = [], []
        for _ in range(ROUNDS):
            say(f"{READERS} streams, {READERS} pages")
            alone, _ = await cost(server, "streams", 0)
            of_streams, _ = await cost(server, "streams", READERS)
            of_pages, fetched = await cost(server, "pages", READERS)
            say(f"{alone:.2f} s alone, {of_streams:.2f} s, {of_pages:.2f} s, {fetched} fetched")
            streams.append((of_streams - alone) / SECONDS * 1000)
            pages.append((of_pages - alone) / SECONDS * 1000)
    measure = Measure(f"{READERS} pages ÷ {READERS} streams", "ms/s", pages, streams, at_most=1.5)
    return Part("Open pages", TEXT, [measure])
