"""`botpool serve` as a process, for the tests that use it from outside."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from botpool.store.postgres.embedded import embedded_postgres
from tests.support.waiting import a_moment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

BOTS = "/api/v1/bots"
MEET = "https://meet.google.com/abc-defg-hij"
ENDED = {"DONE", "FATAL", "CANCELLED"}


@dataclass
class Serve:
    """A `botpool serve`, what it has said, and a client with the admin's key."""

    process: asyncio.subprocess.Process
    client: httpx.AsyncClient
    key: str
    log: Path
    said: list[str] = field(default_factory=list)

    async def ask(self, count: int = 1, **sample: Any) -> list[dict[str, Any]]:
        """Ask for bots with these orders, all at once."""
        body = {"meetingUrl": MEET, "config": {"sample": sample}}
        answers = await asyncio.gather(*(self.client.post(BOTS, json=body) for _ in range(count)))
        assert {answer.status_code for answer in answers} == {201}
        return [answer.json() for answer in answers]

    async def statuses(self) -> list[str]:
        found, cursor = [], None
        while True:
            parameters: dict[str, Any] = {"limit": 200} | ({"cursor": cursor} if cursor else {})
            page = (await self.client.get(BOTS, params=parameters)).json()
            found += [bot["status"] for bot in page["bots"]]
            cursor = page["nextCursor"]
            if cursor is None:
                return found

    async def until(self, *wanted: str) -> Counter[str]:
        """Wait until every bot is in one of these statuses."""
        while set(found := await self.statuses()) - set(wanted):
            await a_moment()
        return Counter(found)

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Its log lines that say so."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    async def ends(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        output, _ = await self.process.communicate()
        self.said += output.decode().splitlines()
        return self.process.returncode or 0


def served(folder: Path, *options: str, **settings: str) -> AbstractAsyncContextManager[Serve]:
    """A botpool on a free port. Whatever it started is gone at the end."""
    return started(folder, *options, settings=settings)


@asynccontextmanager
async def started(
    folder: Path,
    *options: str,
    settings: Mapping[str, str],
    log: Path | None = None,
    hang_up: signal.Handlers = signal.SIG_DFL,
) -> AsyncIterator[Serve]:
    """The same, with a log of its own, and with what SIGHUP does unless it cares.

    That is set, for pytest may run under nohup.
    """
    named = {f"BOTPOOL_{name.upper()}": value for name, value in settings.items()}
    environment = {
        "PATH": os.environ["PATH"],
        "BOTPOOL_DATA_DIR": str(folder),
        "BOTPOOL_PORT": "0",
        "BOTPOOL_HEARTBEAT_INTERVAL_MS": "200",
        "BOTPOOL_RESERVATION_TTL_MS": "2000",
        **named,
    }
    log = log or folder / f"log-{len([*folder.glob('log-*')])}"
    with log.open("wb") as lines:
        process = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).parent / "botpool"), "serve", *options),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=lines,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, hang_up),
        )
    assert process.stdout is not None
    try:
        said: list[str] = []
        while not said or not said[-1].startswith("the API:"):
            line = await process.stdout.readline()
            assert line, "it ended: " + "".join(path.read_text() for path in folder.glob("log-*"))
            said.append(line.decode().rstrip("\n"))
        url = said[-1].removeprefix("the API:").strip().removesuffix("/docs")
        key = (folder / "admin.key").read_text().strip()
        async with httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30
        ) as client:
            yield Serve(process, client, key, log, said)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if (folder / "postgres" / "postmaster.pid").exists():
            # Its PostgreSQL outlives a kill, and goes with the next process that has used it.
            async with embedded_postgres(folder):
                pass
