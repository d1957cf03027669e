"""The pods of an installation in one cluster, kept up to date by one watch.

A full list is its base. Whatever ends the watch, the next look lists again; and it lists again
every minute, for a watch that says nothing may be dead. What it shows may be a moment old, so a
decision about one pod is made on a fresh read of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from botpool.engines.kubernetes.api import Kind
from botpool.errors import EngineError
from botpool.logs import log_failure

if TYPE_CHECKING:
    from botpool.engines.kubernetes.api import KubernetesApi, Object

_LIST_SECONDS = 60.0


class PodWatch:
    """The pods that a selector chooses."""

    def __init__(
        self, api: KubernetesApi, selector: str, *, list_seconds: float = _LIST_SECONDS
    ) -> None:
        self._api = api
        self._selector = selector
        self._list_seconds = list_seconds
        self._pods: dict[str, Object] = {}
        self._listed_at = 0.0
        self._watching: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()

    async def pods(self) -> list[Object]:
        """Every pod. Raises `EngineError` if they can't be listed."""
        async with self._looking:
            now = asyncio.get_running_loop().time()
            watching = self._watching is not None and not self._watching.done()
            if not watching or now - self._listed_at >= self._list_seconds:
                found, version = await self._api.list(Kind.POD, labelSelector=self._selector)
                await self.close()
                self._pods = {pod["metadata"]["name"]: pod for pod in found}
                self._listed_at = now
                self._watching = asyncio.create_task(self._watch(version))
            return [*self._pods.values()]

    async def close(self) -> None:
        """End the watch."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None

    async def _watch(self, version: str) -> None:
        """Note what happens, until the watch ends for any reason."""
        try:
            async for event in self._api.watch(Kind.POD, version, labelSelector=self._selector):
                pod = event.get("object") or {}
                match event.get("type"):
                    case "ADDED" | "MODIFIED":
                        self._pods[pod["metadata"]["name"]] = pod
                    case "DELETED":
                        self._pods.pop(pod["metadata"]["name"], None)
        except EngineError as error:
            log_failure("a watch of pods ended", error, host=self._api.host)
