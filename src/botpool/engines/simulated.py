"""Containers that are rows in memory, with delays and faults from a seed.

Nothing runs in the background: a container's state is computed from when it was started and
stopped, so thousands of containers cost nothing until they are observed. Time and sleep are passed
in, so that a simulation can control them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from botpool.engines.base import (
    REFERENCE,
    STOPPED,
    Container,
    ContainerState,
    ListedContainer,
    Observation,
    PullProgress,
    Traits,
)
from botpool.errors import (
    ContainerMissing,
    EngineRefused,
    EngineUnavailable,
    HostUnreachable,
    ImageMissing,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from botpool.engines.base import ContainerSpec

Seconds = tuple[float, float]
"""The shortest and the longest: every time between them is equally likely."""

_PROGRESS_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How long things take, and how likely they are to go wrong."""

    call: Seconds = (0.0, 0.0)
    pull: Seconds = (0.0, 0.0)
    start: Seconds = (0.0, 0.0)
    stop: Seconds = (0.0, 0.0)
    lag: float = 0.0
    """Observations are this old, except those that prove something."""
    start_fails: float = 0.0
    """A start whose container is broken, or exits at once."""
    pull_fails: float = 0.0
    unavailable: float = 0.0
    """A call that fails and took no effect."""
    reply_lost: float = 0.0
    """A call that fails although it took effect."""
    hangs: float = 0.0
    """A call that never returns."""
    lies: float = 0.0
    """An observation that is wrong."""


@dataclass
class _Row:
    spec: ContainerSpec
    description: str = ""
    history: list[tuple[float, Observation]] = field(default_factory=list)
    """Each state and when it begins; the last one that has begun counts."""
    output: list[str] = field(default_factory=list)

    def at(self, now: float) -> Observation:
        return next(
            (seen for since, seen in reversed(self.history) if since <= now), self.history[0][1]
        )

    def become(self, since: float, state: ContainerState, **more: object) -> None:
        """Enter a state at a time, and drop the states that were planned after it."""
        self.history = [entry for entry in self.history if entry[0] < since] or self.history[:1]
        self.history.append((since, Observation(state=state, **more)))  # type: ignore[arg-type]


