"""Containers on Docker Engine APIs, Podman's included, on one or many hosts.

A container's reference is its name. Its labels say which installation of botpool it belongs to.
Nothing here starts, stops or removes a container that is not this installation's, whatever its
name.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiodocker import DockerError

from botpool.container_file import DockerOptions
from botpool.engines.base import (
    STOPPED,
    Container,
    ContainerState,
    ListedContainer,
    Observation,
    Traits,
)
from botpool.engines.docker import api as docker_api
from botpool.engines.docker.configuration import configuration
from botpool.engines.docker.credentials import registry_header
from botpool.errors import (
    ContainerMissing,
    EngineRefused,
    EngineUnavailable,
    ImageMissing,
    NoImage,
    SettingsInvalid,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from aiodocker import Docker

    from botpool.engines.base import ContainerSpec, PullProgress
    from botpool.states import Platform

_INSTALLATION = "botpool.installation"
_SLOT_ID = "botpool.slot-id"
_SLOT_NAME = "botpool.slot-name"

_DEFAULTS = DockerOptions()

_STATES = {
    "created": ContainerState.CREATED,
    "configured": ContainerState.CREATED,
    "initialized": ContainerState.STARTING,
    "restarting": ContainerState.STARTING,
    "running": ContainerState.RUNNING,
    "paused": ContainerState.RUNNING,
    "stopping": ContainerState.RUNNING,
    "exited": ContainerState.EXITED,
    "stopped": ContainerState.EXITED,
    "removing": ContainerState.EXITED,  # a container is only removed once it has ended
    "dead": ContainerState.EXITED,  # its removal failed half-way
}


def docker_hosts(setting: str | None) -> dict[str, str | None]:
    """The address of each host in the setting `docker_hosts`, in order.

    Without a setting there is one host, `local`, with Docker's own default address. Raises
    `SettingsInvalid`, which names an entry by its number: an address may contain a secret.
    """
    if setting is None:
        return {"local": None}
    hosts: dict[str, str | None] = {}
    for number, entry in enumerate(setting.split(","), start=1):
        where = f"Entry {number} of BOTPOOL_DOCKER_HOSTS"
        before, equals, after = entry.strip().partition("=")
        named = equals and "://" not in before
        address = after if named else entry.strip()
        host = _host_of(address, where)
        name = before if named else host
        if not name:
            raise SettingsInvalid(f"{where} has no name before its `=`: add one.")
        if name in hosts:
            raise SettingsInvalid(f"{where} is a second host `{name}`: give it another name.")
        hosts[name] = address
    return hosts


def _host_of(address: str, where: str) -> str:
    """The host in an address, `local` for a socket. Raises if it is not an address of a Docker."""
    try:
        url = urlsplit(address)
        port = url.port
    except ValueError:
        raise SettingsInvalid(f"{where} is not an address: correct its host or port.") from None
    if url.scheme == "unix" and not url.netloc and url.path:
        return "local"
    if url.scheme not in {"tcp", "http", "https"} or not url.hostname:
        raise SettingsInvalid(f"{where} must look like `unix:///path` or `tcp://host:port`.")
    if "@" in url.netloc:
        raise SettingsInvalid(f"{where} has a user in its address: remove the user.")
    if url.scheme == "tcp" and port is None:
        raise SettingsInvalid(f"{where} has no port: add it after the host, such as `:2376`.")
    return url.hostname


class DockerEngine:
    """The hosts in `hosts`, each with its address; None means Docker's own default.

    Containers carry the name of the `installation`, so that they can be told from those of another
    botpool on the same host. `options` are those of each platform's containers. An image in
    `never_pulled` must be on a host before it is used there.
    """

    name = "docker"
    traits = Traits(environment_at_start=False)

    def __init__(
        self,
        hosts: Mapping[str, str | None],
        *,
        installation: str,
        options: Mapping[Platform, DockerOptions] | None = None,
        never_pulled: Collection[str] = (),
    ) -> None:
        self._hosts = dict(hosts)
        self._installation = installation
        self._options = dict(options or {})
        self._never_pulled = frozenset(never_pulled)
        self._clients: dict[str, Docker] = {}

    def hosts(self) -> Sequence[str]:
        """The hosts in the order in which they were given."""
        return tuple(self._hosts)

    async def open_hosts(self) -> Sequence[str]:
        """All of them: botpool waits for a host that doesn't answer."""
        return self.hosts()

    async def pull(self, host: str, image: str, progress: Callable[[PullProgress], None]) -> bool:
        """Bring an image to a host, with the credentials that `docker login` stored here."""
        with self._docker(host) as client:
            if await docker_api.has_image(client, image):
                return False
            if image in self._never_pulled:
                raise EngineRefused(f"{image} is not on {host}, and `docker.pull` is `never`.")
            await docker_api.pull(client, image, await registry_header(image), progress)
            if not await docker_api.has_image(client, image):
                raise EngineUnavailable(
                    f"Docker on {host} says that it pulled {image}, but it doesn't have the image."
                )
        return True

    async def has_image(self, host: str, image: str) -> bool:
        """Whether a host has an image. Asks no registry."""
        with self._docker(host) as client:
            return await docker_api.has_image(client, image)

    async def create(self, spec: ContainerSpec) -> str:
        """Create a container. It replaces a stopped one of ours that has its name."""
        if not spec.image:
            raise NoImage(f"{spec.slot_name} has no image: set the image of its platform.")
        with self._docker(spec.host) as client:
            config = await self._config(client, spec)
            try:
                await client.containers.create(config, name=spec.name)
            except DockerError as error:
                is_missing = error.status == docker_api.NOT_FOUND
                if is_missing and not await docker_api.has_image(client, spec.image):
                    raise ImageMissing(f"{spec.image} is not on {spec.host}.") from error
                # Docker has a status of its own for a name that is taken; Podman has none.
                await self._make_way(client, spec, error)
                await client.containers.create(config, name=spec.name)
        return spec.name

    async def start(
        self,
        container: Container,
        environment: Mapping[str, str],
        *,
        stopped: bool = False,
        avoid_node: str | None = None,
    ) -> str:
        """Start a container. It keeps the environment that it was created with."""
        with self._docker(container.host) as client:
            found = await self._own(client, container.ref)
            address = self._hosts[container.host]
            # By its id, so that a late start can't start another container that has the name now.
            started = found and await docker_api.start(address, client.api_version, found["Id"])
            if started is None:
                raise ContainerMissing(f"{container.ref} is not on {container.host}.")
            return f"{started['Id'][:12]}@{started['State']['StartedAt']}"

    async def observe(self, container: Container, deployment: str | None = None) -> Observation:
        """What the container is doing. `MISSING` if a container with its name is not ours."""
        with self._docker(container.host) as client:
            found = await self._own(client, container.ref)
            return _observation(found) if found else Observation(state=ContainerState.MISSING)

    async def stop(self, container: Container, grace_seconds: float) -> None:
        """Ask a container to end, and return once it has ended, or was killed."""
        with self._docker(container.host) as client:
            if found := await self._own(client, container.ref):
                await docker_api.stop(client, found["Id"], math.ceil(grace_seconds))

    async def remove(self, container: Container, *, unproved: bool = False) -> None:
        """Remove a container and its anonymous volumes. Raises `EngineRefused` if it runs."""
        with self._docker(container.host) as client:
            if found := await self._own(client, container.ref):
                await _remove(client, found)

    async def describe(self, container: Container, text: str) -> None:
        """Do nothing: Docker has no place for a description."""

    async def logs(self, container: Container, lines: int) -> list[str]:
        """The last lines that a container wrote to both outputs, in order."""
        with self._docker(container.host) as client:
            found = await self._own(client, container.ref)
            return await docker_api.logs(client, found["Id"], lines) if found else []

    async def close(self) -> None:
        """Close the connections to every host."""
        while self._clients:
            await self._clients.popitem()[1].close()

    # Last, because from here on `list` is not the built-in any more.
    async def list(self, host: str) -> list[ListedContainer]:
        """Every container of this installation on a host. Docker's list has no exit codes."""
        labels = [f"{_INSTALLATION}={self._installation}", _SLOT_ID]
        with self._docker(host) as client:
            return [
                ListedContainer(
                    container=Container(host, _name(found["Names"])),
                    slot_id=int(found["Labels"][_SLOT_ID]),
                    slot_name=found["Labels"][_SLOT_NAME],
                    observation=Observation(state=_state(found["State"]), detail=found["Status"]),
                )
                for found in await client.containers.list(all=True, filters={"label": labels})
            ]

    @contextmanager
    def _docker(self, host: str) -> Iterator[Docker]:
        """The client of a host, opened on first use. Errors in the block become ours."""
        with docker_api.mapped_errors(host):
            if host not in self._hosts:
                raise EngineUnavailable(f"BOTPOOL_DOCKER_HOSTS has no host named {host}.")
            if host not in self._clients:
                self._clients[host] = docker_api.open_client(self._hosts[host])
            yield self._clients[host]

    async def _config(self, client: Docker, spec: ContainerSpec) -> dict[str, Any]:
        labels = {
            _INSTALLATION: self._installation,
            _SLOT_ID: str(spec.slot_id),
            _SLOT_NAME: spec.slot_name,
        }
        options = self._options.get(spec.platform, _DEFAULTS)
        profile = any(option.profile for option in options.security_opt)
        podman = profile and docker_api.is_podman(await client.version())
        return configuration(spec, options, labels, podman=podman)

    async def _own(self, client: Docker, ref: str) -> dict[str, Any] | None:
        """What Docker says about a container, None if it is gone or not ours."""
        found = await docker_api.inspect(client, ref)
        return found if found and _owner(found) == self._installation else None

    async def _make_way(self, client: Docker, spec: ContainerSpec, error: DockerError) -> None:
        """Remove the stopped container of ours that has the name. Raises if there is none."""
        found = await docker_api.inspect(client, spec.name)
        if found is None and error.status == docker_api.CONFLICT:
            raise EngineUnavailable(f"The name {spec.name} is not free yet.") from error
        if found is None:
            raise error
        if (owner := _owner(found)) != self._installation:
            whose = f"the botpool installation {owner}" if owner else "another program"
            raise EngineRefused(
                f"The name {spec.name} is taken on {spec.host} by a container of {whose}."
            ) from error
        await _remove(client, found)


