"""An imitated Coolify on a port, whose containers are real processes."""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import uvicorn

from tests.fakes.coolify import Coolify, ProcessContainers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.coolify import Rules

IMAGE = "registry.example/meet-bot:7"
PLENTY = 100_000
SAMPLE_BOT = [sys.executable, "-m", "botpool.bot.sample"]


@asynccontextmanager
async def served_coolify(rules: Rules) -> AsyncIterator[tuple[Coolify, dict[str, str]]]:
    """A Coolify that runs the sample bot for real, and the settings of a botpool that uses it."""
    coolify = Coolify(rules, containers=ProcessContainers(SAMPLE_BOT))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(coolify.app, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listening]))
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
            await task
            await coolify.close()
