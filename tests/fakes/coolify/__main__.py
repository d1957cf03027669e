"""An imitated Coolify on a port, until a signal ends it and everything in it.

What it was asked, and when its bots claimed, is told at `/imitation`.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import shlex
import signal
import socket
import time
from typing import TYPE_CHECKING

import uvicorn
from starlette.responses import JSONResponse

from tests.fakes.coolify import (
    Coolify,
    Faults,
    ProcessContainers,
    Rules,
    TaskContainers,
)
from tests.fakes.coolify.bots import Bots
from tests.fakes.coolify.containers import SAMPLE_BOT

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_NOT_OFFERED = frozenset({"servers", "abilities", "admin", "api_enabled", "address_allowed"})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.fakes.coolify", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001, help="0 is any free one (default: 8001)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--servers", default="server-a", help="uuids, with commas between")
    parser.add_argument("--command", default=shlex.join(SAMPLE_BOT), help="run in each container")
    parser.add_argument("--light", action="store_true", help="run bots within this process instead")
    for source in (Rules, Faults):
        for field in dataclasses.fields(source):
            if field.name not in _NOT_OFFERED and isinstance(field.default, str | float | int):
                parser.add_argument(
                    f"--{field.name.replace('_', '-')}",
                    type=type(field.default),
                    default=field.default,
                    help=f"(default: {field.default})",
                )
    return parser


def _chosen(options: argparse.Namespace, source: type[Rules | Faults]) -> dict[str, object]:
    names = {field.name for field in dataclasses.fields(source)} - {"servers"}
    return {name: value for name, value in vars(options).items() if name in names}


class Told:
    """The imitation, and at `/imitation` what happened to it. Times are those of the day."""

    def __init__(self, coolify: Coolify, bots: Bots) -> None:
        self._coolify = coolify
        self._bots = bots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["path"] != "/imitation":
            await self._coolify.app(scope, receive, send)
            return
        since = int(scope["query_string"] or 0)
        ahead = time.time() - asyncio.get_running_loop().time()
        told = {
            "requests": [
                {
                    "method": one.method,
                    "path": one.path,
                    "description": one.body.get("description"),
                    "at": one.at + ahead,
                    "status": one.status,
                }
                for one in self._coolify.requests[since:]
            ],
            "claims": self._bots.claimed_at,
        }
        await JSONResponse(told)(scope, receive, send)


async def _serve(options: argparse.Namespace) -> None:
    rules = Rules(servers=options.servers.split(","), **_chosen(options, Rules))  # type: ignore[arg-type]
    bots = Bots()
    coolify = Coolify(
        rules,
        containers=TaskContainers(bots.play)
        if options.light
        else ProcessContainers(shlex.split(options.command)),
        faults=Faults(**_chosen(options, Faults)),  # type: ignore[arg-type]
        seed=options.seed,
    )
    listening = socket.create_server((options.host, options.port))
    print(
        f"COOLIFY_API_URL=http://{options.host}:{listening.getsockname()[1]}",
        f"COOLIFY_API_TOKEN={shlex.quote(coolify.token)}",
        f"COOLIFY_PROJECT_UUID={coolify.project_uuid}",
        f"COOLIFY_ENVIRONMENT_NAME={coolify.environment_name}",
        f"COOLIFY_SERVER_UUID={','.join(coolify.servers)}",
        f"COOLIFY_DESTINATION_UUID={','.join(coolify.destinations.values())}",
        sep="\n",
        flush=True,
    )
    config = uvicorn.Config(
        Told(coolify, bots),
        interface="asgi3",
        lifespan="off",
        log_level="critical",
        timeout_graceful_shutdown=1,
    )
    # uvicorn raises the signal that ended it once more, and there is something left to do.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    try:
        await uvicorn.Server(config).serve(sockets=[listening])
    finally:
        await coolify.close()
        await bots.close()


if __name__ == "__main__":
    asyncio.run(_serve(_parser().parse_args()))
