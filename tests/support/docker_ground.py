"""A botpool whose bots, in real containers, go to a meeting of the test."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest
from aiodocker import DockerError

from botpool.models.bots import BotPage
from botpool.states import BOT_ENDED, SlotStatus
from botpool.store import Store, connect
from botpool.store.invariants import broken_invariants
from testbed.docker import busybox_image, load
from tests.support.docker_scene import web_server
from tests.support.meeting import BOT, Meeting
from tests.support.server import BOTS, MEET, served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from botpool.models.bots import Bot
    from botpool.models.slots import Slot
    from testbed.docker import Daemon
    from tests.support.server import Serve

_BEING_REMOVED = frozenset({"removing", "dead"})
BOUND_SECONDS = 60
"""How long after a fault every bot may take to end, and every slot to be idle."""


@dataclass(frozen=True)
class Ground:
    """What the processes of a botpool share, and the meeting that its bots go to."""

    docker: Daemon
    folder: Path
    meeting: Meeting
    image: str
    url: str
    settings: dict[str, str]

    @asynccontextmanager
    async def serve(self, role: str = "all") -> AsyncIterator[Serve]:
        """A `botpool serve` that answers; killed at the end of the context."""
        async with served(self.folder, "--role", role, **self.settings) as serve:
            yield serve

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """A `botpool serve` that only works; ended with the context, unless it is killed before."""
        named = {f"BOTPOOL_{name.upper()}": value for name, value in self.settings.items()}
        number = len([*self.folder.glob("worker-*")])
        with (self.folder / f"worker-{number}").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(str(Path(sys.executable).parent / "botpool"), "serve", "--role", "worker"),
                env={"PATH": os.environ["PATH"], "BOTPOOL_DATA_DIR": str(self.folder), **named},
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert process.stdout is not None
        try:
            assert await process.stdout.readline() == b"botpool is running as a worker\n"
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()

    async def ask(self, count: int = 1, **config: Any) -> list[int]:
        """Ask for bots, all at once, until each request has its answer; the ids of the bots."""
        key = (self.folder / "admin.key").read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30) as client:
            return await asyncio.gather(*(self._ask(client, config) for _ in range(count)))

    async def _ask(self, client: httpx.AsyncClient, config: dict[str, Any]) -> int:
        body = {"meetingUrl": MEET, "config": config}
        headers = {"Idempotency-Key": f"{random.getrandbits(64)}"}
        while True:
            try:
                answer = await client.post(BOTS, json=body, headers=headers)
            except httpx.TransportError:
                await asyncio.sleep(0.1)
                continue
            if answer.status_code == 201:
                return int(answer.json()["bot"]["id"])
            assert answer.status_code == 503, answer.text
            await asyncio.sleep(0.1)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with connect(self.settings["database_url"]) as database:
            yield Store(database)

    async def containers(self) -> dict[str, str]:
        """The state of each container of ours, by name.

        One that Docker fails to remove does not count: restarted in the midst of a start, it may
        have lost count of what it mounted.
        """
        async with self.docker.client() as client:
            found = await client.containers.list(all=True, filters={"ancestor": [self.image]})
            states = {each["Names"][0].removeprefix("/"): each["State"] for each in found}
            return {name: state for name, state in states.items() if state not in _BEING_REMOVED}

    def processes(self) -> list[psutil.Process]:
        """What runs of our containers, whatever Docker says of them."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("BOTPOOL_URL") == self.url:
                    found.append(process)
        return found

    async def remove_containers(self) -> None:
        async with self.docker.client() as client:
            for name in await self.containers():
                with suppress(DockerError):
                    await client.containers.container(name).delete(force=True, v=True)

    async def settled(self, asked: list[int]) -> dict[int, Bot]:
        """The bots, once all have ended and every slot is idle, and whether all is as it must be.

        Exactly those that were asked for are there. Nothing of any container of ours runs; there is
        one for each slot, never started. No container was started twice, and no bot more often than
        it was launched, nor was any in the meeting twice at a time.
        """
        async with connect(self.settings["database_url"]) as database:
            store = Store(database)
            bots: list[Bot] = []
            slots: list[Slot] = []
            containers: dict[str, str] = {}
            running: list[psutil.Process] = []
            try:
                async with asyncio.timeout(BOUND_SECONDS):
                    while not _at_rest(bots, slots, containers):
                        await asyncio.sleep(0.2)
                        bots = await store.bots.page(BotPage(limit=1000))
                        slots = await store.slots.all()
                        containers = await self.containers()
                    while running := self.processes():
                        await asyncio.sleep(0.2)
            except TimeoutError:
                live = [(bot.id, bot.status) for bot in bots if bot.status not in BOT_ENDED]
                of_slots = {slot.container_ref: slot.status for slot in slots}
                pytest.fail(f"not at rest in time: {live} {of_slots} {containers} {running}")
            assert await broken_invariants(database) == []
        assert sorted(bot.id for bot in bots) == sorted(asked)
        assert set(self.meeting.starts.values()) <= {1}
        assert self.meeting.starts.total() <= sum(bot.launch_attempts for bot in bots)
        assert all(self.meeting.joined[bot.id] <= bot.launch_attempts for bot in bots)
        assert not self.meeting.twice
        return {bot.id: bot for bot in bots}


def _at_rest(bots: list[Bot], slots: list[Slot], containers: dict[str, str]) -> bool:
    if not bots or any(bot.status not in BOT_ENDED for bot in bots):
        return False
    if any(slot.status is not SlotStatus.IDLE for slot in slots):
        return False
    return containers == {slot.container_ref: "created" for slot in slots}


@asynccontextmanager
async def ground(docker: Daemon, folder: Path, **settings: str) -> AsyncIterator[Ground]:
    """A Docker with an image whose bots go to a meeting of the test; no botpool runs yet."""
    meeting = Meeting()
    app = meeting.app()
    async with web_server(app, handler_cancellation=True, shutdown_timeout=1) as address:
        image = f"botpool-test/meeting:{address.rpartition(':')[2]}"
        script = BOT.replace("MEETING", address)
        await load(docker, busybox_image(folder / "image.tar", image, script=script))
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        common = {
            "reservation_ttl_ms": "1500",
            "docker_hosts": f"a={docker.address}",
            "docker_network": "host",
            "engine": "docker",
            "image_google_meet": image,
            "max_pool_size": "8",
            "poll_interval_ms": "200",
            "port": str(port),
            "public_url": url,
            "recovery_interval_ms": "1000",
            "stop_grace_ms": "1000",
            "sync_interval_ms": "500",
        }
        found = Ground(docker, folder, meeting, image, url, {**common, **settings})
        try:
            yield found
        finally:
            meeting.lobby.set()
            meeting.over.set()
            await found.remove_containers()


def free_port() -> int:
    """A port that stays free while it is not listened on: none that a connection may be given."""
    while True:
        port = random.randrange(20_000, 32_000)  # noqa: S311
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
