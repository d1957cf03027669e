"""botpool on an imitated Coolify whose containers are real processes, all of it from outside."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakes.coolify import Rules
from tests.support.coolify_server import IMAGE, PLENTY, served_coolify
from tests.support.server import ENDED, served

if TYPE_CHECKING:
    from tests.fakes.coolify import Coolify
    from tests.support.server import Serve


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
    # No slot is started without a bot: it would be one more.
    async with (
        served_coolify(rules) as (coolify, settings),
        served(folder, **settings, pull_ahead="false") as botpool,
    ):
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


async def test_the_output_of_a_running_bot_is_read_when_somebody_wants_it(folder: Path) -> None:
    rules = Rules(requests_per_minute=PLENTY, stop_seconds=1)
    async with (
        served_coolify(rules) as (coolify, settings),
        served(folder, **settings, pull_ahead="false") as botpool,
    ):
        (made,) = await botpool.ask(stayMs=10_000)
        path = f"/api/v1/bots/{made['bot']['id']}/logs"
        while "IN_CALL" not in (await botpool.client.get(path)).json()["container"]:
            await asyncio.sleep(0.1)
        assert await botpool.until(*ENDED) == {"DONE": 1}
        await until_idle(botpool, 1)
        assert "IN_CALL" in (await botpool.client.get(path)).json()["container"]
        assert coolify.running() == []


async def test_the_steps_of_the_how_to_work(folder: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/coolify.md").read_text("utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    by_command = {
        word: next(block for block in blocks if word in block)
        for word in ("export", "botpool doctor", "botpool serve", "curl", "botpool slots import")
    }
    port = free_port()
    async with served_coolify(Rules(requests_per_minute=PLENTY)) as (_, settings):
        exported = dict(
            line.removeprefix("export ").split("=", 1)
            for line in by_command["export"].strip().splitlines()
        )
        assert exported["BOTPOOL_ENGINE"] == "coolify"
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "BOTPOOL_DATA_DIR": str(folder),
            "BOTPOOL_PORT": str(port),
            **exported,
            "COOLIFY_API_URL": settings["coolify_api_url"],
            "COOLIFY_API_TOKEN": settings["coolify_api_token"],
            "COOLIFY_PROJECT_UUID": settings["coolify_project_uuid"],
            "COOLIFY_SERVER_UUID": settings["coolify_server_uuid"],
            "BOTPOOL_HOST": "127.0.0.1",
            "BOTPOOL_PULL_AHEAD": "false",  # it would be one slot more
            "BOTPOOL_PUBLIC_URL": f"http://127.0.0.1:{port}",
        }

        async def shell(script: str) -> tuple[int, str]:
            script = script.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{port}")
            script = script.replace("curl ", "curl --fail --silent ")
            process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-e", "-c", script),
                env=environment,
                stdout=asyncio.subprocess.PIPE,
            )
            output, _ = await process.communicate()
            return process.returncode or 0, output.decode()

        served = await asyncio.create_subprocess_exec(
            *by_command["botpool serve"].split(), env=environment, stdout=asyncio.subprocess.PIPE
        )
        assert served.stdout is not None
        try:
            while not (await served.stdout.readline()).startswith(b"the API:"):
                pass
            code, examined = await shell(by_command["botpool doctor"])
            # Its containers are processes here, so that this address does for them.
            assert (code, "can't reach" in examined) == (1, True), examined
            assert examined.count("problem") <= 2, examined
            code, made = await shell(by_command["curl"])
            assert code == 0
            assert json.loads(made)["bot"]["status"] == "DEPLOYING"
            code, told = await shell(by_command["botpool slots import"])
            assert (code, "1 known" in told) == (0, True), told
        finally:
            served.terminate()
            await served.communicate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
