"""An engine whose calls are measured."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from botpool.errors import EngineRefused, EngineUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from botpool.engines.base import (
        Container,
        ContainerSpec,
        Engine,
        ListedContainer,
        Observation,
        PullProgress,
        Traits,
    )

    Called = Callable[[str, str, str, float], None]
    """Told of each call of an engine: the engine, the call, its outcome, and its seconds."""


class MeasuredEngine:
    """Does what the engine inside does, and tells how long each call took and how it went.

    The outcome is `ok`, `refused`, `unavailable`, `cancelled` (by its caller, also for taking too
    long), or `error` for what an engine must not raise.
    """

    def __init__(
        self, engine: Engine, called: Called, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._engine = engine
        self._called = called
        self._clock = clock

    @contextmanager
    def _measured(self, call: str) -> Iterator[None]:
        began = self._clock()
        outcome = "error"
        try:
            yield
            outcome = "ok"
        except EngineRefused:
            outcome = "refused"
            raise
        except EngineUnavailable:
            outcome = "unavailable"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._called(self._engine.name, call, outcome, self._clock() - began)

    @property
    def name(self) -> str:
        """Its name, as slots refer to it."""
        return self._engine.name

    @property
    def traits(self) -> Traits:
        """How it differs from others."""
        return self._engine.traits

    def hosts(self) -> Sequence[str]:
        """The hosts that it knows."""
        return self._engine.hosts()

    async def open_hosts(self) -> Sequence[str]:
        """The hosts that new containers may be put on now."""
        with self._measured("open_hosts"):
            return await self._engine.open_hosts()

    async def pull(self, host: str, image: str, progress: Callable[[PullProgress], None]) -> bool:
        """Bring an image to a host, and return whether it had to be fetched."""
        with self._measured("pull"):
            return await self._engine.pull(host, image, progress)

    async def has_image(self, host: str, image: str) -> bool:
        """Whether an image is on a host."""
        with self._measured("has_image"):
            return await self._engine.has_image(host, image)

    async def create(self, spec: ContainerSpec) -> str:
        """Create a stopped container, and return its reference."""
        with self._measured("create"):
            return await self._engine.create(spec)

    async def start(
        self,
        container: Container,
        environment: Mapping[str, str],
        *,
        stopped: bool = False,
        avoid_node: str | None = None,
    ) -> str:
        """Start a container for one bot and return the reference of this deployment."""
        with self._measured("start"):
            return await self._engine.start(
                container, environment, stopped=stopped, avoid_node=avoid_node
            )

    async def observe(self, container: Container, deployment: str | None = None) -> Observation:
        """What the container is doing."""
        with self._measured("observe"):
            return await self._engine.observe(container, deployment)

    async def stop(self, container: Container, grace_seconds: float) -> None:
        """Ask a container to end."""
        with self._measured("stop"):
            await self._engine.stop(container, grace_seconds)

    async def remove(self, container: Container, *, unproved: bool = False) -> None:
        """Remove a stopped container and everything it left."""
        with self._measured("remove"):
            await self._engine.remove(container, unproved=unproved)

    async def describe(self, container: Container, text: str) -> None:
        """Show a line about the container in the engine's own interface."""
        with self._measured("describe"):
            await self._engine.describe(container, text)

    async def logs(self, container: Container, lines: int) -> list[str]:
        """The last lines that the container wrote."""
        with self._measured("logs"):
            return await self._engine.logs(container, lines)

    async def close(self) -> None:
        """Close all connections. Containers stay as they are."""
        await self._engine.close()

    # Last, because from here on `list` is not the built-in any more.
    async def list(self, host: str) -> list[ListedContainer]:
        """Every container of ours on a host."""
        with self._measured("list"):
            return await self._engine.list(host)
