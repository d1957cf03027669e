"""The API against the pool that it speaks for, and heartbeats against what PostgreSQL can do."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import resource
import socket
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import asyncpg
import uvicorn
from fastapi import FastAPI

from bench.report import Measure, Part
from botpool.access.keys import Keys
from botpool.api import create_app
from botpool.api.connections import server_config
from botpool.feed.stream import Feed
from botpool.models.assignments import Ending
from botpool.models.bots import NewBot
from botpool.models.hosts import HostReport
from botpool.pool import Pool
from botpool.serving import tcp_socket
from botpool.settings import Settings
from botpool.states import BotStatus, Platform, Role
from botpool.store import Store, connect, migrate
from botpool.store.postgres.embedded import embedded_postgres, postgres_programs
from testbed.crowd import crowd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from botpool.store import Database

CLIENTS = 32
ROUNDS = 5
SECONDS = 3.0
SLOTS = 1_000
STREAMS = 1_000
HEARTBEATS = 256
ASKED = 1_000
MEET = "https://meet.google.com/abc-defg-hij"

TEXT = f"""The server is one process with uvicorn; those who call it, {CLIENTS} at a time over
kept-alive connections, are another. {ROUNDS} rounds of {SECONDS:.0f} s each.

- Kept alive: the median of {ASKED:,} answers of `/healthz`, one after the other on one connection.
  Its limit is FastAPI with that route alone, on uvicorn as it comes.
- Creations: `POST /bots` on a pool without room, so that each is the same transaction: a bot and
  its place in the queue. Its limit is `Creation.create_bot`, called directly by as many tasks.
- Heartbeats: `Assignments.heartbeat` of {SLOTS:,} busy slots, {HEARTBEATS} under way at a time.
  Its limit is a single-row `UPDATE` of the same bots through `pgbench -M prepared` with {CLIENTS}
  clients.
- The spread of a creation is its 99th percentile ÷ its median under that load.
- Memory is the server's, with {SLOTS:,} slots, before and after {STREAMS:,} open streams."""


@dataclass(frozen=True)
class Server:
    """A served pool."""

    store: Store
    pool: Pool
    database: Database
    url: str
    key: str


@asynccontextmanager
async def served(
    database: Database, settings: Settings, *add: Callable[[FastAPI], None]
) -> AsyncIterator[Server]:
    """Serve the API, and what is to be added to it."""
    store = Store(database)
    pool = Pool(store, settings)
    await pool.queue.configure()
    await pool.hosts.report("process", [HostReport(host="here", capacity=None, open=True)])
    keys = Keys(store, settings)
    _, key = await keys.create("bench", Role.ADMIN)
    feed = Feed(store)
    listening = tcp_socket(socket.create_server(("127.0.0.1", 0), backlog=2048))
    app = create_app(store, pool, settings, keys, feed)
    for each in add:
        each(app)
    server = uvicorn.Server(server_config(app))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    tasks = [
        asyncio.create_task(server.serve(sockets=[listening])),
        asyncio.create_task(feed.run(database)),
    ]
    try:
        yield Server(store, pool, database, url, key)
    finally:
        feed.stop()
        server.should_exit = True
        await asyncio.gather(*tasks)


def new_bot() -> NewBot:
    return NewBot(
        platform=Platform.GOOGLE_MEET,
        meeting_url=MEET,
        bot_display_name="Notes",
        queue_timeout_ms=600_000,
    )


async def for_a_while(what: Callable[[], Any], tasks: int = CLIENTS) -> float:
    """How often a second so many tasks do it."""
    until = time.perf_counter() + SECONDS
    done = 0

    async def one() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await what()
            done += 1

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(tasks)))
    return done / (time.perf_counter() - started)


# By hand: a client that does more would be the slower of the two.
CALLER = f"""
import asyncio, json, sys, time

async def main():
    host, port, key = sys.argv[1:]
    body = b'{{"meetingUrl": "{MEET}"}}'
    head = [
        "POST /api/v1/bots HTTP/1.1", "Host: botpool", f"Authorization: Bearer {{key}}",
        "Content-Type: application/json", f"Content-Length: {{len(body)}}", "", "",
    ]
    request = "\\r\\n".join(head).encode() + body
    until = time.perf_counter() + {SECONDS}
    times = []

    async def one():
        reader, writer = await asyncio.open_connection(host, int(port))
        while time.perf_counter() < until:
            started = time.perf_counter()
            writer.write(request)
            answer = (await reader.readuntil(b"\\r\\n\\r\\n")).lower()
            assert answer.startswith(b"http/1.1 201"), answer
            length = answer.split(b"content-length: ")[1].split(b"\\r\\n")[0]
            await reader.readexactly(int(length))
            times.append(time.perf_counter() - started)
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range({CLIENTS})))
    print(json.dumps([len(times) / (time.perf_counter() - started), times]))

asyncio.run(main())
"""


async def creations(server: Server) -> tuple[float, list[float]]:
    """Creations a second over HTTP, by another process, and how long each took."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", CALLER, *server.url.removeprefix("http://").split(":"), server.key),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    rate, times = json.loads(output)
    return rate, times


ASKER = f"""
import json, socket, sys, time

channel = socket.create_connection((sys.argv[1], int(sys.argv[2])))
times = []
for _ in range({ASKED}):
    started = time.perf_counter()
    channel.sendall(b"GET /healthz HTTP/1.1\\r\\nHost: botpool\\r\\n\\r\\n")
    answer = b""
    while not answer.endswith(b"}}"):
        answer += channel.recv(10_000)
    times.append(time.perf_counter() - started)
print(json.dumps(times))
"""


async def kept_alive(url: str) -> float:
    """The median of the time that an answer takes on a kept-alive connection, in microseconds."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ASKER, *url.removeprefix("http://").split(":")),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    times: list[float] = json.loads(output)
    return median(times) * 1_000_000


