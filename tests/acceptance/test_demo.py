"""`botpool demo`, as somebody runs it who wants to see what botpool is."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import httpx
import pytest

from botpool.bot.sample import read_orders
from botpool.cli.demo import waves
from botpool.meetings import platform_of
from botpool.states import Platform
from tests.support.waiting import a_moment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


async def said(process: asyncio.subprocess.Process) -> AsyncIterator[str]:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        yield line.decode().rstrip("\n")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as PostgreSQL's sockets need it."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


async def test_the_demo_shows_bots_on_three_platforms_and_leaves_nothing(folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).parent / "botpool"), "demo", "--no-browser"),
        env={
            "PATH": os.environ["PATH"],
            "TMPDIR": str(folder),
            # What others use is not touched.
            "BOTPOOL_DATABASE_URL": "postgresql://nobody@localhost:1/nothing",
            "BOTPOOL_ENGINE": "docker",
        },
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        told: dict[str, str] = {}
        async for line in said(process):
            name, found, value = line.partition(":  ")
            if found:
                told[name] = value.strip()
            if line.startswith("Ctrl-C"):
                break
        made = Path(told["its files and its log"])
        assert made.parent == folder
        url = told["the API"].removesuffix("/docs")
        key = (made / "admin.key").read_text().strip()
        async with httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30
        ) as client:
            assert told["the dashboard, signed in"].startswith(url)
            in_call: set[str] = set()
            while not in_call:
                bots = (await client.get("/api/v1/bots", params={"limit": 200})).json()["bots"]
                in_call |= {bot["platform"] for bot in bots if bot["joinedAt"] is not None}
                await a_moment()
            projects = (await client.get("/api/v1/projects")).json()["projects"]
            assert {project["name"] for project in projects} >= {"calendar", "support"}
        process.send_signal(signal.SIGINT)
        assert [line async for line in said(process)][-1] == "the demo has ended"
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert not made.exists()


def test_waves_bring_every_kind_of_bot_to_every_platform() -> None:
    found = [*islice(waves(random.Random(1), [2, 3]), 40)]  # noqa: S311 - the same each time
    bots = [bot for wave in found for bot in wave.bots]
    assert {bot.platform for bot in bots} == {*Platform}
    assert {bot.project_id for bot in bots} == {2, 3}
    assert any(wave.paused for wave in found)
    behaviours = {read_orders(dict(bot.config)).behaviour for bot in bots}
    assert behaviours == {"normal", "crash", "hang", "crash_on_join"}
    assert all(platform_of(bot.meeting_url) is bot.platform for bot in bots)
