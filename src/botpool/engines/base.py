"""What an engine is: the one interface for creating, running and observing containers.

An engine knows neither the database nor the pool. It keeps nothing important in memory: a botpool
that is killed and started again finds every container as it was.

A call never guesses. If it fails, it raises one of two errors and no other:

- `EngineUnavailable`: the engine did not answer, or its answer can't be understood, or the host is
  unknown. The call may or may not have taken effect. Trying again is safe.
- `EngineRefused`: the engine answered no. Trying again won't help. `ContainerMissing` and
  `ImageMissing` say why.

`tests/engines` has one suite for every engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from botpool.states import Platform


class EngineName(StrEnum):
    """The names of the engines that `botpool serve` can run bots on."""

    PROCESS = "process"
    DOCKER = "docker"
    COOLIFY = "coolify"
    KUBERNETES = "kubernetes"


class ContainerState(StrEnum):
    """What a container is doing."""

    CREATED = "created"
    """Created, and not started yet."""
    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"
    """It was started and has ended. Nothing of it runs any more."""
    FAILED = "failed"
    """The engine says that it is broken."""
    MISSING = "missing"
    """There is no such container."""


REFERENCE = "POOL_SLOT_UUID"
"""The variable that contains a container's own reference. Every engine sets it."""

STOPPED = frozenset({ContainerState.CREATED, ContainerState.EXITED, ContainerState.MISSING})
"""In each of these, nothing runs in the container any more, child processes included."""


@dataclass(frozen=True, slots=True)
class Container:
    """The host and the reference of a container."""

    host: str
    ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A container as the engine sees it now. `detail` is in the engine's own words.

    `deployment` is a deployment that may still start the container, if the engine knows one.
    `restarts` is how often the engine has restarted it by itself; None if the engine can't tell.
    `node` is the one of its host's nodes that it is on. `over_at` is when it should be over, if
    somebody has asked it to end. `image_failed`: its start couldn't bring the image,
    or not yet.
    """

    state: ContainerState
    exit_code: int | None = None
    restarts: int | None = None
    detail: str = ""
    deployment: str | None = None
    node: str | None = None
    over_at: datetime | None = None
    image_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """What a container is created with.

    `name` becomes its reference if the engine lets us choose one. A call that is repeated has the
    same name. The engine keeps `slot_id` and `slot_name` with the container, so that a list of
    containers says which slot each belongs to. An engine may have options for each `platform`.
    `first`: no earlier call can have had this name, so there is no container to replace. `ref` is
    for engines that are `adaptable`: a stopped container of ours that is to be as the spec says.
    """

    host: str
    name: str
    slot_id: int
    slot_name: str
    platform: Platform
    image: str | None
    environment: Mapping[str, str] = field(repr=False)
    first: bool = False
    ref: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedContainer:
    """A container of this botpool, whether a slot has it or not.

    If `slot_id` is None, it only looks like ours: the database must say whether it is.
    """

    container: Container
    slot_id: int | None
    slot_name: str
    observation: Observation
    description: str | None = None
    """The description that the engine's own interface shows, if it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullProgress:
    """How far a pull has come, in bytes. `total` grows while the engine discovers layers."""

    current: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """How an engine differs from one that runs containers here and now."""

    lags: bool = False
    """An observation may be older than the last start or stop. So `EXITED` right after a start
    means nothing, and a bot that sends heartbeats runs, whatever the engine says."""
    reusable: bool = False
    """A stopped container can be started for another bot. Without this trait, a new container is
    created between two bots, with nothing of the first one in it."""
    environment_at_start: bool = True
    """A start can change the environment of a container."""
    pulls_at_start: bool = False
    """A start brings the image. The first deployment on a host holds the pull until it runs."""
    keeps_logs: bool = True
    """Logs can still be read after the container has ended."""
    one_api: bool = False
    """One API serves all hosts, so a failure of the API says nothing about a single host."""
    patience_seconds: float = 60.0
    """How long one step may take before it counts as hanging."""
    metered: bool = False
    """Its requests are counted, so it is not asked for what the database proves, nor for what a
    bot's own word soon tells."""
    queues_starts: bool = False
    """It has a queue of starts for each host, and decides itself how many run at a time."""
    describes: bool = False
    """Its own interface shows a line about each container."""
    adaptable: bool = False
    """A stopped container can be changed to be as another spec says."""
    place: str = ""
    """Where it makes containers, beside their host. In another place, they are made anew."""
    has_nodes: bool = False
    """A host is a cluster, whose nodes come and go. Each start brings the image to its own node,
    the cluster paces its starts, and what fails on a node says nothing of the host. A container
    that was started and is gone is not proved stopped: its node may be cut off."""
    made_with: str = ""
    """What else it makes containers with. If that changes, they are adapted or made anew."""


