"""botpool on an imitated Coolify whose containers are real processes, all of it from outside."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import uvicorn

from tests.acceptance.serving import ENDED, served
from tests.coolify import Coolify, ProcessContainers, Rules

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.acceptance.serving import Serve

IMAGE = "registry.example/meet-bot:7"
PLENTY = 100_000
SAMPLE_BOT = [sys.executable, "-m", "botpool.bot.sample"]


@asynccontextmanager
async def on_a_port(rules: Rules) -> AsyncIterator[tuple[Coolify, dict[str, str]]]:
    """A Coolify that runs the sample bot for real, and the settings of a botpool that uses it."""
    coolify = Coolify(rules, containers=ProcessContainers(SAMPLE_BOT))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(coolify.app, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        answering = asyncio.create_task(server.serve(sockets=[listening]))
        settings = {
            "engine": "coolify",
            "image_google_meet": IMAGE,
            "coolify_api_url": f"http://127.0.0.1:{listening.getsockname()[1]}",
            "coolify_api_token": coolify.token,
            "coolify_project_uuid": coolify.project_uuid,
            "coolify_server_uuid": ",".join(rules.servers),
            "coolify_destination_uuid": ",".join(coolify.destinations.values()),
            "coolify_requests_per_minute": str(PLENTY),
        }
        try:
            yield coolify, settings
        finally:
            server.should_exit = True
            await answering
            await coolify.close()


async def until_idle(botpool: Serve, slots: int) -> None:
    while (await botpool.client.get("/api/v1/pool")).json()["platforms"][0]["idle"] != slots:
        await asyncio.sleep(0.1)


def described(coolify: Coolify) -> Counter[str]:
    """How many applications are described as what."""
    texts = [application.description or "" for application in coolify.applications.values()]
    return Counter(text.partition("]")[0] + "]" for text in texts)


async def test_twenty_bots_run_on_two_servers_with_one_pull_each_and_again_without(
    folder: Path,
) -> None:
    rules = Rules(
        servers=("server-a", "server-b"),
        requests_per_minute=PLENTY,
        concurrent_builds=4,
        workers=8,
        pull_seconds=2,
        check_seconds=0.1,
        stop_seconds=0.1,
    )
    async with on_a_port(rules) as (coolify, settings), served(folder, **settings) as botpool:
        for wave in (1, 2):
            await botpool.ask(20, stayMs=3000)
            assert await botpool.until(*ENDED) == {"DONE": 20 * wave}
            assert coolify.pulls == {("server-a", IMAGE): 1, ("server-b", IMAGE): 1}
            await until_idle(botpool, 20)
            while described(coolify) != {"[IDLE]": 20}:
                await asyncio.sleep(0.1)
            assert coolify.running() == []
            assert {*coolify.started.values()} == {wave}
        servers = Counter(app.server_uuid for app in coolify.applications.values())
        assert servers == {"server-a": 10, "server-b": 10}
        assert await botpool.ends() == 0


async def test_the_logs_and_the_end_of_a_bot_that_exits_are_kept(folder: Path) -> None:
    rules = Rules(requests_per_minute=PLENTY, stop_seconds=1)
    async with on_a_port(rules) as (coolify, settings), served(folder, **settings) as botpool:
        (made,) = await botpool.ask(stayMs=500)
        assert await botpool.until(*ENDED) == {"DONE": 1}
        await until_idle(botpool, 1)
        path = f"/api/v1/bots/{made['bot']['id']}/logs"
        lines = (await botpool.client.get(path)).json()["container"]
        assert {"IN_CALL", "DONE"} <= {*lines}
        assert coolify.running() == []
