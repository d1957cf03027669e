"""What an engine is: the one interface through which containers are made, run and looked at.

An engine knows neither the database nor the pool. It keeps nothing that matters in memory: a
botpool that was killed and started again finds every container as it was.

Whatever a call can't tell, it doesn't guess. It raises one of two errors, and nothing else:

- `EngineUnavailable`: the engine did not answer, or not to the point, or the host is unknown. What
  was asked may have happened or not; to ask again is safe.
- `EngineRefused`: the engine answered, and won't. To ask again is of no use. `ContainerMissing` and
  `ImageMissing` say why.

`tests/engines` has one suite for every engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class ContainerState(StrEnum):
    """What a container is doing."""

    CREATED = "created"
    """Made, and not started since."""
    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"
    """Started once, and over. It holds nothing and does nothing any more."""
    FAILED = "failed"
    """The engine says that it is broken."""
    MISSING = "missing"
    """There is no such container."""


REFERENCE = "POOL_SLOT_UUID"
"""The variable in which a container finds its own reference. Every engine sets it."""

STOPPED = frozenset({ContainerState.CREATED, ContainerState.EXITED, ContainerState.MISSING})
"""A container in one of these is proved to run nothing, its children included."""


@dataclass(frozen=True, slots=True)
class Container:
    """Where a container is, and what it is called there."""

    host: str
    ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A container as the engine sees it now. `detail` is in the engine's own words.

    `deployment` is the one that it tells of, if that may still start the container.
    """

    state: ContainerState
    exit_code: int | None = None
    detail: str = ""
    deployment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """What a container is made of.

    `name` is its reference where the engine lets us choose one, and in any case the same for a
    call that is made again. `slot_id` and `slot_name` go with it, so that a list of containers
    tells which slot each belongs to.
    """

    host: str
    name: str
    slot_id: int
    slot_name: str
    image: str | None
    environment: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedContainer:
    """A container of ours, whether a slot has it or not.

    Where `slot_id` is None it only looks like one: whether it is ours, our own records must say.
    """

    container: Container
    slot_id: int | None
    slot_name: str
    observation: Observation
    description: str | None = None
    """The line that is shown of it, where the engine has an interface of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullProgress:
    """How far a pull has come, in bytes. `total` grows while the engine learns of layers."""

    current: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """How an engine differs from one that runs containers here and now."""

    lags: bool = False
    """An observation may be of before the last start or stop: right after a start, `EXITED` is no
    news, and a bot that is heard runs, whatever the engine says."""
    reusable: bool = False
    """A stopped container can be started for another bot. Elsewhere it is created anew between two
    bots, with nothing that the first one left."""
    environment_at_start: bool = True
    """A start can change the environment of a container."""
    pulls_at_start: bool = False
    """A start brings the image. Whoever starts first on a host holds the pull until it runs."""
    keeps_logs: bool = True
    """Logs can be had after the container has ended."""
    one_api: bool = False
    """All hosts are reached through one API: that it fails says nothing of a host."""
    patience_seconds: float = 60.0
    """How long one step with it may take before it counts as one that hangs."""


class Engine(Protocol):
    """Where containers run.

    Calls for different containers may be made at the same time. For one container there is one call
    at a time: its caller sees to that.
    """

    @property
    def name(self) -> str:
        """What slots call it by."""
        ...

    @property
    def traits(self) -> Traits:
        """How it differs from others."""
        ...

    def hosts(self) -> Sequence[str]:
        """The hosts that it knows; never empty, always in the same order."""
        ...

    async def open_hosts(self) -> Sequence[str]:
        """Those of its hosts that new containers may be put on now."""
        ...

    async def pull(self, host: str, image: str, progress: Callable[[PullProgress], None]) -> bool:
        """Bring an image to a host, and return whether it had to be fetched.

        Returns once it is there, however long that takes. Cancelled, it stops fetching. Not called
        where a start does it.
        """
        ...

    async def create(self, spec: ContainerSpec) -> str:
        """Make a stopped container as `spec` says, and return its reference.

        A container of ours that has this name is replaced, unless it runs: then `EngineRefused`.
        So a call whose reply was lost can be made again. Raises `ImageMissing`.
        """
        ...

    async def start(self, container: Container, environment: Mapping[str, str]) -> str:
        """Start a container for one bot and return the reference of this deployment.

        `environment` is added to that of its spec where an engine can change it between starts;
        elsewhere it is left out. It may still be starting when this returns; `observe` tells.
        One that runs already is left running. Raises `ContainerMissing`.
        """
        ...

    async def observe(self, container: Container, deployment: str | None = None) -> Observation:
        """What the container is doing. One that is gone is `MISSING`, not an error.

        With a deployment, what became of that one: `FAILED` if it did. Without, a state in
        `STOPPED` proves that nothing runs and that nothing will be started by what was asked for.
        """
        ...

    async def stop(self, container: Container, grace_seconds: float) -> None:
        """Ask a container to end, force it after the grace, and call off a start that is under way.

        It may still be stopping when this returns; what proves it is `observe`. Nothing happens to
        one that is stopped or gone.
        """
        ...

    async def remove(self, container: Container) -> None:
        """Remove a stopped container and all that it left. One that is gone is no error.

        Raises `EngineRefused` for one that runs.
        """
        ...

    async def describe(self, container: Container, text: str) -> None:
        """Show a line about the container in the engine's own interface, where it has one."""
        ...

    async def logs(self, container: Container, lines: int) -> list[str]:
        """The last lines that the container has written since it was started, oldest first.

        Empty for one that is gone or was never started.
        """
        ...

    async def close(self) -> None:
        """Let go of connections. Containers stay as they are."""
        ...

    # Last: from here on `list` is not the built-in any more.
    async def list(self, host: str) -> list[ListedContainer]:
        """Every container of ours on a host. The list is whole, or this raises."""
        ...