class Engine(Protocol):
    """Where containers run.

    Calls for different containers may run at the same time. The caller makes sure that there is
    only one call at a time for one container.
    """

    @property
    def name(self) -> str:
        """Its name, as slots refer to it."""
        ...

    @property
    def traits(self) -> Traits:
        """How it differs from others."""
        ...

    def hosts(self) -> Sequence[str]:
        """The hosts that it knows; never empty, always in the same order."""
        ...

    async def open_hosts(self) -> Sequence[str]:
        """The hosts that new containers may be put on now."""
        ...

    async def pull(self, host: str, image: str, progress: Callable[[PullProgress], None]) -> bool:
        """Bring an image to a host, or to each of its nodes, and return whether it was missing.

        Returns once the image is there, however long that takes. If cancelled, it stops fetching.
        If hosts have nodes, progress is counted in nodes, and starts don't wait for it.
        Not called on engines whose starts bring the image.
        """
        ...

    async def has_image(self, host: str, image: str) -> bool:
        """Whether an image is on a host. Not called on engines whose starts bring the image."""
        ...

    async def create(self, spec: ContainerSpec) -> str:
        """Create a stopped container as `spec` says, and return its reference.

        It replaces a container of ours that has this name; if that one runs, it raises
        `EngineRefused`. So a call whose reply was lost can be repeated. Raises `ImageMissing` if
        the host must have the image and doesn't; where a start brings it, `observe` tells that the
        start failed, and why. Raises `ContainerMissing` if the container to adapt is gone.
        """
        ...

    async def start(
        self,
        container: Container,
        environment: Mapping[str, str],
        *,
        stopped: bool = False,
        avoid_node: str | None = None,
    ) -> str:
        """Start a container for one bot and return the reference of this deployment.

        `environment` is added to that of its spec if the engine can change it between starts, and
        ignored if not. The container may still be starting when this returns; `observe` says when
        it runs. A container that already runs is left alone. `stopped`: the caller has proof that
        it doesn't, so the engine need not look. `avoid_node`: where its bot has failed, if the host
        has other nodes. Raises `ContainerMissing`.
        """
        ...

    async def observe(self, container: Container, deployment: str | None = None) -> Observation:
        """What the container is doing. If it is gone, that is `MISSING`, not an error.

        With a deployment: the state of that deployment, `FAILED` if it failed, `CREATED` if the
        engine never began it. Without one, a state in `STOPPED` proves that nothing runs and that
        no earlier call will still start something; but if hosts have nodes, `CREATED` and `MISSING`
        prove it only of a container that was never started.
        """
        ...

    async def stop(self, container: Container, grace_seconds: float) -> None:
        """Ask a container to end, kill it after the grace, and cancel a start that is under way.

        It may still be stopping when this returns; `observe` proves that it has stopped. A
        container that is stopped or gone is left alone.
        """
        ...

    async def remove(self, container: Container, *, unproved: bool = False) -> None:
        """Remove a stopped container and everything it left. If it is gone, that is no error.

        Raises `EngineRefused` if it runs. `unproved`: it was asked to end long ago, its node can't
        say whether it has, and the caller gives it up; only where hosts have nodes.
        """
        ...

    async def describe(self, container: Container, text: str) -> None:
        """Show a line about the container in the engine's own interface, if it has one."""
        ...

    async def logs(self, container: Container, lines: int) -> list[str]:
        """The last lines that the container wrote since it was started, oldest first.

        Empty if it is gone or was never started.
        """
        ...

    async def close(self) -> None:
        """Close all connections. Containers stay as they are."""
        ...

    # Last, because from here on `list` is not the built-in any more.
    async def list(self, host: str) -> list[ListedContainer]:
        """Every container of ours on a host. The list is complete, or this raises."""
        ...