class SimulatedEngine:
    """A simulated engine. It calls `started` for every start, so that a bot can be simulated."""

    name = "simulated"

    def __init__(
        self,
        hosts: Sequence[str] = ("simulated",),
        *,
        seed: int = 0,
        faults: Faults | None = None,
        traits: Traits | None = None,
        started: Callable[[Container, Mapping[str, str]], None] | None = None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.faults = faults or Faults()
        self._traits = traits or Traits(describes=True)
        self.started = started
        self.counts: Counter[str] = Counter()
        """How often each call really took effect; pulls and starts also by name."""
        self.most_pulls: Counter[tuple[str, str]] = Counter()
        """The most pulls of an image on a host that ran at the same time."""
        self._pulling: Counter[tuple[str, str]] = Counter()
        self._random = random.Random(seed)  # noqa: S311 - it has to be repeatable
        self._now = now
        self._sleep = sleep
        self._hosts = tuple(hosts)
        self._away: set[str] = set()
        self._hanging: set[str] = set()
        self._images: dict[tuple[str, str], float] = {}
        """When an image came, or will come, to a host."""
        self._bringing: dict[tuple[str, str], Container] = {}
        """The container whose start brings an image, on engines whose starts do."""
        self._rows: dict[Container, _Row] = {}
        self._ruined: set[Container] = set()
        self.registry_away = False
        """Whether the registry doesn't answer: nothing can be pulled."""

    @property
    def traits(self) -> Traits:
        """The traits that it was given; `lags` also if observations may be old or wrong."""
        lags = self._traits.lags or self.faults.lag > 0 or self.faults.lies > 0
        return replace(self._traits, lags=lags)

    # What a test or a simulation does to it

    def take_away(self, host: str) -> None:
        """Make a host unreachable. What runs there runs on."""
        self._away.add(host)

    def hang(self, host: str) -> None:
        """Make every call to a host hang."""
        self._hanging.add(host)

    def bring_back(self, host: str) -> None:
        """Make a host answer again."""
        self._away.discard(host)
        self._hanging.discard(host)

    def reachable(self, host: str) -> bool:
        """Whether a host answers."""
        return host not in self._away | self._hanging

    def lose(self, container: Container) -> None:
        """Remove a container behind botpool's back."""
        del self._rows[container]

    def add_image(self, host: str, image: str) -> None:
        """Put an image on a host."""
        self._images[host, image] = self._now()

    def lose_image(self, host: str, image: str) -> None:
        """Remove an image from a host."""
        self._images.pop((host, image), None)

    def exit(self, container: Container, code: int = 0) -> None:
        """End what runs in a container, as if by itself."""
        row = self._rows.get(container)
        if row is not None and row.at(self._now()).state is ContainerState.RUNNING:
            row.become(self._now(), ContainerState.EXITED, exit_code=code)

    def fail(self, container: Container) -> None:
        """Break a container."""
        self._rows[container].become(self._now(), ContainerState.FAILED, detail="it broke")

    def ruin(self, container: Container) -> None:
        """Make every start of a container fail, as long as it exists."""
        self._ruined.add(container)

    def ruined(self, container: Container) -> bool:
        """Whether every start of a container fails."""
        return container in self._ruined

    def say(self, container: Container, line: str) -> None:
        """Add a line to a container's output."""
        self._rows[container].output.append(line)

    def containers(self) -> list[Container]:
        """Every container."""
        return [*self._rows]

    def running(self) -> list[Container]:
        """The containers that really run, whatever `observe` says."""
        now = self._now()
        return [
            container
            for container, row in self._rows.items()
            if row.at(now).state in {ContainerState.RUNNING, ContainerState.STARTING}
        ]

    def state(self, container: Container) -> ContainerState:
        """What a container is really doing, whatever `observe` says."""
        row = self._rows.get(container)
        return row.at(self._now()).state if row else ContainerState.MISSING

    def next_change(self, container: Container) -> float | None:
        """When a container's state changes next, if no call is made before."""
        row = self._rows.get(container)
        coming = (since for since, _ in row.history if since > self._now()) if row else ()
        return min(coming, default=None)

    def starts(self, container: Container) -> int:
        """How often a container was started."""
        return self.counts[f"start {container.ref}"]

    def slot_of(self, container: Container) -> int:
        """The id of the slot that a container was made for."""
        return self._rows[container].spec.slot_id

    def description(self, container: Container) -> str:
        """The line that was shown last."""
        return self._rows[container].description

    # What an engine does

    def hosts(self) -> Sequence[str]:
        """The hosts that it was given."""
        return self._hosts

    async def open_hosts(self) -> Sequence[str]:
        """The hosts that are reachable."""
        return [host for host in self._hosts if host not in self._away]

    async def pull(self, host: str, image: str, progress: Callable[[PullProgress], None]) -> bool:
        """Take a while, unless the image is there already."""
        await self._call(host)
        key = (host, image)
        if self._has_image(key):
            return False
        self._pulling[key] += 1
        self.most_pulls[key] = max(self.most_pulls[key], self._pulling[key])
        self.counts["pull"] += 1
        self.counts[f"pull {host} {image}"] += 1
        try:
            seconds = self._random.uniform(*self.faults.pull)
            for step in range(1, _PROGRESS_STEPS + 1):
                await self._sleep(seconds / _PROGRESS_STEPS)
                progress(PullProgress(current=step, total=_PROGRESS_STEPS))
            self._reach(host)
            if self.registry_away:
                raise EngineUnavailable("The registry doesn't answer.")
            if self._happens(self.faults.pull_fails):
                raise EngineRefused(f"{image} can't be pulled.")
        finally:
            self._pulling[key] -= 1
        self._images[key] = self._now()
        self._lose_reply()
        return True

    async def has_image(self, host: str, image: str) -> bool:
        """Whether the image came to the host, and was not lost since."""
        await self._call(host)
        return self._has_image((host, image))

    async def create(self, spec: ContainerSpec) -> str:
        """Add a row."""
        await self._call(spec.host)
        container = Container(spec.host, spec.name)
        if not (
            self._traits.pulls_at_start
            or spec.image is None
            or self._has_image((spec.host, spec.image))
        ):
            raise ImageMissing(f"{spec.image} is not on {spec.host}.")
        if container in self.running():
            raise EngineRefused(f"{spec.name} is running.")
        self._rows[container] = _Row(spec)
        self._rows[container].become(self._now(), ContainerState.CREATED)
        self.counts["create"] += 1
        self._lose_reply()
        return spec.name

    async def start(
        self,
        container: Container,
        environment: Mapping[str, str],
        *,
        stopped: bool = False,
        avoid_node: str | None = None,
    ) -> str:
        """Begin to run, or to fail."""
        await self._call(container.host)
        row = self._row(container)
        now = self._now()
        if row.at(now).state not in {ContainerState.RUNNING, ContainerState.STARTING}:
            self.counts["start"] += 1
            self.counts[f"start {container.ref}"] += 1
            row.become(now, ContainerState.STARTING)
            # Such a start asks the registry, even if the image is there.
            no_registry = self._traits.pulls_at_start and self.registry_away
            ready = now if no_registry else self._pulled(container, row.spec.image)
            ready += self._random.uniform(*self.faults.start)
            in_vain = no_registry or container in self._ruined
            if in_vain or self._happens(self.faults.start_fails):
                state = self._random.choice((ContainerState.FAILED, ContainerState.EXITED))
                row.become(ready, state, exit_code=1, detail="it was to fail")
            else:
                row.become(ready, ContainerState.RUNNING)
                if self.started is not None:
                    self.started(
                        container,
                        {**row.spec.environment, REFERENCE: container.ref, **environment},
                    )
        self._lose_reply()
        return f"deployment-{self.counts['start']}"

    async def observe(self, container: Container, deployment: str | None = None) -> Observation:
        """What it was doing a while ago; now and then something wrong."""
        await self._call(container.host)
        row = self._rows.get(container)
        if row is None:
            return Observation(state=ContainerState.MISSING)
        if self._happens(self.faults.lies):
            return self._random.choice(row.history)[1]
        now, seen = row.at(self._now()), row.at(self._now() - self.faults.lag)
        if deployment is None and seen.state in STOPPED:
            return now  # a proof must not be old
        if seen.state is ContainerState.CREATED and now.state is not ContainerState.CREATED:
            return Observation(state=ContainerState.STARTING)  # the lagging engine sees no more
        return seen

    async def stop(self, container: Container, grace_seconds: float) -> None:
        """Begin to stop."""
        await self._call(container.host)
        row = self._rows.get(container)
        now = self._now()
        if row is not None and row.at(now).state is not ContainerState.CREATED:
            takes = min(self._random.uniform(*self.faults.stop), grace_seconds)
            if row.at(now).state is not ContainerState.EXITED:
                row.become(now + takes, ContainerState.EXITED, exit_code=0)
            self._call_off_pull(container)
        self._lose_reply()

    async def remove(self, container: Container, *, unproved: bool = False) -> None:
        """Remove the row."""
        await self._call(container.host)
        if container in self.running():
            raise EngineRefused(f"{container.ref} is running.")
        self._rows.pop(container, None)
        self._lose_reply()

    async def describe(self, container: Container, text: str) -> None:
        """Keep the line."""
        await self._call(container.host)
        if container in self._rows:
            self._rows[container].description = text

    async def logs(self, container: Container, lines: int) -> list[str]:
        """The lines that were added with `say`."""
        await self._call(container.host)
        row = self._rows.get(container)
        return row.output[-lines:] if row and lines > 0 else []

    async def close(self) -> None:
        """Do nothing."""

    def _has_image(self, key: tuple[str, str]) -> bool:
        return key in self._images and self._images[key] <= self._now()

    def _pulled(self, container: Container, image: str | None) -> float:
        """When a start has its image. On engines whose starts do so, it brings the image."""
        key = (container.host, image or "")
        if image is None or self._has_image(key):
            return self._now()
        self.counts["pull"] += 1
        self.counts[f"pull {container.host} {image}"] += 1
        self.most_pulls[key] = 2 if key in self._images else max(self.most_pulls[key], 1)
        self._images[key] = self._now() + self._random.uniform(*self.faults.pull)
        self._bringing[key] = container
        return self._images[key]

    def _call_off_pull(self, container: Container) -> None:
        """Cancel the pull of a start that was cancelled."""
        for key in [key for key, bringing in self._bringing.items() if bringing == container]:
            del self._bringing[key]
            if not self._has_image(key):
                self.lose_image(*key)

    def _row(self, container: Container) -> _Row:
        if container not in self._rows:
            raise ContainerMissing(f"{container.ref} is gone.")
        return self._rows[container]

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    async def _call(self, host: str) -> None:
        """Delay or fail a call before it takes effect."""
        self.counts["calls"] += 1
        seconds = self._random.uniform(*self.faults.call)
        if seconds:
            await self._sleep(seconds)
        if host in self._hanging or self._happens(self.faults.hangs):
            await asyncio.Event().wait()
        self._reach(host)
        if self._happens(self.faults.unavailable):
            raise EngineUnavailable("The engine answers 500.")

    def _reach(self, host: str) -> None:
        if host not in self._hosts:
            raise EngineUnavailable(f"There is no host {host}.")
        if host in self._away:
            raise HostUnreachable(f"{host} doesn't answer.")

    def _lose_reply(self) -> None:
        if self._happens(self.faults.reply_lost):
            raise EngineUnavailable("The engine's answer was lost.")

    # Last, because from here on `list` is not the built-in any more.
    async def list(self, host: str) -> list[ListedContainer]:
        """Every row of a host."""
        await self._call(host)
        seen = self._now() - self.faults.lag
        return [
            ListedContainer(
                container=container,
                slot_id=row.spec.slot_id,
                slot_name=row.spec.slot_name,
                observation=row.at(seen),
            )
            for container, row in self._rows.items()
            if container.host == host
        ]