@asynccontextmanager
async def bare() -> AsyncIterator[str]:
    """FastAPI with one route, served by uvicorn as it comes."""
    app = FastAPI()

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    listening = tcp_socket(socket.create_server(("127.0.0.1", 0)))
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


async def pgbench(dsn: str, script: Path) -> float:
    process = await asyncio.create_subprocess_exec(
        *(str(postgres_programs() / "pgbench"), "-n", "-M", "prepared"),
        *("-c", str(CLIENTS), "-j", "2", "-T", f"{SECONDS:.0f}", "-f", str(script), dsn),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    found = re.search(r"^tps = ([\d.]+)", output.decode(), re.MULTILINE)
    if found is None:
        raise RuntimeError(output.decode())
    return float(found[1])


async def busy_slots(server: Server) -> list[tuple[int, int]]:
    """Slots with a bot in its call each."""
    await crowd(server.database, Platform.ZOOM, slots=SLOTS)
    leases = []
    for _ in range(SLOTS):
        created = await server.pool.creation.create_bot(
            NewBot(
                platform=Platform.ZOOM,
                meeting_url="https://zoom.us/j/1234567890",
                bot_display_name="Notes",
                queue_timeout_ms=1000,
            )
        )
        slot = await server.store.slots.of_bot(created.bot.id)
        if slot is None:
            raise RuntimeError("there was no slot")
        await server.pool.assignments.advance(slot.id, slot.lease, BotStatus.IN_CALL, "admitted")
        leases.append((slot.id, slot.lease))
    return leases


def memory_mb() -> float:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


async def streams(server: Server, leases: list[tuple[int, int]]) -> tuple[float, float]:
    """The memory before and with so many open streams, one event having reached them all."""
    before = memory_mb()
    async with AsyncExitStack() as stack:
        readers = []
        for _ in range(STREAMS):
            reader, writer = await asyncio.open_connection(
                *server.url.removeprefix("http://").split(":")
            )
            stack.callback(writer.close)
            head = (
                "GET /api/v1/stream HTTP/1.1",
                "Host: botpool",
                f"Authorization: Bearer {server.key}",
            )
            writer.write("\r\n".join([*head, "", ""]).encode())
            readers.append(reader)
        await asyncio.gather(*(reader.readuntil(b"\r\n\r\n") for reader in readers))
        slot_id, lease = leases[0]
        await server.pool.assignments.end_assignment(
            Ending(slot_id=slot_id, lease=lease, bot_status=BotStatus.DONE, reason="done")
        )
        await asyncio.gather(*(reader.readuntil(b'"status":"DONE"') for reader in readers))
        return before, memory_mb()


async def run(folder: Path, say: Callable[[str], None]) -> Part:
    """Measure everything of this part."""
    async with AsyncExitStack() as stack:
        dsn = await stack.enter_async_context(embedded_postgres(folder / "api"))
        connection = await asyncpg.connect(dsn)
        await connection.execute("ALTER SYSTEM SET max_connections = 200")
        await connection.close()
        database = await stack.enter_async_context(connect(dsn, max_connections=20))
        await migrate(database)
        settings = Settings(max_pool_size=0, rate_limit_per_second=1_000_000)
        server = await stack.enter_async_context(served(database, settings))
        await database.execute("UPDATE pools SET max_size = 2000 WHERE platform = 'zoom'")

        say("a kept-alive connection")
        async with bare() as url:
            rounds = [(await kept_alive(server.url), await kept_alive(url)) for _ in range(ROUNDS)]

        say(f"POST /bots by {CLIENTS} clients")
        ours, limit, spreads = [], [], []
        for _ in range(ROUNDS):
            rate, times = await creations(server)
            ours.append(rate)
            spreads.append((quantiles(times, n=100)[98] * 1000, median(times) * 1000))
            limit.append(await for_a_while(lambda: server.pool.creation.create_bot(new_bot())))
        measures = [
            Measure(
                "/healthz, kept alive ÷ bare uvicorn",
                "µs",
                [ours for ours, _ in rounds],
                [theirs for _, theirs in rounds],
                at_most=1.3,
            ),
            Measure(
                f"POST /bots ÷ create_bot, {CLIENTS} clients", "bots/s", ours, limit, at_least=0.5
            ),
            Measure(
                "creation over HTTP: 99th percentile ÷ median",
                "ms",
                [slow for slow, _ in spreads],
                [middle for _, middle in spreads],
            ),
        ]

        say("heartbeats")
        leases = await busy_slots(server)
        turn = itertools.cycle(leases)
        ids = [
            row["id"]
            for row in await database.fetch(
                "SELECT assigned_bot_id AS id FROM bot_pool_slots WHERE assigned_bot_id IS NOT NULL"
            )
        ]
        script = folder / "heartbeat.sql"
        script.write_text(
            f"\\set id random({min(ids)}, {max(ids)})\n"
            "UPDATE bots SET last_heartbeat = now() WHERE id = :id;\n"
        )
        ours, limit = [], []
        for _ in range(ROUNDS):
            ours.append(
                await for_a_while(
                    lambda: server.pool.assignments.heartbeat(*next(turn)), HEARTBEATS
                )
            )
            limit.append(await pgbench(dsn, script))
        measures.append(
            Measure("heartbeats ÷ single-row UPDATEs", "beats/s", ours, limit, at_least=1)
        )

        say(f"{STREAMS:,} streams")
        before, after = await streams(server, leases)
        measures.append(
            Measure(
                f"memory with {STREAMS:,} streams ÷ without, {SLOTS:,} slots",
                "MB",
                [after],
                [before],
            )
        )
    return Part("The API", TEXT, measures)
