"""What Coolify shows, read for all slots at once.

If each slot asked for itself, a few slots would use up the whole budget. So all callers share one
list, which is read when a caller needs it newer than it is. A caller that has changed something
waits for a list that was read after its change.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, Generic, TypeVar

from botpool.errors import EngineUnavailable
from botpool.tasks.sharing import SharedCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from botpool.engines.coolify.api import CoolifyApi
    from botpool.engines.coolify.wire import Application, Deployment, Server

_Value = TypeVar("_Value")

LIST_SECONDS = 1.0
"""How far apart two readings of a list are at least, while nothing of the budget is spent."""
_SPENT = 14
"""By how many times `LIST_SECONDS` more, when all of it is."""
_REST = 3
"""A list that takes long is not read for this many times as long as it took."""
_SERVERS_SECONDS = 30.0
_NEWEST = 10

EXITED = frozenset({"exited", "stopped"})
"""The states of an application of which no container is left."""


class Shared(Generic[_Value]):
    """A value that is read once for all callers, and kept for `seconds`.

    Two readings begin at least `apart()` seconds apart, and farther if a reading takes long.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[_Value]],
        seconds: float,
        apart: Callable[[], float] = lambda: LIST_SECONDS,
    ) -> None:
        self._read = read
        self._seconds = seconds
        self._apart = apart
        self._begun = -inf
        self._took = 0.0
        self._found: tuple[float, _Value] | None = None
        self._reading = SharedCall(self._read_again)

    async def get(self, since: float = -inf, seconds: float | None = None) -> _Value:
        """The value, if its reading began after `since` and recently; otherwise it is read again.

        Recently means within `seconds`, by default as long as it is kept. If the reading fails, its
        error is raised in every caller that waits for it.
        """
        # A reading that takes longer than a value is kept is still good for callers that waited.
        asked = asyncio.get_running_loop().time()
        kept = self._seconds if seconds is None else seconds
        while True:
            if self._found is not None:
                begun, value = self._found
                if begun > since and begun > asked - kept:
                    return value
            await self._reading()

    async def close(self) -> None:
        """Stop reading."""
        await self._reading.close()

    async def _read_again(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._begun + self._apart() + _REST * self._took - loop.time())
        begun = self._begun = loop.time()
        try:
            self._found = begun, await self._read()
        finally:
            self._took = loop.time() - begun


class View:
    """The applications, deployments and servers that Coolify shows."""

    def __init__(self, api: CoolifyApi, list_seconds: float = LIST_SECONDS) -> None:
        self._api = api

        def apart() -> float:
            return list_seconds * (1 + _SPENT * api.budget.spent)

        self._applications = Shared(self._read_applications, list_seconds, apart)
        self._active = Shared(self._read_active, list_seconds, apart)
        self._servers = Shared(self._read_servers, _SERVERS_SECONDS, lambda: list_seconds)
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

    async def was_up(self, uuid: str) -> bool:
        """Whether the newest list since an application's last change shows that it is up."""
        found = await self.application(uuid, recent=False)
        return found is not None and found.state not in EXITED

    async def application(self, uuid: str, *, recent: bool = True) -> Application | None:
        """One application as it is since its last change, None if there is none.

        If we know of no change, or it is to be `recent`, as it is now.
        """
        listed = await self._applications.get(*self._since(uuid, recent=recent))
        # An application that is not in the list may have been created since.
        return listed.get(uuid) or await self._api.application(uuid)

    async def deployment(self, application: str, uuid: str) -> Deployment | None:
        """A deployment of an application that is queued or in progress, None if it is not."""
        active = await self._active.get(*self._since(application, recent=True))
        if active is None:
            found = await self._api.deployment(uuid)
            return found if found is not None and found.active else None
        return next((one for one in active if one.deployment_uuid == uuid), None)

    async def deployments_of(self, uuid: str, *, recent: bool = True) -> Sequence[Deployment]:
        """The deployments of an application that are queued or in progress since its last change.

        If we know of no change, or they are to be `recent`, those of now.
        """
        active = await self._active.get(*self._since(uuid, recent=recent))
        if active is not None and all(one.application is not None for one in active):
            return [one for one in active if one.application == uuid]
        newest = await self.newest_of(uuid)
        if newest is None:
            raise EngineUnavailable(f"Coolify doesn't list the deployments of {uuid}.")
        return [one for one in newest if one.active]

    async def newest_of(self, uuid: str) -> Sequence[Deployment] | None:
        """The newest deployments of an application, asked for by itself.

        None if the application is gone, or if Coolify has no such list.
        """
        return await self._api.deployments_of(uuid, _NEWEST)

    async def reachable(self) -> set[str]:
        """The servers that Coolify can reach."""
        return {server.uuid for server in await self._servers.get() if server.reachable}

    async def swarm(self) -> set[str]:
        """The servers that are part of a Docker Swarm."""
        return {server.uuid for server in await self._servers.get() if server.swarm}

    async def check(self, server: str) -> None:
        """Raise `EngineUnavailable` if Coolify can't reach a server, so can't say what is on it."""
        if server not in await self.reachable():
            raise EngineUnavailable(f"Coolify can't reach the server {server}.")

    async def close(self) -> None:
        """Stop reading."""
        await self._applications.close()
        await self._active.close()
        await self._servers.close()

    def _since(self, uuid: str, *, recent: bool) -> tuple[float, float | None]:
        """Since when a list must have been read to tell of one, and how old it may be."""
        changed = self._changed.get(uuid)
        return (-inf, None) if changed is None else (changed, None if recent else inf)

    async def _read_applications(self) -> Mapping[str, Application]:
        return {application.uuid: application for application in await self._api.applications()}

    async def _read_active(self) -> Sequence[Deployment] | None:
        return await self._api.active_deployments()

    async def _read_servers(self) -> list[Server]:
        return await self._api.servers()
