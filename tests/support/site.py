"""A pool with real engines, and reconcilers that are processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn

from botpool.access.keys import Keys
from botpool.api import create_app
from botpool.engines import make_engines
from botpool.engines.base import STOPPED
from botpool.models.hosts import HostReport
from botpool.pool import Pool
from botpool.settings import Settings
from botpool.store import Store, connect
from botpool.store.invariants import broken_invariants
from tests.support.scene import Scene
from tests.support.waiting import a_moment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from fastapi import FastAPI

    from botpool.engines.base import Engine
    from botpool.reconciler import Checkpoint
    from botpool.states import BotStatus, SlotStatus


@dataclass(frozen=True)
class Site(Scene):
    """A pool, the engines of its settings, and the environment of a process that shares them."""

    settings: Settings
    engines: Mapping[str, Engine]
    environment: Mapping[str, str]

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """A reconciler that works until the end of the context, unless it is killed before."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.worker"),
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            assert await process.stdout.readline() == b"works\n"
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()

    async def kill_at(self, checkpoint: Checkpoint, *, tries: int = 1) -> None:
        """Let another process do what is due, and be killed where it is told to be.

        If it has to wait for its engine before it comes there, it may try again after a second.
        """
        for _ in range(tries):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.support.worker", checkpoint), env=self.environment
            )
            if await process.wait() == -signal.SIGKILL:
                return
            await self.pass_time(seconds=1)
        raise AssertionError(f"it never came to: {checkpoint}")

    async def until_bot(self, bot_id: int, *statuses: BotStatus) -> None:
        while (found := await self.store.bots.get(bot_id)).status not in statuses:
            assert found.ended_at is None, found
            await a_moment()

    async def until_slot(self, slot_id: int, status: SlotStatus) -> None:
        while (await self.store.slots.get(slot_id)).status is not status:
            await a_moment()


@asynccontextmanager
async def opened(
    url: str, *, serve: bool = False, address: str = "127.0.0.1", **settings: Any
) -> AsyncIterator[Site]:
    """A site with these settings on this database; its containers end with it.

    With `serve`, the runtime calls are answered at the address.
    """
    with socket.create_server((address, 0)) as listening:
        public_url = f"http://{address}:{listening.getsockname()[1]}"
        chosen = Settings(
            **{"database_url": url, "public_url": public_url, "log_level": "ERROR", **settings}
        )
        async with connect(url, max_connections=20) as database:
            store = Store(database)
            pool = Pool(store, chosen)
            await pool.queue.configure()
            engines = make_engines(chosen, await store.installation.name())
            await pool.hosts.report(
                chosen.engine,
                [
                    HostReport(host=host, capacity=chosen.max_slots_per_host, open=True)
                    for host in engines[chosen.engine].hosts()
                ],
            )
            site = Site(database, store, pool, chosen, engines, _environment(chosen, url))
            try:
                app = create_app(store, pool, chosen, Keys(store, chosen))
                async with _server(app, listening if serve else None):
                    yield site
                assert await broken_invariants(database) == []
            finally:
                await _clean_up(engines[chosen.engine])
                for engine in engines.values():
                    await engine.close()


def _environment(settings: Settings, url: str) -> dict[str, str]:
    named = {
        f"BOTPOOL_{name.upper()}": str(value)
        for name, value in settings.model_dump(exclude_none=True, exclude_defaults=True).items()
    }
    return {**os.environ, **named, "BOTPOOL_DATABASE_URL": url}


@asynccontextmanager
async def _server(app: FastAPI, listening: socket.socket | None) -> AsyncIterator[None]:
    if listening is None:
        yield
        return
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


async def _clean_up(engine: Engine) -> None:
    for host in engine.hosts():
        for found in await engine.list(host):
            await engine.stop(found.container, 0)
            while (await engine.observe(found.container)).state not in STOPPED:
                await a_moment()
            await engine.remove(found.container)