def _owner(found: Mapping[str, Any]) -> str | None:
    """The installation that a container belongs to, if any."""
    labels: Mapping[str, str] = found["Config"]["Labels"] or {}
    return labels.get(_INSTALLATION)


async def _remove(client: Docker, found: Mapping[str, Any]) -> None:
    if _observation(found).state not in STOPPED:
        name = found["Name"].removeprefix("/")
        raise EngineRefused(f"{name} is running: it must be stopped before it can be removed.")
    await docker_api.delete(client, found["Id"])


def _name(names: Sequence[str]) -> str:
    """A container's own name. The list also has the links of other containers: `/other/alias`."""
    return next(name.removeprefix("/") for name in names if "/" not in name.removeprefix("/"))


def _observation(found: Mapping[str, Any]) -> Observation:
    said: Mapping[str, Any] = found["State"]
    state = _state(said["Status"])
    words = (said["Status"], "OOMKilled" if said.get("OOMKilled") else "", said.get("Error", ""))
    return Observation(
        state=state,
        exit_code=said["ExitCode"] if state is ContainerState.EXITED else None,
        restarts=found.get("RestartCount"),
        detail=", ".join(word for word in words if word),
    )


def _state(status: str) -> ContainerState:
    if status not in _STATES:
        raise EngineUnavailable(f"Docker reports the unknown container status `{status}`.")
    return _STATES[status]
