"""What runs in containers: bots as light as can be, that speak plain HTTP with botpool."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from tests.fakes.coolify.containers import RunningContainer

_HEARTBEAT_SECONDS = 10.0


@dataclass
class Bots:
    """Bots that claim, send heartbeats, stay, and end.

    `config.stay` is for how many seconds. One that is done exits, so Docker starts it again.
    """

    transport: httpx.AsyncBaseTransport | None = None
    claims: list[tuple[str, int, int]] = field(default_factory=list)
    """Of each claim that was answered: the application, the bot and the lease."""
    claimed_at: dict[int, float] = field(default_factory=dict)
    """Of each bot: the time of day at which its claim was answered."""
    turned_away: int = 0
    """How many containers were told that their assignment is over, or their token unknown."""

    @cached_property
    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self.transport)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def play(self, container: RunningContainer) -> int:
        """Live as a bot in a container."""
        work = asyncio.create_task(self._live(container))
        stop = asyncio.create_task(container.asked_to_stop.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            return await work if work.done() else 0
        finally:
            for task in (work, stop):
                task.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)

    async def _live(self, container: RunningContainer) -> int:
        answer = await self._say(container, "claim", {})
        if answer.status_code != 200:
            self.turned_away += 1
            await container.asked_to_stop.wait()
            return 0
        claimed = answer.json()
        lease, bot = claimed["lease"], claimed["botId"]
        self.claims.append((container.application_uuid, bot, lease))
        self.claimed_at.setdefault(bot, time.time())
        container.say(f"bot {bot}")
        await self._say(container, "status", {"lease": lease, "status": "IN_CALL"})
        left = float(claimed["config"].get("stay", 60))
        while left > 0:
            await self._say(container, "heartbeat", {"lease": lease})
            await asyncio.sleep(min(left, _HEARTBEAT_SECONDS))
            left -= _HEARTBEAT_SECONDS
        await self._say(container, "status", {"lease": lease, "status": "DONE"})
        return 0

    async def _say(self, container: RunningContainer, what: str, body: Any) -> httpx.Response:
        token = container.environment["BOTPOOL_SLOT_TOKEN"]
        return await self._client.post(
            f"{container.environment['BOTPOOL_URL']}/api/v1/runtime/{what}",
            json=body,
            headers={"Authorization": f"Bearer {token}"},
        )
