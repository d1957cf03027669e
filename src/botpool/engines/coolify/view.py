"""What Coolify shows, read for all slots at once.

If each slot asked for itself every second, a few slots would use up the whole budget. So all
callers share one list. A caller that has changed something waits for a list that was read after its
change.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Generic, TypeVar

from botpool.errors import EngineUnavailable
from botpool.tasks.sharing import SharedCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from botpool.engines.coolify.api import CoolifyApi
    from botpool.engines.coolify.wire import Application, Deployment, Server

_Value = TypeVar("_Value")

LIST_SECONDS = 2.0
_SERVERS_SECONDS = 30.0


class Shared(Generic[_Value]):
    """A value that is read once for all callers, and kept for `seconds`.

    It is not read more often than every `LIST_SECONDS`, unless it is kept for less.
    """

    def __init__(self, read: Callable[[], Awaitable[_Value]], seconds: float) -> None:
        self._read = read
        self._seconds = seconds
        self._apart = min(seconds, LIST_SECONDS)
        self._begun = -inf
        self._found: tuple[float, _Value] | None = None
        self._reading = SharedCall(self._read_again)

    async def get(self, since: float = -inf) -> _Value:
        """The value, if its reading began after `since` and recently; otherwise it is read again.

        If the reading fails, its error is raised in every caller that waits for it.
        """
        # A reading that takes longer than a value is kept is still good for callers that waited.
        asked = asyncio.get_running_loop().time()
        while True:
            if self._found is not None:
                begun, value = self._found
                if begun > since and begun > asked - self._seconds:
                    return value
            await self._reading()

    async def close(self) -> None:
        """Stop reading."""
        await self._reading.close()

    async def _read_again(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._begun + self._apart - loop.time())
        begun = self._begun = loop.time()
        self._found = begun, await self._read()


class View:
    """The applications, deployments and servers that Coolify shows."""

    def __init__(self, api: CoolifyApi, list_seconds: float) -> None:
        self._api = api
        self._applications = Shared(self._read_applications, list_seconds)
        self._active = Shared(self._read_active, list_seconds)
        self._servers = Shared(self._read_servers, _SERVERS_SECONDS)
        self._changed: dict[str, float] = {}

    def changed(self, uuid: str) -> None:
        """Ignore everything about an application that was read before now."""
        self._changed[uuid] = asyncio.get_running_loop().time()

    def forget(self, uuid: str) -> None:
        """Forget an application that is gone."""
        self._changed.pop(uuid, None)

    async def applications(self) -> Mapping[str, Application]:
        """Every application, as it is now."""
        return await self._applications.get(asyncio.get_running_loop().time())

    async def application(self, uuid: str) -> Application | None:
        """One application, None if there is none."""
        listed = await self._applications.get(self._changed.get(uuid, -inf))
        # An application that is not in the list may have been created since.
        return listed.get(uuid) or await self._api.application(uuid)

    async def deployment(self, uuid: str) -> Deployment | None:
        """One deployment, None if there is none."""
        active = await self._active.get()
        return active.get(uuid) or await self._api.deployment(uuid)

    async def reachable(self) -> set[str]:
        """The servers that Coolify can reach."""
        return {server.uuid for server in await self._servers.get() if server.reachable}

    async def check(self, server: str) -> None:
        """Raise `EngineUnavailable` if Coolify can't reach a server, so can't say what is on it."""
        if server not in await self.reachable():
            raise EngineUnavailable(f"Coolify can't reach the server {server}.")

    async def close(self) -> None:
        """Stop reading."""
        for shared in (self._applications, self._active, self._servers):
            await shared.close()

    async def _read_applications(self) -> Mapping[str, Application]:
        return {application.uuid: application for application in await self._api.applications()}

    async def _read_active(self) -> Mapping[str, Deployment]:
        active = await self._api.active_deployments() or []
        return {deployment.deployment_uuid: deployment for deployment in active}

    async def _read_servers(self) -> list[Server]:
        return await self._api.servers()
